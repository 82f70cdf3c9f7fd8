"""GroupDRO: the worst groups count most: KL-regularised, or the smoothed CVaR over groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from fcco._support import checks
from fcco.data import Batch, GroupBlocks, Groups
from fcco.data._batch import served
from fcco.objectives._base import OutputObjective, check_data, checked_weight, fingerprint, need
from fcco.objectives._means import mean_over
from fcco.objectives._precision import at_least_float32, like_parameters
from fcco.objectives._risks import CVaRRisk, KLRisk, Risk


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """One loss per example (K,): logits (K, C) with classes (K,), or logits (K,) or (K, 1) with 0/1 targets (K,)."""
    if outputs.dim() == 2 and outputs.shape[1] > 1:
        return functional.cross_entropy(outputs, y.long(), reduction="none")
    flat = outputs.flatten()
    return functional.binary_cross_entropy_with_logits(flat, y.to(flat.dtype), reduction="none")


class GroupDRO(OutputObjective):
    r"""Distributionally robust optimisation over groups, with a trained threshold v.

    .. math::
        \min_{w, v} F(w, v) = v + \sum_i p_i\, \varphi(g_i(w) - v) \qquad
        g_i(w) = E[\mathrm{loss}(h(x), y) \mid \text{group } i]

    Block i is group i, :math:`f_i(u) = v + m p_i\, \varphi(u - v)` with :math:`p_i` the group's share (1/m, or its
    weight over the sum of weights). :math:`\varphi` is ``KLRisk(strength)`` (F is then
    :math:`\lambda \log \sum_i p_i e^{g_i/\lambda}` at the best v) or ``CVaRRisk(fraction, smoothing)``. The data's
    weights enter the means within the groups, not the shares of the groups.

    Args:
        model: (K, ...) -> outputs (K, ...), as ``loss`` takes them.
        data: the examples, their targets and their groups.
        risk: phi.
        loss: (outputs, y) -> (K,), a loss per example; the default is cross-entropy with logits.
        group_weight: (m,) > 0, how much each group counts. None: equally.
        start: initial v. A good choice is the mean loss expected at first.

    Example:
        >>> from fcco.data import Groups
        >>> y, group = torch.tensor([0, 2, 1, 1, 0]), torch.tensor([0, 0, 1, 1, 1])
        >>> objective = GroupDRO(nn.Linear(4, 3), Groups(torch.randn(5, 4), y, group), KLRisk(0.5))
        >>> batch = next(iter(objective.loader(blocks=2, samples=2)))
        >>> objective(batch.index, batch).shape
        torch.Size([2, 1])

    Reference: Sagawa et al., Distributionally robust neural networks for group shifts, ICLR 2020; Rockafellar and
    Uryasev, Optimization of conditional value-at-risk, J. Risk 2000; Wang and Yang, ALEXR, ICML 2025 (as FCCO).
    """

    compares_examples: ClassVar[bool] = False
    blocks: GroupBlocks
    group: Tensor
    share: Tensor

    def __init__(
        self,
        model: nn.Module,
        data: Groups,
        risk: Risk,
        *,
        loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
        group_weight: Tensor | None = None,
        start: float = 0.0,
    ) -> None:
        check_data("GroupDRO", data, Groups)
        blocks = GroupBlocks(data)
        super().__init__(model, blocks)
        if not isinstance(risk, KLRisk | CVaRRisk):
            raise TypeError(f"risk must be a KLRisk or CVaRRisk, got {risk!r}")
        self.risk: Risk = risk
        self.loss = loss
        self.v = nn.Parameter(like_parameters(model, torch.tensor(checks.number("start", start))))
        self.register_table("group", blocks.group)  # (N,)
        weight = checked_weight("group_weight", group_weight, self.num_blocks)
        self._given_weight = weight
        if weight is None:
            weight = torch.ones(self.num_blocks, dtype=torch.float64)
        if not bool((weight > 0).all()):
            raise ValueError("group_weight must be > 0 for every group: to leave a group out, remove it from the data")
        self.register_table("share", like_parameters(model, weight / weight.sum()))

    def constants(self) -> dict[str, Any]:
        name = getattr(self.loss, "__qualname__", type(self.loss).__qualname__)
        return {"risk": repr(self.risk), "loss": name, "group_weight": fingerprint(self._given_weight)}

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        losses = self.loss(at_least_float32(outputs), need(batch.y, "y"))  # (K,)
        if losses.shape != (len(batch),):
            raise ValueError(f"loss must return one number per example, ({len(batch)},), got {tuple(losses.shape)}")
        # By the map, not by serves alone: a batch made by hand need not say which blocks an example serves.
        members = served(self.group[batch.id] == index.unsqueeze(1), batch)  # (B, K)
        return mean_over(losses, members, batch.weight, index, "examples").unsqueeze(1)

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        # The solver takes the mean over m groups: m p_i makes it the sum with shares p_i.
        share = self.share[index]  # (B,) p_i
        return self.v + self.num_blocks * share * self.risk(u.squeeze(1) - self.v, share)
