"""The user's own table: CSV, Parquet, or an .npz of columns.

`read_labelled` gives columns of any kind and a target, for fcco.tables; `from_table` a Dataset of numbers alone.
"""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from fcco._support.words import positive_word
from fcco.tables._columns import is_missing, level_name

from ._numpy import np
from .classes import classes_of
from .csv_file import EXACT, read_csv, read_whole_numbers, with_gaps
from .dataset import Dataset
from .errors import DataError, nearest, require
from .formats import Array
from .locate import digests
from .npz import open_npz
from .split import choose_test

_UNNAMED = re.compile(r"Unnamed: \d+")


class Table:
    """Named columns of one file, (N,) each; `blocks` says which columns came from one array of an .npz."""

    def __init__(self, name: str, columns: dict[str, Array], blocks: dict[str, list[str]]) -> None:
        self.name = name
        self.columns = columns
        self.blocks = blocks
        lengths = {column: len(values) for column, values in columns.items()}
        if set(lengths.values()) == {0}:
            raise DataError(f"{name} must have at least one row, got none")
        if len(set(lengths.values())) != 1:
            raise DataError(f"{name} must have columns of one length, got {lengths}")

    def named(self, argument: str, names: Sequence[str]) -> list[str]:
        """Column names, blocks spelled out; `argument` is whose value they are."""
        found = []
        for name in names:
            if name not in self.columns and name not in self.blocks:
                have = ", ".join([*self.columns][:20])
                raise DataError(
                    f"{argument} {name!r} is not a column of {self.name}, which has {have}{self._meant(name)}"
                )
            found += self.blocks.get(name, [name])
        return found

    def _meant(self, name: str) -> str:
        """What an unknown name may stand for: several columns, the nearest one, or nothing."""
        parts = [part.strip() for part in name.split(",")]
        if len(parts) > 1 and all(part in self.columns for part in parts):
            return f": separate the names by spaces, {' '.join(parts)}"
        return nearest(name, self.columns)

    def features(self, names: Sequence[str]) -> Tensor:
        """Return columns as (N, F) float32; a column that is not finite numbers is refused by name."""
        return torch.from_numpy(np.stack([self._feature(name) for name in names], axis=1))

    def _feature(self, name: str) -> Array:
        where = f"{self.name}: column {name!r}"
        values = self.columns[name]
        if values.dtype.kind not in "fiub":
            raise DataError(f"{where} is not numeric; add it to drop= or encode it")
        feature: Array = values.astype(np.float32)
        if not np.isfinite(feature).all():
            raise DataError(f"{where} has missing or infinite values")
        _check_exact(where, values)
        return feature

    def labels(self, names: Sequence[str]) -> Tensor:
        """Return columns of 0, 1 (or -1, 1) and missing values as (N, L) float32 of 0, 1 and NaN."""
        return torch.stack([self._label(name) for name in names], 1)

    def _label(self, name: str) -> Tensor:
        where = f"{self.name}: target column {name!r}"
        values = truth_values(self.columns[name])
        if values.dtype.kind not in "fiub":
            raise DataError(f"{where} must hold only 0, 1 (or no, yes) and empty cells")
        numbers = values.astype(np.float64)
        known = ~np.isnan(numbers)
        found = set(np.unique(numbers[known]).tolist())
        if not found <= {0.0, 1.0} and not found <= {-1.0, 1.0}:
            raise DataError(f"{where} must hold only 0, 1 and empty cells")
        positive = np.where(known, numbers > 0, np.nan)
        return torch.from_numpy(positive.astype(np.float32))


def truth_values(values: Array) -> Array:
    """A column of words such as yes and no as 1, 0 and NaN where it is empty; every other column as it is."""
    if values.dtype.kind not in "UO":
        return values
    cells = values.tolist()
    known = {cell for cell in cells if not is_missing(cell)}
    if not all(isinstance(cell, str) for cell in known):
        return values
    positive = positive_word(sorted(known))
    if positive is None:
        return values
    return np.array([np.nan if is_missing(cell) else float(cell == positive) for cell in cells])


@final
@dataclass(frozen=True, eq=False)
class Labelled:
    """A table with its target, as `fcco.tables` and `fcco.fit` take them.

    Args:
        columns: of the features, (N,) each: numbers, truth values, strings, times; by name, in the table's order.
        y: (N,) int64 of three or more classes (float64 where some are NaN, missing), or (N, L) float32 of 0, 1 and NaN;
            two classes are one label.
        classes: names of the classes; of several labels' columns; of the one label's positive class.
        negative: name of the other class, where there are two in one column.
        sha256: of the file.
    """

    columns: dict[str, Array]
    y: Tensor
    classes: tuple[str, ...]
    negative: str | None
    sha256: str


def read_labelled(
    path: str | os.PathLike[str], target: str | Sequence[str], drop: Sequence[str] = (), positive: object = None
) -> Labelled:
    """A table's columns of any kind, and its target.

    Args:
        path: a .csv or .tsv (also .csv.gz, .csv.xz), .parquet or .npz file. A column that is there twice is refused.
        target: one column of classes, or several of 0, 1 and empty, which means missing. Two classes are one label,
            whose positive is the larger number; words need `positive`, except those like yes and no.
        drop: columns to leave out.
        positive: the class of a single target that counts as positive, against all others.
    """
    file = Path(path)
    table = read_table(file)
    targets, single = _targets(table, target)
    if positive is not None and not single:
        raise DataError(f"positive needs a single target column, got {len(targets)}")
    names = _feature_names([table], targets, drop)
    columns = {name: table.columns[name] for name in names}
    sha256 = digests(file)[1]
    if not single:
        return Labelled(columns, table.labels(targets), tuple(targets), None, sha256)
    y, classes, negative = _single_with_gaps(table, targets[0], positive)
    return Labelled(columns, y, classes, negative, sha256)


def _single_with_gaps(table: Table, target: str, positive: object) -> tuple[Tensor, tuple[str, ...], str | None]:
    """Read one target column as `_single` does; rows without a value are missing labels, with a warning."""
    values = table.columns[target]
    known = ~np.array([is_missing(value) for value in values.tolist()], dtype=bool)
    if known.all():
        ys, classes, negative = _single([table], target, positive)
        return ys[0], classes, negative
    where = f"{table.name}: target {target!r}"
    if not known.any():
        raise DataError(f"{where} has no value in any row")
    warnings.warn(
        f"{where} has no value in {np.count_nonzero(~known)} of {len(known)} rows, the first of them row "
        f"{known.argmin()}: they are neither trained nor tested on",
        stacklevel=3,
    )
    labelled = Table(table.name, {target: _words_or_as_they_are(values[known])}, {})
    ys, classes, negative = _single([labelled], target, positive)
    dtype = torch.float64
    if ys[0].is_floating_point():
        dtype = ys[0].dtype
    y = torch.full((len(known), *ys[0].shape[1:]), torch.nan, dtype=dtype)
    y[torch.from_numpy(known)] = ys[0].to(dtype)
    return y, classes, negative


def _targets(table: Table, target: str | Sequence[str]) -> tuple[list[str], bool]:
    """Return the target's columns, and whether it is a single column named as such."""
    if isinstance(target, str):
        targets = table.named("target", [target])
        single = target in table.columns
    else:
        targets = table.named("target", target)
        single = False
    if not targets or len(set(targets)) != len(targets):
        raise DataError(f"target must name each column once, at least one, got {target!r}")
    return targets, single


def _check_exact(where: str, values: Array) -> None:
    """Refuse whole numbers beyond 2^24 that differ, but not in float32."""
    if values.dtype.kind not in "iu" or len(values) == 0:
        return
    largest = max(abs(int(values.min())), abs(int(values.max())))
    if largest <= 2**24:
        return
    distinct = np.unique(values)
    single = distinct.astype(np.float32)
    same = np.flatnonzero(np.diff(single) == 0)
    if len(same) > 0:
        first = distinct[same[0]]
        second = distinct[same[0] + 1]
        raise DataError(
            f"{where} holds whole numbers that 32-bit floats cannot tell apart, such as {first} and {second}"
        )


def from_table(
    path: str | os.PathLike[str],
    target: str | Sequence[str],
    test: str | os.PathLike[str] | None = None,
    drop: Sequence[str] = (),
    test_fraction: float = 0.2,
    seed: int = 0,
    positive: object = None,
) -> Dataset:
    """A data set from a table; the columns that are neither target nor dropped are the features.

    Args:
        path: a .csv or .tsv (also .csv.gz, .csv.xz), .parquet or .npz file. In an .npz every array is a column (N,)
            or a block of columns (N, k).
        target: one column of classes (numbers or words), or several columns (a sequence, or a block) of 0, 1
            and empty, which means missing. Two classes are one label, whose positive is the larger number.
        test: a second table for test; without it `test_fraction` of the rows is put aside by `seed`.
        drop: columns to leave out. A feature that is not a finite number is an error that names its column.
        test_fraction: share of the rows put aside for test, of every class alike.
        seed: of that choice.
        positive: the class of a single target that counts as positive, against all others; two words need it, except
            those like yes and no.

    Returns:
        features (N, F) float32; classes (N,) int64, or labels (N, L) float32 with NaN where missing.
    """
    files = [Path(path)]
    if test is not None:
        files.append(Path(test))
    tables = [read_table(file) for file in files]
    targets, single = _targets(tables[0], target)
    if positive is not None and not single:
        raise DataError(f"positive needs a single target column, got {len(targets)}")
    names = _feature_names(tables, targets, drop)
    xs = [table.features(names) for table in tables]
    if single:
        ys, classes, _ = _single(tables, targets[0], positive)
    else:
        ys = [table.labels(targets) for table in tables]
        classes = tuple(targets)
    if test is None:
        strata = ys[0]
        if single and strata.dim() == 2:
            strata = strata[:, 0].long()  # both classes in both parts
        mask = choose_test(strata, test_fraction, seed)
        xs = [xs[0][~mask], xs[0][mask]]
        ys = [ys[0][~mask], ys[0][mask]]
    sha256 = {file.name: digests(file)[1] for file in files}
    return Dataset(
        name=files[0].name.split(".")[0],
        x_train=xs[0],
        y_train=ys[0],
        x_test=xs[1],
        y_test=ys[1],
        num_classes=len(classes),
        source="user-provided " + " and ".join(sha256),
        sha256=sha256,
        classes=classes,
    )


def _feature_names(tables: Sequence[Table], targets: Sequence[str], drop: Sequence[str]) -> list[str]:
    if isinstance(drop, str):
        raise DataError(f"drop must be a sequence of column names, got {drop!r}")
    dropped = tables[0].named("drop", drop)
    for name in targets:
        if name in dropped:
            raise DataError(f"drop must not name the target, got {name!r}")
    out = {*targets, *dropped}
    out.update(left_out_numbers(tables[0], out))
    names = [name for name in tables[0].columns if name not in out]
    if not names:
        raise DataError(f"{tables[0].name} has no feature columns other than {', '.join(sorted(out))}")
    for table in tables[1:]:
        table.named("column", [*names, *targets])
    return names


def row_numbers(table: Table) -> list[str]:
    """The columns without a name that hold another whole number in every row: an index that pandas wrote."""
    found = []
    for name, values in table.columns.items():
        if _UNNAMED.fullmatch(name) and values.dtype.kind in "iu" and len(np.unique(values)) == len(values):
            found.append(name)
    return found


def left_out_numbers(table: Table, out: Collection[str]) -> list[str]:
    """The columns of :func:`row_numbers` that are not out already, with a warning: they say nothing of other rows."""
    found = [name for name in row_numbers(table) if name not in out]
    for name in found:
        warnings.warn(
            f"{table.name}: column {name!r} has no name of its own and numbers the rows, so it is left out",
            stacklevel=3,
        )
    return found


def _single(tables: Sequence[Table], target: str, positive: object) -> tuple[list[Tensor], tuple[str, ...], str | None]:
    """Read one target column: classes (N,), or one label (N, 1) where there are two or `positive` is named.

    Returns:
        the classes or labels of each table; names of the classes, or of the positive one; name of the negative one.
    """
    codes, classes = classes_of(tables, target)
    if positive is None and len(classes) > 2:
        return codes, classes, None
    where = f"{tables[0].name}: target {target!r}"
    chosen = len(classes) - 1
    if positive is not None:
        wanted = level_name(positive)
        if wanted not in classes:
            raise DataError(f"{where} has no class {wanted!r} for positive=; it has {', '.join(classes[:20])}")
        chosen = classes.index(wanted)
    elif tables[0].columns[target].dtype.kind == "U":
        evident = positive_word(classes)
        if evident is None:
            raise DataError(
                f"{where} holds {classes[0]!r} and {classes[1]!r}: name the positive class by "
                f"positive={classes[1]!r} or --positive {shlex.quote(classes[1])}"
            )
        chosen = classes.index(evident)
    labels = [(code == chosen).float().unsqueeze(1) for code in codes]
    negative = "other"
    if len(classes) == 2:
        negative = classes[1 - chosen]
    return labels, (classes[chosen],), negative


def read_table(path: Path, words: Collection[str] = ()) -> Table:
    """The columns of a .csv, .tsv, .parquet or .npz file.

    Args:
        path: where it is.
        words: columns of a .csv that are words whatever they look like: '007' must not become 7 where a whole column
            of such words happens to be digits.
    """
    if not path.is_file():
        raise DataError(f"path must be a .csv, .tsv, .parquet or .npz file, got {str(path)!r}")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".npz"]:
        return _from_arrays(path.name, open_npz(path))
    if suffixes[-1:] == [".parquet"] or {".csv", ".tsv"} & set(suffixes[-2:]):
        return _from_pandas(path, parquet=".parquet" in suffixes[-1:], words=words)
    raise DataError(f"path must be a .csv, .tsv, .parquet or .npz file, got {path.name!r}")


def _from_arrays(name: str, arrays: dict[str, Array]) -> Table:
    """Return a table in which an array (N,) is a column, and one (N, k) the block of columns NAME.0 ... NAME.k-1."""
    columns: dict[str, Array] = {}
    blocks: dict[str, list[str]] = {}
    for key, values in arrays.items():
        if values.ndim == 1:
            columns[key] = values
        elif values.ndim == 2:
            blocks[key] = [f"{key}.{k}" for k in range(values.shape[1])]
            columns.update(zip(blocks[key], values.T, strict=True))
        else:
            raise DataError(f"{name}: {key} must be (N,) or (N, k), got shape {values.shape}")
    return Table(name, columns, blocks)


def _from_pandas(path: Path, parquet: bool, words: Collection[str]) -> Table:
    pandas = require("pandas", "from_table")
    comma = False
    try:
        if parquet:
            frame = pandas.read_parquet(path)
            names = list(frame.columns)
        else:
            frame, names, comma = read_csv(pandas, path, words)
    except ImportError as error:
        raise ImportError("reading .parquet needs pyarrow: pip install 'fcco[parquet]'") from error
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name} is not UTF-8 text ({error}): save it as UTF-8") from error
    except (ValueError, OSError, EOFError) as error:  # pandas' parser errors are ValueErrors
        raise DataError(f"{path.name} is truncated or damaged ({error})") from error
    _check_names(path.name, names)
    columns = {}
    for place, name in enumerate(names):
        values = _plain(frame.iloc[:, place])
        if values.dtype.kind == "f" and bool((np.abs(values) >= EXACT).any()):
            wholes = _wholes(pandas, path, parquet, place, name)
            if wholes is not None:
                values = wholes
        if not parquet and name not in words:
            values = with_gaps(values, f"{path.name}: column {str(name)!r}", comma)
        columns[str(name)] = values
    return Table(path.name, columns, {})


def _check_names(table: str, names: Sequence[Any]) -> None:
    """Refuse names that are there twice, also where blanks around them or the form of an accent tell them apart."""
    seen: dict[str, Any] = {}
    for name in names:
        plain = unicodedata.normalize("NFC", str(name)).strip()
        if plain in seen and name == seen[plain]:
            raise DataError(f"{table} has two columns named {name!r}")
        if plain in seen:
            raise DataError(
                f"{table} has the columns {seen[plain]!r} and {name!r}, which look alike: rename one of them"
            )
        seen[plain] = name


def _wholes(pandas: Any, path: Path, parquet: bool, place: int, name: Any) -> Array | None:
    """A column whose gaps have made pandas take it for floats, once more as whole numbers; None: it holds others."""
    if not parquet:
        return read_whole_numbers(pandas, path, place)
    series = pandas.read_parquet(path, columns=[name], dtype_backend="numpy_nullable").iloc[:, 0]
    values = series.to_list()
    if not all(isinstance(value, int) or is_missing(value) for value in values):
        return None
    return np.array(values, dtype=object)


def _words_or_as_they_are(values: Array) -> Array:
    """An object array that holds words alone as an array of words."""
    rows = values.tolist()
    if values.dtype.kind == "O" and all(isinstance(row, str) for row in rows):
        return np.array(rows, dtype=np.str_)
    return values


def _plain(series: object) -> Array:
    """Return a pandas column as numbers (missing: NaN) or words; whatever else stays an object array."""
    values: Array = np.asarray(series)
    if values.dtype.kind != "O":
        return values
    rows = values.tolist()
    if all(isinstance(row, str) for row in rows):
        return _words_or_as_they_are(values)
    if any(isinstance(row, int) and abs(row) > EXACT for row in rows):
        return values  # as Python's own numbers: floats would round them, or overflow
    if all(row is None or isinstance(row, bool | int | float) for row in rows):
        return np.array(rows, dtype=np.float64)  # None becomes NaN
    return values
