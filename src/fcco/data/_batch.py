"""Batch: the examples of one step and the blocks they are for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, final

import torch
from torch import Tensor


@final
@dataclass(frozen=True)
class Batch:
    """The K examples drawn for B blocks.

    Args:
        x: (K, ...) the examples, a tuple of such tensors (modalities), or a dict of them.
        id: (K,) int64, their positions in the data.
        index: (B,) int64, the blocks; None: a batch of ``data.batch()``, which the objective's blocks complete.
        y: (K, ...) what the objective needs of each: class numbers, 0/1 targets with NaN for missing ones,
            relevances, times.
        block_pos: (B,) int64, for blocks that are examples: where in 0..K-1 the block's own example stands.
        serves: (K,) int64, the place in 0..B-1 of the block that an example serves, -1: all of them; None: every
            example serves every block.
        weight: (K,) or (B, K), how much an example counts in the mean of a block. In expectation the weights of a
            block add up to 1; over a full pass they do so exactly.
        probability: (K,) how likely each example was drawn (the output memory's draws).
        large: whether it is one of a loader's large batches, with which SARAH starts afresh; None: there are none.
        strata: how many examples are of each stratum that the output memory draws from; None: the batch is not from
            its loader, so its ids are checked.
        origin: which data the ids are positions in, :meth:`fcco.data.Structure.origin`; an objective of other data
            refuses the batch. None: not known, so nothing is compared.

    Example:
        >>> batch = Batch(torch.zeros(3, 2), torch.tensor([4, 0, 7]), torch.tensor([1]))
        >>> len(batch), batch.to("cpu").index
        (3, tensor([1]))
    """

    x: Any
    id: Tensor
    index: Tensor | None = None
    y: Tensor | None = None
    block_pos: Tensor | None = None
    serves: Tensor | None = None
    weight: Tensor | None = None
    probability: Tensor | None = None
    large: bool | None = None
    strata: tuple[int, ...] | None = None
    origin: str | None = None

    def __len__(self) -> int:
        return int(self.id.shape[0])

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """The same batch on another device; itself, where it is there already.

        Args:
            device: where to.
            non_blocking: do not wait for the copy, as in ``Tensor.to``.
        """
        if _are_on(vars(self).values(), torch.device(device)):
            return self
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """The same batch in pinned memory (DataLoader calls this)."""
        return self.map(lambda tensor: tensor.pin_memory())

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """The same batch with a function applied to each of its tensors.

        Args:
            function: takes a tensor and returns one.
        """
        changed = {field.name: map_tensors(getattr(self, field.name), function) for field in fields(self)}
        return replace(self, **changed)


def _are_on(values: Iterable[Any], device: torch.device) -> bool:
    """Whether all tensors inside are on the device."""
    for value in values:
        if value is None:
            continue
        if isinstance(value, Tensor):
            if value.device != device:
                return False
        elif isinstance(value, dict):
            if not _are_on(value.values(), device):
                return False
        elif isinstance(value, tuple | list) and not _are_on(value, device):
            return False
    return True


def map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """A tensor, tuple, list or dict with a function applied to each tensor inside; other values stay as they are."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple):
        return tuple(map_tensors(item, function) for item in value)
    if isinstance(value, list):
        return [map_tensors(item, function) for item in value]
    if isinstance(value, dict):
        return {key: map_tensors(item, function) for key, item in value.items()}
    return value


def serving(batch: Batch, blocks: int) -> Tensor:
    """(B, K) bool: which example serves which block; not to be written to."""
    if batch.serves is None:
        return torch.ones(blocks, len(batch), dtype=torch.bool, device=batch.id.device)
    if not batch.serves.is_cpu:
        return _mask(batch.serves, blocks)
    return _last_mask.get(batch.serves, blocks)


def _mask(serves: Tensor, blocks: int) -> Tensor:
    place = torch.arange(blocks, device=serves.device).unsqueeze(1)  # (B, 1)
    return (serves == place) | (serves == -1)


@final
class _LastMask:
    """The last mask that was made: the batches of a loader have equal ``serves``, and equality is soon told."""

    def __init__(self) -> None:
        self._known: tuple[Tensor, Tensor] | None = None  # in one piece, for threads

    def get(self, serves: Tensor, blocks: int) -> Tensor:
        known = self._known
        if known is not None and _is_same(known[0], serves) and known[1].shape[0] == blocks:
            return known[1]
        mask = _mask(serves, blocks)
        if not torch.is_inference_mode_enabled():  # what is made there cannot serve a pass with a graph
            self._known = (serves.clone(), mask)  # a copy: nobody else can write to it
        return mask


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


_last_mask = _LastMask()


def served(mask: Tensor, batch: Batch) -> Tensor:
    """The marked pairs (B, K) whose example serves the block."""
    if batch.serves is None:
        return mask
    return mask & serving(batch, mask.shape[0])
