"""Milliseconds per step with nothing beside it: the seconds that runs side by side measure depend on their neighbours."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.figures.runs import Row, Run, endless
from benchmarks.figures.studies import Study, at
from fcco.lab.parts import Parts, build

FILE = "step_times.json"
WARM_UP = 40
STEPS = 100


def kind(config: Mapping[str, Any]) -> str:
    """What a step's time depends on."""
    names = ("dataset", "model", "stem", "method", "blocks", "samples", "optimizer", "nesterov", "precision")
    return " ".join(str(config[name]) for name in names)


def measure(studies: Sequence[Study], device: str, out: Path) -> dict[str, dict[str, float]]:
    """Time the studies' steps one after another, write the times down, and return them; kinds that are there stay."""
    path = out / FILE
    times = read_times(out)
    for study in studies:
        if study.base.trainer != "fcco":
            continue
        point = dict(study.grid[0]) if study.grid else {"alpha": 0.5, "beta": 0.5}
        run = at(study.base, tuple({**point, "lr": 1e-4}.items()))
        if kind(vars(run.config)) not in times:
            times[kind(vars(run.config))] = _time(run, device)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(times, indent=1) + "\n", encoding="utf-8")
    return times


def read_times(out: Path) -> dict[str, dict[str, float]]:
    """Kind -> seconds per step and per full pass."""
    path = out / FILE
    if not path.exists():
        return {}
    times: dict[str, dict[str, float]] = json.loads(path.read_text(encoding="utf-8"))
    return times


def _time(run: Run, device: str) -> dict[str, float]:
    config = replace(run.config, device=device)
    if config.period is not None:
        config = replace(config, period=WARM_UP + STEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = build(config)
        batches = endless(parts)
        _steps(parts, batches, WARM_UP)
        step = _steps(parts, batches, STEPS) / STEPS
        full_pass = 0.0
        if config.period is not None:
            full_pass = max(0.0, _steps(parts, batches, 1) - step)
    return {"step": step, "pass": full_pass}


def _steps(parts: Parts, batches: Any, count: int) -> float:
    """Seconds of some steps."""
    _wait(parts)
    began = time.perf_counter()
    for _ in range(count):
        parts.solver.step(next(batches))
    _wait(parts)
    return time.perf_counter() - began


def _wait(parts: Parts) -> None:
    if parts.device.type == "cuda":
        torch.cuda.synchronize(parts.device)


def alone_seconds(row: Row, times: Mapping[str, Mapping[str, float]]) -> list[float] | None:
    """The seconds along a run's curve, had it been alone; None where its kind was not timed."""
    config = row["run"]["config"]
    found = times.get(kind(config))
    if found is None:
        return None
    seconds = []
    for step in row["curve"]["step"]:
        passes = 0
        if found["pass"]:
            passes = math.ceil(step / config["period"])
        seconds.append(step * found["step"] + passes * found["pass"])
    return seconds


def with_alone_seconds(rows: Mapping[str, Row], times: Mapping[str, Mapping[str, float]]) -> dict[str, Row]:
    """The same rows, ``alone`` on a curve where its kind was timed."""
    found = {}
    for key, row in rows.items():
        found[key] = row
        if row["status"] == "failed" or row["run"]["config"].get("zeta") is not None or row["run"]["trainer"] != "fcco":
            continue
        seconds = alone_seconds(row, times)
        if seconds is not None:
            found[key] = {**row, "curve": {**row["curve"], "alone": seconds}}
    return found
