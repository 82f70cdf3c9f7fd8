"""Runs that `fcco train` makes by the metric: a result and the trials behind it, in place of evaluations by step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .numbers import as_number

FILES = ("fit.json", "history.jsonl")


def is_fitted(folder: Path) -> bool:
    """Return whether the folder is of such a run, finished or not."""
    return any((folder / name).is_file() for name in FILES) and not (folder / "metrics.jsonl").exists()


def fitted_of(metrics: Mapping[str, Any], fit: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the run came to, as plain numbers and texts for the page.

    Args:
        metrics: of metrics.json.
        fit: of fit.json.
    """
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


def _estimate(value: object) -> list[float | None]:
    """Return a value and both ends of its interval."""
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
    number = as_number(value)
    if not math.isfinite(number):
        return None
    return number
