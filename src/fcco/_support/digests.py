"""Digests of tensors: whether two of them hold the same, without keeping either."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable
from typing import Any

from torch import Tensor


def memory_of(tensor: Tensor) -> Any:
    """Return the memory of a contiguous tensor on the CPU, as it is (torch's own way there leads through numpy)."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return b""
    return (ctypes.c_ubyte * size).from_address(tensor.data_ptr())


def digest(tensors: Iterable[Tensor]) -> str:
    """Return a short text that stands for dtypes, shapes and numbers, and that other tensors hardly share.

    Example:
        >>> import torch
        >>> digest([torch.ones(2)]) == digest([torch.ones(2)]), digest([torch.ones(2)]) == digest([torch.ones(2, 1)])
        (True, False)
    """
    sha = hashlib.sha256()
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous()
        sha.update(f"{plain.dtype} {tuple(plain.shape)};".encode())
        sha.update(memory_of(plain))
    return sha.hexdigest()[:16]
