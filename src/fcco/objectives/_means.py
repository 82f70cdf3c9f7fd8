"""Weighted means over the examples of a batch, plain and of exponentials under a log, with what log 0 stands for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fcco._support import checks
from fcco._support.fused import fused
from fcco._support.logs import ZERO


def mean_over(values: Tensor, mask: Tensor, weight: Tensor | None, index: Tensor, what: str) -> Tensor:
    """The mean over the marked examples, a number per block; with weights, the weighted sum (no division).

    Args:
        values: (B, K), or broadcastable to it.
        mask: (B, K) bool, which examples enter.
        weight: (K,) or (B, K), or None.
        index: (B,) the blocks, for the error message.
        what: what the examples are ('positives'), for the error message.

    Returns:
        (B,).
    """
    # Selected, not multiplied: a value that does not enter may be infinite.
    zero = values.new_zeros(())
    if weight is not None:
        return torch.where(mask, values * weight.to(values.dtype), zero).sum(1)
    count = mask.sum(1)
    check_not_empty(count, index, what)
    return torch.where(mask, values, zero).sum(1) / count


def shares(like: Tensor, mask: Tensor, weight: Tensor | None, index: Tensor, what: str) -> Tensor:
    """How much each example counts: 1/number over the marked ones, or their weights; (B, K) or (1, K).

    Args:
        like: gives the dtype.
        mask: (B, K) or (1, K) bool, which examples enter.
        weight: (K,) or (B, K), or None.
        index: (B,) the blocks, for the error message.
        what: what the examples are ('positives'), for the error message.
    """
    if weight is not None:
        return mask * weight.to(like.dtype)
    count = mask.sum(1)  # (B,) or (1,)
    check_not_empty(count.expand(index.shape[0]), index, what)
    return mask.to(like.dtype) / count.unsqueeze(1)


def log_mean_exp_over(values: Tensor, mask: Tensor, weight: Tensor | None, index: Tensor, what: str) -> Tensor:
    """log of the mean of exp(values) over the marked examples, stably; as :func:`mean_over` else.

    Args:
        values: (B, K); (K,), the same for every block; or (B, V, K), V means over the same examples.

    Returns:
        (B,) or (B, V).
    """
    log_weight = log_shares(mask, weight, values.dtype, index, what)
    if values.dim() == 1:
        values = values.expand_as(log_weight)
    elif values.dim() == 3:
        log_weight = log_weight.unsqueeze(1)
    return fused(LogSumExp, values, log_weight)


def log_shares(mask: Tensor, weight: Tensor | None, dtype: torch.dtype, index: Tensor, what: str) -> Tensor:
    """log of what each example counts (B, K): the log of its weight, or of 1/number; -inf where it does not enter."""
    if weight is None:
        count = mask.sum(1)
        check_not_empty(count.expand(index.shape[0]), index, what)
        log_weight = count.to(dtype).log().neg().unsqueeze(1)
    else:
        log_weight = weight.to(dtype).log()  # -inf where an example counts nothing
    return torch.where(mask, log_weight, -torch.inf)


class LogSumExp(torch.autograd.Function):
    """log sum_j exp(values_j + log_weight_j) over the last dimension; -inf among the log weights, to which no gradient
    goes, is welcome.

    One node of the graph in place of four, and one exponential per entry in place of two.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, log_weight: Tensor) -> Tensor:
        exponents = values + log_weight  # (..., K)
        top = exponents.amax(-1, keepdim=True)
        top = torch.where(torch.isfinite(top), top, 0.0)  # nothing enters: the sum is 0, its log -inf
        share = exponents.sub_(top).exp_()  # in place: the sum is used nowhere else
        total = share.sum(-1, keepdim=True)
        ctx.save_for_backward(values)
        ctx.log_weight = log_weight
        ctx.share = share.div_(total.clamp(min=1.0))  # below 1 where nothing enters only
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


def log_or_zero(g: Tensor, log_scale: Tensor | float) -> Tensor:
    """log_scale + log g; :data:`ZERO`, with gradient 0, where g is 0."""
    # On an accelerator reading a number would make it wait.
    if g.device.type == "cpu" and g.numel() > 0 and float(g.detach().amin()) > 0.0:
        return g.log() + log_scale
    zero = g <= 0.0
    return (g.masked_fill(zero, 1.0).log() + log_scale).masked_fill(zero, ZERO)


def check_not_empty(count: Tensor, index: Tensor, what: str) -> None:
    """Raise where a block (B,) counts no examples."""
    # On an accelerator this would make it wait; there 0/0 reaches the solver's check, which names the block.
    if count.device.type == "cpu" and bool((count == 0).any()):
        empty = index[count == 0].tolist()
        raise ValueError(f"the batch holds no {what} for block {checks.some(empty)}")
