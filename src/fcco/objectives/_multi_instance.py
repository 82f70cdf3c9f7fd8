"""MultiInstance: AUC over bags of instances, each bag's score a smoothed maximum over its instances."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fcco._support import checks
from fcco.data import BagBlocks, Bags, Batch
from fcco.data._batch import served
from fcco.objectives._base import OutputObjective, check_data, scores
from fcco.objectives._means import log_mean_exp_over
from fcco.objectives._precision import like_parameters, to_float64
from fcco.objectives._surrogates import Square, SquaredHinge, Surrogate, loss_or_default


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
    a positive one, b and :math:`m_-` for a negative one: it depends on bag i alone. The data's weights are those of
    instances and enter the mean within the bag.

    With ``Square(margin, scale)`` the least value over a and b is
    :math:`Var_+ h + Var_- h + \frac{scale}{1 + 2\,scale} (margin + E_- h - E_+ h)^2` (with ``SquaredHinge`` the same of
    the positive part). The pairwise square loss has the factor 1 there, for which the reference takes a maximum over
    a dual variable; a minimum over functions of single bags allows factors up to 1/2, and every method minimises it.

    Args:
        model: (K, ...) -> (K,) or (K, 1) scores, one per instance.
        data: the instances, their bags, and the labels of the bags.
        temperature: tau > 0.
        loss: l, ``SquaredHinge(margin, scale)`` (the default, with margin 1 and scale 2) or ``Square(margin, scale)``.

    Example:
        >>> from fcco.data import Bags
        >>> data = Bags(torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 1, 2]), torch.tensor([0, 1, 0]))
        >>> objective = MultiInstance(nn.Linear(4, 1), data, temperature=0.1)
        >>> batch = next(iter(objective.loader(blocks=2, samples=2)))
        >>> objective(batch.index, batch).shape
        torch.Size([2, 1])

    Reference: Zhu et al., Provable Multi-instance Deep AUC Maximization with Stochastic Pooling, ICML 2023 (MIDAM-smx).
    """

    compares_examples: ClassVar[bool] = False
    blocks: BagBlocks
    bag: Tensor
    positive: Tensor

    def __init__(
        self,
        model: nn.Module,
        data: Bags,
        *,
        temperature: float = 0.1,
        loss: SquaredHinge | Square | None = None,
    ) -> None:
        check_data("MultiInstance", data, Bags)
        blocks = BagBlocks(data)
        super().__init__(model, blocks, log_domain=True)
        self.temperature = checks.positive("temperature", temperature)
        default = SquaredHinge(margin=1.0, scale=2.0)
        self.loss: Surrogate = loss_or_default("loss", loss, default, SquaredHinge, Square)
        self.a = nn.Parameter(like_parameters(model, torch.zeros(())))
        self.b = nn.Parameter(like_parameters(model, torch.zeros(())))
        positive = positive_bags(blocks.bag_label)
        self.register_table("bag", blocks.bag)  # (N,)
        self.register_table("positive", positive)  # (m,)
        self.num_positive = int(positive.sum())

    def constants(self) -> dict[str, Any]:
        return {"temperature": self.temperature, "loss": repr(self.loss)}

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        exponents = scores(to_float64(outputs), batch) / self.temperature
        # By the map, not by serves alone: a batch made by hand need not say which bags an instance serves.
        inside = served(self.bag[batch.id] == index.unsqueeze(1), batch)  # (B, K)
        return log_mean_exp_over(exponents, inside, batch.weight, index, "instances").unsqueeze(1)

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        h = self.temperature * u.squeeze(1)  # (B,) the bags' scores, from log u
        positive = self.positive[index].to(u.dtype)
        negative = 1.0 - positive
        center = positive * self.a + negative * self.b
        per_positive = self.num_blocks / self.num_positive
        per_negative = self.num_blocks / (self.num_blocks - self.num_positive)
        # The solver takes the mean over all bags; these factors make it a mean per class.
        weight = positive * per_positive + negative * per_negative
        return weight * (h - center).square() + self.loss(self.b - self.a)


def positive_bags(label: Tensor | None) -> Tensor:
    """Which bags are positive (m,); there must be some of both."""
    if label is None or label.dim() != 1:
        raise ValueError("MultiInstance needs one label per bag: Bags(x, bag, y) with y of shape (m,)")
    positive = label == 1
    wrong = label[~positive & (label != 0)].tolist()
    if wrong:
        raise ValueError(
            f"MultiInstance needs bags whose labels have two values, none missing, got {checks.some(wrong)}"
        )
    for name, mask in (("positive", positive), ("negative", ~positive)):
        if not bool(mask.any()):
            raise ValueError(f"MultiInstance needs at least one {name} bag, got none")
    return positive
