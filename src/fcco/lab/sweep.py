"""`fcco sweep`: many runs over a search space through Optuna; stopped, it goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.table import Table

from fcco.lab.config import TrainConfig, as_values, to_toml
from fcco.lab.console import Bar
from fcco.lab.errors import Diverged, Interrupted, LabError, Pruned, StorageError, one_line, writing
from fcco.lab.evaluate import Row
from fcco.lab.parts import Parts
from fcco.lab.runs import fresh_folder, read_json, write_aside, write_json
from fcco.lab.space import PAPER, Range, Space, at, is_grid, points, read_space
from fcco.lab.train import finish
from fcco.lab.training import settings

Metric = Literal["objective", "auroc", "ap"]


@dataclass(frozen=True)
class SweepCommand(TrainConfig):
    """Search rates (or any settings) by many runs; the settings not searched are given as for `fcco train`."""

    config: Path | None = None
    """A TOML file with any of these settings; flags override it."""
    space: Path | None = None
    """A TOML file: NAME = [values] or {low, high, log, step}; None: the paper's grid of lr, alpha, beta."""
    trials: int | None = None
    """How many runs; None: every point of a grid, 50 where the space is no grid."""
    metric: Metric = "objective"
    """What is compared at the end of a run: the training objective, or the test AUROC or AP."""
    halving: bool = False
    """Stop runs early that are behind (successive halving)."""
    storage: str | None = None
    """Where the trials are kept: a database URL (several machines may share it), or 'journal' for a file that network
    folders can hold; None: an SQLite file in the sweep's folder."""
    study: str = "sweep"
    """The study's name in the storage."""
    out: Path | None = None
    """The sweep's folder; one that holds the same sweep goes on. None: runs/sweep-1, -2, ..."""


@final
@dataclass(frozen=True)
class Sweep:
    """A sweep that is under way: what is searched, by what, and where."""

    base: TrainConfig
    space: Space
    metric: Metric
    study: optuna.Study
    out: Path

    def best(self) -> tuple[TrainConfig, float]:
        """The best configuration and its value."""
        done = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if not done:
            told = [trial.user_attrs.get("message") for trial in self.study.get_trials(deepcopy=False)]
            reason = next((f": {message}" for message in told if message), "")
            raise LabError(f"no run of the sweep in {self.out} came to its end{reason}")
        trial = self.study.best_trial
        return at(self.base, json.loads(trial.user_attrs["point"])), float(trial.values[0])


def run_sweep(command: SweepCommand, console: Console) -> Sweep:
    """Run a sweep, or go on with it; prints the best runs and leaves the best configuration as best.toml."""
    space: Space = PAPER
    if command.space is not None:
        space = read_space(command.space)
    if command.trials is not None and command.trials < 1:
        raise LabError(f"--trials must be at least 1, got {command.trials}")
    out = command.out or fresh_folder(Path("runs"), "sweep")
    sweep = open_sweep(
        settings(command), space, out, command.metric, command.storage, command.study, halving=command.halving
    )
    carry_out(sweep, command.trials, console)
    console.print(_table(sweep))
    config, value = sweep.best()
    write_aside(out / "best.toml", to_toml(config))
    console.print(f"best {command.metric} {value:.5g}: fcco train --config {out / 'best.toml'}", soft_wrap=True)
    return sweep


def open_sweep(
    base: TrainConfig,
    space: Space,
    out: Path,
    metric: Metric = "objective",
    storage: str | None = None,
    name: str = "sweep",
    *,
    halving: bool = False,
) -> Sweep:
    """Make or reopen a sweep; a folder that holds another one is refused."""
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    described = {"base": as_values(base), "space": _described(space), "metric": metric, "halving": halving}
    kept = out / "sweep.json"
    if kept.exists() and read_json(kept) != json.loads(json.dumps(described)):
        raise LabError(f"{out} holds another sweep; take another --out")
    write_json(kept, described)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    if halving:
        pruner = optuna.pruners.SuccessiveHalvingPruner()
    sampler = optuna.samplers.TPESampler(seed=base.seed)
    direction: Literal["minimize", "maximize"] = "maximize"
    if metric == "objective":
        direction = "minimize"
    try:
        study = optuna.create_study(
            storage=_storage(storage, out),
            study_name=name,
            sampler=sampler,
            pruner=pruner,
            direction=direction,
            load_if_exists=True,
        )
    except Exception as error:
        raise LabError(f"--storage {storage or out / 'sweep.db'} cannot be used: {one_line(error)[:300]}") from error
    return Sweep(base, space, metric, study, out)


def _storage(name: str | None, out: Path) -> Any:
    if name is None:
        return f"sqlite:///{(out / 'sweep.db').resolve()}"
    if name == "journal":
        return JournalStorage(JournalFileBackend(str(out / "sweep.journal")))
    return name


def _described(space: Space) -> dict[str, Any]:
    return {name: list(v) if not isinstance(v, Range) else vars(v) for name, v in space.items()}


def carry_out(sweep: Sweep, trials: int | None, console: Console) -> None:
    """Run what is left to run."""
    _prepare(sweep)
    done = sum(_settled(trial) for trial in sweep.study.get_trials(deepcopy=False))
    if is_grid(sweep.space):
        waiting = len(sweep.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))
        left = waiting if trials is None else min(waiting, trials - done)
    else:
        left = (50 if trials is None else trials) - done
    if left <= 0:
        return
    with Bar(console, "sweep", left) as bar:
        for _ in range(left):
            sweep.study.optimize(lambda trial: _run(sweep, trial, bar), n_trials=1, catch=(Diverged, Failed))


def _settled(trial: FrozenTrial) -> bool:
    """Whether a trial came to an end of its own."""
    if trial.state is TrialState.FAIL:
        return trial.user_attrs.get("status") in ("diverged", "failed")
    return bool(trial.state.is_finished())


def _prepare(sweep: Sweep) -> None:
    """Have every point of a grid waiting that nobody has run or is running, and what killed processes left."""
    study, taken, loose = sweep.study, set(), []
    for trial in study.get_trials():
        point = trial.user_attrs.get("point")
        left_behind = trial.state is TrialState.RUNNING and _dead(trial.user_attrs.get("process"))
        if left_behind:
            study.tell(trial.number, state=TrialState.FAIL)
        if left_behind or (trial.state is TrialState.FAIL and not _settled(trial)):
            loose.append(point)
        else:
            taken.add(point)
    grid = [json.dumps(point) for point in points(sweep.space, sweep.base)] if is_grid(sweep.space) else []
    random.Random(sweep.base.seed).shuffle(grid)  # the first few trials should not all lie in one corner
    for point in dict.fromkeys(grid or loose):
        if point is not None and point not in taken:
            study.enqueue_trial(_plain(json.loads(point)), user_attrs={"point": point})


def _dead(process: Any) -> bool:
    """Whether a process of this machine has ended; those of other machines are taken to be alive."""
    if process is None:
        return True
    host, number = process
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return int(number) == os.getpid()


class Failed(Exception):
    """A run could not be made or broke off; the sweep goes on."""


def _run(sweep: Sweep, trial: optuna.Trial, bar: Bar) -> float:
    """One run; how it ended stands in the trial's attributes."""
    trial.set_user_attr("process", [socket.gethostname(), os.getpid()])
    trial.set_user_attr("status", "interrupted")  # until it ends otherwise
    point = _point(sweep, trial)
    trial.set_user_attr("point", json.dumps(point))
    try:
        config = at(sweep.base, point)
        path = sweep.out / "runs" / run_name(config)
        trial.set_user_attr("run", path.name)
        bar.next(path.name)
        rows = finish(config, path, _Pruning(sweep, trial, bar)).rows
        value = rows[-1][sweep.metric]
        if value is None:
            raise Diverged(f"{sweep.metric} is not a number")
    except Diverged as error:
        _note(trial, "diverged", error)
        raise
    except Pruned as error:
        trial.set_user_attr("status", "pruned")
        raise optuna.TrialPruned(str(error)) from error
    except (StorageError, Interrupted):
        raise
    except Exception as error:
        _note(trial, "failed", error)
        raise Failed(one_line(error)) from error
    trial.set_user_attr("status", "finished")
    return float(value)


def _note(trial: optuna.Trial, status: str, error: Exception) -> None:
    trial.set_user_attr("status", status)
    trial.set_user_attr("message", one_line(error))


def _point(sweep: Sweep, trial: optuna.Trial) -> dict[str, Any]:
    """The point that was put aside for this trial, else one that the sampler suggests."""
    given = trial.user_attrs.get("point")
    chosen: dict[str, Any] = {} if given is None else json.loads(given)
    names = chosen if given is not None else sweep.space
    for name in names:
        values = sweep.space[name]
        if isinstance(values, Range):
            suggest: Any = trial.suggest_int if values.whole else trial.suggest_float
            step = {"step": values.step} if values.step is not None and not values.log else {}
            suggested = suggest(name, values.low, values.high, log=values.log, **step)
        else:
            texts = [_scalar(value) for value in values]
            suggested = values[texts.index(trial.suggest_categorical(name, texts))]
        chosen[name] = suggested
    return chosen


def _plain(point: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _scalar(value) for name, value in point.items()}


def _scalar(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (list, tuple)) else value


def run_name(config: TrainConfig) -> str:
    """A folder's name that tells configurations apart, the same in every process."""
    digest = hashlib.sha256(json.dumps(as_values(config), sort_keys=True).encode()).hexdigest()[:10]
    return f"{Path(config.dataset).stem}-{config.method}-{digest}"


@final
class _Pruning:
    """Reports evaluations to the study, and stops a run that is behind."""

    def __init__(self, sweep: Sweep, trial: optuna.Trial, bar: Bar) -> None:
        self._sweep, self._trial, self._bar = sweep, trial, bar

    def began(self, parts: Parts, rows: list[dict[str, Any]]) -> None:
        self._bar.began(parts, rows)

    def stepped(self, step: int) -> None:
        self._bar.stepped(step)

    def evaluated(self, row: Row) -> None:
        self._bar.evaluated(row)
        self._trial.report(getattr(row, self._sweep.metric), row.step)
        if self._trial.should_prune():
            raise Pruned(f"behind at step {row.step}")


def _table(sweep: Sweep, most: int = 10) -> Table:
    """The best trials, and how many ended otherwise."""
    trials = sweep.study.get_trials(deepcopy=False)
    done = [trial for trial in trials if trial.state is TrialState.COMPLETE and trial.values]
    done.sort(key=lambda trial: trial.values[0], reverse=sweep.metric != "objective")
    ends = [str(trial.user_attrs.get("status", trial.state.name.lower())) for trial in trials]
    count = ", ".join(f"{ends.count(end)} {end}" for end in dict.fromkeys(ends))
    table = Table(title=f"{len(trials)} trials: {count}")
    for name in ("trial", *sweep.space, sweep.metric, "run"):
        table.add_column(name)
    for trial in done[:most]:
        values = [str(trial.params.get(name, "")) for name in sweep.space]
        table.add_row(str(trial.number), *values, f"{trial.values[0]:.5g}", trial.user_attrs.get("run", ""))
    return table
