"""Risks: what GroupDRO makes of the excess of a group's loss over the threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fcco._support import checks


@final
@dataclass(frozen=True)
class KLRisk:
    r"""lambda (exp(x/lambda) - 1) of the excess x = g - v, with lambda the ``strength`` of the penalty.

    Then :math:`\min_v v + \sum_i p_i \lambda (e^{(g_i - v)/\lambda} - 1) = \lambda \log \sum_i p_i e^{g_i/\lambda}`.
    A small lambda comes close to the worst group, a large one to the mean. At the best v no exponential exceeds
    1/p_i, so above that the exponential is continued by its tangent: the minimum is the same, and neither values
    nor weights overflow, however far v is from it.

    Args:
        strength: lambda of the penalty, positive.

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

    Args:
        fraction: alpha in (0, 1], the share of the groups that counts.
        smoothing: rho, how wide the corner is rounded.

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
        # A corner that the dtype cannot tell from none would be 0/0.
        if self.smoothing > torch.finfo(above.dtype).tiny:
            corner = above.clamp(max=self.smoothing)
            above = above - corner + corner.square() / (2 * self.smoothing)
        return above / self.fraction


Risk = KLRisk | CVaRRisk
