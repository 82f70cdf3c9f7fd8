"""A column of classes as codes, once it is clear that it is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fcco.tables._columns import is_missing, level_name

from ._numpy import np
from .errors import DataError
from .formats import Array

if TYPE_CHECKING:
    from .table import Table


def classes_of(tables: Sequence[Table], target: str) -> tuple[list[Tensor], tuple[str, ...]]:
    """Return one column of every table as codes (N,) int64 into the sorted classes of the first, and these."""
    for table in tables:
        check_classes(table.columns[target], f"{table.name}: target {target!r}")
    known = np.unique(tables[0].columns[target])
    classes = tuple(level_name(value) for value in known.tolist())
    _check_count(f"{tables[0].name}: target {target!r}", classes, len(tables[0].columns[target]))
    codes = []
    for table in tables:
        values = table.columns[target]
        new = sorted(set(values.tolist()) - set(known.tolist()))
        if new:
            raise DataError(
                f"{table.name}: target {target!r} has the class {new[0]!r}, which {tables[0].name} does not have"
            )
        codes.append(torch.from_numpy(np.searchsorted(known, values).astype(np.int64)))
    return codes, classes


def _check_count(where: str, classes: tuple[str, ...], rows: int) -> None:
    """Refuse a target of one class, and one that has too many to be classes."""
    if len(classes) < 2:
        raise DataError(f"{where} has only one class, {classes[0]!r}")
    if len(classes) > 2 and 2 * len(classes) > rows:
        raise DataError(
            f"{where} has {len(classes)} classes in {rows} rows: it numbers or names the rows and is not a label"
        )


def check_classes(values: Array, where: str) -> None:
    """Refuse a target with missing values, fractions or things that are neither numbers nor words."""
    if values.dtype.kind == "f":
        _check_whole(values, where)
    elif values.dtype.kind not in "iubU":
        _refuse_objects(values, where)


def _check_whole(values: Array, where: str) -> None:
    missing = np.flatnonzero(~np.isfinite(values))
    if len(missing) > 0:
        raise DataError(f"{where} has no value in row {missing[0]}; leave such rows out")
    fractions = values[values != np.rint(values)]
    if len(fractions) > 0:
        raise DataError(f"{where} must hold classes, got {fractions[0]}")


def _refuse_objects(values: Array, where: str) -> None:
    """Raise an error that names the first value that is no word."""
    for row, value in enumerate(values):
        if is_missing(value):
            raise DataError(f"{where} has no value in row {row}; leave such rows out")
        if isinstance(value, int):
            raise DataError(f"{where} has whole numbers that do not fit in 64 bits, such as {value}")
        if not isinstance(value, str):
            raise DataError(f"{where} must hold numbers or words in every row, got {value!r} in row {row}")
    raise DataError(f"{where} must hold numbers or words in every row")
