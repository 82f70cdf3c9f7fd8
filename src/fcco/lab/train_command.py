"""The arguments of `fcco train` and `fcco predict`; nothing heavy is loaded to read them."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import tyro

from fcco.lab.config import FitConfig, TrainConfig, flag
from fcco.lab.errors import LabError, nearest
from fcco.lab.files import read_json
from fcco.lab.values import Config, as_values, from_toml, from_values


@dataclass(frozen=True)
class FitCommand(FitConfig):
    """Train a model on your data. You name the metric; everything else is chosen on validation data.

    A fifth of the rows is held out for the test, unless the data set has its own test data. The plain loss is trained
    too and is one of the candidates. With --method or --objective, fcco instead runs one method on one objective;
    `fcco train --method msvr-v2 --help` lists the settings for that.
    """

    config: Path | None = None
    """A TOML file with any of these settings. Flags override it."""
    out: Path | None = None
    """New folder for the run. None: runs/DATASET-1, -2, ..."""
    resume: Path | None = None
    """Resume the run in this folder, exactly."""


@dataclass(frozen=True)
class TrainCommand(TrainConfig):
    """Train one objective by one method, with control over every setting.

    Without --method and --objective, `fcco train` chooses all of these for you.
    """

    config: Path | None = None
    """A TOML file with any of these settings. Flags override it."""
    out: Path | None = None
    """New folder for the run. None: runs/DATASET-METHOD-1, -2, ..."""
    resume: Path | None = None
    """Resume the run in this folder, bit for bit."""


@dataclass(frozen=True)
class PredictCommand:
    """Score new data with a trained model, and write a table of scores and probabilities."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run, as `fcco train` wrote it."""
    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """A table with the columns of the training table, in any order and with or without the target; a folder of
    images; or an .npz file with an array x."""
    out: Path = Path("scores.csv")
    """The table to write, with one row per row of the data."""


#: Either of these says that one method is to be run on one objective.
CHOICES = ("method", "objective")


def train_kind(argv: Sequence[str]) -> type[FitCommand] | type[TrainCommand]:
    """Return which of the two a command line means: by its flags, its file, or the run that it resumes."""
    if argv and not argv[0].startswith("-"):
        raise LabError(f"{argv[0]} is no option: did you mean --dataset {argv[0]}?")
    named = named_files(argv)
    given = [(name, flag(name)) for name in _given(argv)]
    for name in _in_file(named.config):
        given.append((name, f"{named.config}: {name}"))
    if named.resume is not None:
        chooses = "method" in run_config(named.resume)
    else:
        chooses = any(name in CHOICES for name, _ in given)
    of_fit = {field.name for field in fields(FitCommand)}
    of_train = {field.name for field in fields(TrainCommand)}
    if chooses:
        for name, shown in given:
            _check_name(name, shown, of_train, of_fit - of_train, chooses)
        return TrainCommand
    for name, shown in given:
        _check_name(name, shown, of_fit, of_train - of_fit, chooses)
    return FitCommand


def _check_name(name: str, shown: str, mine: set[str], foreign: set[str], chooses: bool) -> None:
    """Refuse a setting that nothing has, or that only the other way of training has."""
    if name in mine or name.startswith(("help", "tyro")):
        return
    if name not in foreign:
        hint = nearest(flag(name), map(flag, sorted(mine | foreign))).replace("'", "")
        raise LabError(f"{shown} is an unknown setting{hint}")
    if chooses:
        raise LabError(f"{shown} applies only to training by a metric, without --method and --objective")
    raise LabError(f"{shown} applies only to one method on one objective: add --method or --objective")


def train_defaults(argv: Sequence[str]) -> FitCommand | TrainCommand:
    """Defaults from the run to resume, else from the TOML file, else the kind's own."""
    kind = train_kind(argv)
    named = named_files(argv)
    if named.resume is not None:
        if named.config is not None:
            raise LabError("--config cannot be given with --resume: a run resumes with its own configuration")
        return from_values(kind, run_config(named.resume), str(named.resume / "config.json"))
    return file_defaults(kind, argv)


def file_defaults(kind: type[Config], argv: Sequence[str]) -> Config:
    """Defaults from the TOML file that --config names, else the kind's own."""
    named = named_files(argv)
    if named.config is None:
        return kind()
    return from_toml(kind, named.config)


def run_config(path: Path) -> dict[str, Any]:
    """Return what the run in a folder was started with."""
    file = path / "config.json"
    if not file.exists():
        raise LabError(f"there is no run to resume in {path} (it has no config.json)")
    return read_json(file)


def settings(command: Any, kind: type[Config]) -> Config:
    """Return the run's own part of a command."""
    values = {field.name: getattr(command, field.name) for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**values)


def changed(before: Any, now: Any) -> list[tuple[str, Any, Any]]:
    """Return the settings that differ: name, before, now."""
    old = as_values(before)
    found = []
    for name, value in as_values(now).items():
        if value != old[name]:
            found.append((name, old[name], value))
    return found


def named_files(argv: Sequence[str]) -> argparse.Namespace:
    """Return the files that --config and --resume name."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--resume", type=Path)
    try:
        return parser.parse_known_args(list(argv))[0]
    except argparse.ArgumentError:  # a flag without its value: the real parser says so
        return argparse.Namespace(config=None, resume=None)


def _given(argv: Sequence[str]) -> list[str]:
    """Return the settings that the flags name."""
    names = []
    for word in argv:
        if word.startswith("--"):
            name = word[2:].split("=")[0].replace("-", "_")
            names.append(name.removeprefix("no_"))
    return names


def _in_file(path: Path | None) -> list[str]:
    """Return the settings that a TOML file names; what is wrong with the file is said when it is read."""
    if path is None:
        return []
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [name.replace("-", "_") for name in content]
