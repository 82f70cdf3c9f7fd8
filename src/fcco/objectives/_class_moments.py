"""Weighted moments of the scores of each task's positives and negatives, as one node of the graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fcco.objectives._means import check_not_empty


class ClassMoments(torch.autograd.Function):
    r"""Per block: :math:`\sum_k w_k (h_k - c)^2` over positives and over negatives, and their :math:`\sum_k w_k h_k`.

    One node in place of two dozen small ones, whose bookkeeping took longer than the arithmetic.

    Args:
        outputs: (K, T) scores.
        a: (T,) the c of positives; ``b``: of negatives; None: both are 0.
        task: (B,) the column of each block, each once.
        entering: (B, 2, K) bool, which examples are positives and which negatives: the others may be infinite.
        weight: (B, 2, K) w of them, 0 where an example does not enter.

    Returns:
        (B, 3): both sums of squares, and the mean of the negatives less that of the positives; without a and b
        (B, 4): both sums of squares, both means.
    """

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, a: Tensor | None, b: Tensor | None, task: Tensor, entering: Tensor, weight: Tensor
    ) -> Tensor:
        h = _columns(outputs, task, entering)  # (B, 2, K)
        apart = _apart(h, a, b, task)
        weighted = weight * apart
        ctx.save_for_backward(outputs, a, b)  # the inputs that a second derivative goes back to
        ctx.task = task
        ctx.entering = entering
        ctx.weight = weight
        ctx.weighted = weighted
        ctx.has_centers = a is not None
        return _g((weighted * apart).sum(2), (weight * h).sum(2), ctx.has_centers)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        outputs, a, b = ctx.saved_tensors
        task = ctx.task
        weight = ctx.weight
        weighted = ctx.weighted
        if torch.is_grad_enabled():  # this derivative will be differentiated itself
            weighted = weight * _apart(_columns(outputs, task, ctx.entering), a, b, task)
        each = slope.unsqueeze(2)  # (B, 3 or 4, 1)
        of_squares = weighted * (2.0 * each[:, :2])  # (B, 2, K)
        if ctx.has_centers:
            of_means = weight * torch.cat([-each[:, 2:], each[:, 2:]], 1)
        else:
            of_means = weight * each[:, 2:]
        of_h = (of_squares + of_means).sum(1)  # (B, K)
        columns = of_h.new_zeros(outputs.shape[::-1]).index_copy(0, task, of_h).t()  # (K, T)
        if not ctx.has_centers:
            return columns, None, None, None, None, None
        of_centers = of_squares.sum(2).t()  # (2, B), less its sign
        centers = of_h.new_zeros(2, outputs.shape[1]).index_add(1, task, of_centers, alpha=-1)
        return columns, centers[0], centers[1], None, None, None

    @staticmethod
    def jvp(ctx: Any, outputs: Tensor | None, a: Tensor | None, b: Tensor | None, *_: None) -> Tensor:
        # An input that does not move comes without a change.
        h = torch.zeros_like(ctx.weighted)  # (B, 2, K)
        if outputs is not None:
            h = _columns(outputs, ctx.task, ctx.entering)
        centers = h.new_zeros(h.shape[0], 2)
        if a is not None:
            centers[:, 0] = a[ctx.task]
        if b is not None:
            centers[:, 1] = b[ctx.task]
        squares = 2.0 * (ctx.weighted * (h - centers.unsqueeze(2))).sum(2)
        return _g(squares, (ctx.weight * h).sum(2), ctx.has_centers)


def _columns(outputs: Tensor, task: Tensor, entering: Tensor) -> Tensor:
    """The scores by each block's task, 0 where an example does not enter: (B, 2, K)."""
    h = outputs.index_select(1, task).t()  # (B, K)
    return torch.where(entering, h.unsqueeze(1), 0.0)


def _apart(h: Tensor, a: Tensor | None, b: Tensor | None, task: Tensor) -> Tensor:
    """h less the centers of positives and of negatives: (B, 2, K)."""
    if a is None or b is None:
        return h
    centers = torch.stack([a, b], 1).index_select(0, task)  # (B, 2)
    return h - centers.unsqueeze(2)


def _g(squares: Tensor, means: Tensor, has_centers: bool) -> Tensor:
    if has_centers:
        means = means[:, 1:] - means[:, :1]  # of the negatives, less that of the positives
    return torch.cat([squares, means], 1)


def by_class(weight: Tensor) -> Tensor:
    """Weights (K,) or (B, K) so that they stand for positives and for negatives: they broadcast to (B, 2, K)."""
    if weight.dim() == 1:
        return weight
    return weight.unsqueeze(1)


def equal_shares(entering: Tensor, dtype: torch.dtype, index: Tensor) -> Tensor:
    """Weights of plain means over positives and over negatives (B, 2, K); a block (B,) without some is an error."""
    count = entering.sum(2)  # (B, 2)
    check_not_empty(count[:, 0], index, "positives")
    check_not_empty(count[:, 1], index, "negatives")
    return entering / count.unsqueeze(2).to(dtype)
