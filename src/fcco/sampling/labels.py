"""Labels, checked at the boundary: each error names the class, the block or the example."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fcco._support import checks


def of_examples(name: str, values: Any, size: int, device: torch.device) -> Tensor:
    """Values (N, ...) as a tensor on the device, one row an example."""
    tensor = torch.as_tensor(values)
    if tensor.dim() == 0 or tensor.shape[0] != size:
        raise ValueError(f"{name} must have one row an example, {size} of them, got shape {tuple(tensor.shape)}")
    return tensor.to(device)


def optional(name: str, values: Any, size: int, device: torch.device) -> Tensor | None:
    """As :func:`of_examples`, None where nothing is given."""
    return None if values is None else of_examples(name, values, size, device)


def numbers(name: str, values: Tensor, count: int | None, kind: str) -> tuple[Tensor, int]:
    """Whole numbers (N,) in 0..count-1 as int64, and count (their largest plus one where None)."""
    if values.dim() != 1 or values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise TypeError(f"{name} must be integers of shape (N,), got {values.dtype} of shape {tuple(values.shape)}")
    if values.numel() == 0:
        raise ValueError(f"{name} must not be empty")
    low, high = int(values.min()), int(values.max())
    total = high + 1 if count is None else checks.positive_int(f"the number of {kind}s", count)
    if low < 0 or high >= total:
        raise ValueError(f"{name} must be in 0..{total - 1}, got {kind} {low if low < 0 else high}")
    return values.to(torch.int64), total


def targets(name: str, values: Tensor) -> Tensor:
    """0/1 targets, NaN where missing, as a matrix (N, m); (N,) is one task."""
    matrix = values.unsqueeze(1) if values.dim() == 1 else values
    if matrix.dim() != 2 or matrix.shape[1] == 0:
        raise ValueError(f"{name} must have shape (N,) or (N, m), got {tuple(values.shape)}")
    wrong = ~((matrix == 0) | (matrix == 1) | matrix.isnan())
    if bool(wrong.any()):
        example, task = (int(place) for place in wrong.nonzero()[0])
        got = matrix[example, task].item()
        raise ValueError(f"{name} must be 0, 1 or NaN (missing), got {got} for task {task} of example {example}")
    return matrix


def finite(name: str, values: Tensor) -> Tensor:
    """Real numbers (N,), none of them NaN or infinite."""
    if values.dim() != 1:
        raise ValueError(f"{name} must have shape (N,), got {tuple(values.shape)}")
    wrong = (~torch.isfinite(values)).nonzero()[:, 0].tolist()
    if wrong:
        raise ValueError(f"{name} must be finite, got {values[wrong[0]].item()} for example {checks.some(wrong)}")
    return values
