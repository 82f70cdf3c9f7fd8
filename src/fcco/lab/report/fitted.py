"""Runs that `fcco train` makes by the metric: a result and the trials behind it, in place of evaluations by step."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

FILES = ("fit.json", "history.jsonl")


def is_fitted(folder: Path) -> bool:
    """Whether the folder is of such a run, finished or not."""
    return any((folder / name).is_file() for name in FILES) and not (folder / "metrics.jsonl").exists()


def read_fitted(folder: Path, notes: list[str]) -> dict[str, Any] | None:
    """What the run came to, as plain numbers and texts for the page; None where it has no result yet.

    Args:
        folder: the run's.
        notes: gets a sentence where there is no result, or one that cannot be read.
    """
    metrics = _object(folder / "metrics.json")
    fit = _object(folder / "fit.json")
    if metrics is None or fit is None:
        notes.append("no result yet: metrics.json or fit.json is missing or damaged")
        return None
    trials = fit.get("trials")
    if not isinstance(trials, list):
        trials = []
    return {
        "metric": str(metrics.get("metric", "")),
        "test": _estimate(metrics.get("test")),
        "plain": _estimate(metrics.get("test_plain_loss")),
        "test_examples": _number(metrics.get("test_examples")),
        "examples": _number(fit.get("examples")),
        "chosen": str(metrics.get("chosen", "")),
        "setting": str(metrics.get("setting", "")),
        "trials": [_trial(trial) for trial in trials if isinstance(trial, dict)],
    }


def _object(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if isinstance(value, dict):
        return value
    return None


def _estimate(value: object) -> list[float | None]:
    """A value and both ends of its interval."""
    if not isinstance(value, dict):
        return [None, None, None]
    interval = value.get("interval")
    if not isinstance(interval, list) or len(interval) != 2:
        interval = [None, None]
    return [_number(value.get("value")), _number(interval[0]), _number(interval[1])]


def _trial(trial: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": str(trial.get("trial", "")),
        "setting": str(trial.get("setting", "")),
        "examples": _number(trial.get("examples")),
        "value": _number(trial.get("value")),
        "chosen": trial.get("chosen") is True,
    }


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not math.isfinite(value):
        return None
    return value
