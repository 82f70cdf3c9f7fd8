"""`fcco sweep`: the command, and what it prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from optuna.trial import TrialState
from rich.console import Console
from rich.table import Table

from fcco.lab.config import TrainConfig
from fcco.lab.errors import LabError
from fcco.lab.runs import fresh_folder, write_aside
from fcco.lab.space import PAPER, Space, read_space
from fcco.lab.sweep import Metric, Sweep, carry_out, open_sweep, recording
from fcco.lab.train_command import file_defaults, settings
from fcco.lab.values import to_toml


@dataclass(frozen=True)
class SweepCommand(TrainConfig):
    """Search rates, or any other settings, by many runs. Give the settings not searched as for `fcco train`."""

    config: Path | None = None
    """A TOML file with any of these settings. Flags override it."""
    space: Path | None = None
    """A TOML file with NAME = [values] or {low, high, log, step}. None: the paper's grid of lr, alpha and beta."""
    trials: int | None = None
    """Number of runs. None: every point of a grid, or 50 if the space is not a grid."""
    validation: float = 0.2
    """Share of the training data that is held out to choose by. The test data are separate."""
    metric: Metric = "auroc"
    """What to compare at the end of a run, on the validation data: auroc, ap, or metric (NDCG, concordance or worst
    group). Or objective, the training objective."""
    halving: bool = False
    """Stop runs that are behind early (successive halving)."""
    storage: str | None = None
    """Where to keep the trials: a database URL, which several machines may share, or 'journal' for a file that works in
    network folders. None: an SQLite file in the sweep's folder."""
    study: str = "sweep"
    """Name of the study in the storage."""
    out: Path | None = None
    """Folder of the sweep. If it holds the same sweep, that sweep continues. None: runs/sweep-1, -2, ..."""


def sweep_defaults(argv: Sequence[str]) -> SweepCommand:
    """Return the defaults from the TOML file that --config names, else the sweep's own."""
    return file_defaults(SweepCommand, argv)


def run_sweep(command: SweepCommand, console: Console) -> Sweep:
    """Run a sweep, or continue it; print the best runs and write the best configuration to best.toml."""
    space: Space = PAPER
    if command.space is not None:
        space = read_space(command.space)
    if command.trials is not None and command.trials < 1:
        raise LabError(f"--trials must be at least 1, got {command.trials}")
    out = command.out or fresh_folder(Path("runs"), "sweep")
    sweep = open_sweep(
        settings(command, TrainConfig),
        space,
        out,
        command.metric,
        command.storage,
        command.study,
        halving=command.halving,
    )
    carry_out(sweep, command.trials, console)
    with recording(out):
        console.print(_table(sweep))
    config, value = sweep.best()
    write_aside(out / "best.toml", to_toml(config))
    console.print(
        f"best {sweep.field.replace('_', ' ')} {value:.5g}: fcco train --config {out / 'best.toml'}", soft_wrap=True
    )
    return sweep


def _table(sweep: Sweep, most: int = 10) -> Table:
    """Return a table of the best trials, titled by how all of them ended."""
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
