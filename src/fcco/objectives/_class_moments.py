"""Weighted moments of the scores of each task's positives and negatives, as one node of the graph."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcco.objectives._means import check_not_empty


class Classes(NamedTuple):
    """Who is a positive and who a negative of each block's task.

    Args:
        task: (B,) the column of each block, each once.
        absent: (B, 1, K) bool, which examples are neither of the two: they may have any score.
        weight: (B, 2, K) how much each counts as a positive, and as a negative: 0 where it is none.
        difference: (B, 1, K) the second less the first.
    """

    task: Tensor
    absent: Tensor
    weight: Tensor
    difference: Tensor

    @classmethod
    def of(cls, task: Tensor, entering: Tensor, weight: Tensor) -> Classes:
        """From (B, 2, K) bool, who enters, and their weights."""
        absent = entering.any(1, keepdim=True).logical_not_()
        return cls(task, absent, weight, weight.diff(dim=1))


class ClassPattern(NamedTuple):
    """Which examples of a batch are positives and which negatives of the block that each serves, whatever its task is.

    A loader's batches have the same pattern again and again, and to see that takes a third of the time of making the
    masks and weights.

    Args:
        serves: (K,) the place of the block that each example serves.
        weight: (K,) how much each counts.
        positive: (K,) bool, which are of that block's class; ``labelled``: which are of any.
        classes: what follows; their tasks are those of the batch that it was made from.
    """

    serves: Tensor
    weight: Tensor
    positive: Tensor
    labelled: Tensor
    classes: Classes

    @classmethod
    def of(cls, serves: Tensor, weight: Tensor, y: Tensor, classes: Classes) -> ClassPattern | None:
        """The pattern of a batch with class numbers y (K,); None: one of its examples serves all blocks."""
        if int(serves.amin()) < 0:
            return None
        positive = y == classes.task.index_select(0, serves)
        # Copies: the user may write to what the batch holds.
        return cls(serves.clone(), weight.clone(), positive, y >= 0, classes)

    def at(self, task: Tensor, serves: Tensor, weight: Tensor, y: Tensor, dtype: torch.dtype) -> Classes | None:
        """The classes of another batch, with blocks of the tasks (B,); None: it has another pattern."""
        if self.classes.weight.dtype != dtype or self.classes.task.shape != task.shape:
            return None
        if weight.dtype != self.weight.dtype or y.shape != self.serves.shape:
            return None
        if not (torch.equal(serves, self.serves) and torch.equal(weight, self.weight)):
            return None
        positive = y == task.index_select(0, serves)
        if not (torch.equal(positive, self.positive) and torch.equal(y >= 0, self.labelled)):
            return None
        return self.classes._replace(task=task)


class ClassMoments(torch.autograd.Function):
    r"""Per block: :math:`\sum_k w_k (h_k - c)^2` over positives and over negatives, and their :math:`\sum_k w_k h_k`.

    One node in place of two dozen small ones, whose bookkeeping took longer than the arithmetic.

    Args:
        outputs: (K, T) scores.
        a: (T,) the c of positives; ``b``: of negatives; None: both are 0.
        classes: who is what.

    Returns:
        (B, 3): both sums of squares, and the mean of the negatives less that of the positives; without a and b
        (B, 4): both sums of squares, both means.
    """

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, a: Tensor | None, b: Tensor | None, classes: Classes) -> Tensor:
        h = _columns(outputs, classes)  # (B, 1, K)
        apart = _apart(h, a, b, classes.task)  # (B, 2, K), or h itself
        weighted = classes.weight * apart  # (B, 2, K)
        ctx.save_for_backward(outputs, a, b)  # the inputs that a second derivative goes back to
        ctx.classes = classes
        ctx.weighted = weighted
        ctx.has_centers = a is not None
        return _g((weighted * apart).sum(2), h, classes, ctx.has_centers)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        outputs, a, b = ctx.saved_tensors
        task, _, weight, difference = ctx.classes
        weighted = ctx.weighted
        if torch.is_grad_enabled():  # this derivative will be differentiated itself
            weighted = weight * _apart(_columns(outputs, ctx.classes), a, b, task)
        by_squares = slope.narrow(1, 0, 2)  # (B, 2)
        by_means = slope.narrow(1, 2, slope.shape[1] - 2)  # (B, 1), or (B, 2) without centers
        of_squares = weighted * (2.0 * by_squares).unsqueeze(2)  # (B, 2, K)
        if not ctx.has_centers:
            of_h = (of_squares + weight * by_means.unsqueeze(2)).sum(1)  # (B, K)
            return _to_outputs(of_h, task, outputs), None, None, None
        of_h = torch.addcmul(of_squares.sum(1), difference.squeeze(1), by_means)
        of_centers = of_squares.sum(2).t()  # (2, B), less its sign
        centers = of_h.new_zeros(2, outputs.shape[1]).index_copy_(1, task, of_centers.neg())  # each task once
        return _to_outputs(of_h, task, outputs), *centers.unbind(0), None

    @staticmethod
    def jvp(ctx: Any, outputs: Tensor | None, a: Tensor | None, b: Tensor | None, _: None) -> Tensor:
        classes = ctx.classes
        # An input that does not move comes without a change.
        h = torch.zeros_like(classes.difference)  # (B, 1, K)
        if outputs is not None:
            h = _columns(outputs, classes)
        centers = h.new_zeros(h.shape[0], 2)
        if a is not None:
            centers[:, 0] = a[classes.task]
        if b is not None:
            centers[:, 1] = b[classes.task]
        squares = 2.0 * (ctx.weighted * (h - centers.unsqueeze(2))).sum(2)
        return _g(squares, h, classes, ctx.has_centers)


def _columns(outputs: Tensor, classes: Classes) -> Tensor:
    """The scores by each block's task, 0 where an example is neither: (B, 1, K)."""
    h = outputs.index_select(1, classes.task).t()  # (B, K)
    return h.unsqueeze(1).masked_fill(classes.absent, 0.0)


def _apart(h: Tensor, a: Tensor | None, b: Tensor | None, task: Tensor) -> Tensor:
    """h less the centers of positives and of negatives: (B, 2, K); h itself without centers."""
    if a is None or b is None:
        return h
    centers = torch.stack([a, b], 1).index_select(0, task)  # (B, 2)
    return h - centers.unsqueeze(2)


def _to_outputs(of_h: Tensor, task: Tensor, outputs: Tensor) -> Tensor:
    """The derivative by the outputs (K, T) from that by the columns of the tasks (B, K)."""
    return of_h.new_zeros(outputs.shape[::-1]).index_copy_(0, task, of_h).t()


def _g(squares: Tensor, h: Tensor, classes: Classes, has_centers: bool) -> Tensor:
    if has_centers:
        return torch.cat([squares, (classes.difference * h).sum(2)], 1)
    return torch.cat([squares, (classes.weight * h).sum(2)], 1)


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
