"""Run folders: find them, and read what is there of each. A broken folder becomes a note, never an error."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from .columns import AXES, METRICS
from .fitted import fitted_of, is_fitted
from .numbers import as_number

FILES = ("config.json", "environment.json", "metrics.jsonl", "status.json")
_AXIS_COLUMNS = itertools.chain.from_iterable(axis.parts for axis in AXES)
COLUMNS = tuple(dict.fromkeys([*_AXIS_COLUMNS, *(metric.key for metric in METRICS)]))
GOOD = {"complete", "completed", "done", "finished", "ok", "success"}
BAD = {"broken", "crashed", "diverged", "error", "failed", "killed"}


@final
@dataclass(frozen=True)
class Run:
    """One run folder, as far as it could be read.

    Attributes:
        name: its path below the folder that all runs share.
        config: config.json, nested names joined by dots; empty where it could not be read.
        environment: environment.json, likewise.
        status: what status.json says, else "unknown".
        message: the message beside it.
        columns: (T,) one array per column of metrics.jsonl, sorted by step; nan where a value was not measured,
            inf where it was and is not finite.
        notes: what is wrong with the folder, a sentence each.
        fitted: the result of a run by the metric, which has no evaluations; None: it is none, or not done.
    """

    name: str
    config: dict[str, Any]
    environment: dict[str, Any]
    status: str
    message: str
    columns: dict[str, NDArray[np.float64]]
    notes: list[str] = field(default_factory=list)
    fitted: dict[str, Any] | None = None

    @property
    def length(self) -> int:
        """How many evaluations it has."""
        return len(self.columns["step"])

    @property
    def last_step(self) -> float:
        """The step of the last evaluation; -1 where there is none."""
        if not self.length:
            return -1.0
        return float(self.columns["step"][-1])

    @property
    def tone(self) -> str:
        """good, bad or open: how the page colours the status."""
        said = set(re.findall(r"[a-z]+", self.status.lower()))
        if said & BAD:
            return "bad"
        if said & GOOD:
            return "good"
        return "open"

    def axis(self, key: str) -> NDArray[np.float64]:
        """Return an x axis, (T,): the sum of its columns without the missing ones; nan where all are missing."""
        axis = next(axis for axis in AXES if axis.key == key)
        parts = np.stack([self.columns[part] for part in axis.parts])
        known = np.isfinite(parts)
        total = np.where(known, parts, 0.0).sum(0)
        return np.where(known.any(0), total, np.nan)


def natural(text: str) -> list[tuple[float, str]]:
    """Return a sorting key that puts run-2 before run-10, and 0.01 before 0.1.

    >>> sorted(["run-10", "run-2", "lr=0.1", "lr=0.01"], key=natural)
    ['lr=0.01', 'lr=0.1', 'run-2', 'run-10']
    """
    parts = re.split(r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)", text.lower())  # text, number, text, ...
    key = [(math.inf, parts[0])]
    for number, words in zip(parts[1::2], parts[2::2], strict=True):
        key.append((float(number), ""))
        key.append((math.inf, words))
    return key


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read every run in or below `paths`, each once, in natural order.

    Raises:
        ValueError: a path is not a folder, or there is no run.
    """
    for path in paths:
        if not path.is_dir():
            raise ValueError(f"runs must be folders, got {str(path)!r}")
    found: set[Path] = set()
    for path in paths:
        found.update(find_runs(path))
    if not found:
        places = ", ".join(repr(str(path)) for path in paths) or "an empty list"
        raise ValueError(f"there is no run in {places}: a run is a folder with {', '.join(FILES)}")
    folders = sorted(found, key=lambda folder: natural(str(folder)))
    root = Path(os.path.commonpath([folder.parent for folder in folders]))
    return [read_run(folder, folder.relative_to(root).as_posix()) for folder in folders]


def find_runs(path: Path) -> list[Path]:
    """Return the folders in or below `path` that hold a metrics.jsonl.

    Where there is none, a folder with any other file of a run counts as one: made by the metric, or broken.
    """
    return _find(path.resolve(), set())


def _find(path: Path, seen: set[Path]) -> list[Path]:
    if path in seen:  # a link that leads back up
        return []
    seen.add(path)
    if _has(path, "metrics.jsonl"):
        return [path]
    below = []
    for folder in _subfolders(path):
        below += _find(folder.resolve(), seen)
    if not below and any(_has(path, name) for name in FILES):
        return [path]
    return below


def _has(path: Path, name: str) -> bool:
    return os.path.lexists(path / name)


def _subfolders(path: Path) -> list[Path]:
    try:
        return [path / name for name in os.listdir(path) if os.path.isdir(path / name)]
    except OSError:
        return []


def read_run(folder: Path, name: str) -> Run:
    """Read what can be read of one folder."""
    notes: list[str] = []
    config = flatten(_read_object(folder / "config.json", notes))
    environment = flatten(_read_object(folder / "environment.json", notes))
    status = _read_object(folder / "status.json", notes)
    fitted = None
    if is_fitted(folder):
        columns = {column: np.empty(0) for column in COLUMNS}
        fitted = _read_fitted(folder, notes)
    else:
        columns = _read_metrics(folder / "metrics.jsonl", notes)
    word = str(status.get("status") or "unknown")
    message = str(status.get("message") or "")
    return Run(name, config, environment, word, message, columns, notes, fitted)


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested dictionaries as one, with names joined by dots.

    >>> flatten({"lr": 0.1, "loader": {"workers": 2}})
    {'lr': 0.1, 'loader.workers': 2}
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _read_text(path: Path, notes: list[str]) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        notes.append(f"{path.name} is missing")
    except UnicodeDecodeError:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        notes.append(f"{path.name} cannot be read: {error.strerror}")
    return None


def _read_object(path: Path, notes: list[str]) -> dict[str, Any]:
    text = _read_text(path, notes)
    if text is None:
        return {}
    value = _parse(text)
    if isinstance(value, dict):
        return value
    notes.append(f"{path.name} is not a JSON object (cut off or damaged)")
    return {}


def _read_fitted(folder: Path, notes: list[str]) -> dict[str, Any] | None:
    """Return what a run by the metric came to; None where it has no result yet, or none that can be read."""
    missing: list[str] = []
    metrics = _read_object(folder / "metrics.json", missing)
    fit = _read_object(folder / "fit.json", missing)
    if missing:
        notes.append(f"no result yet: {', '.join(missing)}")
        return None
    return fitted_of(metrics, fit)


def _parse(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _read_metrics(path: Path, notes: list[str]) -> dict[str, NDArray[np.float64]]:
    """Return the evaluations by column; of a step that comes twice (a resumed run) the later one counts."""
    text = _read_text(path, notes)
    rows: dict[float, dict[str, float]] = {}
    if text is not None:
        rows = _read_rows(text, path.name, notes)
        if not rows:
            notes.append(f"{path.name} has no evaluation")
    steps = sorted(rows)
    columns = {}
    for name in COLUMNS:
        columns[name] = np.array([rows[step][name] for step in steps], dtype=np.float64)  # (T,)
    notes += _lost_values(columns)
    return columns


def _read_rows(text: str, name: str, notes: list[str]) -> dict[float, dict[str, float]]:
    """Return the evaluations by step; a line that is not one becomes a note."""
    rows: dict[float, dict[str, float]] = {}
    damaged: list[int] = []
    last = 0
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        last = number
        row = _parse_row(line)
        if row is None:
            damaged.append(number)
        else:
            rows[row["step"]] = row
    notes += _damage(name, damaged, last)
    return rows


def _parse_row(line: str) -> dict[str, float] | None:
    """Return the columns of one evaluation; None where the line is no JSON object with a step."""
    value = _parse(line)
    if not isinstance(value, dict):
        return None
    row = {name: as_number(value.get(name)) for name in COLUMNS}
    if not math.isfinite(row["step"]):
        return None
    return row


def _lost_values(columns: dict[str, NDArray[np.float64]]) -> list[str]:
    """Set what should have been measured and is null to inf; return a sentence for each metric that is not finite."""
    found = []
    for metric in METRICS:
        column = columns[metric.key]
        if not metric.sparse and np.isfinite(column).any():
            column[np.isnan(column)] = np.inf
        lost = np.isinf(column)
        if lost.any():
            first = columns["step"][lost][0]
            found.append(f"{metric.key} is not finite at step {first:g}")
    return found


def _damage(name: str, damaged: list[int], last: int) -> list[str]:
    """Return sentences for the lines that are no evaluation: a cut last line is what a killed run leaves."""
    sentences = []
    if last in damaged:
        sentences.append(f"the last line of {name} ({last}) is cut off and left out")
    others = [number for number in damaged if number != last]
    shown = ", ".join(map(str, others[:5]))
    if len(others) > 5:
        shown += ", ..."
    if others:
        sentences.append(f"{len(others)} damaged lines of {name} left out ({shown})")
    return sentences
