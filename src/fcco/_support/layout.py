"""How the weights of convolutions lie in memory."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

_Model = TypeVar("_Model", bound=nn.Module)


def channels_last(model: _Model) -> _Model:
    """Lay convolutions' weights (O, I, H, W) out with their channels innermost, in place; returns the model.

    Tensor cores read that layout; a convolution's output has the layout of its weights, so one conversion of the
    images is all that is left.

    Args:
        model: changed in place.

    Example:
        >>> channels_last(nn.Conv2d(1, 2, 3)).weight.stride()
        (9, 1, 3, 1)
    """
    for p in model.parameters():
        if p.dim() == 4:
            # Not p.to(memory_format=...), which leaves the strides of weights with one channel as they are.
            laid_out = torch.empty_like(p, memory_format=torch.channels_last)
            p.data = laid_out.copy_(p.data)
    return model


def is_channels_last(model: nn.Module) -> bool:
    """Return whether a model has convolutions and all their weights lie with their channels innermost.

    Args:
        model: any network.
    """
    weights = [p for p in model.parameters() if p.dim() == 4]
    return bool(weights) and all(p.is_contiguous(memory_format=torch.channels_last) for p in weights)
