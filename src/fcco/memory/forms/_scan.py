"""Running sums along the last dimension, of few long rows too."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 1024
LONG = 8 * BLOCK  # from here on two levels are worth their launches


def running_sums(x: Tensor) -> Tensor:
    """sum_{j <= p} x_j (..., P), from x (..., P)."""
    if x.device.type == "cpu" or x.shape[-1] < LONG:
        return x.cumsum(-1)
    return in_two_levels(x)


def in_two_levels(x: Tensor) -> Tensor:
    """The same, within blocks first, then over the blocks: an accelerator scans each row by one group of threads, and
    has far more of them than there are rows. The same bits in every run, which its scan of a vector does not promise.
    """
    length = x.shape[-1]
    blocks = -(-length // BLOCK)
    padded = torch.nn.functional.pad(x, (0, blocks * BLOCK - length))
    sums: Tensor = padded.unflatten(-1, (blocks, BLOCK)).cumsum(-1)  # (..., P / BLOCK, BLOCK)
    # Of the blocks before, not of all less the own: a difference would lose digits where sums grow fast.
    before = sums[..., :-1, -1].cumsum(-1)  # (..., P / BLOCK - 1)
    sums[..., 1:, :] += before.unsqueeze(-1)
    return sums.flatten(-2)[..., :length]
