"""The arena's tables: read or generated once, then kept as npz files outside of the repository.

Files are read from $FCCO_BENCH_DATA and kept in $FCCO_ARENA_CACHE (by default ~/.cache/fcco/arena). Tox21 and HIV need
rdkit and METABRIC needs h5py, the first time only.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks import readers


@dataclass(frozen=True)
class Whole:
    """All rows of a table: x (N, F) float32, y (N,) or (N, T) float32 (NaN: missing), query (N,) int64 where there is one.

    METABRIC's y (N, 2) holds the time and whether the event was seen.
    """

    x: Tensor
    y: Tensor
    query: Tensor | None = None


def cache_folder() -> Path:
    """Where prepared tables are kept."""
    default = Path.home() / ".cache" / "fcco" / "arena"
    return Path(os.environ.get("FCCO_ARENA_CACHE", default))


def _from_reader(table: readers.Table, query: bool = False) -> Whole:
    """The reader's rows; the arena makes its own splits, and pools the official parts for them."""
    group = None
    if query:
        group = table.group
    return Whole(table.x, table.y.float(), group)


def _phishing() -> Whole:
    """Phishing sites: 68 columns that are 0 or one and the same number; positives are the phishing sites."""
    x, y = readers.libsvm(readers.folder() / "phishing_first8404.xz", 68)
    return Whole((x > 0).float(), y)


def _sparse(rows: int = 28_000, columns: int = 300, positives: float = 0.03) -> Whole:
    """A table as a new user has it: sparse 0/1 columns, some of them very rare, 3 % positives.

    The score is linear with 60 pairs of columns on top and noise beside; its largest 3 % are the positives.
    """
    generator = torch.Generator().manual_seed(16)
    low, high = np.log(2e-4), np.log(0.3)
    rates = torch.exp(low + (high - low) * torch.rand(columns, generator=generator))  # (F,)
    x = (torch.rand(rows, columns, generator=generator) < rates).float()
    weights = torch.randn(columns, generator=generator)
    score = x @ weights
    first, second = torch.randint(columns, (2, 60), generator=generator)
    pair_weights = 2.0 * torch.randn(60, generator=generator)
    score = score + (x[:, first] * x[:, second]) @ pair_weights
    score = score + 0.7 * score.std() * torch.randn(rows, generator=generator)
    threshold = score.kthvalue(int((1 - positives) * rows)).values
    return Whole(x, (score > threshold).float())


def _labels27(rows: int = 6_000, columns: int = 40, labels: int = 27) -> Whole:
    """A table with 27 labels of 1 % to 30 %, from one random network of 40 numbers, with noise."""
    generator = torch.Generator().manual_seed(27)
    x = torch.randn(rows, columns, generator=generator)
    hidden = torch.tanh(x @ torch.randn(columns, 32, generator=generator) / columns**0.5 * 2)  # (N, 32)
    score = hidden @ torch.randn(32, labels, generator=generator)  # (N, T)
    score = score + 0.8 * score.std(0) * torch.randn(rows, labels, generator=generator)
    shares = torch.logspace(-2, float(np.log10(0.3)), labels, dtype=torch.float64)
    y = torch.zeros(rows, labels)
    for t in range(labels):
        threshold = score[:, t].kthvalue(int((1 - float(shares[t])) * rows)).values
        y[:, t] = (score[:, t] > threshold).float()
    return Whole(x, y)


MAKERS: dict[str, Callable[[], Whole]] = {
    "a9a": lambda: _from_reader(readers.a9a()),
    "tox21": lambda: _from_reader(readers.tox21()),
    "hiv": lambda: _from_reader(readers.hiv()),
    "scene": lambda: _from_reader(readers.arff("scene")),
    "yeast": lambda: _from_reader(readers.arff("yeast")),
    "emotions": lambda: _from_reader(readers.arff("emotions")),
    "phishing": _phishing,
    "ltr": lambda: _from_reader(readers.ranking(), query=True),
    "metabric": lambda: _from_reader(readers.metabric()),
    "sparse": _sparse,
    "labels27": _labels27,
}


def table(name: str) -> Whole:
    """A table by its name, from the cache where it is there."""
    path = cache_folder() / f"{name}.npz"
    if not path.exists():
        _write(path, MAKERS[name]())
    with np.load(path, allow_pickle=False) as file:
        arrays = {key: torch.from_numpy(file[key]) for key in file.files}
    return Whole(arrays["x"].float(), arrays["y"], arrays.get("query"))


def _write(path: Path, whole: Whole) -> None:
    """Keep a table; columns of 0 and 1 take a byte per entry."""
    x = whole.x.numpy()
    if bool(((x == 0) | (x == 1)).all()):
        x = x.astype("uint8")
    arrays = {"x": x, "y": whole.y.numpy()}
    if whole.query is not None:
        arrays["query"] = whole.query.numpy()
    path.parent.mkdir(parents=True, exist_ok=True)
    own = path.with_suffix(f".{os.getpid()}.npz")  # two processes may prepare one table at once
    np.savez_compressed(own, **arrays)
    own.replace(path)
