"""Passes over all data: exact g_i(w) for every block, and exact gradients for given slopes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, NoReturn, final

import torch
from torch import Tensor

from fcco.data import Batch
from fcco.solver._bad_rows import bad_rows, told
from fcco.solver._blocks import BlockTable
from fcco.solver._evaluator import Evaluator
from fcco.solver._gradients import NonFiniteError, all_finite, clear, gradients, name_blocks

#: Returns an iterator of batches, or of ``(index, *data)``, whose rows add up per block to g_i(w).
FullPass = Callable[[], Iterable[Any]]


class FullGradient(NamedTuple):
    """f_i(u_i) (owned,), g_i(w) (owned, dim) from the same pass (plain components only), and the samples it took."""

    f: Tensor
    g: Tensor
    samples: int


@final
class AllData:
    """The passes over all data for this rank's blocks.

    Args:
        evaluator: of the objective.
        table: gives the blocks and the shape of their rows.
        full_pass: where the data come from.

    Attributes:
        row_counts: (owned,) how many rows of the last pass each block came in.
    """

    def __init__(self, evaluator: Evaluator, table: BlockTable, full_pass: FullPass) -> None:
        self._evaluator = evaluator
        self._table = table
        self._geometry = table.geometry
        self._full_pass = full_pass
        self.row_counts = torch.zeros_like(table.visited, dtype=torch.int64)

    @torch.no_grad()
    def values(self) -> Tensor:
        """g_i(w) of every owned block (owned, dim), rows of one block added up."""
        evaluator = self._evaluator
        total = torch.zeros_like(self._table.rows)
        if evaluator.log_domain is not None:
            total = torch.where(evaluator.log_domain, -torch.inf, total)  # log 0
        for index, data in self._batches():
            rows = evaluator.rows(evaluator.inner(index, data))  # (B, dim)
            _add_up(total, self._geometry.local(index), rows, evaluator.log_domain)
        return total

    @torch.no_grad()
    def outer(self, u: Tensor) -> Tensor:
        """f_i(u_i) of every owned block (owned,)."""
        return self._evaluator.objective.outer(self._blocks(), u)

    def _blocks(self) -> Tensor:
        geometry = self._geometry
        return torch.arange(geometry.rank, geometry.num_blocks, geometry.world, device=self._table.device)

    def gradient(self, u: Tensor) -> FullGradient:
        """Add (1/m) sum_i grad f_i(u_i) grad g_i(w) to ``p.grad`` (averaged over ranks it is exact)."""
        evaluator = self._evaluator
        geometry = self._geometry
        f, slope = evaluator.outer(self._blocks(), u, geometry.world / geometry.num_blocks)  # (owned,), (owned, dim)
        total = torch.zeros_like(self._table.rows)  # (owned, dim)
        samples = 0
        with evaluator.no_sync():
            for index, data in self._batches():
                local = geometry.local(index)
                g = evaluator.inner(index, data)
                evaluator.backward(g, u[local], slope[local])
                # Plain components only: those in the log domain have had a pass of their own before.
                total.index_add_(0, local, evaluator.rows(g))
                samples += evaluator.samples(index, data)
        return FullGradient(f, total, samples)

    def raise_nonfinite(self, g: Tensor, u: Tensor | None = None) -> NoReturn:
        """Raise the error of a pass that was not finite on some rank; names this rank's blocks.

        Args:
            u: (owned, dim) where the gradient was taken; None: g alone is to blame.
        """
        wrong = self._geometry.names(~torch.isfinite(g).all(1))
        rows: set[int] = set()
        for _, data in self._batches():
            rows |= bad_rows(data)
        if wrong:
            raise NonFiniteError(
                f"full_pass computed a g that is not finite for {name_blocks(wrong)}{told(rows)}", wrong
            )
        if u is not None:
            wrong = self._blame(u)
        if wrong:
            blocks = name_blocks(wrong)
            raise NonFiniteError(f"full_pass computed a gradient that is not finite among {blocks}{told(rows)}", wrong)
        elsewhere = "in its sum over all blocks"
        if self._geometry.world > 1:
            elsewhere = "on another rank"
        raise NonFiniteError(f"full_pass computed values that are not finite {elsewhere}", [])

    def _blame(self, u: Tensor) -> list[int]:
        """The blocks of those batches whose gradient at u (owned, dim) is not finite."""
        evaluator = self._evaluator
        if evaluator.is_sharded:  # a pass is taken by all ranks or by none, and only this one has come here
            return []
        found: set[int] = set()
        for index, data in self._batches():
            clear(evaluator.parameters)
            at = u[self._geometry.local(index)]
            _, slope = evaluator.outer(index, at, 1.0)
            evaluator.backward(evaluator.inner(index, data), at, slope)
            if not all_finite(gradients(evaluator.parameters)):
                found.update(index.tolist())
        return sorted(found)

    def _batches(self) -> Iterator[tuple[Tensor, tuple[Any, ...]]]:
        """The pass's batches as (index, data), checked; at its end, that no block was left out."""
        passed: Any = self._full_pass()
        if not isinstance(passed, Iterable):
            raise TypeError(f"full_pass must return an iterator of (index, *data), got {type(passed).__name__}")
        counts = torch.zeros_like(self.row_counts)  # (owned,)
        for batch in passed:
            if isinstance(batch, Batch):
                index: Any = batch.index
                data: tuple[Any, ...] = (batch.to(self._table.device),)
            elif isinstance(batch, (tuple, list)) and batch:
                index, *rest = batch
                data = tuple(rest)
            else:
                raise TypeError(f"full_pass must yield (index, *data) tuples, got {type(batch).__name__}")
            index = self._table.check(index, name="index of full_pass", repeats=True)
            counts.index_add_(0, self._geometry.local(index), torch.ones_like(index))
            yield index, data
        self.row_counts = counts
        missing = self._geometry.names(counts == 0)
        if missing:
            raise ValueError(f"full_pass must visit every block, but did not visit {name_blocks(missing)}")


_ENOUGH = 4  # blocks: of fewer, a noisy draw may be near half of g by chance


def looks_unweighted(summed: Tensor, drawn: Tensor, counts: Tensor, log_domain: Tensor | None) -> bool:
    """Whether the rows of a pass seem to be means themselves, which were then added up: g is twice what it should be.

    A draw is compared with the sum of a block's rows and with their mean: it should be near the sum.

    Args:
        summed: (B, dim) what the pass gave.
        drawn: (B, dim) what a draw gave, at the same weights.
        counts: (B,) how many rows each block came in.
        log_domain: (dim,) bool, which components hold logarithms; None: none of them.
    """
    several = counts > 1  # (B,)
    if int(several.sum()) < _ENOUGH:
        return False
    count = counts[several].unsqueeze(1).to(summed.dtype)
    summed = summed[several]
    mean = summed / count
    if log_domain is not None:
        mean = torch.where(log_domain, summed - count.log(), mean)
    to_sum = (drawn[several] - summed).square().sum()
    to_mean = (drawn[several] - mean).square().sum()
    return bool(to_sum > 9.0 * to_mean)  # three times as far


def _add_up(total: Tensor, local: Tensor, rows: Tensor, log_domain: Tensor | None) -> None:
    """Add rows (B, dim) to those of their blocks, in place; log components by logaddexp."""
    # A batch may hold several rows of one block, and an indexed write would keep one of them.
    blocks, place = local.unique(return_inverse=True)
    added = total[blocks].index_add(0, place, rows)
    if log_domain is not None:
        top = total[blocks].scatter_reduce(0, place.unsqueeze(1).expand_as(rows), rows, "amax")
        top = torch.where(top > -torch.inf, top, 0.0)  # nothing yet, and nothing new
        # (U, dim), scaled by each block's largest exponent
        mass = (total[blocks] - top).exp().index_add(0, place, (rows - top[place]).exp())
        added = torch.where(log_domain, top + mass.log(), added)
    total[blocks] = added
