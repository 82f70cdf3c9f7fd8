"""Runs of the arena: which there are, and how one becomes a row of runs.jsonl."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

import fcco
from benchmarks.arena import ours, plain, rivals, survival, trees
from benchmarks.arena.problems import PROBLEMS, Problem, Split, load
from benchmarks.kept import Job, Row

NAMES = ("problem", "method", "setting", "seed")  # of a job
Setting = dict[str, Any]


@dataclass(frozen=True)
class Method:
    """A method that competes.

    Args:
        settings: those among which validation chooses, for a problem; none where the method does not fit.
        run: of a split, a setting and a seed: "valid", "test" (where validation was best), "last_valid", "last_test" (at the
            end; where that means something), "examples" (through the network), and whatever else is worth keeping.
        version: of the library that does the work.
    """

    settings: Callable[[Problem], Sequence[Setting]]
    run: Callable[[Split, Setting, int], Row]
    version: Callable[[], str] = lambda: f"torch {torch.__version__}"


def _plain_run(split: Split, setting: Setting, seed: int) -> Row:
    _, course = plain.train_plain(split, setting, seed)
    return course.row()


def _fit_settings(problem: Problem) -> list[Setting]:
    """One, that of nothing chosen; none where this fcco has no fit yet."""
    if not hasattr(fcco, "fit"):
        return []
    return [{}]


def _fcco_version() -> str:
    return f"fcco {fcco.__version__}, torch {torch.__version__}"


METHODS: dict[str, Method] = {  # the cheap ones first
    "plain": Method(lambda problem: plain.SETTINGS, _plain_run),
    "plain-0.01": Method(lambda problem: plain.FASTER, _plain_run),
    "LightGBM": Method(trees.lightgbm_settings, partial(trees.run, "lightgbm"), partial(trees.version_of, "lightgbm")),
    "XGBoost": Method(trees.xgboost_settings, partial(trees.run, "xgboost"), partial(trees.version_of, "xgboost")),
    "CatBoost": Method(trees.catboost_settings, partial(trees.run, "catboost"), partial(trees.version_of, "catboost")),
    "lifelines": Method(survival.lifelines_settings, survival.run_lifelines, partial(trees.version_of, "lifelines")),
    "torchsurv": Method(survival.torchsurv_settings, survival.run_torchsurv, partial(trees.version_of, "torchsurv")),
    "queue": Method(rivals.settings, rivals.run_queue),
    "roc-star": Method(rivals.settings, rivals.run_roc_star),
    "SOX": Method(ours.settings, partial(ours.run_solver, "SOX"), _fcco_version),
    "memory": Method(ours.settings, partial(ours.run_solver, "memory"), _fcco_version),
    "fcco.fit": Method(_fit_settings, ours.run_fit, _fcco_version),
}


def jobs(problems: Sequence[str], methods: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """All runs, seed by seed, so that a table of few seeds is there early."""
    found: list[Job] = []
    for seed in seeds:
        for method in methods:
            for problem in problems:
                for setting in METHODS[method].settings(PROBLEMS[problem]):
                    found.append((problem, method, json.dumps(setting, sort_keys=True), seed))
    return found


def one(problem: str, method: str, setting: str, seed: int) -> Row:
    """One run, in a process of its own; what failed says so in its row."""
    torch.set_num_threads(1)
    row: Row = dict(zip(NAMES, (problem, method, setting, seed), strict=True))
    chosen = METHODS[method]
    split = load(problem, seed)
    start = time.process_time()
    try:
        row |= chosen.run(split, json.loads(setting), seed)
        row["version"] = chosen.version()
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"
    row["cpu_seconds"] = round(time.process_time() - start, 2)
    row["fcco"] = fcco.__version__
    row["commit"] = commit()
    return row


@cache
def commit() -> str:
    """The commit of the working tree, with a plus where something is changed."""
    folder = Path(__file__).resolve().parent
    words = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=10"]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def be_nice() -> None:
    """Low priority, one thread: runs share the machine with people."""
    os.nice(5)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"


def drop_failed(path: Path) -> int:
    """Take failed runs out of the file, so that they are run again; how many there were."""
    if not path.exists():
        return 0
    lines = path.read_text().splitlines()
    kept = [line for line in lines if "error" not in json.loads(line)]
    path.write_text("".join(line + "\n" for line in kept))
    return len(lines) - len(kept)
