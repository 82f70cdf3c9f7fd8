"""Any table that people hand over, as named columns of numbers, truth values, strings or times."""

from __future__ import annotations

import datetime
import numbers
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, final

import torch
from torch import Tensor

from ._errors import TableError, TableTypeError
from ._numpy import Array, np

# A date, or a date and a time of day, without a time zone: what numpy reads.
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?")
_SPARSE_CHUNK = 256  # columns of a sparse matrix that are made dense at a time


class Kind(Enum):
    """What a column holds."""

    NUMBER = "number"
    BOOL = "bool"
    STRING = "string"
    TIME = "time"


@final
@dataclass(frozen=True, eq=False)
class Column:
    """One column as it was given.

    Args:
        name: of the column.
        kind: of what it holds.
        values: (N,) float64, int64, uint64 or Python's whole numbers; bool; strings; microseconds int64 (times). What
            stands where the value is missing has no meaning.
        missing: (N,) bool.
    """

    name: str
    kind: Kind
    values: Array
    missing: Array

    @property
    def known(self) -> Array:
        """The values that are there, (M,)."""
        return self.values[~self.missing]

    @property
    def whole(self) -> bool:
        """Whether the values are whole numbers, exact in 64 bits or as Python's own."""
        return self.kind is Kind.NUMBER and self.values.dtype.kind in "iuO"

    def row_of(self, place: int) -> int:
        """The row of the `place`-th known value."""
        return int(np.flatnonzero(~self.missing)[place])


@final
@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a table, in its order.

    Args:
        columns: one each.
        rows: how many rows there are, N.
        named: whether the names came with the table; else they are x0, x1, ...
    """

    columns: tuple[Column, ...]
    rows: int
    named: bool

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return [column.name for column in self.columns]


def read_columns(table: Any) -> Columns:
    """The columns of a DataFrame, an array (N, F), a list of rows, a sparse matrix, a tensor or a dict of columns."""
    if isinstance(table, Columns):
        return table
    named, pairs = _named_values(table)
    names = []
    columns = []
    for name, values in pairs:
        names.append(name)
        columns.append(_column(name, values))
    _check_names(names)
    _check_lengths(columns)
    if not columns:
        raise TableError("the table must have at least one column: Found array with 0 feature(s)")
    rows = len(columns[0].values)
    if rows == 0:
        raise TableError("the table must have at least one row: Found array with 0 sample(s)")
    return Columns(tuple(columns), rows, named)


def _named_values(table: Any) -> tuple[bool, Iterable[tuple[str, Any]]]:
    """Whether columns have names of their own, and every name with its values."""
    if hasattr(table, "tocsc"):  # first, since one of scipy's sparse forms is a dict
        return False, _sparse_columns(table)
    if isinstance(table, Mapping):
        return True, [(str(name), values) for name, values in table.items()]
    if _is_frame(table):
        return True, _frame_columns(table)
    if isinstance(table, Tensor):
        table = _tensor_array(table)
    if isinstance(table, Sequence) and not isinstance(table, (str, bytes)):
        return False, _listed_columns(table)
    if not hasattr(table, "__array__"):
        kind = type(table).__name__
        raise TableTypeError(f"a table must be a DataFrame, an array, a tensor, a list of rows or a dict, got {kind}")
    array = np.asarray(table)
    if array.dtype.names is not None and array.ndim == 1:
        return True, [(name, array[name]) for name in array.dtype.names]
    return False, _array_columns(array)


def _is_frame(table: Any) -> bool:
    return hasattr(table, "columns") and hasattr(table, "__getitem__") and not isinstance(table, Tensor)


def _frame_columns(frame: Any) -> Iterator[tuple[str, Any]]:
    names = list(frame.columns)
    # By place: a name that is there twice would return two columns at once.
    by_place = hasattr(frame, "iloc")
    for place, name in enumerate(names):
        if by_place:
            yield str(name), frame.iloc[:, place]
        else:
            yield str(name), frame[name]


def _tensor_array(table: Tensor) -> Array:
    tensor = table.detach().cpu()
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    array: Array = tensor.numpy()
    return array


def _sparse_columns(matrix: Any) -> Iterator[tuple[str, Array]]:
    if len(matrix.shape) != 2:
        raise TableError(f"a table must be two-dimensional, got shape {tuple(matrix.shape)}")
    csc = matrix.tocsc()
    for start in range(0, csc.shape[1], _SPARSE_CHUNK):
        dense = csc[:, start : start + _SPARSE_CHUNK].toarray()
        for place in range(dense.shape[1]):
            yield f"x{start + place}", dense[:, place]


def _array_columns(array: Array) -> Iterator[tuple[str, Array]]:
    if array.ndim != 2:
        raise TableError(
            f"a table must have rows and columns: Expected 2D array, got {array.ndim}D array of shape {array.shape}. "
            "Reshape your data to (rows, columns)"
        )
    if array.dtype.kind == "c":
        raise TableTypeError("a table must hold real numbers: Complex data not supported")
    if array.shape[1] == 0:
        raise TableError(
            f"the table must have at least one column: Found array with 0 feature(s) (shape={array.shape}) while a "
            "minimum of 1 is required."
        )
    for place in range(array.shape[1]):
        yield f"x{place}", array[:, place]


def _listed_columns(rows: Sequence[Any]) -> Iterable[tuple[str, Any]]:
    """A list of rows, or of arrays: by column, so that whole numbers beside fractions stay exact."""
    if len(rows) == 0:
        raise TableError("the table must have at least one row: Found array with 0 sample(s)")
    if not isinstance(rows[0], (list, tuple)):
        return _array_columns(np.stack([np.asarray(row) for row in rows]))
    width = len(rows[0])
    for place, row in enumerate(rows):
        if not isinstance(row, (list, tuple)) or len(row) != width:
            raise TableError(
                f"rows must have the same length, got {width} values in row 0 and another number in row {place}"
            )
    columns = zip(*rows, strict=True)
    return [(f"x{place}", list(values)) for place, values in enumerate(columns)]


def _check_names(names: list[str]) -> None:
    seen = set()
    for name in names:
        if name in seen:
            raise TableError(f"column names must differ, but {name!r} occurs twice")
        seen.add(name)


def _check_lengths(columns: list[Column]) -> None:
    for column in columns[1:]:
        if len(column.values) != len(columns[0].values):
            raise TableError(
                f"columns must have one length, got {len(columns[0].values)} rows in {columns[0].name!r} and "
                f"{len(column.values)} in {column.name!r}"
            )


def _column(name: str, values: Any) -> Column:
    """One column, its kind found from its type or, where that says nothing, from its values."""
    if isinstance(values, Tensor):
        values = _tensor_array(values)
    if isinstance(values, (list, tuple)):
        return _from_objects(name, list(values))
    if not hasattr(values, "dtype"):
        raise TableTypeError(f"column {name!r} must be an array or a list, got {type(values).__name__}")
    array = _as_array(values)
    if array.ndim != 1:
        raise TableError(f"column {name!r} must be one-dimensional, got shape {array.shape}")
    if array.dtype.kind == "O":
        return _from_objects(name, array.tolist())
    return _from_array(name, array)


def _as_array(values: Any) -> Array:
    """A column as a numpy array; pandas' own types (nullable, categorical, time zones) as objects."""
    if isinstance(values.dtype, np.dtype):
        array: Array = np.asarray(values)
        return array
    if hasattr(values.dtype, "tz"):  # the same moment everywhere
        array = values.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
        return array
    if hasattr(values.dtype, "categories"):
        array = np.array([_level(value) for value in values.to_list()], dtype=object)
        return array
    if hasattr(values, "isna") and not values.isna().any():
        kind = getattr(values.dtype, "numpy_dtype", None)
        if isinstance(kind, np.dtype) and kind.kind in "biuf":
            array = values.to_numpy(dtype=kind)
            return array
    if hasattr(values, "to_list"):
        items = values.to_list()
        array = np.empty(len(items), dtype=object)
        array[:] = items
        return array
    array = np.asarray(values)
    return array


def _level(value: Any) -> Any:
    """A category of a categorical column as a string: categories need not be strings."""
    if is_missing(value) or isinstance(value, str):
        return value
    return level_name(value)


def level_name(value: Any) -> str:
    """A number as the string that a table would write: 3.0 and 3 are '3'."""
    if _kind_of(value) is Kind.NUMBER:
        fraction = float(value)
        if fraction.is_integer() and abs(fraction) < 2**53:
            return str(int(fraction))
    return str(value)


def is_missing(value: Any) -> bool:
    """None, NaN, NaT, or pandas' NA."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, np.datetime64):
        return bool(np.isnat(value))
    return isinstance(value, (float, np.floating)) and bool(value != value)


def _from_array(name: str, array: Array) -> Column:
    kind = array.dtype.kind
    nothing = np.zeros(len(array), dtype=bool)
    if kind == "b":
        return Column(name, Kind.BOOL, array, nothing)
    if kind in "iu":
        wide = np.uint64 if kind == "u" else np.int64
        return Column(name, Kind.NUMBER, array.astype(wide), nothing)
    if kind == "f":
        values = array.astype(np.float64)
        missing = np.isnan(values)
        _check_finite(name, values, array)
        return Column(name, Kind.NUMBER, values, missing)
    if kind in "Mm":
        return _from_times(name, array)
    if kind in "UST":
        return _from_objects(name, array.tolist())
    if kind == "c":
        raise TableTypeError(f"column {name!r} must hold real numbers: Complex data not supported")
    raise TableTypeError(f"column {name!r} must hold numbers, strings or times, got {array.dtype}")


def _check_finite(name: str, values: Array, given: Any) -> None:
    """Infinity is refused; a number that only became infinite in 64 bits is too large."""
    wrong = np.flatnonzero(np.isinf(values))
    if len(wrong) > 0:
        row = int(wrong[0])
        raise TableError(f"column {name!r} has {given[row]} in row {row}: infinity (inf) cannot be learnt from")


def _from_times(name: str, array: Array) -> Column:
    """Times or durations as microseconds since 1970, or in all."""
    missing = np.isnat(array)
    unit = f"{array.dtype.kind}8[us]"
    values = array.astype(unit).astype(np.int64)
    if array.dtype.kind == "m":
        return Column(name, Kind.NUMBER, values, missing)
    return Column(name, Kind.TIME, values, missing)


def _from_objects(name: str, items: list[Any]) -> Column:
    """A column of Python objects, all of one kind but for those that are missing."""
    missing = np.fromiter((is_missing(item) for item in items), dtype=bool, count=len(items))
    if bool(missing.all()):
        return Column(name, Kind.NUMBER, np.zeros(len(items)), missing)
    kind = _common_kind(items, missing)
    if kind is Kind.NUMBER:
        return _number_column(name, items, missing)
    if kind is Kind.BOOL:
        values = np.array([not gone and bool(item) for item, gone in zip(items, missing, strict=True)], dtype=bool)
        return Column(name, Kind.BOOL, values, missing)
    if kind is Kind.TIME:
        return _from_times(name, np.array([_moment(item) for item in items], dtype="datetime64[us]"))
    if kind is Kind.STRING:
        return _string_column(name, items, missing)
    raise _mixed(name, items, missing)


def _common_kind(items: list[Any], missing: Array) -> Kind | None:
    """The kind of all values that are there; None: there are several, or one that is no value."""
    kinds = {_kind_of(item) for item, gone in zip(items, missing, strict=True) if not gone}
    if len(kinds) == 1:
        return kinds.pop()
    return None


def _kind_of(item: Any) -> Kind | None:
    if isinstance(item, (bool, np.bool_)):
        return Kind.BOOL
    if isinstance(item, (str, bytes)):
        return Kind.STRING
    if isinstance(item, numbers.Real):
        return Kind.NUMBER
    if isinstance(item, (datetime.date, np.datetime64)):  # a datetime is a date
        return Kind.TIME
    return None


def _moment(item: Any) -> Any:
    if is_missing(item):
        return "NaT"
    if isinstance(item, datetime.datetime) and item.tzinfo is not None:
        return item.astimezone(datetime.UTC).replace(tzinfo=None)
    return item


def _number_column(name: str, items: list[Any], missing: Array) -> Column:
    filled = [0 if gone else item for item, gone in zip(items, missing, strict=True)]
    if not all(isinstance(item, numbers.Integral) for item in filled):
        try:
            values = np.array([float(item) for item in filled])
        except OverflowError as error:
            raise TableError(f"column {name!r} holds a number too large for 64 bits") from error
        _check_finite(name, values, items)
        return Column(name, Kind.NUMBER, values, missing)
    wholes = [int(item) for item in filled]
    if min(wholes) >= -(2**62) and max(wholes) < 2**62:
        return Column(name, Kind.NUMBER, np.array(wholes, dtype=np.int64), missing)
    exact = np.empty(len(wholes), dtype=object)
    exact[:] = wholes
    return Column(name, Kind.NUMBER, exact, missing)


def _string_column(name: str, items: list[Any], missing: Array) -> Column:
    texts = np.empty(len(items), dtype=object)
    for row, item in enumerate(items):
        if missing[row]:
            texts[row] = ""
        elif isinstance(item, bytes):
            texts[row] = item.decode("utf-8", "replace")
        else:
            texts[row] = str(item)
    return Column(name, Kind.STRING, texts, missing)


def as_times(column: Column) -> Column | None:
    """A column of strings that are all ISO dates, as times; None where they are not."""
    if column.kind is not Kind.STRING or len(column.known) == 0:
        return None
    if not all(_ISO.fullmatch(text) for text in column.known):
        return None
    texts = np.where(column.missing, "NaT", column.values).astype(str)
    try:
        return _from_times(column.name, texts.astype("datetime64[us]"))
    except ValueError:  # the 31st of February
        return None


def _mixed(name: str, items: list[Any], missing: Array) -> TableError:
    """The sentence for a column of several kinds, or of none: the first cell that does not fit."""
    rows = [row for row in range(len(items)) if not missing[row]]
    first = _kind_of(items[rows[0]])
    for row in rows:
        item = items[row]
        kind = _kind_of(item)
        if kind is None:
            text = f"column {name!r} holds {item!r} in row {row}: a cell argument must be a string or a number"
            return TableTypeError(text)
        if kind is not first and first is not None:
            return TableTypeError(
                f"column {name!r} must hold one kind of value, got {items[rows[0]]!r} in row {rows[0]} and {item!r} "
                f"in row {row}"
            )
    return TableTypeError(f"column {name!r} must hold numbers, strings or times")
