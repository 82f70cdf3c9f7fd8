"""``p.grad`` of many parameters at once, and whether numbers are finite."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fcco._support import checks, sharded

_SMALL = 2**12  # numbers: below this, joining tensors takes less time than a sum of each


class NonFiniteError(ValueError):
    """Something in a step was not finite; ``blocks`` lists the blocks that it came from."""

    def __init__(self, message: str, blocks: list[int]) -> None:
        super().__init__(message)
        self.blocks = blocks


def name_blocks(blocks: list[int]) -> str:
    """'blocks 3, 5' for an error message."""
    noun = "block" if len(blocks) == 1 else "blocks"
    return f"{noun} {checks.some(blocks)}"


def clear(parameters: Sequence[nn.Parameter]) -> None:
    """Forget all gradients."""
    for p in parameters:
        p.grad = None


def gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """``p.grad`` of every parameter (this rank's part of it), made zero where nothing reached it."""
    grads: list[Tensor] = []
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        grads.append(p.grad)
    return sharded.parts(grads)


def all_finite(tensors: list[Tensor]) -> bool:
    """Whether every number of every tensor is finite (a device waits for the answer, once)."""
    small: dict[torch.dtype, list[Tensor]] = {}
    large: list[Tensor] = []
    elsewhere: list[Tensor] = []
    for tensor in tensors:
        size = tensor.numel()
        if not size or not tensor.is_floating_point():
            continue
        if not tensor.is_cpu:
            elsewhere.append(tensor)
        elif size <= _SMALL:
            small.setdefault(tensor.dtype, []).append(tensor)
        else:
            large.append(tensor)
    # Small ones are summed together; where that sum is not finite, each decides for itself.
    for alike in small.values():
        if not _has_finite_sum(_joined(alike)):
            large += alike
    for tensor in large:
        if not _is_finite(tensor):
            return False
    return not elsewhere or bool(finite_flag(elsewhere))


def finite_flag(tensors: Sequence[Tensor]) -> Tensor:
    """() bool on the device: whether every number of every tensor is finite; nothing waits."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel() and tensor.is_floating_point():
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
    flags = []
    for group in by_dtype.values():
        # One kernel for all, where a sum of each would be one per tensor.
        largest = torch.stack(torch._foreach_norm(group, math.inf))
        flags.append((largest < math.inf).all())  # norms are >= 0, and no NaN is below anything
    if len(flags) == 1:
        return flags[0]
    return torch.stack(flags).all()


def _joined(tensors: list[Tensor]) -> Tensor:
    """All numbers in one tensor; one that is alone as it is."""
    if len(tensors) == 1:
        return tensors[0]
    return torch._utils._flatten_dense_tensors(tensors)  # type: ignore[no-any-return]


def _is_finite(tensor: Tensor) -> bool:
    """Whether every number is finite, where a sum of all is the fastest test."""
    return _has_finite_sum(tensor) or bool(torch.isfinite(tensor).all())


def _has_finite_sum(tensor: Tensor) -> bool:
    """A sum is not finite where a number is not; where only the sum is too large, each number decides."""
    return math.isfinite(tensor.sum().item())


def finite_rows(seen: Sequence[Tensor]) -> Tensor:
    """Which of B rows hold nothing but finite numbers in all of the tensors (B, ...)."""
    marks = [torch.isfinite(values).reshape(len(values), -1).all(1) for values in seen]
    return torch.stack(marks).all(0)
