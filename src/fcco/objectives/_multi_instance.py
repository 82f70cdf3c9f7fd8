"""MultiInstance: AUC over bags of instances, each bag's score a smoothed maximum over its instances."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fcco._support import checks
from fcco.objectives._base import OutputObjective, beside, log_mean_exp_over, scores, widened
from fcco.objectives._surrogates import Square, SquaredHinge
from fcco.sampling.batch import Batch, serving


class MultiInstance(OutputObjective):
    r"""AUC maximisation for bags of instances, where only bags carry labels (multi-instance learning).

    The score of bag i with instances :math:`X_i` is the softmax pooling (smoothed maximum) of their scores,

    .. math::
        h_i = \tau \log \frac1{|X_i|} \sum_{x \in X_i} \exp(s(x)/\tau),

    between their mean (large :math:`\tau`) and their maximum (small :math:`\tau`), and

    .. math::
        F(w, a, b) = E_+[(h_i - a)^2] + E_-[(h_i - b)^2] + \ell(b - a)

    with trained centers a and b. Block i is bag i. :math:`g_i = E_{x \in X_i} \exp(s(x)/\tau)` in the log domain, and
    :math:`f_i(u) = \frac{m}{m_\pm} (\tau \log u - c_i)^2 + \ell(b - a)`, with :math:`c_i` = a and :math:`m_+` bags for
    a positive one, b and :math:`m_-` for a negative one: it depends on bag i alone.

    With ``Square(margin, scale)`` the least value over a and b is
    :math:`Var_+ h + Var_- h + \frac{scale}{1 + 2\,scale} (margin + E_- h - E_+ h)^2` (with ``SquaredHinge`` the same of
    the positive part). The pairwise square loss has the factor 1 there, for which the reference takes a maximum over
    a dual variable; a minimum over functions of single bags allows factors up to 1/2, and every method minimises it.

    Args:
        model: (K, ...) -> (K,) or (K, 1) scores, one an instance.
        bag_label: (m,) 0/1, the labels of the bags.
        temperature: tau > 0.
        loss: l, ``SquaredHinge(margin, scale)`` (the default, with margin 1 and scale 2) or ``Square(margin, scale)``.

    In a batch ``serves`` says which of the bags asked for an instance belongs to; the mean is over the instances
    present, so a part of a large bag will do. ``y`` is not looked at.

    Example:
        >>> from fcco.sampling.batch import Batch
        >>> objective = MultiInstance(nn.Linear(4, 1), torch.tensor([0, 1, 0]), temperature=0.1)
        >>> batch = Batch(torch.randn(5, 4), torch.arange(5), serves=torch.tensor([0, 0, 1, 1, 1]))
        >>> objective(torch.tensor([2, 1]), batch).shape
        torch.Size([2, 1])

    Reference: Zhu et al., Provable Multi-instance Deep AUC Maximization with Stochastic Pooling, ICML 2023 (MIDAM-smx).
    """

    positive: Tensor

    def __init__(
        self,
        model: nn.Module,
        bag_label: Tensor,
        *,
        temperature: float = 0.1,
        loss: SquaredHinge | Square | None = None,
    ) -> None:
        positive = _positive(bag_label)
        super().__init__(model, positive.shape[0], dim=1, log_domain=True)
        self.temperature = checks.positive("temperature", temperature)
        self.loss = SquaredHinge(margin=1.0, scale=2.0) if loss is None else loss
        self.a = nn.Parameter(beside(model, torch.zeros(())))
        self.b = nn.Parameter(beside(model, torch.zeros(())))
        self.register_constant("positive", positive)  # (m,)
        self.num_positive = int(positive.sum())

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        exponents = scores(widened(outputs), batch) / self.temperature
        mask = serving(batch, index.shape[0])
        return log_mean_exp_over(exponents, mask, batch.weight, index, "instances").unsqueeze(1)

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        h, positive, m = self.temperature * u.squeeze(1), self.positive[index].to(u.dtype), self.num_blocks
        center = positive * self.a + (1.0 - positive) * self.b
        weight = positive * (m / self.num_positive) + (1.0 - positive) * (m / (m - self.num_positive))
        return weight * (h - center).square() + self.loss(self.b - self.a)


def _positive(bag_label: Tensor) -> Tensor:
    if bag_label.dim() != 1:
        raise ValueError(f"bag_label must have shape (m,), got {tuple(bag_label.shape)}")
    positive = bag_label == 1
    if not bool((positive | (bag_label == 0)).all()):
        wrong = bag_label[~positive & (bag_label != 0)].tolist()
        raise ValueError(f"bag_label must hold 0 and 1, got {checks.some(wrong)}")
    for name, mask in (("positive", positive), ("negative", ~positive)):
        if not bool(mask.any()):
            raise ValueError(f"bag_label must name at least one {name} bag, got none")
    return positive
