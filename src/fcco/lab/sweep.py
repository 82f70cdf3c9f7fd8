"""Many runs over a search space through Optuna; stopped, a sweep goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
import random
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import optuna
from optuna.storages import JournalStorage
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console

from fcco.lab.config import TrainConfig
from fcco.lab.console import Bar
from fcco.lab.errors import Diverged, Interrupted, LabError, Pruned, StorageError, one_line, writing
from fcco.lab.evaluate import Row
from fcco.lab.journal import Journal
from fcco.lab.loaded import load
from fcco.lab.parts import Parts
from fcco.lab.runs import read_json, write_json
from fcco.lab.space import Range, Space, at, is_grid, points
from fcco.lab.train import finish
from fcco.lab.values import as_values

Metric = Literal["objective", "auroc", "ap", "metric"]
MOST_TRIALS = 50  # of a space that is no grid, where the user says nothing


@final
@dataclass(frozen=True)
class Sweep:
    """A sweep that is under way: what is searched, by what, and where."""

    base: TrainConfig
    space: Space
    metric: Metric
    study: optuna.Study
    out: Path

    @property
    def field(self) -> str:
        """The field of an evaluation that is compared: the validation part's, where there is one."""
        if self.metric == "objective" or self.base.validation == 0.0:
            return self.metric
        return f"validation_{self.metric}"

    def best(self) -> tuple[TrainConfig, float]:
        """Return the best configuration and its value."""
        with recording(self.out):
            return self._best()

    def _best(self) -> tuple[TrainConfig, float]:
        done = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if not done:
            raise LabError(f"no run of the sweep in {self.out} finished{self._first_failure()}")
        trial = self.study.best_trial
        point = json.loads(trial.user_attrs["point"])
        return at(self.base, point), float(trial.values[0])

    def _first_failure(self) -> str:
        """Return the first message that a failed run left, after a colon; "" where there is none."""
        for trial in self.study.get_trials(deepcopy=False):
            message = trial.user_attrs.get("message")
            if message:
                return f": {message}"
        return ""


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
    """Make or reopen a sweep; a folder that holds another sweep is an error."""
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    described = {"base": as_values(base), "space": _described(space), "metric": metric, "halving": halving}
    _remember(described, dict(load(base).sha256), out)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=base.seed)
    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    if halving:
        pruner = optuna.pruners.SuccessiveHalvingPruner()
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


def _remember(described: dict[str, Any], data: dict[str, str], out: Path) -> None:
    """Write down what a folder's sweep is of; a folder that holds another one is an error."""
    kept = out / "sweep.json"
    if kept.exists():
        before = read_json(kept)
        data_before = before.pop("data_sha256", data)  # older sweeps do not say
        if before != json.loads(json.dumps(described)):
            raise LabError(f"{out} holds another sweep; choose another --out")
        if data_before != data:
            raise LabError(
                f"the data have changed since the sweep in {out} was started: put the old files back, or choose "
                "another "
                "--out"
            )
    write_json(kept, described | {"data_sha256": data})


def _storage(name: str | None, out: Path) -> Any:
    if name is None:
        return f"sqlite:///{(out / 'sweep.db').resolve()}"
    if name == "journal":
        return JournalStorage(Journal(str(out / "sweep.journal")))
    return name


def _described(space: Space) -> dict[str, Any]:
    described: dict[str, Any] = {}
    for name, values in space.items():
        if isinstance(values, Range):
            described[name] = vars(values)
        else:
            described[name] = list(values)
    return described


class Failed(Exception):
    """A run could not be made or broke off; the sweep goes on."""


@contextmanager
def recording(out: Path) -> Iterator[None]:
    """Turn whatever Optuna raises while the sweep's record is read or written into one sentence for the user."""
    try:
        yield
    except (LabError, Diverged, Failed, Interrupted, Pruned, optuna.TrialPruned):
        raise
    except Exception as error:
        raise StorageError(
            f"the record of the sweep in {out} could not be read or written ({one_line(error)[:300]}); what was "
            "recorded before is intact, and the same command continues with it"
        ) from error


def carry_out(sweep: Sweep, trials: int | None, console: Console) -> None:
    """Run what is left to run.

    Raises:
        StorageError: where the record cannot be written, with a full disk, say.
    """
    with recording(sweep.out):
        _carry_out(sweep, trials, console)


def _carry_out(sweep: Sweep, trials: int | None, console: Console) -> None:
    _prepare(sweep)
    left = _trials_left(sweep, trials)
    if left <= 0:
        return
    with Bar(console, "sweep", left) as bar:
        for _ in range(left):
            sweep.study.optimize(lambda trial: _run(sweep, trial, bar), n_trials=1, catch=(Diverged, Failed))


def _trials_left(sweep: Sweep, trials: int | None) -> int:
    """Return how many trials are still to run, of the grid or of the number that was asked for."""
    done = sum(_ended(trial) for trial in sweep.study.get_trials(deepcopy=False))
    if not is_grid(sweep.space):
        return (trials or MOST_TRIALS) - done
    waiting = sweep.study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    if trials is None:
        return len(waiting)
    return min(len(waiting), trials - done)


def _ended(trial: FrozenTrial) -> bool:
    """Return whether a trial came to an end of its own, good or bad, and is not to run again."""
    if trial.state is TrialState.FAIL:
        return trial.user_attrs.get("status") in ("diverged", "failed")
    return bool(trial.state.is_finished())


def _prepare(sweep: Sweep) -> None:
    """Queue every point that is to run: of a grid those that nobody has run, else those of killed processes."""
    taken, abandoned = _sort_trials(sweep.study)
    queue = abandoned
    if is_grid(sweep.space):
        queue = [json.dumps(point) for point in points(sweep.space, sweep.base)]
        random.Random(sweep.base.seed).shuffle(queue)  # the first few trials should not all lie in one corner
    for point in dict.fromkeys(queue):
        if point not in taken:
            sweep.study.enqueue_trial(_plain(json.loads(point)), user_attrs={"point": point})


def _sort_trials(study: optuna.Study) -> tuple[set[str], list[str]]:
    """Return the points that have run or are running, and those whose process was killed."""
    taken = set()
    abandoned = []
    for trial in study.get_trials():
        killed = trial.state is TrialState.RUNNING and _dead(trial.user_attrs.get("process"))
        if killed:
            study.tell(trial.number, state=TrialState.FAIL)
        point = trial.user_attrs.get("point")
        if point is None:  # it ended before it had one
            continue
        if killed or (trial.state is TrialState.FAIL and not _ended(trial)):
            abandoned.append(point)
        else:
            taken.add(point)
    return taken, abandoned


def _dead(process: Any) -> bool:
    """Return whether a process of this machine has ended; those of other machines are taken to be alive."""
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


def _run(sweep: Sweep, trial: optuna.Trial, bar: Bar) -> float:
    """Carry out one run and return its value; how it ended is written to the trial's attributes."""
    trial.set_user_attr("process", [socket.gethostname(), os.getpid()])
    trial.set_user_attr("status", "interrupted")  # until it ends otherwise
    point = _point(sweep, trial)
    trial.set_user_attr("point", json.dumps(point))
    try:
        config = at(sweep.base, point)
        path = sweep.out / "runs" / run_name(config)
    except Exception as error:
        _note(trial, "failed", error)
        raise Failed(one_line(error)) from error
    trial.set_user_attr("run", path.name)
    try:
        bar.next(path.name)
        rows = finish(config, path, _Pruning(sweep, trial, bar)).rows
        value = rows[-1][sweep.field]
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
    """Return the point that was queued for this trial, else one that the sampler suggests."""
    queued = trial.user_attrs.get("point")
    names = list(sweep.space)
    if queued is not None:
        names = list(json.loads(queued))
    return {name: _suggested(trial, name, sweep.space[name]) for name in names}


def _suggested(trial: optuna.Trial, name: str, values: tuple[Any, ...] | Range) -> Any:
    if not isinstance(values, Range):
        texts = [_scalar(value) for value in values]
        chosen = trial.suggest_categorical(name, texts)
        return values[texts.index(chosen)]
    options: dict[str, Any] = {"log": values.log}
    if values.step is not None and not values.log:
        options["step"] = values.step
    if values.whole:
        return trial.suggest_int(name, int(values.low), int(values.high), **options)
    return trial.suggest_float(name, values.low, values.high, **options)


def _plain(point: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _scalar(value) for name, value in point.items()}


def _scalar(value: Any) -> Any:
    """Return the value as Optuna can store it; it has no lists."""
    if isinstance(value, (list, tuple)):
        return json.dumps(value)
    return value


def run_name(config: TrainConfig) -> str:
    """Return a folder's name that tells configurations apart and is the same in every process."""
    described = json.dumps(as_values(config), sort_keys=True)
    digest = hashlib.sha256(described.encode()).hexdigest()[:10]
    return f"{Path(config.dataset).stem}-{config.method}-{digest}"


@final
class _Pruning:
    """Reports evaluations to the study, and stops a run that is behind."""

    def __init__(self, sweep: Sweep, trial: optuna.Trial, bar: Bar) -> None:
        self._sweep = sweep
        self._trial = trial
        self._bar = bar

    def began(self, parts: Parts, rows: list[dict[str, Any]]) -> None:
        """Pass it on to the progress bar."""
        self._bar.began(parts, rows)

    def stepped(self, step: int) -> None:
        """Pass it on to the progress bar."""
        self._bar.stepped(step)

    def evaluated(self, row: Row) -> None:
        """Report the evaluation, and stop the run where Optuna says that it is behind."""
        self._bar.evaluated(row)
        with recording(self._sweep.out):
            self._trial.report(getattr(row, self._sweep.field), row.step)
            is_behind = self._trial.should_prune()
        if is_behind:
            raise Pruned(f"behind the other trials at step {row.step}")
