"""What people hand over (tensors, NumPy arrays, pandas objects, lists), as tensors; errors name argument and row.

Neither NumPy nor pandas is imported: their objects are known by what they can do.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fcco._support import checks
from fcco.data._draws import exact_dtype

_ODD = {  # types that arrays come in and that torch hardly computes with
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.uint64: torch.int64,
}


_SPARSE_NUMBERS = 100_000  # numbers that run further than this (hashes) are renumbered: a table would have so many rows


def is_array(value: Any) -> bool:
    """Whether this is a NumPy array, a pandas object or the like."""
    return not isinstance(value, Tensor) and (hasattr(value, "to_numpy") or hasattr(value, "__array__"))


def array_tensor(name: str, value: Any) -> Tensor | None:
    """A tensor that shares an array's memory where it can; None: the array does not hold numbers."""
    array = value
    if hasattr(value, "to_numpy"):
        array = value.to_numpy()
    elif not hasattr(value, "dtype"):
        array = value.__array__()
    if array.dtype.kind not in "biuf":
        return None
    if any(stride < 0 for stride in array.strides) or not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    with warnings.catch_warnings():
        # Nothing is ever written into the data, so a read-only array (pandas gives such) is as good.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        try:
            tensor = torch.as_tensor(array)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"{name} must have a dtype that torch supports, got {array.dtype}") from error
    return tensor.to(_ODD.get(tensor.dtype, tensor.dtype))


def is_missing(value: Any) -> bool:
    """None, NaN, or pandas' NA and NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and value != value


def nested(value: Any) -> list[Any]:
    """Rows of Python objects from an array or a sequence."""
    if hasattr(value, "to_numpy"):
        value = value.to_numpy()
    if hasattr(value, "tolist"):
        value = value.tolist()
    return list(value)


def numbers_or_objects(name: str, value: Any) -> Tensor | list[Any]:
    """A tensor where everything is a number (missing values NaN), else rows of Python objects (strings, missing)."""
    if isinstance(value, Tensor):
        return value.detach()
    if is_array(value):
        tensor = array_tensor(name, value)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        tensor = _tensor_or_none(value)
    else:
        raise TypeError(f"{name} must be a tensor, an array or a list, got {type(value).__name__}")
    if tensor is not None:
        return tensor
    return _rows(name, nested(value))


def _tensor_or_none(value: Sequence[Any]) -> Tensor | None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Creating a tensor from a list of numpy")  # slow, but right
        try:
            return torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError):
            return None  # strings, None, or rows of different lengths


def _rows(name: str, rows: list[Any]) -> Tensor | list[Any]:
    """Rows of objects: a tensor where they are numbers or missing."""
    if not any(isinstance(row, (list, tuple)) for row in rows):
        column: Tensor | list[Any] = _column(name, rows, None)
        return column
    rows = [list(row) for row in rows]
    widths = {len(row) for row in rows}
    if len(widths) > 1:
        raise ValueError(f"{name} must have rows of one length, got {checks.some(sorted(widths))}")
    columns = [_column(name, list(column), place) for place, column in enumerate(zip(*rows, strict=True))]
    if all(isinstance(column, Tensor) for column in columns):
        return torch.stack(columns, 1)
    return [[None if is_missing(value) else value for value in row] for row in rows]


def _column(name: str, values: list[Any], column: int | None) -> Any:
    """One column of objects: a tensor where they are numbers, None and NA as NaN; else the objects, checked."""
    known = [value for value in values if not is_missing(value)]
    if all(isinstance(value, (int, float)) for value in known):  # bool is an int
        return torch.tensor([float("nan") if is_missing(value) else float(value) for value in values]).double()
    for row, value in enumerate(values):
        if not is_missing(value) and not isinstance(value, str):
            raise TypeError(f"{name} must hold numbers or strings, not both, got {value!r} in {place(row, column)}")
    return [None if is_missing(value) else value for value in values]


def place(row: int, column: int | str | None = None) -> str:
    """Where something stands: 'row 3', 'row 3, column 1'."""
    if column is None:
        return f"row {row}"
    return f"row {row}, column {column}"


def reals(name: str, value: Any, size: int, device: torch.device) -> Tensor:
    """Finite real numbers (N,)."""
    tensor = numbers_or_objects(name, value)
    if not isinstance(tensor, Tensor) or tensor.is_complex():
        raise TypeError(f"{name} must hold numbers, got a {type(value).__name__} of something else")
    if tensor.shape != (size,):
        raise ValueError(f"{name} must have one number per example, shape ({size},), got {tuple(tensor.shape)}")
    wrong = (~torch.isfinite(tensor)).nonzero()[:, 0].tolist()
    if wrong:
        raise ValueError(f"{name} must be finite, got {tensor[wrong[0]].item()} in row {checks.some(wrong)}")
    return tensor.to(device)


def weights(value: Any, size: int, device: torch.device) -> Tensor | None:
    """Weights (N,) in float64: >= 0, finite, some > 0; None where none are given."""
    if value is None:
        return None
    weight = reals("weight", value, size, device).to(exact_dtype(device))
    negative = (weight < 0).nonzero()[:, 0].tolist()
    if negative:
        raise ValueError(f"weight must be >= 0, got {weight[negative[0]].item()} in row {checks.some(negative)}")
    if not bool((weight > 0).any()):
        raise ValueError("weight must be > 0 for at least one example, got none")
    return weight


def numbered(name: str, value: Any, size: int, device: torch.device) -> tuple[Tensor, tuple[Any, ...]]:
    """Groups (N,) as 0, 1, ... in sorted order, and what each was called; integers that start at 0 keep their number.

    Hashes, which run far beyond their count, are numbered anew.

    Example:
        >>> numbered("group", ["b", "a", "b"], 3, torch.device("cpu"))
        (tensor([1, 0, 1]), ('a', 'b'))
    """
    given = numbers_or_objects(name, value)
    length = len(given)
    if (isinstance(given, Tensor) and given.dim() != 1) or length != size:
        shape = tuple(given.shape) if isinstance(given, Tensor) else (length,)
        raise ValueError(f"{name} must have one entry per example, shape ({size},), got {shape}")
    if isinstance(given, Tensor):
        return _numbered_tensor(name, given.to(device))
    missing = [row for row, entry in enumerate(given) if entry is None]
    if missing:
        raise ValueError(f"{name} must be known for every example, but is missing in row {checks.some(missing)}")
    names = tuple(sorted(set(given)))
    number = {entry: place for place, entry in enumerate(names)}
    return torch.tensor([number[entry] for entry in given], device=device), names


def _numbered_tensor(name: str, given: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
    if given.numel() == 0:
        raise ValueError(f"{name} must not be empty")
    if given.is_floating_point():
        missing = given.isnan().nonzero()[:, 0].tolist()
        if missing:
            raise ValueError(f"{name} must be known for every example, but is missing in row {checks.some(missing)}")
        broken = (given != given.round()).nonzero()[:, 0].tolist()
        if broken:
            raise TypeError(f"{name} must be integers or strings, got {given[broken[0]].item()} in row {broken[0]}")
    whole = given.to(torch.int64)
    values, number = whole.unique(return_inverse=True)
    if int(values[0]) == 0 and int(values[-1]) < _SPARSE_NUMBERS + 10 * len(values):
        return whole, tuple(range(int(values[-1]) + 1))
    return number, tuple(values.tolist())
