"""`fcco train`: the recipe of `fcco.fit`, or one method on one objective; in a folder, with a live bar."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fcco.lab.config import FREE, DataConfig, FitConfig, TrainConfig, check, check_fit, flag
from fcco.lab.console import FitBar, Live, figures
from fcco.lab.errors import LabError, refusing
from fcco.lab.files import read_json
from fcco.lab.fitting import METRICS_FILE, fit_in
from fcco.lab.loaded import load
from fcco.lab.runs import RunFolder, fresh_folder
from fcco.lab.train import train
from fcco.lab.train_command import FitCommand, TrainCommand, changed, run_config, settings
from fcco.lab.values import from_values

#: A run whose objective fell by more than this share of its whole way in its last fifth has not come to its end.
STILL_FALLING = 0.05


def run_train(command: FitCommand | TrainCommand, console: Console) -> None:
    """Train, or go on training."""
    if isinstance(command, FitCommand):
        _run_fit(command, console)
    else:
        _run_method(command, console)


# ------------------------------------------------------------------ by the metric


def _run_fit(command: FitCommand, console: Console) -> None:
    config = settings(command, FitConfig)
    path = _folder(command, check_fit(config), Path(config.dataset).stem)
    if command.resume is not None and _finished(path):
        console.print(f"the run in {path} is finished already", highlight=False, soft_wrap=True)
    else:
        console.print(str(load(config)), highlight=False, markup=False, soft_wrap=True)
        with FitBar(console) as bar:
            fit_in(config, path, resume=command.resume is not None, callbacks=(bar,))
    measured = read_json(path / METRICS_FILE)
    console.print(summary(measured), highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"->  {path}; score new data with: fcco predict {path} NEW --out scores.csv",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def summary(measured: Mapping[str, Any]) -> str:
    """Return what came out, on three lines."""
    examples = f"of {measured['test_examples']} examples"
    if measured.get("test_positives") is not None:
        examples += f", {measured['test_positives']} of them positive"
    lines = [
        f"chosen: {measured['chosen']} ({measured['setting']})",
        f"test {measured['metric']} {_with_interval(measured['test'])}, {examples}; "
        f"plain loss {_with_interval(measured['test_plain_loss'])}",
    ]
    others = []
    for name, title in (("test_roc_auc", "AUROC"), ("test_average_precision", "AP")):
        if measured.get(name) is not None:
            others.append(f"{title} {measured[name]:.4f}")
    if others:
        lines.append(f"test {', '.join(others)}")
    return "\n".join(lines)


def _with_interval(entry: Mapping[str, Any]) -> str:
    if entry["value"] is None:
        return "unknown (the test part lacks positives or negatives)"
    low, high = entry["interval"]
    if low is None:
        return f"{entry['value']:.4f}"
    return f"{entry['value']:.4f} (95 %: {low:.4f} to {high:.4f})"


def _finished(path: Path) -> bool:
    status = RunFolder(path).status
    return status.exists() and read_json(status).get("status") == "finished" and (path / METRICS_FILE).exists()


# ------------------------------------------------------------------ by one method


def _run_method(command: TrainCommand, console: Console) -> None:
    config = settings(command, TrainConfig)
    path = _folder(command, check(config), f"{Path(config.dataset).stem}-{config.method}")
    with Live(console) as live:
        outcome = train(config, path, resume=command.resume is not None, watch=live)
    console.print(f"{figures(outcome.rows[-1])}  ->  {path}", soft_wrap=True, highlight=False)
    share = still_falling(outcome.rows)
    if share > STILL_FALLING:
        console.print(
            f"the objective was still falling at the end ({share:.0%} of its way in the last fifth of the steps): "
            "give more --epochs",
            soft_wrap=True,
            highlight=False,
        )


def still_falling(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return how much of the objective's whole fall lies in the last fifth of the run.

    Example:
        >>> still_falling([{"step": t, "objective": 10.0 - t} for t in range(11)])
        0.2
    """
    last = rows[-1]
    before = [row for row in rows if row["step"] <= 0.8 * last["step"]]
    if not before:
        return 0.0
    fallen = before[-1]["objective"] - last["objective"]
    whole = rows[0]["objective"] - last["objective"]
    if whole <= 0.0:
        return 0.0
    return max(0.0, float(fallen / whole))


# ------------------------------------------------------------------ folders


def _folder(command: FitCommand | TrainCommand, config: FitConfig | TrainConfig, stem: str) -> Path:
    """Return the run's folder: the one that is resumed, the one that is named, or a new one."""
    if command.resume is not None:
        _refuse_changes(RunFolder(command.resume), config, command.out)
        return command.resume
    if command.out is not None:
        if RunFolder(command.out).used:
            raise LabError(
                f"{command.out} already holds a run; continue it with --resume {command.out}, or choose another --out"
            )
        return command.out
    with refusing():  # before there is a folder
        load(config)
    return fresh_folder(Path("runs"), stem)


def _refuse_changes(folder: RunFolder, config: DataConfig, out: Path | None) -> None:
    if out is not None and out != folder.path:
        raise LabError("--out cannot be given with --resume: a run resumes in its own folder")
    before = from_values(type(config), run_config(folder.path), str(folder.config))
    for name, old, new in changed(before, config):
        if name not in FREE:
            raise LabError(
                f"{flag(name)} {_shown(new)} differs from the run in {folder.path} ({_shown(old)}); "
                "a run resumes with its own configuration"
            )


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return json.dumps(list(value))
    return str(value)
