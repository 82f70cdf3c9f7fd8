"""A smoothed maximum over blocks: a minimum over one trained variable, so that a mean over blocks remains."""

from __future__ import annotations

import torch
from torch import Tensor


def soft_maximum(x: Tensor, v: Tensor, temperature: float, size: int | Tensor) -> Tensor:
    r"""v + temperature (phi((x - v)/temperature) - 1), a value per block.

    The least of its mean over ``size`` blocks, over v, is temperature * log mean exp(x/temperature).
    :math:`\phi(t) = e^t` up to :math:`t = \log(\mathrm{size})` and goes on straight from there. At the best v no
    exponential exceeds ``size``, so the minimum is the same; and a v that is far off gives no weight above ``size``
    and no overflow.

    Args:
        x: (B,).
        v: (1,) or (B,), trained.
        temperature: > 0.
        size: how many blocks the mean is over, a number, (1,) or (B,); with weights the largest 1/share.

    Example:
        >>> x = torch.tensor([0.0, 1.0], dtype=torch.float64)
        >>> best = x.logsumexp(0) - torch.tensor(2.0, dtype=torch.float64).log()
        >>> bool(torch.isclose(soft_maximum(x, best, 1.0, 2).mean(), best))
        True
    """
    top = torch.as_tensor(size, dtype=x.dtype, device=x.device).log()
    # e^t up to the top, its tangent above: value and slope go on without a break.
    t = (x - v) / temperature
    phi = torch.minimum(t, top).exp() * (1.0 + torch.relu(t - top))
    return v + temperature * (phi - 1.0)
