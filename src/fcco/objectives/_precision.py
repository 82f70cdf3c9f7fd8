"""In which precision objectives compute, and variables of their own start."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fcco.data._draws import exact_dtype


def to_float64(outputs: Tensor) -> Tensor:
    """Outputs in double precision where the device has it, for losses with exponentials: log g is large then, and
    g - g- lives on its last digits."""
    return outputs.to(exact_dtype(outputs.device))


def at_least_float32(outputs: Tensor) -> Tensor:
    """Outputs in single precision where theirs is half: differences of two scores keep no digits there."""
    if outputs.dtype.itemsize < 4:
        return outputs.float()
    return outputs


def working_dtype(model: nn.Module) -> torch.dtype:
    """The dtype of variables and tables beside a model: that of its parameters, single precision at least."""
    first = next(model.parameters(), None)
    if first is None:
        return torch.get_default_dtype()
    return torch.promote_types(first.dtype, torch.float32)


def like_parameters(model: nn.Module, value: Tensor) -> Tensor:
    """A value on the device of the model's parameters and in their precision (single at least)."""
    first = next(model.parameters(), None)
    if first is None:
        return value
    return value.to(first.device, working_dtype(model))
