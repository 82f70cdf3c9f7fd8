"""Many tensors laid end to end in one, so that choosing between two versions of them takes a few launches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

import torch
from torch import Tensor

_ALIGNED = 64  # numbers


@final
class Flat:
    """Storage for copies of some tensors: one flat tensor per dtype, and a view of it for each.

    Views have the strides of what they stand for, so that copying many of them is one launch.

    Args:
        like: what is to be copied.

    Attributes:
        views: one per tensor of ``like``, in its shape.

    Example:
        >>> flat = Flat([torch.ones(2, 3), torch.zeros(4)])
        >>> flat.copy_from([torch.full((2, 3), 5.0), torch.ones(4)])
        >>> flat.views[0].sum(), flat.views[1].sum()
        (tensor(30.), tensor(4.))
    """

    def __init__(self, like: Sequence[Tensor]) -> None:
        sizes: dict[torch.dtype, int] = {}
        starts = []
        for tensor in like:
            start = sizes.get(tensor.dtype, 0)
            starts.append(start)
            # Aligned, so that kernels read several numbers at a time.
            sizes[tensor.dtype] = start + -(-tensor.numel() // _ALIGNED) * _ALIGNED
        self._storage: dict[torch.dtype, Tensor] = {}
        for dtype, size in sizes.items():
            self._storage[dtype] = torch.zeros(size, dtype=dtype, device=like[0].device)
        self.views: list[Tensor] = []
        for tensor, start in zip(like, starts, strict=True):
            storage = self._storage[tensor.dtype]
            self.views.append(storage.as_strided(tensor.shape, _dense_strides(tensor), start))

    @torch.no_grad()
    def copy_from(self, tensors: Sequence[Tensor]) -> None:
        """Take the values of the tensors."""
        copy_all(self.views, tensors)

    @torch.no_grad()
    def take_where(self, condition: Tensor, other: Flat) -> None:
        """Take the values of ``other`` where ``condition`` (), a bool on the device, holds; else stay."""
        for dtype, mine in self._storage.items():
            torch.where(condition, other._storage[dtype], mine, out=mine)

    @torch.no_grad()
    def zero_where(self, condition: Tensor) -> None:
        """Become 0 where ``condition`` (), a bool on the device, holds."""
        for mine in self._storage.values():
            mine.masked_fill_(condition, 0.0)


def _dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """Return the strides of a copy of the tensor."""
    return torch.empty_like(tensor, device="meta").stride()


@torch.no_grad()
def copy_all(targets: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
    """Copy targets <- sources, in place: a launch per dtype, where a list of several would take one per tensor."""
    groups: dict[tuple[torch.dtype, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        alike = groups.setdefault((target.dtype, source.dtype), ([], []))
        alike[0].append(target)
        alike[1].append(source)
    for some_targets, some_sources in groups.values():
        torch._foreach_copy_(some_targets, some_sources)


@final
class Kept:
    """Tensors that a step writes in place, with a copy of what they held before, to be put back on the device.

    Args:
        tensors: what is kept.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        self.before = Flat(self.tensors)
        self._after = Flat(self.tensors)

    def keep(self) -> None:
        """Take the copy."""
        self.before.copy_from(self.tensors)

    def put_back(self, failed: Tensor) -> None:
        """Put the copy back where ``failed`` (), a bool on the device, says so."""
        self._after.copy_from(self.tensors)
        self._after.take_where(failed, self.before)
        copy_all(self.tensors, self._after.views)
