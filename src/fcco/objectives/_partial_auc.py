"""PartialAUC: the partial area under the ROC curve, one-way or two-way, through KL-regularised robust losses."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from fcco._support import checks
from fcco.objectives._average_precision import AnchoredObjective
from fcco.objectives._base import beside, log_mean_exp_over, widened
from fcco.objectives._surrogates import SquaredHinge, Surrogate
from fcco.sampling.batch import Average, Batch


class PartialAUC(AnchoredObjective):
    r"""Partial AUC at low false positive rates (one-way), and at high true positive rates too (two-way).

    One-way, with :math:`\lambda` the temperature:

    .. math::
        F(w) = \frac1{n_+} \sum_{i: y_i = 1} \lambda \log \frac1{n_-} \sum_{j: y_j = 0}
               \exp(\ell(h_j - h_i)/\lambda)

    Block i is positive i (with ``block_task``, a (task, positive) pair). :math:`g_i = E_-\exp(\ell(h_j - h_i)/\lambda)`
    in the log domain, and :math:`f_i(u) = \lambda \log u`. Small :math:`\lambda` looks at the hardest negatives only,
    large :math:`\lambda` at all of them alike (the AUC).

    Two-way, with :math:`\lambda'` the positives' temperature, the hardest positives count most:

    .. math::
        F(w) = \lambda' \log \frac1{n_+} \sum_{i: y_i = 1} \exp(f_i(g_i)/\lambda')
             = \min_v \frac1{n_+} \sum_{i: y_i = 1} v + \lambda' (\phi((f_i(g_i) - v)/\lambda') - 1)

    with a trained variable v (one a task). :math:`\phi(t) = e^t` up to :math:`t = \log n_+` and goes on straight from
    there. At the best v no exponential exceeds :math:`n_+`, so the minimum is the same; and a v that is far off gives
    no weight above :math:`n_+` and no overflow.

    Args:
        model: (K, ...) -> (K,) or (K, 1) scores; with ``block_task`` (K, T), a column a task.
        num_blocks: m, how many positives the data holds (over all tasks).
        temperature: lambda > 0.
        positive_temperature: lambda' > 0 for the two-way form; None: one-way.
        loss: l, by default ``SquaredHinge(margin=1)``.
        start: v at the start (two-way).
        block_task: (m,) the task 0..T-1 of each block, for several labels an example; tasks count equally.

    A batch carries ``anchor`` (B,) and ``y`` (0/1, NaN where missing; see :class:`AnchoredObjective`); the mean is
    over its negatives.

    Example:
        >>> from fcco.sampling.batch import Batch
        >>> objective = PartialAUC(nn.Linear(4, 1), num_blocks=3, temperature=0.1)
        >>> y = torch.tensor([1, 1, 1, 0, 0, 0])
        >>> batch = Batch(torch.randn(6, 4), torch.arange(6), y=y, anchor=torch.tensor([0, 2]))
        >>> objective(torch.tensor([0, 2]), batch).shape
        torch.Size([2, 1])

    Reference: Zhu et al., When AUC Meets DRO: Optimizing Partial AUC for Deep Learning with Non-Convex Convergence
    Guarantee, ICML 2022 (SOPA-s one-way, SOTA-s two-way).
    """

    average: ClassVar[Average | None] = Average.OPPOSITE

    def __init__(
        self,
        model: nn.Module,
        num_blocks: int,
        *,
        temperature: float = 1.0,
        positive_temperature: float | None = None,
        loss: Surrogate | None = None,
        start: float = 0.0,
        block_task: Tensor | None = None,
    ) -> None:
        super().__init__(model, num_blocks, 1, True, block_task)
        self.temperature = checks.positive("temperature", temperature)
        self.positive_temperature = positive_temperature
        self.loss = SquaredHinge(margin=1.0) if loss is None else loss
        self.v: nn.Parameter | None = None
        if positive_temperature is not None:
            checks.positive("positive_temperature", positive_temperature)
            self.v = nn.Parameter(beside(model, torch.full((self.num_tasks,), float(start))))

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        x, _, negative = self.pairs(index, widened(outputs), batch)
        exponents = self.loss(x) / self.temperature
        rows = index[: negative.shape[0]]
        return log_mean_exp_over(exponents, negative, batch.weight, rows, "negatives").unsqueeze(1)

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        f = self.temperature * u.squeeze(1)
        if self.v is None or self.positive_temperature is None:
            return self.weighted(index, f)
        v = self.v if self.block_task is None else self.v[self.block_task[index]]
        size = self.num_blocks if self.block_size is None else self.block_size[index]
        return self.weighted(index, soft_maximum(f, v.to(f.dtype), self.positive_temperature, size))

    def outer_and_slope(self, index: Tensor, u: Tensor) -> tuple[Tensor, Tensor] | None:
        if self.v is not None:
            return None
        slope = self.weighted(index, torch.full_like(u[:, 0], self.temperature))
        return slope * u.squeeze(1), slope.unsqueeze(1)


def soft_maximum(x: Tensor, v: Tensor, temperature: float, size: int | Tensor) -> Tensor:
    r"""v + temperature (phi((x - v)/temperature) - 1), a value a block, phi as in :class:`PartialAUC`.

    The least of its mean over ``size`` blocks, over v, is temperature * log mean exp(x/temperature).

    Args:
        x: (B,).
        v: (1,) or (B,), trained.
        temperature: > 0.
        size: how many blocks the mean is over, or (B,) such numbers.

    Example:
        >>> x = torch.tensor([0.0, 1.0], dtype=torch.float64)
        >>> best = x.logsumexp(0) - torch.tensor(2.0, dtype=torch.float64).log()
        >>> bool(torch.isclose(soft_maximum(x, best, 1.0, 2).mean(), best))
        True
    """
    top = torch.full_like(x, math.log(size)) if isinstance(size, int) else size.to(x.dtype).log()
    t = (x - v) / temperature
    phi = torch.minimum(t, top).exp() * (1.0 + torch.relu(t - top))
    return v + temperature * (phi - 1.0)
