"""What a run is trained and tested on: data of any kind as fcco.data, with a test part apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from fcco.data import Groups, Queries, RiskSets, Structure, Tasks
from fcco.lab import datasets
from fcco.lab.config import DataConfig, flag
from fcco.lab.datasets import Dataset
from fcco.lab.datasets.classes import check_classes
from fcco.lab.datasets.locate import digests
from fcco.lab.datasets.table import Table, left_out_numbers, read_table, truth_values
from fcco.lab.errors import DataError, LabError, nearest, refusing
from fcco.tables import TableEncoder
from fcco.tables._columns import is_missing, level_name, read_columns

#: Of a table, or of a folder without a test part of its own.
TEST_SHARE = 0.2
TABLES = (".csv", ".tsv", ".parquet", ".csv.gz", ".csv.xz", ".tsv.gz", ".tsv.xz")


@final
@dataclass(frozen=True, eq=False)
class Loaded:
    """Training and test part.

    Args:
        name: what reports call it.
        train: examples on the CPU: Tasks, Queries, RiskSets or Groups.
        test: the same of others.
        in_shape: of one example.
        outputs: what each score is of.
        about: one line: sizes, source, hashes.
        sha256: file name -> SHA-256.
        encoder: how a table's columns became numbers; None: the data are no table.
        negative: what the other class is called, where there are two.
    """

    name: str
    train: Structure
    test: Structure
    in_shape: tuple[int, ...]
    outputs: tuple[str, ...]
    about: str
    sha256: Mapping[str, str]
    encoder: TableEncoder | None = None
    negative: str | None = None

    def __str__(self) -> str:
        return self.about

    @property
    def num_classes(self) -> int:
        """How many scores an example has."""
        return len(self.outputs)

    @property
    def x_train(self) -> Tensor:
        """(N, ...) the training part's inputs."""
        return inputs_of(self.train)

    @property
    def y_train(self) -> Tensor:
        """(N,) or (N, T) the training part's labels."""
        assert isinstance(self.train, Tasks)
        return self.train.y


def inputs_of(data: Structure) -> Tensor:
    """Return all of x, where it is one tensor."""
    x: Tensor = data.source.take(torch.arange(data.num_examples, device=data.device))
    return x


def load(config: DataConfig) -> Loaded:
    """Load the data that a configuration names."""
    values = {field.name: getattr(config, field.name) for field in fields(DataConfig)}
    only_data = DataConfig(**values)
    with refusing():
        return _load(only_data, _stamp(only_data.dataset))


def _stamp(dataset: str) -> tuple[int, int, int]:
    """Return number, size and latest change of a path's files, so that data that were replaced are read anew."""
    path = Path(dataset)
    if dataset in datasets.NAMES or not path.exists():
        return (0, 0, 0)
    files = [path]
    if path.is_dir():
        files = list(filter(Path.is_file, path.rglob("*")))
    size = 0
    latest = 0
    for file in files:
        status = file.stat()
        size += status.st_size
        latest = max(latest, status.st_mtime_ns)
    return (len(files), size, latest)


@lru_cache(maxsize=2)
def _load(config: DataConfig, stamp: tuple[int, int, int]) -> Loaded:
    path = Path(config.dataset)
    if path.name.lower().endswith(TABLES) and not path.exists():
        raise LabError(f"{path} does not exist")
    if is_table(path, config):
        return _from_table(path, config)
    for name in ("target", "drop", "query", "time", "event", "group"):
        if getattr(config, name):
            raise LabError(f"{flag(name)} applies only to a table, got --dataset {config.dataset}")
    return _from_dataset(load_dataset(config.dataset, config.image_size), config.positive)


def is_table(path: Path, config: DataConfig) -> bool:
    """Return whether a path is a table; an .npz is one where a column of it is named as target, time or the like."""
    if not path.is_file():
        return False
    if path.name.lower().endswith(TABLES):
        return True
    return bool(config.target or config.time)


def load_dataset(name: str, image_size: int | None = None) -> Dataset:
    """Load a data set by name, or the user's own images or arrays by their path."""
    return _load_dataset(name, image_size, _stamp(name))


@lru_cache(maxsize=2)
def _load_dataset(name: str, image_size: int | None, stamp: tuple[int, int, int]) -> Dataset:
    if name in datasets.NAMES:
        return datasets.load(name)
    path = Path(name)
    if path.is_dir():
        return datasets.from_folder(path, size=image_size)
    if not path.exists():
        hint = nearest(name, datasets.NAMES)
        raise LabError(f"unknown dataset {name!r}{hint}; known: {', '.join(datasets.NAMES)}, or a path")
    if path.suffix == ".npz":
        return datasets.from_npz(path)
    raise LabError(
        f"--dataset must be a .csv, .tsv, .parquet or .npz file, a folder of images, or a name, got {name!r}"
    )


# ------------------------------------------------------------------ images and arrays


def _from_dataset(data: Dataset, positive: str | None) -> Loaded:
    y_train, outputs, negative = _one_label(data, data.y_train, positive)
    y_test = _one_label(data, data.y_test, positive)[0]
    classes = None
    if y_train.dim() == 1:
        classes = range(len(outputs))
    train = Tasks(data.x_train, y_train, classes=classes)
    test = Tasks(data.x_test, y_test, classes=classes)
    about = str(data)
    if negative is not None:
        about += f"; positive is {outputs[0]!r}, {_percent(y_train)} of the training part"
    return Loaded(data.name, train, test, data.in_shape, outputs, about, data.sha256, negative=negative)


def _one_label(data: Dataset, y: Tensor, positive: str | None) -> tuple[Tensor, tuple[str, ...], str | None]:
    """Return two classes as one label (N, 1), its name, and the other class's name; other labels as they are."""
    if data.multilabel and positive is not None:
        raise LabError(f"--positive needs a single label, but {data.name} has {data.num_classes}")
    if data.multilabel or (positive is None and data.num_classes != 2):
        return y, data.classes, None
    chosen = data.num_classes - 1
    if positive is not None:
        if positive not in data.classes:
            known = ", ".join(data.classes[:20])
            raise LabError(f"--positive must be a class of {data.name}, got {positive!r}; it has {known}")
        chosen = data.classes.index(positive)
    negative = "other"
    if data.num_classes == 2:
        negative = data.classes[1 - chosen]
    return (y == chosen).float().unsqueeze(1), (data.classes[chosen],), negative


# ------------------------------------------------------------------ tables


def _from_table(path: Path, config: DataConfig) -> Loaded:
    roles = _Roles(path, config)
    columns = read_columns(roles.columns)  # whole, so that what is refused is named by its row in the file
    placed = roles.over(torch.arange(roles.rows).unsqueeze(1))  # row numbers in the place of x, which is not known yet
    if roles.without_target is not None:
        placed = placed.subset((~roles.without_target).nonzero()[:, 0])
    try:
        test, train = placed.split(TEST_SHARE, seed=0)
    except ValueError as error:
        raise DataError(f"{path.name}: no test data can be held out: {error}") from error
    rows = inputs_of(train)[:, 0]
    encoder = TableEncoder()
    # The encoder learns from the training part alone: the test part must be as new to it as to the network.
    encoder.fit({name: values[rows.numpy()] for name, values in roles.columns.items()})
    x = encoder.transform(columns)
    whole = roles.over(x)
    sha256 = digests(path)[1]
    about = (
        f"{path.name}: {train.num_examples} train + {test.num_examples} test rows of {len(roles.columns)} columns, "
        f"{roles.about}; user-provided {path.name} (sha256 {sha256})"
    )
    return Loaded(
        name=path.name.split(".")[0],
        train=whole.subset(rows),
        test=whole.subset(inputs_of(test)[:, 0]),
        in_shape=(encoder.width,),
        outputs=roles.outputs,
        about=about,
        sha256={path.name: sha256},
        encoder=encoder,
        negative=roles.negative,
    )


@final
class _Roles:
    """What the columns of a table are for.

    Attributes:
        columns: of the features.
        rows: how many.
        over: from inputs (N, ...) to the data.
        outputs: what each score is of.
        negative: what the other class is called, where there are two.
        about: what is predicted, in a few words.
        without_target: (N,) which rows lack the only target; None: none does, or there are several targets.
    """

    def __init__(self, path: Path, config: DataConfig) -> None:
        self.columns: dict[str, Any] = {}
        self.negative: str | None = None
        self.without_target: Tensor | None = None
        self.over: Callable[[Any], Structure]
        kinds = [name for name in ("query", "time", "group") if getattr(config, name) is not None]
        if len(kinds) > 1:
            raise LabError(
                f"{flag(kinds[0])} and {flag(kinds[1])} cannot both be given, because they are for different metrics"
            )
        if config.event is not None and config.time is None:
            raise LabError("--event needs --time, the column of times")
        if not config.target and config.time is None:
            have = ", ".join([*read_table(path).columns][:20])
            raise LabError(f"--target must name the label column of {path}, which has {have}")
        if not kinds:
            self._labels(path, config)
        else:
            self._others(read_table(path), config)
        self.rows = len(next(iter(self.columns.values())))

    def _labels(self, path: Path, config: DataConfig) -> None:
        target: str | list[str] = list(config.target)
        if len(config.target) == 1:
            target = config.target[0]
        found = datasets.read_labelled(path, target, config.drop, config.positive)
        self.columns = found.columns
        self.outputs = found.classes
        self.negative = found.negative
        missing = found.y.reshape(len(found.y), -1).isnan().all(1)
        if len(config.target) == 1 and bool(missing.any()):
            self.without_target = missing
        classes = None
        if found.y.dim() == 1:
            classes = range(len(found.classes))
        self.over = lambda x: Tasks(x, found.y, classes=classes)
        if found.negative is not None:
            self.about = f"positive is {config.target[0]} = {found.classes[0]}, {_percent(found.y)}"
        elif classes is not None:
            self.about = f"{len(found.classes)} classes of {config.target[0]}"
        else:
            self.about = f"{len(found.classes)} labels"

    def _others(self, table: Table, config: DataConfig) -> None:
        """Set the roles of rankings, survival and groups."""
        if config.positive is not None:
            raise LabError("--positive is for labels and cannot be given with --query, --time or --group")
        if len(config.target) > 1:
            raise LabError(f"--target must be a single column here, got {', '.join(config.target)}")
        if config.time is not None:
            self._survival(table, config)
        elif config.query is not None:
            self._ranking(table, config, config.query)
        else:
            self._groups(table, config)
        table.named("--drop", config.drop)
        roles = (config.query, config.time, config.event, config.group)
        others = set(filter(None, roles)).union(config.target, config.drop)
        others.update(left_out_numbers(table, others))
        self.columns = {name: values for name, values in table.columns.items() if name not in others}
        if not self.columns:
            raise DataError(f"{table.name} has no feature columns other than {', '.join(sorted(others))}")

    def _ranking(self, table: Table, config: DataConfig, query_name: str) -> None:
        target = config.target[0]
        relevance = _numbers(table, "--target", target)
        _check_relevance(table, target, relevance)
        query = _column(table, "--query", query_name)
        self.over = lambda x: Queries(x, query, relevance)
        self.outputs = ("score",)
        self.about = f"ranked by {target} within {len(set(query))} of {query_name}"

    def _survival(self, table: Table, config: DataConfig) -> None:
        assert config.time is not None
        if config.event is None:
            raise LabError("--time needs --event, the column that says whether the event was observed (1) or not (0)")
        if config.target:
            raise LabError(
                "--target cannot be given with --time and --event: the time until the event is what is predicted"
            )
        time = _numbers(table, "--time", config.time)
        event = _numbers(table, "--event", config.event, truth_values)
        self.over = lambda x: RiskSets(x, time, event)
        self.outputs = ("score",)
        self.about = f"time until {config.event}, seen for {event.mean():.1%}"

    def _groups(self, table: Table, config: DataConfig) -> None:
        assert config.group is not None
        group = _column(table, "--group", config.group)
        (place,) = table.named("--target", [config.target[0]])
        check_classes(table.columns[place], f"{table.name}: target {config.target[0]!r}")
        classes = _column(table, "--target", config.target[0])
        names = sorted(set(classes))
        codes = torch.tensor([names.index(value) for value in classes])
        if len(names) < 2:
            raise DataError(f"{table.name}: target {config.target[0]!r} has only one class, {names[0]!r}")
        self.over = lambda x: Groups(x, codes, group)
        self.outputs = tuple(names)
        self.about = f"{len(names)} classes of {config.target[0]} in {len(set(group))} groups of {config.group}"


def _column(table: Table, argument: str, name: str) -> list[str]:
    """Return a column's values as words; none may be missing."""
    (place,) = table.named(argument, [name])
    values = table.columns[place].tolist()
    for row, value in enumerate(values):
        if is_missing(value):
            raise DataError(f"{table.name}: {argument} {name!r} has no value in row {row}; leave such rows out")
    return [level_name(value) for value in values]


def _check_relevance(table: Table, name: str, relevance: Any) -> None:
    negative = (relevance < 0).nonzero()[0]
    if len(negative) > 0:
        row = int(negative[0])
        raise DataError(
            f"{table.name}: --target {name!r} must be a relevance >= 0, got {relevance[row]:g} in row {row}"
        )


def _numbers(table: Table, argument: str, name: str, read: Callable[[Any], Any] | None = None) -> Any:
    """Return a column's values (N,) as float64; `read` makes numbers of words."""
    (place,) = table.named(argument, [name])
    values = table.columns[place]
    if read is not None:
        values = read(values)
    if values.dtype.kind not in "fiub":
        odd = next(value for value in values.tolist() if not isinstance(value, (int, float)))
        raise DataError(f"{table.name}: {argument} {name!r} must hold numbers, got {odd!r}")
    numbers = values.astype("float64")
    missing = (numbers != numbers).nonzero()[0]
    if len(missing) > 0:
        raise DataError(f"{table.name}: {argument} {name!r} has no value in row {int(missing[0])}")
    return numbers


def _percent(y: Tensor) -> str:
    """The share of positives among what is known."""
    return f"{float((y[~y.isnan()] == 1).double().mean()):.2%}"
