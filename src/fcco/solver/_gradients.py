"""``p.grad`` of many parameters at once, and whether numbers are finite."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fcco._support import checks, sharded


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
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    return sharded.parts(p.grad for p in parameters if p.grad is not None)


def all_finite(tensors: list[Tensor]) -> bool:
    """Whether every number of every tensor is finite (a device waits for the answer, once)."""
    floating = [tensor for tensor in tensors if tensor.numel() and tensor.is_floating_point()]
    if all(tensor.device.type == "cpu" for tensor in floating):
        # A sum is not finite where a number is not; where only the sum is too large, each number decides.
        return all(math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all()) for tensor in floating)
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in floating:
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    largest: list[Tensor] = []
    for group in by_dtype.values():
        largest += torch._foreach_norm(group, math.inf)
    return bool(torch.isfinite(torch.stack([norm.double() for norm in largest])).all())


def finite_rows(seen: Sequence[Tensor]) -> Tensor:
    """Which of B rows hold nothing but finite numbers in all of the tensors (B, ...)."""
    marks = [torch.isfinite(values).reshape(len(values), -1).all(1) for values in seen]
    return torch.stack(marks).all(0)
