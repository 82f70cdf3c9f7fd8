"""A smoothed maximum over blocks: a minimum over one trained variable, so that a mean over blocks remains."""

from __future__ import annotations

import torch
from torch import Tensor

from fcco.data import PointBlocks
from fcco.objectives._anchored import by_task


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
        size: how many blocks the mean is over; (1,) or (B,) such numbers; see :func:`effective_size` for weights.

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


def effective_size(blocks: PointBlocks) -> Tensor:
    """(T,) the largest 1/p_i of each task, p_i a block's share of its task: the number of blocks, without weights.

    At the best v of a weighted mean, :math:`\\sum_i p_i e^{t_i} = 1`, so no exponential exceeds it.
    """
    weight = blocks.block_weight
    if weight is None:
        weight = torch.ones(blocks.num_blocks, dtype=torch.float64, device=blocks.device)
    total = by_task(weight, blocks)
    # The lightest block of a task has the smallest share, and with it the largest 1/p_i.
    least = torch.full_like(total, torch.inf).scatter_reduce(0, blocks.block_task, weight, "amin")
    return torch.where(total > 0, total / least, 1.0)
