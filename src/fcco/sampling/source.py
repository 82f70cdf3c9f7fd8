"""Where the examples come from: tensors, indexed in place, or a map-style data set, fetched by workers."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from fcco._support import checks

Request = tuple[int, Tensor]  # a seed for the data set's own randomness, and the examples (K,)


class Source(Protocol):
    """Hands out examples by their positions."""

    size: int
    device: torch.device

    def seed(self, generator: torch.Generator) -> int:
        """A fresh seed for the data set's own randomness; 0 where it has none."""

    def fetch(self, requests: Iterable[Request], *, keep: bool) -> Iterator[Any]:
        """One x for each request, in order; ``keep``: the workers may wait for the next call."""


def source_of(dataset: Any, *, inputs: int = 1, num_workers: int = 0, pin_memory: bool = False) -> Source:
    """The source for a tensor, a tuple of tensors (modalities), or a map-style data set."""
    checks.positive_int("inputs", inputs)
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
        raise ValueError(f"num_workers must be an int >= 0, got {num_workers!r}")
    if isinstance(dataset, TensorDataset) and inputs <= len(dataset.tensors):
        dataset = dataset.tensors[0] if inputs == 1 else tuple(dataset.tensors[:inputs])
    if isinstance(dataset, Tensor) or (isinstance(dataset, tuple) and all(isinstance(x, Tensor) for x in dataset)):
        if num_workers:
            raise ValueError(f"num_workers must be 0 for tensors (they are indexed in place), got {num_workers}")
        return TensorSource(dataset)
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise TypeError(f"dataset must be tensors or a map-style data set, got {type(dataset).__name__}")
    return DatasetSource(dataset, inputs, num_workers, pin_memory)


@final
class TensorSource:
    """Tensors (N, ...): everything happens on their device."""

    def __init__(self, x: Tensor | tuple[Tensor, ...]) -> None:
        parts = x if isinstance(x, tuple) else (x,)
        if not parts or any(part.dim() == 0 for part in parts):
            raise ValueError("dataset must hold tensors of shape (N, ...), got a scalar or nothing")
        if len({(part.shape[0], part.device) for part in parts}) > 1:
            got = ", ".join(f"{part.shape[0]} on {part.device}" for part in parts)
            raise ValueError(f"dataset must hold tensors of one length on one device, got {got}")
        self._x, self.size, self.device = x, int(parts[0].shape[0]), parts[0].device

    def seed(self, generator: torch.Generator) -> int:
        return 0

    def fetch(self, requests: Iterable[Request], *, keep: bool) -> Iterator[Any]:
        for _, id in requests:
            yield tuple(part[id] for part in self._x) if isinstance(self._x, tuple) else self._x[id]


@final
class DatasetSource:
    """A map-style data set of items x or (x, ...); workers do nothing but fetch.

    The data set's own randomness (augmentation) starts from a seed of each request, so that what comes does not
    depend on the number of workers, and the global generators are left as they were.
    """

    def __init__(self, dataset: Any, inputs: int, num_workers: int, pin_memory: bool) -> None:
        self.size, self.device = len(dataset), torch.device("cpu")
        self._fetcher, self._workers, self._pin = _Fetcher(dataset, inputs), num_workers, pin_memory
        self._pending = _Pending()
        self._kept: DataLoader[Any] | None = None

    def seed(self, generator: torch.Generator) -> int:
        return int(torch.randint(2**62, (), generator=generator))

    def fetch(self, requests: Iterable[Request], *, keep: bool) -> Iterator[Any]:
        asked = ((seed, id.tolist()) for seed, id in requests)
        if self._workers == 0:
            return (self._fetcher[request] for request in asked)
        if not keep:
            return map(_retupled, self._loader(asked, persistent=False))
        if self._kept is None:
            self._kept = self._loader(self._pending, persistent=True)
        self._pending.requests = asked
        return map(_retupled, self._kept)

    def _loader(self, requests: Iterable[Any], *, persistent: bool) -> DataLoader[Any]:
        return DataLoader(
            self._fetcher,
            sampler=requests,
            batch_size=None,  # a request is a whole batch
            num_workers=self._workers,
            collate_fn=_unchanged,
            pin_memory=self._pin,
            persistent_workers=persistent,
            generator=torch.Generator(),  # DataLoader draws a base seed, else from the global one
        )


class _Pending:
    """The requests of the iteration under way, for a DataLoader that outlives it."""

    requests: Iterable[Any] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.requests)


class _Fetcher(Dataset[Any]):
    """Turns a request into x; this is what travels to the workers."""

    def __init__(self, dataset: Any, inputs: int) -> None:
        self._dataset, self._inputs = dataset, inputs

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, request: tuple[int, list[int]]) -> Any:
        seed, ids = request
        with _seeded(seed):
            many = getattr(self._dataset, "__getitems__", None)
            items = [self._dataset[id] for id in ids] if many is None else many(ids)
            x = default_collate([self._input(item) for item in items])
        return tuple(x) if self._inputs > 1 else x

    def _input(self, item: Any) -> Any:
        if not isinstance(item, (tuple, list)):
            item = (item,)
        if len(item) < self._inputs:
            raise ValueError(f"dataset must yield at least {self._inputs} parts an item, got {len(item)}")
        return item[0] if self._inputs == 1 else tuple(item[: self._inputs])


def _unchanged(x: Any) -> Any:
    return x


def _retupled(x: Any) -> Any:
    return tuple(x) if isinstance(x, list) else x  # DataLoader's pinning makes lists of tuples


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Python's, NumPy's and torch's CPU generators start from ``seed`` inside, and are put back after."""
    numpy = sys.modules.get("numpy")  # not a dependency: seeded where the data set uses it
    own, python = torch.default_generator, random.getstate()
    torch_state, numpy_state = own.get_state(), None if numpy is None else numpy.random.get_state()
    random.seed(seed)
    own.manual_seed(seed)
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(python)
        own.set_state(torch_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
