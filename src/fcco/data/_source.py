"""Where the examples come from: tensors, indexed in place, or a map-style data set, fetched by workers."""

from __future__ import annotations

import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from fcco._support import checks
from fcco.data._batch import map_tensors
from fcco.data._convert import array_tensor, is_array

Request = tuple[int, Tensor]  # a seed for the data set's own randomness, and the examples (K,)


class Reader(ABC):
    """Fetches examples for one loader, with that loader's workers."""

    @abstractmethod
    def fetch(self, requests: Iterable[Request], *, keep: bool) -> Iterator[Any]:
        """One x per request, in order; ``keep``: the workers may wait for the next call."""


class Source(ABC):
    """Hands out examples by their positions.

    Attributes:
        size: N.
        device: where the examples are.
        in_place: whether they are indexed in place, so that workers have nothing to do.
    """

    size: int
    device: torch.device
    in_place: bool

    @abstractmethod
    def reader(self, num_workers: int = 0, *, pin_memory: bool = False) -> Reader:
        """What fetches for a loader."""

    @abstractmethod
    def seed(self, generator: torch.Generator) -> int:
        """A fresh seed for the data set's own randomness; 0 where it has none."""

    @abstractmethod
    def subset(self, ids: Tensor) -> Source:
        """The same examples, those at the positions (n,) alone, in that order."""

    @abstractmethod
    def to(self, device: torch.device) -> Source:
        """The same examples on another device; a data set stays where it is."""

    def take(self, id: Tensor, *, seed: int = 0) -> Any:
        """x of the examples (K,)."""
        return next(iter(self.reader().fetch([(seed, id)], keep=False)))


def source_of(x: Any, *, inputs: int = 1) -> Source:
    """The source for tensors, arrays, a tuple or a dict of them, or a map-style data set."""
    checks.positive_int("inputs", inputs)
    if isinstance(x, TensorDataset) and inputs <= len(x.tensors):
        x = tuple(x.tensors[:inputs])
        if inputs == 1:
            x = x[0]
    tensors = _tensors(x)
    if tensors is not None:
        return TensorSource(tensors)
    if isinstance(x, IterableDataset) or not (hasattr(x, "__getitem__") and hasattr(x, "__len__")):
        raise TypeError(f"x must be tensors, arrays or a map-style data set, got {type(x).__name__}")
    return DatasetSource(x, inputs)


def _tensors(x: Any) -> Any:
    """A tensor, a tuple or a dict of tensors; None: x is something else."""
    if isinstance(x, Tensor):
        return x.detach()
    if is_array(x):
        return _array("x", x)
    if isinstance(x, (tuple, Mapping)) and len(x) > 0:
        parts = list(x.values()) if isinstance(x, Mapping) else list(x)
        if not all(isinstance(part, Tensor) or is_array(part) for part in parts):
            return None
        whole = [_tensors(part) for part in parts]
        if isinstance(x, Mapping):
            return dict(zip(x.keys(), whole, strict=True))
        return tuple(whole)
    if isinstance(x, list) and x and isinstance(_first_leaf(x), (int, float)):
        try:
            return torch.tensor(x)
        except (TypeError, ValueError) as error:
            raise ValueError(f"x must have rows of one length that hold numbers: {error}") from error
    return None


def _first_leaf(x: Any) -> Any:
    while isinstance(x, list) and x:
        x = x[0]
    return x


def _array(name: str, x: Any) -> Tensor:
    tensor = array_tensor(name, x)
    if tensor is None:
        for column in getattr(x, "columns", ()):
            if array_tensor(name, x[column]) is None:
                raise TypeError(f"{name} must hold numbers, got {x[column].dtype} in column {column!r}")
        raise TypeError(f"{name} must hold numbers, got {getattr(x, 'dtype', 'objects')}")
    return tensor


@final
class TensorSource(Source):
    """Tensors (N, ...): everything happens on their device."""

    in_place = True

    def __init__(self, x: Any, rows: Tensor | None = None) -> None:
        parts: list[Tensor] = []
        map_tensors(x, lambda part: parts.append(part) or part)  # type: ignore[func-returns-value]
        if not parts or any(part.dim() == 0 for part in parts):
            raise ValueError("x must hold tensors of shape (N, ...), got a scalar or nothing")
        if len({(part.shape[0], part.device) for part in parts}) > 1:
            got = ", ".join(f"{part.shape[0]} on {part.device}" for part in parts)
            raise ValueError(f"x must hold tensors of one length on one device, got {got}")
        self.x = x
        self.rows = rows  # (N,) which rows of x; None: all
        self.size = int(parts[0].shape[0])
        if rows is not None:
            self.size = int(rows.shape[0])
        self.device = parts[0].device

    def reader(self, num_workers: int = 0, *, pin_memory: bool = False) -> Reader:
        if num_workers:
            raise ValueError(f"num_workers must be 0 for tensors (they are indexed in place), got {num_workers}")
        return _TensorReader(self)

    def seed(self, generator: torch.Generator) -> int:
        return 0

    def subset(self, ids: Tensor) -> TensorSource:
        rows = ids.to(self.device)
        if self.rows is not None:
            rows = self.rows[rows]
        return TensorSource(self.x, rows)

    def to(self, device: torch.device) -> TensorSource:
        moved = map_tensors(self.x, lambda part: part.to(device))
        rows = self.rows
        if rows is not None:
            rows = rows.to(device)
        return TensorSource(moved, rows)


@final
class _TensorReader(Reader):
    def __init__(self, source: TensorSource) -> None:
        self._source = source

    def fetch(self, requests: Iterable[Request], *, keep: bool) -> Iterator[Any]:
        for _, id in requests:
            yield self._at(id)

    def _at(self, id: Tensor) -> Any:
        rows = id.to(self._source.device)
        if self._source.rows is not None:
            rows = self._source.rows[rows]
        return map_tensors(self._source.x, lambda part: part[rows])


@final
class DatasetSource(Source):
    """A map-style data set of items x or (x, ...); workers do nothing but fetch.

    The data set's own randomness (augmentation) starts from a seed of each request, so that what comes does not
    depend on the number of workers, and the global generators are left as they were.
    """

    in_place = False

    def __init__(self, dataset: Any, inputs: int, rows: Tensor | None = None) -> None:
        self.dataset = dataset
        self.inputs = inputs
        self.rows = rows
        self.size = len(dataset)
        if rows is not None:
            self.size = int(rows.shape[0])
        self.device = torch.device("cpu")

    def reader(self, num_workers: int = 0, *, pin_memory: bool = False) -> Reader:
        if checks.whole("num_workers", num_workers) < 0:
            raise ValueError(f"num_workers must be an int >= 0, got {num_workers!r}")
        return _DatasetReader(self, num_workers, pin_memory)

    def seed(self, generator: torch.Generator) -> int:
        return int(torch.randint(2**62, (), generator=generator))

    def subset(self, ids: Tensor) -> DatasetSource:
        rows = ids.cpu()
        if self.rows is not None:
            rows = self.rows[rows]
        return DatasetSource(self.dataset, self.inputs, rows)

    def to(self, device: torch.device) -> DatasetSource:
        return self


@final
class _DatasetReader(Reader):
    def __init__(self, source: DatasetSource, num_workers: int, pin_memory: bool) -> None:
        self._fetcher = _Fetcher(source.dataset, source.inputs)
        self._rows = source.rows
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
