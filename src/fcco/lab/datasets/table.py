"""The user's own table: CSV, Parquet, or an .npz of columns."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ._numpy import np
from .dataset import Dataset
from .errors import DataError, require
from .formats import Array
from .locate import digests
from .npz import open_npz
from .split import choose_test


class Table:
    """Named columns of one file, (N,) each; `blocks` says which columns came from one array of an .npz."""

    def __init__(self, name: str, columns: dict[str, Array], blocks: dict[str, list[str]]) -> None:
        self.name, self.columns, self.blocks = name, columns, blocks
        lengths = {column: len(values) for column, values in columns.items()}
        if len(set(lengths.values())) != 1 or 0 in lengths.values():
            raise DataError(f"{name} must have columns of one length, at least one row, got {lengths}")

    def named(self, argument: str, names: Sequence[str]) -> list[str]:
        """Column names, blocks spelled out; `argument` is whose value they are."""
        found = []
        for name in names:
            if name not in self.columns and name not in self.blocks:
                have = ", ".join([*self.columns][:20])
                raise DataError(f"{argument} {name!r} is no column of {self.name}, which has {have}")
            found += self.blocks.get(name, [name])
        return found

    def features(self, names: Sequence[str]) -> Tensor:
        """Columns as (N, F) float32; a column that is not finite numbers is refused by name."""
        for name in names:
            values = self.columns[name]
            if values.dtype.kind not in "fiub":
                raise DataError(f"{self.name}: column {name!r} is not numeric; name it in drop= or encode it")
            if not np.isfinite(values.astype(np.float32)).all():
                raise DataError(f"{self.name}: column {name!r} has missing or infinite values")
        return torch.from_numpy(np.stack([self.columns[n].astype(np.float32) for n in names], axis=1))

    def labels(self, names: Sequence[str]) -> Tensor:
        """Columns of 0, 1 and missing as (N, L) float32."""
        for name in names:
            values = self.columns[name]
            fits = values.dtype.kind in "fiub" and bool(
                (np.isnan(v := values.astype(float)) | (v == 0) | (v == 1)).all()
            )
            if not fits:
                raise DataError(f"{self.name}: target column {name!r} must hold 0, 1 or nothing")
        return torch.from_numpy(np.stack([self.columns[n].astype(np.float32) for n in names], axis=1))


def from_table(
    path: str | os.PathLike[str],
    target: str | Sequence[str],
    test: str | os.PathLike[str] | None = None,
    drop: Sequence[str] = (),
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """A data set from a table; the columns that are neither target nor dropped are the features.

    Args:
        path: a .csv (also .csv.gz, .csv.xz), .parquet or .npz file. In an .npz every array is a column (N,)
            or a block of columns (N, k).
        target: one column of classes (numbers or words), or several columns (a sequence, or a block) of 0, 1
            and empty, which means missing.
        test: a second table for test; without it `test_fraction` of the rows is put aside by `seed`.
        drop: columns to leave out. A feature that is not a finite number is an error that names its column.
        test_fraction: share of the rows put aside for test, of every class alike.
        seed: of that choice.

    Returns:
        features (N, F) float32; classes (N,) int64, or labels (N, L) float32 with NaN where missing.
    """
    files = [Path(path)] if test is None else [Path(path), Path(test)]
    tables = [read_table(file) for file in files]
    wanted = [target] if isinstance(target, str) else list(target)
    targets = tables[0].named("target", wanted)
    if not targets or len(set(targets)) != len(targets):
        raise DataError(f"target must name each column once, at least one, got {target!r}")
    names = _feature_names(tables, targets, drop)
    xs = [table.features(names) for table in tables]
    if isinstance(target, str) and target in tables[0].columns:
        ys, classes = _classes(tables, target)
    else:
        ys, classes = [table.labels(targets) for table in tables], tuple(targets)
    if test is None:
        mask = choose_test(ys[0], test_fraction, seed)
        xs, ys = [xs[0][~mask], xs[0][mask]], [ys[0][~mask], ys[0][mask]]
    sha256 = {file.name: digests(file)[1] for file in files}
    source = "user-provided " + " and ".join(sha256)
    name = files[0].name.split(".")[0]
    return Dataset(name, xs[0], ys[0], xs[1], ys[1], len(classes), source, sha256, classes)


def _feature_names(tables: Sequence[Table], targets: Sequence[str], drop: Sequence[str]) -> list[str]:
    if isinstance(drop, str):
        raise DataError(f"drop must be a sequence of column names, got {drop!r}")
    out = {*targets, *tables[0].named("drop", drop)}
    names = [name for name in tables[0].columns if name not in out]
    if not names:
        raise DataError(f"{tables[0].name} has no feature column besides {', '.join(sorted(out))}")
    for table in tables[1:]:
        table.named("column", [*names, *targets])
    return names


def _classes(tables: Sequence[Table], target: str) -> tuple[list[Tensor], tuple[str, ...]]:
    """One column of every table as codes (N,) int64 into the sorted classes of the first."""
    columns = [table.columns[target] for table in tables]
    for table, values in zip(tables, columns, strict=True):
        _check_classes(values, f"{table.name}: target {target!r}")
    known, first = np.unique(columns[0], return_inverse=True)
    if len(known) < 2:
        raise DataError(f"{tables[0].name}: target {target!r} has one class alone, {known[0]!r}")
    codes = [torch.from_numpy(first.astype(np.int64))]
    for table, values in zip(tables[1:], columns[1:], strict=True):
        new = sorted(set(values.tolist()) - set(known.tolist()))
        if new:
            raise DataError(f"{table.name}: target {target!r} has the class {new[0]!r}, which {tables[0].name} lacks")
        codes.append(torch.from_numpy(np.searchsorted(known, values).astype(np.int64)))
    return codes, tuple(_class_name(value) for value in known.tolist())


def _class_name(value: object) -> str:
    return str(int(value)) if isinstance(value, float) else str(value)


def _check_classes(values: Array, where: str) -> None:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise DataError(f"{where} has missing values")
    if values.dtype.kind == "f" and (values != np.rint(values)).any():
        raise DataError(f"{where} must hold classes, got {values[values != np.rint(values)][0]}")
    if values.dtype.kind not in "fiubU":
        raise DataError(f"{where} must hold numbers or words in every row")


def read_table(path: Path) -> Table:
    """The columns of a .csv, .parquet or .npz file."""
    if not path.is_file():
        raise DataError(f"path must be a .csv, .parquet or .npz file, got {str(path)!r}")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".npz"]:
        return _from_arrays(path.name, open_npz(path))
    if suffixes[-1:] == [".parquet"] or ".csv" in suffixes[-2:]:
        return _from_pandas(path, parquet=".parquet" in suffixes[-1:])
    raise DataError(f"path must be a .csv, .parquet or .npz file, got {path.name!r}")


def _from_arrays(name: str, arrays: dict[str, Array]) -> Table:
    """Every array (N,) is a column, every (N, k) a block of the columns NAME.0 ... NAME.k-1."""
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


def _from_pandas(path: Path, parquet: bool) -> Table:
    pandas = require("pandas", "from_table")
    try:
        if parquet:
            frame = pandas.read_parquet(path)
        else:
            frame = pandas.read_csv(path, encoding="utf-8-sig", keep_default_na=False, na_values=[""])
    except ImportError as error:
        raise ImportError("reading .parquet needs pyarrow: pip install 'fcco[parquet]'") from error
    except (ValueError, OSError, EOFError) as error:  # pandas' parser errors are ValueErrors
        raise DataError(f"{path.name} is truncated or damaged ({error})") from error
    if frame.columns.duplicated().any():
        raise DataError(f"{path.name} has the column {frame.columns[frame.columns.duplicated()][0]!r} twice")
    return Table(path.name, {str(name): _plain(frame[name]) for name in frame.columns}, {})


def _plain(series: object) -> Array:
    """A pandas column as numbers (missing: NaN) or words; whatever else stays an object array."""
    values: Array = np.asarray(series)
    if values.dtype.kind != "O":
        return values
    rows = values.tolist()
    if all(isinstance(row, str) for row in rows):
        return np.array(rows, dtype=np.str_)
    if all(row is None or isinstance(row, bool | int | float) for row in rows):
        return np.array([np.nan if row is None else float(row) for row in rows])
    return values
