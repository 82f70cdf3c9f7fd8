"""Small readers for the benchmarks' data files: libsvm text, ARFF, SMILES tables, METABRIC's h5, ranking queries.

Files are looked for in the folder given, else in $FCCO_BENCH_DATA; .xz and .gz are read as they are. Molecules need
rdkit and METABRIC needs h5py (`pip install -c constraints.txt -e '.[bench]'`).
"""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True)
class Table:
    """Rows x (N, F) float32 with targets y, split into train, validation and test by row numbers."""

    x: Tensor
    y: Tensor
    train: Tensor
    valid: Tensor
    test: Tensor
    group: Tensor | None = None  # (N,) int64: sex, query number, ...


def folder(root: str | Path | None = None) -> Path:
    """Where the files lie."""
    chosen = root or os.environ.get("FCCO_BENCH_DATA")
    if not chosen:
        raise FileNotFoundError("set FCCO_BENCH_DATA to the folder that holds the benchmark tables (a9a.xz, ...)")
    return Path(chosen)


def read_text(path: Path) -> str:
    """The file's text, decompressed by its ending."""
    opener = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    with opener(path, "rb") as file:
        return file.read().decode("utf-8-sig")


def libsvm(path: Path, features: int) -> tuple[Tensor, Tensor]:
    """Labels and 1-based sparse rows, dense: x (N, features), y (N,)."""
    lines = read_text(path).split("\n")
    rows = [line.split() for line in lines if line.strip()]
    x, y = torch.zeros(len(rows), features), torch.zeros(len(rows))
    for i, (label, *pairs) in enumerate(rows):
        y[i] = float(label)
        for pair in pairs:
            place, value = pair.split(":")
            x[i, int(place) - 1] = float(value)
    return x, y


def split(count: int, seed: int, valid: float = 0.2, test: float = 0.2) -> tuple[Tensor, Tensor, Tensor]:
    """Row numbers of train, validation and test."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    a, b = int(count * test), int(count * (test + valid))
    return order[b:], order[a:b], order[:a]


def a9a(root: str | Path | None = None, seed: int = 0) -> Table:
    """Income above 50K from the census, grouped by sex and label (features 72, 73 are female, male)."""
    train_x, train_y = libsvm(folder(root) / "a9a.xz", 123)
    test_x, test_y = libsvm(folder(root) / "a9a.t.xz", 123)
    x, y = torch.cat([train_x, test_x]), (torch.cat([train_y, test_y]) > 0).long()
    train, valid, _ = split(len(train_x), seed, test=0.0)
    return Table(x, y, train, valid, torch.arange(len(train_x), len(x)), (x[:, 72] > 0).long())


def arff(name: str, root: str | Path | None = None, seed: int = 0) -> Table:
    """A multi-label set ('yeast', 'scene', 'emotions'): the {0,1} attributes at the end are the labels."""
    lines = read_text(folder(root) / f"{name}.orig.arff.gz").splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip().lower() == "@data")
    labels = sum(line.lower().startswith("@attribute") and "{0,1}" in line for line in lines[:start])
    rows = [[float(v) for v in line.split(",")] for line in lines[start + 1 :] if line.strip()]
    values = torch.tensor(rows)
    x = values[:, :-labels]
    x = (x - x.mean(0)) / x.std(0).clamp(min=1e-6)
    return Table(x, values[:, -labels:], *split(len(x), seed))


def fingerprints(smiles: list[str], bits: int = 1024) -> tuple[Tensor, Tensor]:
    """Morgan fingerprints (radius 2) and which molecules rdkit could read."""
    from rdkit import Chem, RDLogger
    from rdkit.Chem import rdFingerprintGenerator

    RDLogger.DisableLog("rdApp.*")
    maker = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=bits)
    x, good = torch.zeros(len(smiles), bits), torch.zeros(len(smiles), dtype=torch.bool)
    for i, text in enumerate(smiles):
        molecule = Chem.MolFromSmiles(text)
        if molecule is not None:
            x[i], good[i] = torch.from_numpy(maker.GetFingerprintAsNumPy(molecule).astype("float32")), True
    return x, good


def tox21(root: str | Path | None = None, seed: int = 0) -> Table:
    """12 toxicity tasks on molecules; a missing label is NaN."""
    rows = list(csv.DictReader(io.StringIO(read_text(folder(root) / "tox21.csv.xz"))))
    tasks = [name for name in rows[0] if name not in ("mol_id", "smiles")]
    y = torch.tensor([[float(row[task]) if row[task] else float("nan") for task in tasks] for row in rows])
    x, good = fingerprints([row["smiles"] for row in rows])
    return Table(x[good], y[good], *split(int(good.sum()), seed))


def hiv(root: str | Path | None = None, seed: int = 0) -> Table:
    """Whether a molecule inhibits HIV (3.5 % do)."""
    rows = list(csv.DictReader(io.StringIO(read_text(folder(root) / "HIV_mirror.csv.xz"))))
    x, good = fingerprints([row["smiles"] for row in rows])
    y = torch.tensor([int(row["HIV_active"]) for row in rows])
    return Table(x[good], y[good], *split(int(good.sum()), seed))


def metabric(root: str | Path | None = None, seed: int = 0) -> Table:
    """Breast-cancer survival: y (N, 2) holds time and whether the death was seen."""
    import h5py

    with h5py.File(folder(root) / "metabric_IHC4_clinical_train_test.h5") as file:
        parts = {
            name: [torch.from_numpy(file[name][key][()]).float() for key in ("x", "t", "e")]
            for name in ("train", "test")
        }
    x = torch.cat([parts["train"][0], parts["test"][0]])
    y = torch.stack([torch.cat([parts["train"][k], parts["test"][k]]) for k in (1, 2)], 1)
    count = len(parts["train"][0])
    x = (x - x[:count].mean(0)) / x[:count].std(0).clamp(min=1e-6)
    train, valid, _ = split(count, seed, test=0.0)
    return Table(x, y, train, valid, torch.arange(count, len(x)))


def ranking(root: str | Path | None = None, seed: int = 0) -> Table:
    """LightGBM's lambdarank example: y (N,) relevance 0..4, group (N,) the query; a fifth of train queries validate."""
    parts = []
    for name in ("train", "test"):
        x, y = libsvm(folder(root) / f"lightgbm_lambdarank_rank.{name}.xz", 300)
        sizes = read_text(folder(root) / f"lightgbm_lambdarank_rank.{name}.query.xz").split()
        parts.append((x, y, torch.repeat_interleave(torch.tensor([int(size) for size in sizes]))))
    (x, y, query), (test_x, test_y, test_query) = parts
    queries = int(query.max()) + 1
    group = torch.cat([query, test_query + queries])
    kept, held, _ = split(queries, seed, test=0.0)
    train, valid = torch.isin(query, kept).nonzero()[:, 0], torch.isin(query, held).nonzero()[:, 0]
    test = torch.arange(len(x), len(x) + len(test_x))
    return Table(torch.cat([x, test_x]), torch.cat([y, test_y]), train, valid, test, group)
