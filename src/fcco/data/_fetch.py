"""DatasetReader: fetches items of a map-style data set, here or in worker processes."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from fcco.data._reader import Reader, Request


@final
class DatasetReader(Reader):
    """Fetches for one loader.

    Args:
        dataset: map-style, items x or (x, ...).
        inputs: how many leading parts of an item make up x.
        rows: (N,) which items; None: all.
        num_workers: processes that fetch; 0: this one.
        pin_memory: into pinned memory.
    """

    def __init__(self, dataset: Any, inputs: int, rows: Tensor | None, num_workers: int, pin_memory: bool) -> None:
        self._fetcher = _Fetcher(dataset, inputs)
        self._rows = rows
        self._workers = num_workers
        self._pin = pin_memory
        self._pending = _Pending()
        self._kept: DataLoader[Any] | None = None

    def fetch(self, requests: Iterable[Request], *, keep: bool) -> Iterator[Any]:
        asked = ((seed, self._positions(id)) for seed, id in requests)
        if self._workers == 0:
            return (self._fetcher[request] for request in asked)
        if not keep:
            return map(_retupled, self._loader(asked, persistent=False))
        if self._kept is None:
            self._kept = self._loader(self._pending, persistent=True)
        self._pending.requests = asked
        return map(_retupled, self._kept)

    def _positions(self, id: Tensor) -> list[int]:
        rows = id.cpu()
        if self._rows is not None:
            rows = self._rows[rows]
        positions: list[int] = rows.tolist()
        return positions

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
        self._dataset = dataset
        self._inputs = inputs

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, request: tuple[int, list[int]]) -> Any:
        seed, ids = request
        with _seeded(seed):
            many = getattr(self._dataset, "__getitems__", None)
            items = [self._dataset[id] for id in ids] if many is None else many(ids)
            x = default_collate([self._input(item) for item in items])
        if self._inputs > 1:
            return tuple(x)
        return x

    def _input(self, item: Any) -> Any:
        if not isinstance(item, (tuple, list)):
            item = (item,)
        if len(item) < self._inputs:
            raise ValueError(f"x must yield at least inputs={self._inputs} parts per item, got {len(item)}")
        if self._inputs == 1:
            return item[0]
        return tuple(item[: self._inputs])


def _unchanged(x: Any) -> Any:
    return x


def _retupled(x: Any) -> Any:
    if isinstance(x, list):  # DataLoader's pinning makes lists of tuples
        return tuple(x)
    return x


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Python's, NumPy's and torch's CPU generators start from ``seed`` inside, and are put back after."""
    numpy = sys.modules.get("numpy")  # not a dependency: seeded where the data set uses it
    own = torch.default_generator
    python_state = random.getstate()
    torch_state = own.get_state()
    numpy_state = None
    if numpy is not None:
        numpy_state = numpy.random.get_state()
    random.seed(seed)
    own.manual_seed(seed)
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(python_state)
        own.set_state(torch_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
