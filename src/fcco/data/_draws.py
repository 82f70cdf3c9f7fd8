"""Draws from many lists at once: uniform, without replacement, with shapes that depend on no data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor

from fcco.data._shuffle_kernel import has_kernel, shuffled

_FEW = 512  # places: for so few a loop in Python takes less time than twenty operations on tensors
_RANGE = 2**62  # random integers below this, modulo a length n, favour no place by more than n / 2**62


def exact_dtype(device: torch.device) -> torch.dtype:
    """float64, or the widest floating point type that the device has."""
    if device.type == "mps":
        return torch.float32
    return torch.float64


def choose(count: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """``size`` distinct places in 0..count-1 for each row, every ordered choice equally likely.

    The first ``size`` steps of the Fisher-Yates shuffle: step j swaps place j with a place drawn from j..count-1.
    The swaps are resolved for all steps at once: no array as long as a list is ever made, no loop depends on
    what is drawn, and the cost does not depend on ``count``.

    Args:
        count: (B,) how many there are to choose from.
        size: how many to choose.

    Returns:
        (B, size). Where a row has fewer than ``size``: each of its places first, then places >= count.

    Example:
        >>> choose(torch.tensor([3, 1000]), 3, torch.Generator().manual_seed(0))[0].sort().values
        tensor([0, 1, 2])
    """
    drawn = torch.randint(_RANGE, (count.shape[0], size), generator=generator, device=count.device)
    if has_kernel(drawn, size):
        return shuffled(drawn, count)
    return resolved(drawn, count)


def resolved(drawn: Tensor, count: Tensor) -> Tensor:
    """The places (B, size) that the shuffles give, from random integers (B, size) and the lengths (B,) of the lists."""
    size = drawn.shape[1]
    step = torch.arange(size, device=count.device).expand(count.shape[0], size)  # (B, size)
    left = (count.unsqueeze(1) - step).clamp(min=1)  # a step beyond the end of its list swaps with itself
    target = step + drawn % left  # (B, size), at least the step itself
    if target.is_cpu and target.numel() <= _FEW:
        return torch.tensor(_swap_one_by_one(target.tolist()), dtype=torch.int64).view_as(target)
    return _swap_at_once(target, step, size)


def _swap_one_by_one(targets: list[list[int]]) -> list[list[int]]:
    """What stands at each step's place after its swap: a shuffle, literally, of which only the places met are kept."""
    rows = []
    for row in targets:
        moved: dict[int, int] = {}
        chosen = []
        for step, target in enumerate(row):
            chosen.append(moved.get(target, target))
            moved[target] = moved.get(step, step)
        rows.append(chosen)
    return rows


def _swap_at_once(target: Tensor, step: Tensor, size: int) -> Tensor:
    """The same for all steps at once, in operations that do not depend on what was drawn."""
    swaps = (target * size + step).sort(1).values  # by target, then by step

    # What stands at place j when its turn comes was put there by the last earlier swap with j, if there was one.
    origin = _last_swap(swaps, step, step, size)
    origin = torch.where(origin >= 0, origin, step)
    for _ in range((size - 1).bit_length()):  # chains lead to earlier steps only: doubling reaches their ends
        origin = origin.gather(1, origin)
    moved = _last_swap(swaps, target, step, size)
    return torch.where(moved >= 0, origin.gather(1, moved.clamp(min=0)), target)


def _last_swap(swaps: Tensor, place: Tensor, step: Tensor, size: int) -> Tensor:
    """The last step before ``step`` (B, size) that swapped with ``place`` (B, size); -1 where there is none."""
    found = torch.searchsorted(swaps, place * size + step) - 1  # (B, size), the last one that comes before
    swap = swaps.gather(1, found.clamp(min=0))
    hit = (found >= 0) & (torch.div(swap, size, rounding_mode="floor") == place)
    return torch.where(hit, swap % size, -1)


def choose_one(count: int, size: int, generator: torch.Generator) -> Tensor:
    """A uniform subset of {0..count-1} (size,), in random order, at a cost that does not depend on ``count``.

    Example:
        >>> len(choose_one(10**7, 5, torch.Generator().manual_seed(0)).unique())
        5
    """
    if size == 0:
        return torch.empty(0, dtype=torch.int64, device=generator.device)
    # As a fill, not as a copy of a Python number: no wait for the device.
    row = torch.full((1,), count, dtype=torch.int64, device=generator.device)
    return choose(row, size, generator)[0]


class Choice(Protocol):
    """Numbered lists of examples to choose from."""

    @property
    def count(self) -> Tensor:
        """(G,) how long each list is."""

    def take(self, group: Tensor, place: Tensor) -> Tensor:
        """The examples (B, k) at the places (B, k) of the lists (B,)."""

    def total(self, weight: Tensor | None) -> Tensor:
        """(G,) what the weights (N,) of each list's examples add up to; None: their number, as floating point."""


@final
@dataclass(frozen=True)
class Lists:
    """G lists of examples, laid end to end.

    Args:
        flat: (S,) the examples.
        start: (G,) where each list starts in ``flat``.
        count: (G,) how long it is.

    Example:
        >>> lists = Lists.by_label(torch.tensor([1, 0, 1, -1]), 2)
        >>> lists.flat, lists.count
        (tensor([1, 0, 2]), tensor([1, 2]))
    """

    flat: Tensor
    start: Tensor
    count: Tensor

    @classmethod
    def by_label(cls, labels: Tensor, groups: int) -> Lists:
        """List c holds the examples with label c, in their order; labels (N,) below 0 are in no list."""
        present = (labels >= 0).nonzero()[:, 0]
        label = labels[present]
        count = torch.bincount(label, minlength=groups)
        return cls(present[label.argsort(stable=True)], count.cumsum(0) - count, count)

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

    def total(self, weight: Tensor | None) -> Tensor:
        dtype = exact_dtype(self.count.device)
        if weight is None:
            return self.count.to(dtype)
        zero = torch.zeros(self.count.shape[0], dtype=dtype, device=self.count.device)
        return zero.index_add(0, self.group, weight[self.flat].to(dtype))


@final
@dataclass(frozen=True)
class Rest:
    """For each list of ``lists`` everything in the other lists, without storing it.

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
        start = self.lists.start[group].unsqueeze(1)
        length = self.lists.count[group].unsqueeze(1)
        return self.lists.flat[torch.where(place < start, place, place + length)]  # jump over the list itself

    def total(self, weight: Tensor | None) -> Tensor:
        each = self.lists.total(weight)
        return each.sum() - each


@final
class Pool:
    """Lists to draw from, with what a weighted mean over each of them needs.

    Args:
        choice: the lists; none of those that are drawn from may be empty.
        weight: (N,) of each example, None: all 1.
        used: (U,) the lists that are drawn from; None: all of them.

    Attributes:
        count: (G,) how long each list is.
        total: (G,) float64, what the weights in it add up to.
        longest: the length of the longest that is drawn from; ``shortest``: of the shortest.
    """

    def __init__(self, choice: Choice, weight: Tensor | None, used: Tensor | None = None) -> None:
        self.choice = choice
        self.count = choice.count
        self.total = choice.total(weight)
        lengths = self.count
        # As a number, once: a draw that asked the device for it would have to wait.
        if used is not None:
            lengths = lengths[used]
        self.longest = int(lengths.max())
        self.shortest = int(lengths.min())

    def draw_full(self, group: Tensor, size: int, generator: torch.Generator) -> Tensor:
        """``size`` examples (B, size) of each list (B,), none of which is shorter."""
        return self.choice.take(group, choose(self.count[group], size, generator))

    def draw(self, group: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """``size`` examples of each list (B,): ids (B, size), and which of them are real (B, size).

        A list with fewer gives all that it has; the places that are left hold its first example, marked False.
        """
        count = self.count[group]  # (B,)
        place = choose(count, size, generator)  # (B, size)
        real = torch.arange(size, device=count.device) < count.unsqueeze(1)
        return self.choice.take(group, torch.where(real, place, 0)), real


def spread(member: Tensor, count: Tensor, total: Tensor, weight: Tensor | None) -> Tensor:
    r"""Weights with which those present stand for all: :math:`w_k\, c / (d\, W)` for each of d present of c.

    For a uniform draw their weighted sum is unbiased for :math:`\frac1W \sum_k w_k v_k` over all c.

    Args:
        member: (B, K) bool, which examples are present and belong to the block's list.
        count: (B,) c, how many the list has.
        total: (B,) W, what the block's mean is divided by.
        weight: (K,) or (B, K), w of the examples present; None: all 1.

    Returns:
        (B, K).

    Example:
        >>> member = torch.tensor([[True, True, False]])
        >>> spread(member, torch.tensor([6]), torch.tensor([10.0], dtype=torch.float64), None)
        tensor([[0.3000, 0.3000, 0.0000]], dtype=torch.float64)
    """
    present = member.sum(1).clamp(min=1)  # (B,); where nobody is present all weights are 0
    scale = count / (present * total)  # (B,)
    spread_out = member * scale.unsqueeze(1)
    if weight is None:
        return spread_out
    return spread_out * weight
