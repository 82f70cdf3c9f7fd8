"""PNormPush: few positives below any negative, most of all below the highest negatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from fcco._support import checks
from fcco.objectives._average_precision import ZERO, AnchoredObjective, log_or_zero, scaled, shares
from fcco.objectives._base import beside, log_mean_exp_over, widened
from fcco.objectives._partial_auc import soft_maximum
from fcco.objectives._surrogates import Logistic, Surrogate
from fcco.sampling.batch import Average, Batch


@final
@dataclass(frozen=True)
class Exponential:
    """exp(sharpness * x), the loss of Rudin's paper.

    Example:
        >>> Exponential()(torch.tensor([0.0, 1.0]))
        tensor([1.0000, 2.7183])
    """

    sharpness: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("sharpness", self.sharpness)

    def __call__(self, x: Tensor) -> Tensor:
        return (self.sharpness * x).exp()


class PNormPush(AnchoredObjective):
    r"""The p-norm push: a ranking loss that presses on the top of the list.

    .. math::
        F(w) = \frac1{n_-} \sum_{i: y_i = 0} \Big( \frac1{n_+} \sum_{j: y_j = 1} \ell(h_i - h_j) \Big)^p

    Block i is negative i (with ``block_task``, a (task, negative) pair). :math:`g_i = E_+\,\ell(h_i - h_j)`, tracked in
    the log domain, and :math:`f_i(u) = u^p`; p = 1 is the AUC, large p looks at the highest negative. The power of a
    large u may leave the range of the floats. ``logarithm=True`` minimises a growing function of the same, the
    logarithm of the p-norm, which cannot:

    .. math::
        \frac1p \log F(w) = \min_v \frac1{n_-} \sum_{i: y_i = 0} v + \tfrac1p (\phi(p (\log g_i - v)) - 1)

    with a trained variable v (one a task) and :math:`\phi` as in :class:`PartialAUC`.

    Args:
        model: (K, ...) -> (K,) or (K, 1) scores; with ``block_task`` (K, T), a column a task.
        num_blocks: m, how many negatives the data holds (over all tasks).
        p: >= 1.
        loss: l, by default ``Logistic()``; ``Exponential()`` is the reference's own.
        logarithm: the second form.
        start: v at the start (second form).
        block_task: (m,) the task 0..T-1 of each block, for several labels an example; tasks count equally.

    A batch carries ``anchor`` (B,), which points at negatives here, and ``y`` (0/1, NaN where missing; see
    :class:`AnchoredObjective`); the mean is over its positives.

    Example:
        >>> from fcco.sampling.batch import Batch
        >>> objective = PNormPush(nn.Linear(4, 1), num_blocks=3, p=4.0)
        >>> y = torch.tensor([1, 1, 1, 0, 0, 0])
        >>> batch = Batch(torch.randn(6, 4), torch.arange(6), y=y, anchor=torch.tensor([3, 5]))
        >>> objective(torch.tensor([0, 2]), batch).shape
        torch.Size([2, 1])

    Reference: Rudin, The P-Norm Push: A Simple Convex Ranking Algorithm that Concentrates at the Top of the List,
    JMLR 2009 (sums there, means here).
    """

    anchors: ClassVar[str] = "negative"
    average: ClassVar[Average | None] = Average.OPPOSITE
    mean_of_exponentials = False

    def __init__(
        self,
        model: nn.Module,
        num_blocks: int,
        *,
        p: float = 2.0,
        loss: Surrogate | Exponential | None = None,
        logarithm: bool = False,
        start: float = 0.0,
        block_task: Tensor | None = None,
    ) -> None:
        super().__init__(model, num_blocks, 1, True, block_task)
        if checks.positive("p", p) < 1.0:
            raise ValueError(f"p must be >= 1, got {p}")
        self.p = float(p)
        self.loss = Logistic() if loss is None else loss
        self.v = nn.Parameter(beside(model, torch.full((self.num_tasks,), float(start)))) if logarithm else None

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        if isinstance(self.loss, Logistic | Exponential):
            outputs = widened(outputs)
        x, positive, _ = self.pairs(index, outputs, batch)
        if isinstance(self.loss, Exponential):
            exponents, rows = -self.loss.sharpness * x, index[: positive.shape[0]]
            return log_mean_exp_over(exponents, positive, batch.weight, rows, "positives").unsqueeze(1)
        log_scale, l = scaled(self.loss, -x, positive)
        share = shares(l, positive, batch.weight, index, "positives")
        return log_or_zero((l * share).sum(1, keepdim=True), log_scale)

    def project(self, u: Tensor) -> Tensor:
        """u >= 0, as g is."""
        return u.clamp(min=ZERO)

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        log_u = u.squeeze(1)
        if self.v is None:
            return self.weighted(index, (self.p * log_u).exp())
        v = self.v if self.block_task is None else self.v[self.block_task[index]]
        size = self.num_blocks if self.block_size is None else self.block_size[index]
        return self.weighted(index, soft_maximum(log_u, v.to(log_u.dtype), 1.0 / self.p, size))
