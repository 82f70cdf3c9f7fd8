"""`fcco train`: flags over a TOML file over the defaults, a folder, a live bar."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Console

from fcco.lab.config import FREE, Config, TrainConfig, as_values, check, flag, from_toml, from_values
from fcco.lab.console import Live, figures
from fcco.lab.errors import LabError, refusing
from fcco.lab.parts import load_data
from fcco.lab.runs import RunFolder, fresh_folder
from fcco.lab.train import train


@dataclass(frozen=True)
class TrainCommand(TrainConfig):
    """Train a model for multi-task AUC by any method of the library."""

    config: Path | None = None
    """A TOML file with any of these settings; flags override it."""
    out: Path | None = None
    """The run's folder, a new one; None: runs/DATASET-METHOD-1, -2, ..."""
    resume: Path | None = None
    """Go on with the run in this folder, bit for bit."""


def train_defaults(argv: Sequence[str]) -> TrainCommand:
    """Defaults from the run to resume, else from the TOML file, else the lab's own."""
    named = _named_files(argv)
    if named.resume is not None:
        if named.config is not None:
            raise LabError("--config cannot be given with --resume: a run goes on with its own configuration")
        folder = RunFolder(named.resume)
        return from_values(TrainCommand, as_values(folder.read_config()), str(folder.config))
    return file_defaults(TrainCommand, argv)


def file_defaults(kind: type[Config], argv: Sequence[str]) -> Config:
    """Defaults from the TOML file that --config names, else the kind's own."""
    named = _named_files(argv)
    if named.config is None:
        return kind()
    return from_toml(kind, named.config)


def _named_files(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--resume", type=Path)
    try:
        return parser.parse_known_args(list(argv))[0]
    except argparse.ArgumentError:  # a flag without its value: the real parser says so
        return argparse.Namespace(config=None, resume=None)


def settings(command: TrainConfig) -> TrainConfig:
    """The run's own part of a command."""
    return TrainConfig(**{field.name: getattr(command, field.name) for field in fields(TrainConfig)})


def run_train(command: TrainCommand, console: Console) -> None:
    """Train, or go on training."""
    config = settings(command)
    if command.resume is not None:
        _refuse_changes(RunFolder(command.resume), config, command)
        path = command.resume
    elif command.out is not None:
        path = command.out
        _refuse_used(path)
    else:
        with refusing():  # before there is a folder
            load_data(check(config).dataset, config.target, config.image_size)
        path = fresh_folder(Path("runs"), f"{Path(config.dataset).stem}-{config.method}")
    with Live(console) as live:
        outcome = train(config, path, resume=command.resume is not None, watch=live)
    last = outcome.rows[-1]
    console.print(f"{figures(last['objective'], last['auroc'])}  ->  {path}", soft_wrap=True, highlight=False)


def _refuse_used(path: Path) -> None:
    if RunFolder(path).used:
        raise LabError(f"{path} holds a run already; go on with --resume {path}, or take another --out")


def _refuse_changes(folder: RunFolder, config: TrainConfig, command: TrainCommand) -> None:
    if command.out is not None and command.out != folder.path:
        raise LabError("--out cannot be given with --resume: a run goes on in its own folder")
    before: dict[str, Any] = as_values(folder.read_config())
    for name, value in as_values(config).items():
        if value != before[name] and name not in FREE:
            raise LabError(
                f"{flag(name)} {value} differs from the run in {folder.path} ({before[name]}); "
                "a run goes on with its own configuration"
            )
