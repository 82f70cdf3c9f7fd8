"""Draws from many lists at once: no loop over lists or samples, at a cost free of their lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor

from fcco._support import checks

_RANGE = 2**62  # random integers below this, modulo a length n, favour no place by more than n / 2**62


def exact_dtype(device: torch.device) -> torch.dtype:
    """float64, or the widest floating point type that the device has."""
    return torch.float32 if device.type == "mps" else torch.float64


def below(count: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform integers in 0..count-1, one for each entry of ``count``, independently."""
    drawn = torch.randint(_RANGE, count.shape, generator=generator, device=count.device)
    return drawn % count


def choose(count: Tensor, size: int, generator: torch.Generator, *, replacement: bool = False) -> Tensor:
    """``size`` places in 0..count-1 for each row, uniform, distinct within the row unless with replacement.

    Args:
        count: (B,) how many there are to choose from.
        size: how many to choose.

    Returns:
        (B, size). Where a row has fewer than ``size``: each of its places first, then places >= count.

    Example:
        >>> choose(torch.tensor([3, 1000]), 3, torch.Generator().manual_seed(0))[0].sort().values
        tensor([0, 1, 2])
    """
    if replacement:
        return below(count.unsqueeze(1).expand(-1, size), generator)
    dense = count < 4 * size
    if bool(dense.all()):
        return _by_keys(count, size, generator)
    if not bool(dense.any()):
        return _by_rejection(count, size, generator)
    place = torch.empty(count.shape[0], size, dtype=torch.int64, device=count.device)
    place[dense] = _by_keys(count[dense], size, generator)
    place[~dense] = _by_rejection(count[~dense], size, generator)
    return place


def _by_keys(count: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """The ``size`` smallest of one random key a place; rows are shorter than 4 * size here."""
    width = max(size, int(count.max()))
    dtype, device = exact_dtype(count.device), count.device
    keys = torch.rand(count.shape[0], width, generator=generator, dtype=dtype, device=device)
    absent = torch.arange(width, device=device) >= count.unsqueeze(1)
    return keys.masked_fill_(absent, 2.0).topk(size, dim=1, largest=False, sorted=True).indices


def _by_rejection(count: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Repeated places are drawn again, never more than are missing: the first ``size`` distinct of a sequence."""
    many = count.unsqueeze(1).expand(-1, size)
    place = below(many, generator)
    while True:
        place = place.sort(1).values
        again = torch.zeros_like(place, dtype=torch.bool)
        again[:, 1:] = place[:, 1:] == place[:, :-1]
        if not bool(again.any()):
            return place
        place[again] = below(many[again], generator)


class Choice(Protocol):
    """Numbered lists of examples to choose from."""

    @property
    def count(self) -> Tensor:
        """(G,) how long each list is."""

    def take(self, group: Tensor, place: Tensor) -> Tensor:
        """The examples (B, k) at the places (B, k) of the lists (B,)."""


@final
@dataclass(frozen=True)
class Lists:
    """G lists of examples, laid end to end.

    Args:
        flat: (S,) the examples.
        start: (G,) where each list starts in ``flat``.
        count: (G,) how long it is.

    Example:
        >>> lists = Lists.by_label(torch.tensor([1, 0, 1]), 2)
        >>> lists.flat, lists.count
        (tensor([1, 0, 2]), tensor([1, 2]))
    """

    flat: Tensor
    start: Tensor
    count: Tensor

    @classmethod
    def by_label(cls, labels: Tensor, groups: int) -> Lists:
        """List c holds the examples with label c, in their order; labels (N,) are in 0..groups-1."""
        count = torch.bincount(labels, minlength=groups)
        return cls(labels.argsort(stable=True), count.cumsum(0) - count, count)

    @classmethod
    def where(cls, mask: Tensor) -> Lists:
        """List c holds the rows that are true in column c of mask (N, G), in their order."""
        count = mask.sum(0)
        return cls(mask.T.nonzero()[:, 1], count.cumsum(0) - count, count)

    @property
    def group(self) -> Tensor:
        """(S,) the list that each entry of ``flat`` belongs to."""
        numbers = torch.arange(self.count.shape[0], device=self.count.device)
        return numbers.repeat_interleave(self.count)

    def take(self, group: Tensor, place: Tensor) -> Tensor:
        return self.flat[self.start[group].unsqueeze(1) + place]


@final
@dataclass(frozen=True)
class Rest:
    """For each list of ``lists`` everything outside of it, without storing it.

    Example:
        >>> rest = Rest(Lists.by_label(torch.tensor([1, 0, 1]), 2))
        >>> rest.count, rest.take(torch.tensor([1]), torch.tensor([[0]]))
        (tensor([2, 1]), tensor([[1]]))
    """

    lists: Lists

    @property
    def count(self) -> Tensor:
        return self.lists.flat.shape[0] - self.lists.count

    def take(self, group: Tensor, place: Tensor) -> Tensor:
        start, length = self.lists.start[group].unsqueeze(1), self.lists.count[group].unsqueeze(1)
        return self.lists.flat[torch.where(place < start, place, place + length)]


def refuse_few(choice: Choice, asked: int, block: str, what: str, *, replacement: bool = False) -> None:
    """Raise where a list is empty, or shorter than asked for without replacement; names the lists.

    Args:
        block: what a list is called ('class').
        what: what it holds ('positives').
    """
    count = choice.count
    empty = (count == 0).nonzero()[:, 0].tolist()
    if empty:
        raise ValueError(f"{block} {checks.some(empty)} has no {what}")
    few = [] if replacement else (count < asked).nonzero()[:, 0].tolist()
    if few:
        raise ValueError(
            f"{block} {few[0]} has {int(count[few[0]])} {what}, fewer than the {asked} asked for without replacement"
            + (f" (so have {checks.some(few[1:])})" if few[1:] else "")
        )


def join(anchors: Tensor, samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Examples (K,) that hold the anchors (B,) and the samples (S,), each once, and where both stand in them.

    Example:
        >>> join(torch.tensor([7]), torch.tensor([9, 7]))
        (tensor([7, 9]), tensor([0]), tensor([1, 0]))
    """
    together, place = torch.cat([anchors, samples]).unique(return_inverse=True)
    return together, place[: anchors.shape[0]], place[anchors.shape[0] :]
