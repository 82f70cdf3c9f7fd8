"""Structure: what all kinds of data share: examples, weights, parts of them, batches for people's own loaders."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fcco._support import checks
from fcco._support.digests import digest
from fcco.data._batch import Batch
from fcco.data._convert import numbers_or_objects, weights
from fcco.data._source import source_of


class Structure(ABC):
    """Examples, and what is known of them; abstract.

    Args:
        x: (N, ...) a tensor, a NumPy array or a pandas object (positions count, whatever its index); a tuple of them
            (modalities) or a dict; a list of numbers; or a map-style data set whose items are x or (x, ...).
        weight: (N,) how much each example counts in every mean it enters, >= 0; None: all alike. An example of weight
            2 counts like two copies of it, one of weight 0 as if it were not there.
        inputs: how many leading parts of a data set's items make up x; two or more: x is a tuple.

    Attributes:
        num_examples: N.
        device: where the examples are.
        weight: (N,) float64, or None.
        source: hands out x by positions.
    """

    #: names of the tensors (N, ...) that every subset takes its rows of
    per_example: ClassVar[tuple[str, ...]] = ("weight",)
    #: names of other tensors
    others: ClassVar[tuple[str, ...]] = ()

    _origin: str | None = None

    def __init__(self, x: Any, weight: Any, inputs: int) -> None:
        self.source = source_of(x, inputs=inputs)
        self.num_examples = self.source.size
        self.device = self.source.device
        if self.device.type == "meta":
            raise ValueError("x must have values, got a tensor on the device meta")
        if self.num_examples == 0:
            raise ValueError("x must hold at least one example, got none")
        self.weight = weights(weight, self.num_examples, self.device)

    @abstractmethod
    def labels_at(self, id: Tensor) -> Tensor | None:
        """What ``batch.y`` is for the examples (K,).

        Args:
            id: positions (K,).
        """

    def __len__(self) -> int:
        return self.num_examples

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.num_examples} examples on {self.device})"

    # ------------------------------------------------------------------ parts

    def subset(self, ids: Any) -> Self:
        """The examples at the positions ``ids`` (n,), in that order; a bool mask (N,) will do. Nothing is copied of x.

        Queries and bags come whole: positions that cut one in two are refused.

        Args:
            ids: distinct positions (n,), or a mask (N,).
        """
        rows = self._positions("ids", ids)
        if rows.unique().numel() != rows.numel():
            raise ValueError("ids must be distinct positions, got duplicates")
        return self._taken(rows)

    def split(self, fraction: float, *, seed: int = 0) -> tuple[Self, Self]:
        """Two disjoint parts, the first with about a ``fraction`` of the examples, drawn at random.

        Queries and bags stay whole. Each label (each group, events and censored subjects) is shared out alike; both
        parts have some of it where it has two or more. Where an example has several labels, it goes by the rarest one.

        Args:
            fraction: in (0, 1), of the first part.
            seed: of the draw.
        """
        if not 0.0 < checks.number("fraction", fraction) < 1.0:
            raise ValueError(f"fraction must be in (0, 1), got {fraction}")
        generator = torch.Generator().manual_seed(checks.whole("seed", seed))
        unit, strata = self._split_units()
        # On the CPU, so that a seed means the same split on every device.
        first = _stratified(strata.cpu(), fraction, generator)
        chosen = first[unit.cpu()]  # (N,)
        parts = [chosen.nonzero()[:, 0], (~chosen).nonzero()[:, 0]]
        if not all(part.numel() for part in parts):
            raise ValueError(f"fraction={fraction} leaves one part without examples, out of {self.num_examples}")
        return self._taken(parts[0].to(self.device)), self._taken(parts[1].to(self.device))

    def to(self, device: torch.device | str) -> Self:
        """The same data on another device; where x is a data set it stays on the CPU, and so does all of this.

        Args:
            device: where to.
        """
        moved = copy.copy(self)
        moved.source = self.source.to(torch.device(device))
        moved.device = moved.source.device
        for name in self.per_example + self.others:
            value = getattr(self, name)
            if value is not None:
                setattr(moved, name, value.to(moved.device))
        return moved

    # ------------------------------------------------------------------ people's own loaders

    def batch(self, ids: Any, x: Any) -> Batch:
        """A batch of one's own DataLoader: x of the examples at the positions ``ids`` (K,), on the device of x.

        Its blocks are found by the objective, which takes the examples of each class for a uniform draw from it.

        Args:
            ids: positions (K,).
            x: the examples at them: a tensor (K, ...), or a tuple or dict of such.

        Example:
            >>> from fcco.data import Points
            >>> data = Points(torch.randn(4, 2), [1, 0, 0, 1])
            >>> data.batch([3, 1], data.source.take(torch.tensor([3, 1]))).y
            tensor([1., 0.])
        """
        rows = self._positions("ids", ids)
        batch = Batch(x, rows, y=self.labels_at(rows), origin=self.origin())
        first = x
        while isinstance(first, (tuple, list, dict)) and first:
            first = next(iter(first.values())) if isinstance(first, dict) else first[0]
        if not isinstance(first, Tensor):
            return batch
        if first.dim() == 0 or first.shape[0] != len(batch):
            raise ValueError(f"x must have one row per id, {len(batch)} of them, got shape {tuple(first.shape)}")
        return batch.to(first.device)

    def origin(self) -> str:
        """What batches of these data carry along: their kind and size, and a digest of all that is known besides x.

        Equal data have equal origins, on any device and in any process. It is worked out once.

        Example:
            >>> from fcco.data import Points
            >>> x = torch.zeros(2, 3)
            >>> mine = Points(x, [0, 1]).origin()
            >>> Points(x, [0, 1]).origin() == mine, Points(x, [1, 0]).origin() == mine
            (True, False)
        """
        if self._origin is None:
            self._origin = f"{type(self).__name__} of {self.num_examples} examples, {digest(self.facts())}"
        return self._origin

    # ------------------------------------------------------------------ for subclasses

    def facts(self) -> list[Tensor]:
        """What is known of the examples besides x: labels, groups, times, weights."""
        values = [getattr(self, name) for name in self.per_example + self.others]
        return [value for value in values if value is not None]

    def _split_units(self) -> tuple[Tensor, Tensor]:
        """Which unit (N,) an example belongs to, and the stratum (U,) of each unit; units stay whole."""
        unit = torch.arange(self.num_examples, device=self.device)
        return unit, torch.zeros_like(unit)

    def _taken(self, rows: Tensor) -> Self:
        part = copy.copy(self)
        part.source = self.source.subset(rows)
        part.num_examples = part.source.size
        part._origin = None
        for name in self.per_example:
            value = getattr(self, name)
            if value is not None:
                setattr(part, name, value[rows])
        return part

    def _positions(self, name: str, ids: Any) -> Tensor:
        given = numbers_or_objects(name, ids)
        if isinstance(given, list) or given.dim() != 1 or given.is_floating_point():
            raise TypeError(f"{name} must be integers of shape (n,), or a mask ({self.num_examples},)")
        if given.dtype == torch.bool:
            if given.shape[0] != self.num_examples:
                raise ValueError(f"{name} must be a mask of shape ({self.num_examples},), got ({given.shape[0]},)")
            given = given.nonzero()[:, 0]
        if given.numel() == 0:
            raise ValueError(f"{name} must name at least one example, got none")
        wrong = given[(given < 0) | (given >= self.num_examples)].tolist()
        if wrong:
            raise ValueError(f"{name} must be in 0..{self.num_examples - 1}, got {checks.some(wrong)}")
        return given.to(self.device, torch.int64)


def _stratified(strata: Tensor, fraction: float, generator: torch.Generator) -> Tensor:
    """(U,) bool: which units are in the first part: a rounded ``fraction`` of each stratum.

    Both parts have some of every stratum of two or more.
    """
    order = torch.randperm(strata.shape[0], generator=generator)
    order = order[strata[order].argsort(stable=True)]  # stratum by stratum, each in random order
    _, number, count = strata.unique(return_inverse=True, return_counts=True)
    quota = (count * fraction).round().to(torch.int64)
    least = (count >= 2).to(torch.int64)
    quota = torch.minimum(torch.maximum(quota, least), count - least)
    start = count.cumsum(0) - count
    rank = torch.empty_like(order)  # (U,) the place of each unit within its stratum
    rank[order] = torch.arange(order.shape[0]) - start[number[order]]
    return rank < quota[number]
