"""TableEncoder: learns from a training table how columns become the inputs of a network."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from fcco._support import checks

from ._columns import Column, Columns, Kind, as_times, read_columns
from ._errors import TableError, TableWarning, named
from ._learnt import Flag, Gaps, Learnt, Levels, Number, learn, learnt_from_dict, learnt_to_dict
from ._numpy import Array, np

FORMAT = "fcco-table"
VERSION = 1
_ID_NAME = re.compile(r"(?i)(row|record|sample|example)?[ _-]?(id|index|uuid|guid|nr|no|number)|unnamed: \d+|.*_id")
_ALL_BINS = 2048  # of all columns together, about: what a step of a few milliseconds allows
_FEWEST_ROWS = 20  # below so many rows, distinct values in every row say nothing


@final
class TableEncoder:
    """Columns of any kind as numbers that a network takes, learnt from the training table.

    Numbers and times become asinh((x - median) / scale); two values 0 and 1; strings codes, with a code for missing
    and one for rare or new levels. Where numbers are missing the median stands, beside a column that says so. Columns
    of one value are left out, with a warning. docs/tables.md says more.

    Args:
        bins: quantile bins per number for the network's piecewise-linear encoding; None: by the number of rows.
        min_count: rows that a level needs for a code of its own; None: by the number of rows.
        max_levels: codes that a column has at most.

    Example:
        >>> table = {
        ...     "age": [31, 45, None, 28],
        ...     "town": ["Bonn", "Kiel", "Bonn", "Kiel"],
        ...     "member": [True, False, True, True],
        ... }
        >>> encoder = TableEncoder().fit(table)
        >>> encoder.names
        ['age', 'member', 'age is missing', 'town']
        >>> encoder.transform({"town": ["Ulm"], "age": [31], "member": [False]})
        tensor([[0., 0., 0., 1.]])
    """

    def __init__(self, bins: int | None = None, min_count: int | None = None, max_levels: int = 1000) -> None:
        if bins is not None:
            checks.positive_int("bins", bins)
        if min_count is not None:
            checks.positive_int("min_count", min_count)
        self.bins = bins
        self.min_count = min_count
        self.max_levels = checks.positive_int("max_levels", max_levels)
        self._rows = 0
        self._named = False
        self._given: tuple[str, ...] = ()  # every column of the training table, in its order
        self._learnt: tuple[Learnt, ...] = ()
        self.notes: tuple[str, ...] = ()

    def fit(self, table: Any) -> TableEncoder:
        """Learn from the training table.

        Args:
            table: a DataFrame (its index does not matter), an array (N, F), a list of rows, a scipy sparse matrix, a
                tensor or a dict of columns.
        """
        self._learn(read_columns(table))
        return self

    def transform(self, table: Any, ignore_extra: bool = False) -> Tensor:
        """A table with the training table's columns as (N, width) float32.

        Args:
            table: as in `fit`. Columns with names are found by name, in any order; without names by place.
            ignore_extra: whether columns that the training table does not have are passed over; else they are refused.
        """
        self._check_fitted()
        return self._encode(self._matched(read_columns(table), ignore_extra))

    def fit_transform(self, table: Any) -> Tensor:
        """`fit`, then `transform`, of the same table.

        Args:
            table: as of `fit`.
        """
        columns = read_columns(table)
        self._learn(columns)
        return self._encode(self._matched(columns, ignore_extra=False))

    @property
    def numbers(self) -> tuple[Number, ...]:
        """The columns that are encoded as numbers: the first ones of the output."""
        return tuple(learnt for learnt in self._learnt if isinstance(learnt, Number))

    @property
    def flags(self) -> tuple[Flag, ...]:
        """The columns of two values: after the numbers."""
        return tuple(learnt for learnt in self._learnt if isinstance(learnt, Flag))

    @property
    def indicators(self) -> tuple[Number | Flag | Gaps, ...]:
        """The columns that have an indicator of missing values: after the flags."""
        numeric = [learnt for learnt in self._learnt if not isinstance(learnt, Levels)]
        return tuple(learnt for learnt in numeric if learnt.indicator)

    @property
    def categories(self) -> tuple[Levels, ...]:
        """The columns of strings: the last ones of the output."""
        return tuple(learnt for learnt in self._learnt if isinstance(learnt, Levels))

    @property
    def names(self) -> list[str]:
        """What stands in each column of the output."""
        names = [number.name for number in self.numbers]
        names += [flag.name for flag in self.flags]
        names += [f"{learnt.name} is missing" for learnt in self.indicators]
        names += [levels.name for levels in self.categories]
        return names

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the training table, in its order, those left out among them."""
        return self._given

    @property
    def named(self) -> bool:
        """Whether the training table's columns had names of their own."""
        return self._named

    @property
    def rows(self) -> int:
        """How many rows the training table had."""
        return self._rows

    @property
    def width(self) -> int:
        """How many columns the output has."""
        return len(self.names)

    def to_dict(self) -> dict[str, Any]:
        """Everything that was learnt, in plain JSON values; `from_dict` takes it."""
        self._check_fitted()
        return {
            "format": FORMAT,
            "version": VERSION,
            "rows": self._rows,
            "named": self._named,
            "columns": list(self._given),
            "learnt": [learnt_to_dict(learnt) for learnt in self._learnt],
            "notes": list(self.notes),
            "settings": {"bins": self.bins, "min_count": self.min_count, "max_levels": self.max_levels},
        }

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> TableEncoder:
        """An encoder from its description.

        Args:
            description: what `to_dict` gave.
        """
        if not isinstance(description, Mapping) or description.get("format") != FORMAT:
            raise TableError(f"description must be a dict with format {FORMAT!r}, got {description!r:.100}")
        if description.get("version") != VERSION:
            raise TableError(f"description must have version {VERSION}, got {description.get('version')!r}")
        wanted = {"format", "version", "rows", "named", "columns", "learnt", "notes", "settings"}
        if set(description) != wanted:
            odd = sorted(str(key) for key in wanted ^ set(description))
            raise TableError(f"description must have the entries of to_dict, but differs in {', '.join(odd)}")
        encoder = cls(**description["settings"])
        encoder._rows = checks.positive_int("rows", description["rows"])
        encoder._named = checks.flag("named", description["named"])
        encoder._given = tuple(description["columns"])
        encoder._learnt = tuple(learnt_from_dict(plain) for plain in description["learnt"])
        encoder.notes = tuple(str(note) for note in description["notes"])
        learnt_names = [learnt.name for learnt in encoder._learnt]
        if (
            not learnt_names
            or len(set(learnt_names)) != len(learnt_names)
            or not set(learnt_names) <= {*encoder._given}
        ):
            raise TableError("description must describe columns of its own table, each once, at least one")
        return encoder

    def _learn(self, table: Columns) -> None:
        bins = self.bins
        if bins is None:
            bins = default_bins(table.rows, len(table.columns))
        min_count = self.min_count
        if min_count is None:
            min_count = default_min_count(table.rows)
        learnt = []
        constant = []
        notes = []
        for column in table.columns:
            note = _suspicion(column)
            if note is not None:
                notes.append(note)
            found = learn(column, bins, min_count, self.max_levels)
            if found is not None:
                learnt.append(found)
            elif note is None:
                constant.append(column.name)
        if not learnt:
            raise TableError(
                f"no column of the table varies over its {table.rows} sample(s), so there is nothing to learn from"
            )
        if constant:
            notes.append(f"left out, since they hold one value or rare strings alone: {named(constant)}")
        self._rows = table.rows
        self._named = table.named
        self._given = tuple(table.names)
        self._learnt = tuple(learnt)
        self.notes = tuple(notes)
        if notes:
            warnings.warn("; ".join(notes), TableWarning, stacklevel=3)

    def _matched(self, table: Columns, ignore_extra: bool) -> dict[str, Column]:
        """The table's columns by the training table's names."""
        if not (self._named and table.named):
            if len(table.columns) != len(self._given):
                raise TableError(
                    f"X has {len(table.columns)} features, but TableEncoder is expecting {len(self._given)} features "
                    "as input"
                )
            return dict(zip(self._given, table.columns, strict=True))
        present = {column.name: column for column in table.columns}
        gone = [name for name in self._given if name not in present]
        if gone:
            raise TableError(f"the table lacks {named(gone)}, which the training table had")
        extra = [name for name in present if name not in set(self._given)]
        if extra and not ignore_extra:
            raise TableError(f"the table has {named(extra)}, which the training table did not have")
        return present

    def _encode(self, columns: Mapping[str, Column]) -> Tensor:
        rows = len(next(iter(columns.values())).values)
        encoded: Array = np.empty((rows, self.width), dtype=np.float32)
        place = 0
        numeric: list[Number | Flag] = [*self.numbers, *self.flags]
        for learnt in numeric:
            encoded[:, place] = learnt.encode(columns[learnt.name])
            place += 1
        for indicator in self.indicators:
            encoded[:, place] = columns[indicator.name].missing
            place += 1
        for levels in self.categories:
            encoded[:, place] = levels.encode(columns[levels.name])
            place += 1
        return torch.from_numpy(encoded)

    def _check_fitted(self) -> None:
        if not self._learnt:
            raise TableError("the encoder is not fitted yet: call fit first")


def default_bins(rows: int, columns: int) -> int:
    """Bins per number: 50 rows in each to learn from, at most 16, and fewer where hundreds of columns have them."""
    most = min(max(_ALL_BINS // columns, 4), 16)
    return min(max(rows // 50, 2), most)


def default_min_count(rows: int) -> int:
    """Rows that a level needs: 2 in small tables, 10 from 20,000 rows on."""
    return min(max(rows // 2000, 2), 10)


def _suspicion(column: Column) -> str | None:
    """One sentence where a column looks like the row's name: it will not help with other rows."""
    known = column.known
    if len(known) < _FEWEST_ROWS or column.kind not in (Kind.NUMBER, Kind.STRING):
        return None
    if column.kind is Kind.STRING:
        if len(set(known.tolist())) == len(known) and as_times(column) is None:
            return f"column {column.name!r} has a different string in every row, so nothing can be learnt from it"
        return None
    if not column.whole:
        return None
    steps = np.diff(known)
    if bool((steps == steps[0]).all()) and steps[0] != 0:
        return f"column {column.name!r} counts the rows; leave it out unless their order means something"
    if _ID_NAME.fullmatch(column.name) and len(np.unique(known)) == len(known):
        return f"column {column.name!r} looks like a row's id; leave it out unless its size means something"
    return None
