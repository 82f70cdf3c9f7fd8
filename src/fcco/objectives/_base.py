"""OutputObjective: an objective in two parts, what the network says of each example, and g from that."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fcco._objective import Objective
from fcco._support import checks
from fcco.sampling.batch import Batch
from fcco.sampling.draws import exact_dtype


class OutputObjective(Objective):
    """An objective whose g_i depends on the weights only through one output an example.

    Subclasses write :meth:`values`, a pure function of the outputs (and of trained variables of their own), and
    :meth:`outer`. ``inner`` is the composition of the two parts.

    ``shift_invariant`` says that F does not feel it when one number is added to the outputs of all examples (of each
    query, where examples have queries), in each column its own; what is not declared is not assumed.

    ``features`` says that the numbers of an output are the coordinates of one feature (or several), not scores that
    stand for themselves: the length of a change is then what counts, not each number.

    Args:
        model: maps ``batch.x`` to outputs, a row an example.
        num_blocks: m.
        dim: p.
        log: as in :class:`fcco.Objective`.
    """

    shift_invariant: bool = False
    features: bool = False

    def __init__(
        self, model: nn.Module, num_blocks: int, dim: int = 1, log_domain: bool | tuple[bool, ...] = False
    ) -> None:
        super().__init__(num_blocks, dim, log_domain)
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        self.model = model

    def outputs(self, x: Any) -> Tensor:
        """What the network says of each example: (K, ...) -> (K, ...)."""
        result: Tensor = self.model(*x) if isinstance(x, tuple) else self.model(x)
        return result

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        """g of the blocks (B, dim) from the outputs (K, ...) alone; ``batch.x`` is not looked at."""
        raise NotImplementedError(f"{type(self).__name__} must define values(index, outputs, batch)")

    def inner(self, index: Tensor, *data: Any) -> Tensor:
        batch = self._batch(data)
        return self.values(index, self.outputs(batch.x), batch)

    def samples(self, index: Tensor, *data: Any) -> int:
        return len(self._batch(data))

    def _batch(self, data: tuple[Any, ...]) -> Batch:
        if len(data) != 1 or not isinstance(data[0], Batch):
            got = ", ".join(type(item).__name__ for item in data) or "nothing"
            raise TypeError(f"{type(self).__name__} takes one fcco.Batch beside index, got {got}")
        if data[0].num_blocks not in (None, self.num_blocks):
            raise ValueError(f"num_blocks must be {data[0].num_blocks}, as the loader counts, got {self.num_blocks}")
        return data[0]


def beside(model: nn.Module, value: Tensor) -> Tensor:
    """A start value of a variable of the objective's own: on the model's device, in its precision (single at least)."""
    first = next(model.parameters(), None)
    if first is None:
        return value
    return value.to(first.device, torch.promote_types(first.dtype, torch.float32))


def widened(outputs: Tensor) -> Tensor:
    """Outputs in double precision where the device has it, for losses with exponentials: log g is large then, and
    g - g- lives on its last digits."""
    return outputs.to(exact_dtype(outputs.device))


def single_at_least(outputs: Tensor) -> Tensor:
    """Outputs in single precision where theirs is half: differences of two scores keep no digits there."""
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))


def scores(outputs: Tensor, batch: Batch) -> Tensor:
    """One score an example: (K,) from outputs (K,) or (K, 1)."""
    flat = outputs.squeeze(1) if outputs.dim() == 2 and outputs.shape[1] == 1 else outputs
    if flat.shape != (len(batch),):
        raise ValueError(f"the model must return one score an example, shape ({len(batch)},), got "
                         f"{tuple(outputs.shape)}")  # fmt: skip
    return flat


def need(value: Tensor | None, name: str) -> Tensor:
    """A field of the batch that the objective cannot do without."""
    if value is None:
        raise ValueError(f"batch.{name} must be given for this objective, got None")
    return value


def mean_over(values: Tensor, mask: Tensor, weight: Tensor | None, index: Tensor, what: str) -> Tensor:
    """The mean over the marked examples, a number a block; with weights, the weighted sum (no division).

    Args:
        values: (B, K), or broadcastable to it.
        mask: (B, K) bool, which examples enter.
        weight: (K,) or (B, K), or None.
        index: (B,) the blocks, for the error message.
        what: what the examples are ('positives'), for the error message.

    Returns:
        (B,).
    """
    zero = values.new_zeros(())
    if weight is not None:
        return torch.where(mask, values * weight.to(values.dtype), zero).sum(1)
    count = mask.sum(1)
    refuse_empty(count, index, what)
    return torch.where(mask, values, zero).sum(1) / count


def log_mean_exp_over(values: Tensor, mask: Tensor, weight: Tensor | None, index: Tensor, what: str) -> Tensor:
    """log of the mean of exp(values) over the marked examples, stably; as :func:`mean_over` else.

    Args:
        values: (B, K); (K,), the same for every block; or (B, V, K), V means over the same examples.

    Returns:
        (B,) or (B, V).
    """
    if weight is None:
        count = mask.sum(1)
        refuse_empty(count, index, what)
        log_weight = torch.zeros_like(mask, dtype=values.dtype) - count.to(values.dtype).log().unsqueeze(1)
    else:
        log_weight = weight.to(values.dtype).log()
    log_weight = log_weight.masked_fill(~mask, -torch.inf)
    if values.dim() == 1:
        values = values.expand_as(mask)
    elif values.dim() == 3:
        log_weight = log_weight.unsqueeze(1)
    total: Tensor = LogSumExp.apply(values, log_weight)  # type: ignore[no-untyped-call]
    return total


class LogSumExp(torch.autograd.Function):
    """log sum_j exp(values_j + log_weight_j) over the last dimension; -inf among the log weights, to which no gradient
    goes, is welcome.

    One node of the graph in place of four, and one exponential an entry in place of two.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, log_weight: Tensor) -> Tensor:
        exponents = values + log_weight
        top = exponents.amax(-1, keepdim=True)
        top = torch.where(torch.isfinite(top), top, 0.0)  # nothing enters: the sum is 0, its log -inf
        share = exponents.sub_(top).exp_()
        total = share.sum(-1, keepdim=True)
        ctx.save_for_backward(values)
        ctx.log_weight, ctx.share = log_weight, share.div_(total.clamp(min=1.0))  # below 1 where nothing enters only
        return (total.log_() + top).squeeze(-1)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        share: Tensor = ctx.share
        if torch.is_grad_enabled():  # this derivative will be differentiated itself
            nothing = share.sum(-1, keepdim=True) == 0.0
            share = (ctx.saved_tensors[0] + ctx.log_weight).softmax(-1).masked_fill(nothing, 0.0)
        return slope.unsqueeze(-1) * share, None

    @staticmethod
    def jvp(ctx: Any, change: Tensor, _: None) -> Tensor:
        share: Tensor = ctx.share
        return (share * change).sum(-1)


def refuse_empty(count: Tensor, index: Tensor, what: str) -> None:
    """Raise where a block (B,) counts no examples."""
    # On an accelerator this look would make it wait; there 0/0 reaches the solver's check, which names the block.
    if count.device.type == "cpu" and bool((count == 0).any()):
        empty = index[count == 0].tolist()
        raise ValueError(f"the batch holds no {what} for block {checks.some(empty)}")
