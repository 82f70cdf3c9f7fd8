"""Form: the objective as a function of the outputs in the table, F(w) = Phi(s_1(w), ..., s_n(w)).

An objective names its form (``OutputObjective.table_form``), a surrogate its kernel. A form holds structure alone:
which examples are compared. The outputs come from the table; what else it remembers (``rows``) is handed in and out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol, final

import torch
from torch import Tensor, nn

from fcco._objective import Objective, has_slope
from fcco.data import Batch, Blocks
from fcco.data._draws import exact_dtype
from fcco.memory._table import Entries


class Evaluation(NamedTuple):
    """What an evaluation gives.

    Args:
        c: dPhi/ds of the examples asked for, shaped as their outputs.
        f: f_i of the blocks that took part, at the table.
        param_gradients: those of the objective's own parameters (a threshold, a temperature), not the network's.
        rows: what the next evaluation is to be given.
        part: which of the blocks that ``f`` is of took part, as a mask of its shape; None: all of them. Their number
            would be a shape that depends on data.
    """

    c: Tensor
    f: Tensor
    param_gradients: list[Tensor]
    rows: list[Tensor]
    part: Tensor | None = None


class TableObjective(Protocol):
    """What forms ask of an objective."""

    num_blocks: int
    dim: int
    log_domain: tuple[bool, ...]

    @property
    def blocks(self) -> Blocks:
        """What the blocks are."""

    def objective_params(self) -> list[nn.Parameter]:
        """What is trained besides the network."""

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        """g of the blocks (B, dim) from the outputs."""

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        """f of the blocks (B,)."""

    def outer_and_slope(self, index: Tensor, u: Tensor) -> tuple[Tensor, Tensor] | None:
        """The same with its derivative, where that is known."""


class Form(ABC):
    """Evaluates Phi and its derivatives at the table; abstract.

    Attributes:
        objective_params: the objective's own parameters, not the network's.
        max_changed_fraction: of the table, between two evaluations of all of it.
        capturable: whether on an accelerator :meth:`evaluate` has fixed shapes and makes nobody wait, so that a CUDA
            graph can hold it; as the table is now.
        why_not: one sentence, where it is not.
    """

    objective_params: list[nn.Parameter]
    max_changed_fraction: float = 1 / 12
    why_not: str = ""

    @property
    def capturable(self) -> bool:
        """Whether a captured step can hold :meth:`evaluate`, as the table is now."""
        return True

    def start_rows(self) -> list[Tensor]:
        """The rows before the first evaluation; most forms have none."""
        return []

    @abstractmethod
    def evaluate_all(self, rows: list[Tensor]) -> Evaluation:
        """c of every example (N, ...), all rows anew.

        Args:
            rows: of the evaluation before; the new ones take their place.
        """

    @abstractmethod
    def evaluate(self, ids: Tensor, rows: list[Tensor], old: Entries | None = None) -> Evaluation:
        """c of the examples (K,) alone, whose outputs have just been written.

        Of an example that is there more than once the last c counts (``old.once``).

        Args:
            ids: on the table's device.
            rows: of the last evaluation; left as they are.
            old: what the examples had before they were written; None: nothing is known of it, and each is there once.
        """

    @abstractmethod
    def cost(self) -> int:
        """What :meth:`evaluate_all` costs, in pairs of examples."""


class OuterValues(NamedTuple):
    """f (B,), what F gains per unit of u (B, dim), and the gradients of the objective's own parameters."""

    f: Tensor
    slope: Tensor
    param_gradients: list[Tensor]


@final
class Outer:
    """The objective's f over blocks that count differently."""

    def __init__(self, objective: TableObjective) -> None:
        self._objective = objective
        self.params = objective.objective_params()
        assert isinstance(objective, Objective)
        self._is_known = not self.params and has_slope(objective)

    def at(self, index: Tensor, u: Tensor, share: Tensor) -> OuterValues:
        """f of the blocks (B,) at u (B, dim), and the derivatives of sum_i share_i f_i; share (B,)."""
        if self._is_known:
            known = self._objective.outer_and_slope(index, u)
            if known is not None:
                f, slope = known
                return OuterValues(f, (share.unsqueeze(1) * slope).to(u.dtype), [])
        leaf = u.detach().requires_grad_()
        with torch.enable_grad():
            f = self._objective.outer(index, leaf)
            wanted = [leaf, *self.params]
            slope, *gradients = torch.autograd.grad(f, wanted, share.to(f.dtype), materialize_grads=True)
        return OuterValues(f.detach(), slope.to(u.dtype), gradients)


@final
class BlockShares:
    """What each block counts in F where some take no part: the others of its stratum stand for it, as they weigh.

    Args:
        blocks: all of them.
        device: where the shares are wanted.
    """

    def __init__(self, blocks: Blocks, device: torch.device) -> None:
        self._num_blocks = blocks.num_blocks
        stratum = blocks.block_stratum
        if stratum is None:
            stratum = torch.zeros(blocks.num_blocks, dtype=torch.int64)
        weight = blocks.block_weight
        if weight is None:
            weight = torch.ones(blocks.num_blocks)
        self._stratum = stratum.to(device)
        self._weight = weight.to(device, exact_dtype(device))
        self._strata = int(self._stratum.max()) + 1
        self._total = self._by_stratum(torch.arange(blocks.num_blocks, device=device))
        self._whole = self._weight.new_full((blocks.num_blocks,), 1.0 / blocks.num_blocks)

    def at(self, index: Tensor, *, complete: bool) -> Tensor:
        """(B,) of the blocks that take part; ``complete``: all others do as well."""
        if complete:
            return self._weight.new_full(index.shape, 1.0 / self._num_blocks)
        there = self._by_stratum(index)  # (S,) what those that take part weigh together
        return self._scale(there)[self._stratum[index]]  # (B,)

    def of_all(self, part: Tensor | None) -> Tensor:
        """(m,) of all blocks, 0 where one takes no part; ``part``: (m,) bool, None: all do."""
        if part is None:
            return self._whole
        weight = self._weight * part
        there = weight.new_zeros(self._strata).index_add(0, self._stratum, weight)  # (S,)
        return torch.where(part, self._scale(there)[self._stratum], 0.0)

    def _scale(self, there: Tensor) -> Tensor:
        """(S,) what a block counts, from what those that take part weigh together."""
        return self._total / (there.clamp(min=torch.finfo(there.dtype).tiny) * self._num_blocks)

    def _by_stratum(self, index: Tensor) -> Tensor:
        return self._weight.new_zeros(self._strata).index_add(0, self._stratum[index], self._weight[index])


def add_to(totals: list[Tensor], parts: Sequence[Tensor | None]) -> None:
    """Add what there is to the totals, in place."""
    for total, part in zip(totals, parts, strict=True):
        if part is not None:
            total += part


def joined(parts: list[Tensor], like: Tensor) -> Tensor:
    """The parts one after another, nothing where there are none."""
    if not parts:
        return like.new_zeros(0)
    return torch.cat(parts)


def example_weights(blocks: Blocks, device: torch.device) -> Tensor:
    """(N,) what the examples weigh, 1 where the data have no weights."""
    ids = torch.arange(blocks.data.num_examples, device=blocks.device)
    return blocks.worth(ids).to(device, exact_dtype(device))


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on the device; CUDA takes what it needs at once, so nothing waits for the copy."""
    return tensor.to(device, non_blocking=device.type == "cuda")
