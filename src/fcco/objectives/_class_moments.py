"""Weighted moments of the scores of each task's positives and negatives, as one node of the graph."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcco.objectives._means import check_not_empty

FEW = 4096  # examples: sums over more of them, one after the other, would lose digits in single precision


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


class ClassesByExample(NamedTuple):
    """The same where each example is a positive or a negative of one block: K numbers in place of B times as many.

    The three numbers of each block's g are laid end to end here, and so are the centers a and b.

    Args:
        column: (K, 1) the task of each example's block.
        center: (K,) where the center that its score is compared with stands.
        beyond: (K,) ``center`` less ``column``: 0 for positives, T for negatives.
        square: (K,) where in g its square enters.
        mean: (K,) where in g its score enters.
        weight: (K,) how much it counts.
        signed: (K,) the same, below 0 for positives.
        blocks: B.
    """

    column: Tensor
    center: Tensor
    beyond: Tensor
    square: Tensor
    mean: Tensor
    weight: Tensor
    signed: Tensor
    blocks: int

    @classmethod
    def of(cls, task: Tensor, serves: Tensor, positive: Tensor, weight: Tensor, num_tasks: int) -> ClassesByExample:
        """From the tasks (B,), the block of each example (K,), who is a positive of it (K,), and weights (K,)."""
        column = task.index_select(0, serves)  # (K,)
        beyond = num_tasks * positive.logical_not()
        mean = 3 * serves + 2
        return cls(
            column=column.unsqueeze(1),
            center=column + beyond,
            beyond=beyond,
            square=torch.where(positive, mean - 2, mean - 1),
            mean=mean,
            weight=weight.clone(),  # the user may write to what the batch holds
            signed=torch.where(positive, -weight, weight),
            blocks=task.shape[0],
        )

    def at(self, column: Tensor) -> ClassesByExample:
        """The same for blocks of other tasks, given for each example (K,)."""
        return self._replace(column=column.unsqueeze(1), center=column + self.beyond)


class ClassPattern(NamedTuple):
    """Which examples of a batch are positives and which negatives of the block that each serves, whatever its task is.

    A loader's batches have the same pattern again and again, and to see that takes a third of the time of making the
    masks and weights.

    Args:
        serves: (K,) the place of the block that each example serves.
        weight: (K,) how much each counts.
        positive: (K,) bool, which are of that block's class; ``labelled``: which are of any.
        blocks: B.
        dtype: of the weights in ``classes``.
        classes: what follows; their tasks are those of the batch that it was made from.
    """

    serves: Tensor
    weight: Tensor
    positive: Tensor
    labelled: Tensor
    blocks: int
    dtype: torch.dtype
    classes: Classes | ClassesByExample

    @classmethod
    def of(
        cls, task: Tensor, serves: Tensor, weight: Tensor, y: Tensor, classes: Classes, *, centers: int | None
    ) -> ClassPattern | None:
        """The pattern of a batch with class numbers y (K,); None: one of its examples serves all blocks.

        Args:
            centers: T where classes by example will do; None: they will not.
        """
        if int(serves.amin()) < 0:
            return None
        positive = y == task.index_select(0, serves)
        labelled = y >= 0
        dtype = classes.weight.dtype
        found: Classes | ClassesByExample = classes
        if centers is not None and serves.shape[0] <= FEW and bool(labelled.all()):
            found = ClassesByExample.of(task, serves, positive, weight.to(dtype), centers)
        # Copies: the user may write to what the batch holds.
        return cls(serves.clone(), weight.clone(), positive, labelled, task.shape[0], dtype, found)

    def at(
        self, task: Tensor, serves: Tensor, weight: Tensor, y: Tensor, dtype: torch.dtype
    ) -> Classes | ClassesByExample | None:
        """The classes of another batch, with blocks of the tasks (B,); None: it has another pattern."""
        if self.dtype != dtype or self.blocks != task.shape[0]:
            return None
        if weight.dtype != self.weight.dtype or y.shape != self.serves.shape:
            return None
        if not (torch.equal(serves, self.serves) and torch.equal(weight, self.weight)):
            return None
        column = task.index_select(0, serves)  # (K,)
        if not (torch.equal(y == column, self.positive) and torch.equal(y >= 0, self.labelled)):
            return None
        if isinstance(self.classes, ClassesByExample):
            return self.classes.at(column)
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


class MomentsByExample(torch.autograd.Function):
    """The same, with centers, where each example is a positive or a negative of one block: (B, 3).

    Args:
        outputs: (K, T) scores.
        a: (T,) the centers of positives; ``b``: of negatives.
        classes: who is what.
    """

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, a: Tensor, b: Tensor, classes: ClassesByExample) -> Tensor:
        h, apart = _apart_by_example(outputs, a, b, classes)  # (K,) each
        weighted = classes.weight * apart
        ctx.save_for_backward(outputs, a, b)  # the inputs that a second derivative goes back to
        ctx.classes = classes
        ctx.weighted = weighted
        g = h.new_zeros(3 * classes.blocks).index_add_(0, classes.square, weighted * apart)
        return g.index_add_(0, classes.mean, classes.signed * h).view(-1, 3)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        outputs, a, b = ctx.saved_tensors
        classes = ctx.classes
        weighted = ctx.weighted
        if torch.is_grad_enabled():  # this derivative will be differentiated itself
            weighted = classes.weight * _apart_by_example(outputs, a, b, classes)[1]
        by_g = slope.flatten()  # (3 B,)
        of_square = (2.0 * weighted) * by_g.index_select(0, classes.square)  # (K,)
        of_h = torch.addcmul(of_square, classes.signed, by_g.index_select(0, classes.mean))  # (K,)
        of_outputs = of_h.new_zeros(outputs.shape).scatter_(1, classes.column, of_h.unsqueeze(1))
        centers = of_h.new_zeros(2 * a.shape[0]).index_add_(0, classes.center, of_square, alpha=-1)
        return of_outputs, *centers.view(2, -1).unbind(0), None

    @staticmethod
    def jvp(ctx: Any, outputs: Tensor | None, a: Tensor | None, b: Tensor | None, _: None) -> Tensor:
        classes = ctx.classes
        # An input that does not move comes without a change.
        h = torch.zeros_like(classes.weight)  # (K,)
        if outputs is not None:
            h = outputs.gather(1, classes.column).squeeze(1)
        apart = h
        if a is not None:
            apart = apart - torch.cat([a, torch.zeros_like(a)]).index_select(0, classes.center)
        if b is not None:
            apart = apart - torch.cat([torch.zeros_like(b), b]).index_select(0, classes.center)
        g = h.new_zeros(3 * classes.blocks).index_add(0, classes.square, 2.0 * ctx.weighted * apart)
        return g.index_add(0, classes.mean, classes.signed * h).view(-1, 3)


def _apart_by_example(outputs: Tensor, a: Tensor, b: Tensor, classes: ClassesByExample) -> tuple[Tensor, Tensor]:
    """The score of each example in its block's column, and the same less its center: (K,) each."""
    h = outputs.gather(1, classes.column).squeeze(1)
    return h, h - torch.cat([a, b]).index_select(0, classes.center)


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
