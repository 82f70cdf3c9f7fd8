"""Batch: what the ready loaders yield beside index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, final

import torch
from torch import Tensor


class Average(Enum):
    """What the mean in g_i runs over, hence what ``batch.weight`` adds up to.

    ALL: all labelled examples, the block's own among them (average precision). OPPOSITE: the examples of the class
    opposite to the block's: the negatives, where blocks are positives (partial AUC; the positives for the p-norm
    push, whose blocks are negatives). Examples of the block's own class then weigh 0.
    """

    ALL = "all"
    OPPOSITE = "opposite"


@final
@dataclass(frozen=True)
class Batch:
    """The examples drawn for B blocks.

    Args:
        x: (K, ...) the examples, or a tuple of such tensors (two modalities).
        id: (K,) int64, their positions in the data set.
        y: (K, ...) what the objective needs of each: class labels, 0/1 targets with NaN for missing ones, groups,
            relevances, times.
        anchor: (B,) int64, for blocks that are examples: where in 0..K-1 the block's own example stands.
        serves: (K,) int64, the place in 0..B-1 of the block that each example serves, -1: all of them (shared
            negatives); None: every example serves every block.
        weight: (K,) or (B, K), how much an example counts in the sum that it enters; None: the plain mean over
            those present. A full pass carries weights with which its rows add up to the exact mean.
        probability: (K,), how likely each example was drawn, where that is not uniform.
        average: what the mean in g_i runs over, where a loader offers a choice; else None.
        num_blocks: m, as the loader counts it; None: not said.
    """

    x: Any
    id: Tensor
    y: Tensor | None = None
    anchor: Tensor | None = None
    serves: Tensor | None = None
    weight: Tensor | None = None
    probability: Tensor | None = None
    average: Average | None = None
    num_blocks: int | None = None
    index: Tensor | None = None

    def __len__(self) -> int:
        return int(self.id.shape[0])

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """The same batch on another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """The same batch in pinned memory (DataLoader calls this)."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        changed = {field.name: _apply(getattr(self, field.name), function) for field in fields(self)}
        return replace(self, **changed)


def _apply(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple):
        return tuple(_apply(item, function) for item in value)
    return value


def serving(batch: Batch, blocks: int) -> Tensor:
    """(B, K) bool: which example serves which block."""
    size, device = len(batch), batch.id.device
    if batch.serves is None:
        return torch.ones(blocks, size, dtype=torch.bool, device=device)
    place = torch.arange(blocks, device=device).unsqueeze(1)
    return (batch.serves == place) | (batch.serves == -1)


def served(mask: Tensor, batch: Batch) -> Tensor:
    """The marked pairs (B, K) whose example serves the block."""
    return mask if batch.serves is None else mask & serving(batch, mask.shape[0])
