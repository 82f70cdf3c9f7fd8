"""OutputObjective: an objective in two parts, what the network says of each example, and g from that."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from fcco._objective import Objective
from fcco._support import checks
from fcco.data import Batch, Blocks, Loader, full_pass
from fcco.objectives._precision import like_parameters

if TYPE_CHECKING:
    from fcco.memory._table import OutputTable
    from fcco.memory.forms import Form


@runtime_checkable
class OverData(Protocol):
    """An objective over its own data: the ready-made ones, and smoothed versions of those."""

    @property
    def blocks(self) -> Blocks: ...

    @property
    def loader(self) -> Callable[..., Loader]: ...

    @property
    def full_pass(self) -> Callable[..., Iterator[Batch]]: ...

    @property
    def complete(self) -> Callable[[Batch], Batch]: ...

    @property
    def outputs(self) -> Callable[[Any], Tensor]: ...

    @property
    def values(self) -> Callable[[Tensor, Tensor, Batch], Tensor]: ...


class OutputObjective(Objective):
    """An objective whose g_i depend on the weights only through one output per example, over data that say which
    examples are compared.

    Subclasses write :meth:`values`, a pure function of the outputs (and of trained variables of their own), and
    :meth:`outer`. ``inner`` is the composition of the two parts.

    ``shift_invariant`` declares that F is invariant to a number added to the outputs of all examples (of each query,
    with ``shift_per_query``), separately in each column. What is not declared is not assumed.

    ``compares_examples`` declares that blocks compare examples with each other, as all but groups and bags do. The
    output memory needs that.

    ``features`` declares that the numbers of an output are the coordinates of one feature (or several), not scores that
    each stand alone. Then the length of a change counts, and not each number.

    Args:
        model: maps ``batch.x`` to outputs, one row per example. A tuple is passed as ``model(*x)`` and a dict as
            ``model(**x)``. If the result has ``.logits``, these are the outputs.
        blocks: the blocks, made from the data. They determine m.
        dim: p.
        log_domain: as in :class:`fcco.Objective`.

    Attributes:
        data: the data, one of :mod:`fcco.data`.
        blocks: the blocks made from them.
        block_scale: (m,) factor of each block in F. None: 1. See :meth:`register_scale`.
    """

    block_scale: Tensor | None
    shift_invariant: bool = False
    shift_per_query: ClassVar[bool] = False
    compares_examples: ClassVar[bool] = True
    features: ClassVar[bool] = False

    def __init__(
        self, model: nn.Module, blocks: Blocks, *, dim: int = 1, log_domain: bool | tuple[bool, ...] = False
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        super().__init__(blocks.num_blocks, dim, log_domain)
        self.model = model
        self.blocks = blocks
        self.data = blocks.data
        self.register_table("block_scale", None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Data do not change: a copy of the objective reads the same, and no data set is ever copied.
        memo[id(self.data)] = self.data
        memo[id(self.blocks)] = self.blocks
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    # ------------------------------------------------------------------ f and g

    def outputs(self, x: Any) -> Tensor:
        """The network's output for each example: (K, ...) -> (K, ...).

        Args:
            x: of the examples (K, ...), or a tuple or dict of such.
        """
        result = called(self.model, x)
        if not isinstance(result, Tensor):
            raise TypeError(f"the model must return a tensor, or an object with .logits, got {type(result).__name__}")
        return result

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        """g of the blocks (B, dim), from the outputs (K, ...) alone. ``batch.x`` is not read.

        Args:
            index: blocks (B,).
            outputs: of the network (K, ...).
            batch: ids, labels and weights, which say what is compared with what.
        """
        raise NotImplementedError(f"{type(self).__name__} must define values(index, outputs, batch)")

    def inner(self, index: Tensor, *data: Any) -> Tensor:
        batch = self.checked_batch(data)
        return self.values(index, self.outputs(batch.x), batch)

    def samples(self, index: Tensor, *data: Any) -> int:
        return len(self.checked_batch(data))

    # ------------------------------------------------------------------ data

    def loader(
        self,
        blocks: int,
        samples: int,
        *,
        seed: int = 0,
        steps_per_epoch: int | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        large: tuple[int, int] | None = None,
    ) -> Loader:
        """Make a loader of this objective's data, with plain draws that suit every tracker.

        Args:
            blocks: B1, the number of blocks per step, over all ranks.
            samples: B2; see the table in :mod:`fcco.data` for what it counts.
            seed: seed of the loader's own generator.
            steps_per_epoch: batches per iteration. None: as many as draw about N examples.
            num_workers: processes that fetch x.
            pin_memory: whether batches come in pinned memory.
            large: (period, factor): every period-th batch has factor times the blocks and samples.
        """
        return Loader(
            self.blocks,
            blocks,
            samples,
            seed=seed,
            steps_per_epoch=steps_per_epoch,
            num_workers=num_workers,
            pin_memory=pin_memory,
            dtype=self.input_dtype(),
            large=large,
        )

    def full_pass(self, chunk: int = 1024) -> Iterator[Batch]:
        """One pass over all data for this rank's blocks, with weights that make rows add up per block to g itself.

        Args:
            chunk: the largest number of examples in a batch (twice that if blocks are examples).
        """
        return full_pass(self.blocks, chunk, dtype=self.input_dtype())

    def complete(self, batch: Batch) -> Batch:
        """Add blocks and weights to a batch of ``data.batch(...)``. A batch that has its blocks stays as it is.

        Args:
            batch: with its ids.
        """
        self.check_origin(batch)
        if batch.index is not None:
            return batch
        return self.blocks.complete(batch)

    def input_dtype(self) -> torch.dtype | None:
        """The dtype that floating-point x is converted to: that of the model's parameters. None: no conversion."""
        for parameter in self.model.parameters():
            if parameter.is_floating_point():
                return parameter.dtype
        return None

    # ------------------------------------------------------------------ the output memory

    def table_form(self, table: OutputTable) -> Form | None:
        """Return F as a function of a table of outputs in a fast form. None: the generic form, by values and outer.

        It is used only if no subclass overrides ``values`` or ``outer`` of the class that defines it.

        Args:
            table: the outputs.
        """
        return None

    def objective_params(self) -> list[nn.Parameter]:
        """Everything trained besides the network, such as thresholds and temperatures."""
        network = {id(p) for p in self.model.parameters()}
        return [p for p in self.parameters() if p.requires_grad and id(p) not in network]

    # ------------------------------------------------------------------ for subclasses

    def register_table(self, name: str, value: Tensor | None) -> None:
        """Register a table computed from the data (a map, counts, weights) as a buffer on the model's device.

        It is not part of ``state_dict``: the data determine it, and a state of other data must not overwrite it.

        Args:
            name: name of the buffer.
            value: the table, or None.
        """
        first = next(self.model.parameters(), None)  # a model without parameters has no device
        if value is not None and first is not None:
            value = value.to(first.device)
        self.register_fixed_buffer(name, value, persistent=False)

    def register_scale(self, scale: Tensor | None) -> None:
        """Set the factor of each block (m,) in F. None: 1.

        Args:
            scale: (m,), or None.
        """
        if scale is not None:
            scale = like_parameters(self.model, scale)
        self.register_table("block_scale", scale)

    def weighted(self, index: Tensor, f: Tensor) -> Tensor:
        """f (B,) times the factors of the blocks.

        Args:
            index: blocks (B,).
            f: their values (B,).
        """
        if self.block_scale is None:
            return f
        return f * self.block_scale[index].to(f.dtype)

    def checked_batch(self, data: tuple[Any, ...]) -> Batch:
        """Return the batch of a step. Raises if it lacks weights that the data have.

        Args:
            data: the arguments of the step.
        """
        if len(data) != 1 or not isinstance(data[0], Batch):
            got = ", ".join(type(item).__name__ for item in data) or "nothing"
            raise TypeError(f"{type(self).__name__} takes one fcco.data.Batch beside index, got {got}")
        batch = data[0]
        self.check_origin(batch)
        # Plain means over those present would forget the data's weights.
        if batch.weight is None and self.data.weight is not None:
            raise ValueError("batch.weight must be given, since the data have weights; data.batch(ids, x) brings it")
        return batch

    def check_origin(self, batch: Batch) -> None:
        """Raise if the ids of a batch are positions in other data than the objective's.

        Args:
            batch: the batch. One without an ``origin`` is not checked.
        """
        if batch.origin is None:
            return
        mine = self.data.origin()
        if batch.origin != mine:
            raise ValueError(
                f"the batch is of other data ({batch.origin}) than the objective ({mine}): build the objective and the "
                "batches from the same labels, groups, times and weights"
            )


def called(model: nn.Module, x: Any) -> Any:
    """The model's result for ``batch.x``: its logits, where it has any."""
    if isinstance(x, tuple):
        result = model(*x)
    elif isinstance(x, Mapping):
        result = model(**x)
    else:
        result = model(x)
    # What the models of Transformers return is neither a tensor nor a tuple of one.
    logits = getattr(result, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    return result


def check_data(objective: str, data: Any, kind: type[Any]) -> None:
    """Refuse data of another kind than the objective is about."""
    if not isinstance(data, kind):
        raise TypeError(f"{objective} needs fcco.data.{kind.__name__}, got {type(data).__name__}")


def scores(outputs: Tensor, batch: Batch) -> Tensor:
    """One score per example: (K,) from outputs (K,) or (K, 1)."""
    flat = outputs
    if outputs.dim() == 2 and outputs.shape[1] == 1:
        flat = outputs.squeeze(1)
    if flat.shape != (len(batch),):
        raise ValueError(
            f"the model must return one score per example, shape ({len(batch)},), got {tuple(outputs.shape)}"
        )
    return flat


def need(value: Tensor | None, name: str) -> Tensor:
    """A field of the batch that the objective cannot do without."""
    if value is None:
        raise ValueError(f"batch.{name} must be given for this objective, got None")
    return value


def checked_weight(name: str, given: Tensor | None, size: int) -> Tensor | None:
    """Weights (size,) in double precision, none of them negative, some of them above 0; None stays None."""
    if given is None:
        return None
    if torch.is_complex(torch.as_tensor(given)):
        raise TypeError(f"{name} must hold real numbers, got {torch.as_tensor(given).dtype}")
    weight = torch.as_tensor(given).double()  # (size,)
    if weight.shape != (size,):
        raise ValueError(f"{name} must have shape ({size},), got {tuple(weight.shape)}")
    wrong = (~(torch.isfinite(weight) & (weight >= 0))).nonzero()[:, 0].tolist()
    if wrong:
        raise ValueError(f"{name} must be finite and >= 0, got {weight[wrong[0]].item()} at {checks.some(wrong)}")
    if not bool((weight > 0).any()):
        raise ValueError(f"{name} must be > 0 somewhere, got only zeros")
    return weight


def fingerprint(tensor: Tensor | None) -> str | None:
    """A tensor as a short text that another one hardly shares, for ``constants()``."""
    if tensor is None:
        return None
    numbers = tensor.detach().double().cpu().contiguous()
    content = bytes(numbers.contiguous().view(torch.uint8).flatten().tolist())  # without numpy, which may be missing
    return hashlib.sha256(content).hexdigest()[:16]
