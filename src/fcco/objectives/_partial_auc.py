"""PartialAUC: the partial area under the ROC curve, one-way or two-way, through KL-regularised robust losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fcco._support import checks
from fcco.data import Batch, Points
from fcco.objectives._anchored import AnchoredObjective
from fcco.objectives._means import log_mean_exp_over
from fcco.objectives._precision import to_float64
from fcco.objectives._surrogates import SquaredHinge, Surrogate, loss_or_default

if TYPE_CHECKING:
    from fcco.memory._table import OutputTable
    from fcco.memory.forms import Form


class PartialAUC(AnchoredObjective):
    r"""Partial AUC at low false-positive rates (one-way), or also at high true-positive rates (two-way).

    One-way, with :math:`\lambda` the temperature:

    .. math::
        F(w) = \frac1{n_+} \sum_{i: y_i = 1} \lambda \log \frac1{n_-} \sum_{j: y_j = 0}
               \exp(\ell(h_j - h_i)/\lambda)

    Block i is positive i (with several tasks, a (task, positive) pair). :math:`g_i = E_-\exp(\ell(h_j - h_i)/\lambda)`
    in the log domain, and :math:`f_i(u) = \lambda \log u`. A small :math:`\lambda` counts only the hardest negatives,
    a large one counts all of them alike (the AUC).

    Two-way, with :math:`\lambda'` the temperature of the positives, the hardest positives count most:

    .. math::
        F(w) = \lambda' \log \frac1{n_+} \sum_{i: y_i = 1} \exp(f_i(g_i)/\lambda')
             = \min_v \frac1{n_+} \sum_{i: y_i = 1} v + \lambda' (\phi((f_i(g_i) - v)/\lambda') - 1)

    with a trained variable v (one per task) and :math:`\phi` an exponential that continues as a straight line above
    :math:`n_+`, which changes no minimum. The weights of the data enter all these means.

    Args:
        model: (K, ...) -> (K,) or (K, 1) scores; with several tasks (K, T), one column per task.
        data: the points and their labels. Tasks count equally.
        temperature: lambda > 0.
        positive_temperature: lambda' > 0 for the two-way form; None: one-way.
        loss: l. The default is ``SquaredHinge(margin=1)``.
        start: initial v (two-way).

    A batch of the loader has the positives that are its blocks, and negatives that serve all of them.

    Example:
        >>> from fcco.data import Points
        >>> data = Points(torch.randn(6, 4), torch.tensor([1, 1, 1, 0, 0, 0]))
        >>> objective = PartialAUC(nn.Linear(4, 1), data, temperature=0.1)
        >>> batch = next(iter(objective.loader(blocks=2, samples=3)))
        >>> objective.num_blocks, objective(batch.index, batch).shape
        (3, torch.Size([2, 1]))

    Reference: Zhu et al., When AUC Meets DRO: Optimizing Partial AUC for Deep Learning with Non-Convex Convergence
    Guarantee, ICML 2022 (SOPA-s one-way, SOTA-s two-way).
    """

    def __init__(
        self,
        model: nn.Module,
        data: Points,
        *,
        temperature: float = 1.0,
        positive_temperature: float | None = None,
        loss: Surrogate | None = None,
        start: float = 0.0,
    ) -> None:
        super().__init__(model, data)
        self.temperature = checks.positive("temperature", temperature)
        self.positive_temperature = positive_temperature
        self.loss: Surrogate = loss_or_default("loss", loss, SquaredHinge(margin=1.0))
        checks.number("start", start)
        if positive_temperature is not None:
            checks.positive("positive_temperature", positive_temperature)
            self.register_threshold(start)

    def constants(self) -> dict[str, Any]:
        return {
            "temperature": self.temperature,
            "positive_temperature": self.positive_temperature,
            "loss": repr(self.loss),
        }

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        # A small temperature makes exponents of hundreds, whose differences single precision would lose.
        x, _, negative = self.pairs(index, to_float64(outputs), batch)
        exponents = (self.loss(x) / self.temperature).unsqueeze(1)  # (B, 1, K)
        return log_mean_exp_over(exponents, negative, batch.weight, index, "negatives")

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        f = self.temperature * u.squeeze(1)
        if self.positive_temperature is None:
            return self.weighted(index, f)
        return self.smoothed_maximum(index, f, self.positive_temperature)

    def outer_and_slope(self, index: Tensor, u: Tensor) -> tuple[Tensor, Tensor] | None:
        if self.v is not None:
            return None
        # One-way, f is linear in log u.
        slope = self.weighted(index, torch.full_like(u[:, 0], self.temperature))
        return slope * u.squeeze(1), slope.unsqueeze(1)

    def table_form(self, table: OutputTable) -> Form | None:
        from fcco.memory.forms import pairwise_form

        return pairwise_form(self, self.blocks, self.loss.exponential_kernel(self.temperature), table)
