"""Indexed: a data set whose items tell their position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from torch.utils.data import Dataset, IterableDataset

from fcco._support import checks


@final
class Indexed(Dataset[Any]):
    """A map-style data set whose items end in their id: the position in it, as :mod:`fcco.losses` need it.

    ``(x, y)`` becomes ``(x, y, id)``, any other item ``(item, id)``, and a dict gets a key ``"id"``. Of a subset
    (``Indexed(Subset(dataset, rows))``) ids are positions in the subset: the labels of a loss are then ``y[rows]``.

    Args:
        dataset: with ``__getitem__`` and ``__len__``.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> import torch
        >>> Indexed(TensorDataset(torch.zeros(3, 2), torch.tensor([1, 0, 1])))[2]
        (tensor([0., 0.]), tensor(1), 2)
    """

    def __init__(self, dataset: Any) -> None:
        is_map_style = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if isinstance(dataset, IterableDataset) or not is_map_style:
            raise TypeError(f"dataset must have __getitem__ and __len__, got {type(dataset).__name__}")
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        position = self._position(index)
        return _with_id(self.dataset[position], position)

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Several items at once, as DataLoader asks for them."""
        positions = [self._position(index) for index in indices]
        fetch = getattr(self.dataset, "__getitems__", None)
        if callable(fetch):
            items = fetch(positions)
        else:
            items = [self.dataset[position] for position in positions]
        return [_with_id(item, position) for item, position in zip(items, positions, strict=True)]

    def _position(self, index: Any) -> int:
        size = len(self)
        position = checks.whole("index", index)
        if not -size <= position < size:
            raise IndexError(f"index must be in 0..{size - 1}, got {position}")
        return position % size


def _with_id(item: Any, position: int) -> Any:
    if isinstance(item, Mapping):
        if "id" in item:
            raise ValueError(f"items must not have a key 'id' of their own, got one in item {position}")
        return {**item, "id": position}
    if isinstance(item, tuple | list):
        return (*item, position)
    return item, position
