"""GroupDRO: the worst groups count most: KL-regularised, or the smoothed CVaR over groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from fcco._support import checks
from fcco.objectives._base import OutputObjective, mean_over, need
from fcco.objectives._ndcg import working_dtype
from fcco.sampling.batch import Batch, serving


@final
@dataclass(frozen=True)
class KLRisk:
    r"""lambda (exp(x/lambda) - 1) of the excess x = g - v, with lambda the ``strength`` of the penalty.

    Then :math:`\min_v v + \sum_i p_i \lambda (e^{(g_i - v)/\lambda} - 1) = \lambda \log \sum_i p_i e^{g_i/\lambda}`.
    A small lambda comes close to the worst group, a large one to the mean. At the best v no exponential exceeds
    1/p_i, so above that the exponential is continued by its tangent: the minimum is the same, and neither values
    nor weights overflow, however far v is from it.

    Example:
        >>> KLRisk(strength=0.1)(torch.tensor([0.0, 100.0]), torch.tensor([0.5, 0.5]))
        tensor([  0.0000, 199.9614])
    """

    strength: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("strength", self.strength)

    def __call__(self, excess: Tensor, share: Tensor) -> Tensor:
        """(B,) from the excess g_i - v (B,) and the groups' shares p_i (B,)."""
        x = excess / self.strength
        inside = torch.minimum(x, -share.log())
        return self.strength * (inside.exp() * (1 + x - inside) - 1)


@final
@dataclass(frozen=True)
class CVaRRisk:
    r"""max(x, 0) / alpha of the excess x = g - v, smoothed: the mean of the worst ``fraction`` alpha of the groups.

    :math:`\min_v v + \frac1\alpha \sum_i p_i \max(g_i - v, 0)` is that mean. ``smoothing`` rho > 0 rounds the corner:
    0 below 0, :math:`x^2/(2\rho)` up to rho, :math:`x - \rho/2` above (the hinge's Moreau envelope).

    Example:
        >>> CVaRRisk(fraction=0.5, smoothing=1.0)(torch.tensor([-1.0, 0.5, 2.0]), torch.ones(3) / 3)
        tensor([0.0000, 0.2500, 3.0000])
    """

    fraction: float
    smoothing: float = 0.1

    def __post_init__(self) -> None:
        checks.rate("fraction", self.fraction)
        checks.non_negative("smoothing", self.smoothing)

    def __call__(self, excess: Tensor, share: Tensor) -> Tensor:
        """(B,) from the excess g_i - v (B,); the groups' shares do not matter here."""
        above = excess.clamp(min=0)
        if self.smoothing > 0.0:
            corner = above.clamp(max=self.smoothing)
            above = above - corner + corner.square() / (2 * self.smoothing)
        return above / self.fraction


Risk = KLRisk | CVaRRisk


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """One loss an example (K,): logits (K, C) with classes (K,), or logits (K,) or (K, 1) with 0/1 targets (K,)."""
    if outputs.dim() == 2 and outputs.shape[1] > 1:
        return functional.cross_entropy(outputs, y, reduction="none")
    flat = outputs.flatten()
    return functional.binary_cross_entropy_with_logits(flat, y.to(flat.dtype), reduction="none")


class GroupDRO(OutputObjective):
    r"""Distributionally robust optimisation over groups, with a trained threshold v.

    .. math::
        \min_{w, v} F(w, v) = v + \sum_i p_i\, \varphi(g_i(w) - v) \qquad
        g_i(w) = E[\mathrm{loss}(h(x), y) \mid \text{group } i]

    Block i is group i, :math:`f_i(u) = v + m p_i\, \varphi(u - v)` with :math:`p_i` the group's share (1/m, or its
    weight over the sum of weights). :math:`\varphi` is ``KLRisk(strength)`` (F is then
    :math:`\lambda \log \sum_i p_i e^{g_i/\lambda}` at the best v) or ``CVaRRisk(fraction, smoothing)``.

    Args:
        model: (K, ...) -> outputs (K, ...), as ``loss`` takes them.
        num_groups: m.
        risk: phi.
        loss: (outputs, y) -> (K,), a loss an example; the default is cross-entropy with logits.
        groups: (n,) ints, the group of each example of the data set, found by ``batch.id``; None: an example's
            group is the block that it serves (``batch.serves``).
        group_weight: (m,) > 0, how much each group counts; None: equally.
        start: where v starts; the mean loss to be expected at first is a good place.

    A batch carries ``y``, the targets of ``loss``.

    Example:
        >>> from fcco.sampling.batch import Batch
        >>> objective = GroupDRO(nn.Linear(4, 3), 2, KLRisk(0.5), groups=torch.tensor([0, 0, 1, 1, 1]))
        >>> batch = Batch(torch.randn(5, 4), torch.arange(5), y=torch.tensor([0, 2, 1, 1, 0]))
        >>> objective(torch.tensor([0, 1]), batch).shape
        torch.Size([2, 1])

    Reference: Sagawa et al., Distributionally robust neural networks for group shifts, ICLR 2020; Rockafellar and
    Uryasev, Optimization of conditional value-at-risk, J. Risk 2000; Wang and Yang, ALEXR, ICML 2025 (as FCCO).
    """

    groups: Tensor | None
    share: Tensor

    def __init__(
        self,
        model: nn.Module,
        num_groups: int,
        risk: Risk,
        *,
        loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
        groups: Tensor | None = None,
        group_weight: Tensor | None = None,
        start: float = 0.0,
    ) -> None:
        super().__init__(model, num_groups)
        self.risk, self.loss = risk, loss
        dtype = working_dtype(model)
        self.v = nn.Parameter(torch.tensor(checks.number("start", start), dtype=dtype))
        self.register_constant("groups", _checked_groups(groups, num_groups))
        weight = torch.ones(num_groups) if group_weight is None else group_weight
        if weight.shape != (num_groups,) or not bool((torch.isfinite(weight) & (weight > 0)).all()):
            raise ValueError(f"group_weight must be ({num_groups},) finite numbers > 0, got {group_weight}")
        self.register_constant("share", (weight.double() / weight.double().sum()).to(dtype))

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        losses = self.loss(outputs, need(batch.y, "y"))
        if losses.shape != (len(batch),):
            raise ValueError(f"loss must return one number an example, ({len(batch)},), got {tuple(losses.shape)}")
        return mean_over(losses, self._members(index, batch), batch.weight, index, "examples").unsqueeze(1)

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        share = self.share[index]
        return self.v + self.num_blocks * share * self.risk(u.squeeze(1) - self.v, share)

    def _members(self, index: Tensor, batch: Batch) -> Tensor:
        """(B, K) bool: who is in which group."""
        serves = serving(batch, index.shape[0])
        if self.groups is not None:
            return serves & (self.groups[batch.id] == index.unsqueeze(1))
        if batch.serves is None:
            raise ValueError("batch.serves must say the group of each example, or give the objective its groups")
        return serves


def _checked_groups(groups: Tensor | None, num_groups: int) -> Tensor | None:
    if groups is None:
        return None
    if groups.dim() != 1 or groups.is_floating_point():
        raise ValueError(f"groups must be (n,) ints, got shape {tuple(groups.shape)} of {groups.dtype}")
    low, high = int(groups.min()), int(groups.max())
    if low < 0 or high >= num_groups:
        raise ValueError(f"groups must be in 0..{num_groups - 1}, got {low if low < 0 else high}")
    empty = (groups.bincount(minlength=num_groups) == 0).nonzero().squeeze(1).tolist()
    if empty:
        raise ValueError(f"every group needs an example, got none of group {checks.some(empty)}")
    return groups
