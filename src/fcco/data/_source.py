"""Where the examples come from: tensors, indexed in place, or a map-style data set, fetched by workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, final

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset

from fcco._support import checks
from fcco.data._batch import map_tensors
from fcco.data._convert import array_tensor, is_array
from fcco.data._fetch import DatasetReader
from fcco.data._reader import Reader, Request


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
    if hasattr(x, "tocsc"):
        raise TypeError("x must be dense, got a sparse matrix: pass x.toarray(), or use fcco.sklearn")
    if isinstance(x, IterableDataset) or not (hasattr(x, "__getitem__") and hasattr(x, "__len__")):
        raise TypeError(f"x must be tensors, arrays or a map-style data set, got {type(x).__name__}")
    return DatasetSource(x, inputs)


def _tensors(x: Any) -> Any:
    """A tensor, a tuple or a dict of tensors; None: x is something else."""
    if isinstance(x, (tuple, Mapping)):
        return _parts(x)
    if isinstance(x, list):
        return _rows_of_numbers(x)
    return _tensor(x)


def _tensor(x: Any) -> Tensor | None:
    """A tensor from a tensor or an array; None: x is something else."""
    if isinstance(x, Tensor):
        if x.layout != torch.strided:
            raise TypeError(f"x must be dense, got {x.layout}: pass x.to_dense()")
        return x.detach()
    if is_array(x):
        return _array("x", x)
    return None


def _parts(x: Any) -> Any:
    """A tuple or a dict of tensors from one of tensors and arrays; None: something else is in it."""
    values = list(x.values() if isinstance(x, Mapping) else x)
    tensors = [_tensor(value) for value in values]
    if not tensors or any(tensor is None for tensor in tensors):
        return None
    if isinstance(x, Mapping):
        return dict(zip(x.keys(), tensors, strict=True))
    return tuple(tensors)


def _rows_of_numbers(x: list[Any]) -> Tensor | None:
    """A tensor from a list of numbers, or of lists of them; None: a list of something else is a data set."""
    if not isinstance(_first_leaf(x), (int, float)):
        return None
    try:
        return torch.tensor(x)
    except (TypeError, ValueError) as error:
        raise ValueError(f"x must have rows of one length that hold numbers: {error}") from error


def _first_leaf(x: Any) -> Any:
    while isinstance(x, list) and x:
        x = x[0]
    return x


def _array(name: str, x: Any) -> Tensor:
    tensor = array_tensor(name, x)
    if tensor is not None:
        return tensor
    if not hasattr(x, "columns") or not hasattr(x, "iloc"):
        raise TypeError(f"{name} must hold numbers, got {getattr(x, 'dtype', 'objects')}")
    columns = []  # of a table whose columns are numbers, but not of one kind: bool beside float, as get_dummies gives
    for place, label in enumerate(x.columns):
        column = array_tensor(name, x.iloc[:, place])
        if column is None:
            raise TypeError(f"{name} must hold numbers, got {x.iloc[:, place].dtype} in column {label!r}")
        columns.append(column.double())
    return torch.stack(columns, 1)


def _flat(x: Any) -> list[Tensor]:
    """The tensors in x."""
    if isinstance(x, Tensor):
        return [x]
    if isinstance(x, dict):
        return list(x.values())
    return list(x)


@final
class TensorSource(Source):
    """Tensors (N, ...): everything happens on their device."""

    in_place = True

    def __init__(self, x: Any, rows: Tensor | None = None) -> None:
        parts = _flat(x)
        if not parts or any(part.dim() == 0 for part in parts):
            raise ValueError("x must hold tensors of shape (N, ...), got a scalar or no tensor")
        if len({(part.shape[0], part.device) for part in parts}) > 1:
            got = ", ".join(f"{part.shape[0]} on {part.device}" for part in parts)
            raise ValueError(f"x must hold tensors of one length on one device, got {got}")
        self.x = x  # never copied: a subset is another choice of rows
        self.rows = rows  # (N,) which rows of x; None: all
        self.size = int(parts[0].shape[0])
        if rows is not None:
            self.size = int(rows.shape[0])
        self.device = parts[0].device

    def reader(self, num_workers: int = 0, *, pin_memory: bool = False) -> Reader:
        if num_workers:
            raise ValueError(f"num_workers must be 0 for tensors, which are indexed in place, got {num_workers}")
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
        return DatasetReader(self.dataset, self.inputs, self.rows, num_workers, pin_memory)

    def seed(self, generator: torch.Generator) -> int:
        return int(torch.randint(2**62, (), generator=generator))

    def subset(self, ids: Tensor) -> DatasetSource:
        rows = ids.cpu()
        if self.rows is not None:
            rows = self.rows[rows]
        return DatasetSource(self.dataset, self.inputs, rows)

    def to(self, device: torch.device) -> DatasetSource:
        return self
