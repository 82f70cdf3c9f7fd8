"""PNormPush: few positives below any negative, most of all below the highest negatives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from fcco._support import checks
from fcco._support.logs import ZERO
from fcco.data import Batch, Points
from fcco.objectives._anchored import AnchoredObjective
from fcco.objectives._means import log_or_zero, shares
from fcco.objectives._precision import to_float64
from fcco.objectives._surrogates import Logistic, Surrogate, loss_or_default

if TYPE_CHECKING:
    from fcco.memory._table import OutputTable
    from fcco.memory.forms import Form


class PNormPush(AnchoredObjective):
    r"""The p-norm push: a ranking loss with emphasis on the top of the list.

    .. math::
        F(w) = \frac1{n_-} \sum_{i: y_i = 0} \Big( \frac1{n_+} \sum_{j: y_j = 1} \ell(h_i - h_j) \Big)^p

    Block i is negative i (with several tasks, a (task, negative) pair). :math:`g_i = E_+\,\ell(h_i - h_j)`, tracked in
    the log domain, and :math:`f_i(u) = u^p`. p = 1 is the AUC; a large p stresses the highest negative. The power of a
    large u may overflow. ``logarithm=True`` minimises an increasing function of F, the
    logarithm of the p-norm, which cannot overflow:

    .. math::
        \frac1p \log F(w) = \min_v \frac1{n_-} \sum_{i: y_i = 0} v + \tfrac1p (\phi(p (\log g_i - v)) - 1)

    with a trained variable v (one per task) and :math:`\phi` as in :class:`PartialAUC`. The data's weights enter all
    these means.

    Args:
        model: (K, ...) -> (K,) or (K, 1) scores; with several tasks (K, T), one column per task.
        data: the points and their labels. Tasks count equally.
        p: the power, >= 1.
        loss: l. The default is ``Logistic()``; the reference uses ``Exponential()``.
        logarithm: minimise the second form.
        start: initial v (second form).

    A batch of the loader has the negatives that are its blocks, and positives that serve all of them.

    Example:
        >>> import torch
        >>> from fcco.data import Points
        >>> data = Points(torch.randn(6, 4), torch.tensor([1, 1, 1, 0, 0, 0]))
        >>> objective = PNormPush(nn.Linear(4, 1), data, p=4.0)
        >>> batch = next(iter(objective.loader(blocks=2, samples=3)))
        >>> objective(batch.index, batch).shape
        torch.Size([2, 1])

    Reference: Rudin, The P-Norm Push: A Simple Convex Ranking Algorithm that Concentrates at the Top of the List,
    JMLR 2009 (sums there, means here).
    """

    positive: ClassVar[bool] = False
    mean_of_exponentials = False

    def __init__(
        self,
        model: nn.Module,
        data: Points,
        *,
        p: float = 2.0,
        loss: Surrogate | None = None,
        logarithm: bool = False,
        start: float = 0.0,
    ) -> None:
        super().__init__(model, data)
        if checks.positive("p", p) < 1.0:
            raise ValueError(f"p must be >= 1, got {p}")
        self.p = float(p)
        self.loss: Surrogate = loss_or_default("loss", loss, Logistic())
        checks.number("start", start)
        if checks.flag("logarithm", logarithm):
            self.register_threshold(start)

    def constants(self) -> dict[str, Any]:
        return {"p": self.p, "loss": repr(self.loss), "logarithm": self.v is not None}

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        if self.loss.exponential:
            outputs = to_float64(outputs)
        x, positive, _ = self.pairs(index, outputs, batch)
        share = shares(x, positive, batch.weight, index, "positives")
        # x is h_j - h_i; here positive j should be the higher one, so the loss is of -x
        log_scale, l = self.loss.scaled(-x, share > 0)
        return log_or_zero((l * share).sum(1, keepdim=True), log_scale)

    def project(self, u: Tensor) -> Tensor:
        """u >= 0, as g is."""
        return u.clamp(min=ZERO)

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        log_u = u.squeeze(1)
        if self.v is None:
            return self.weighted(index, (self.p * log_u).exp())  # u^p; where it overflows, the solver names the block
        return self.smoothed_maximum(index, log_u, 1.0 / self.p)

    def table_form(self, table: OutputTable) -> Form | None:
        from fcco.memory.forms import pairwise_form

        return pairwise_form(self, self.blocks, self.loss.kernel(), table)
