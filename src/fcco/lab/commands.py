"""The small commands: what there is (methods, objectives, data), reports, and what is handed on (rates)."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

import fcco
from fcco.lab import datasets, reporting
from fcco.lab.config import recipe_arguments
from fcco.lab.datasets.locate import cache_folder, data_folder, find_npz, find_release
from fcco.lab.datasets.registry import SPECS, Spec
from fcco.lab.errors import LabError, pick, refusing
from fcco.lab.parts import load_data


@dataclass(frozen=True)
class MethodsCommand:
    """The methods, with the rates that each takes."""

    name: Annotated[str | None, tyro.conf.Positional] = None
    """One of them: how it is called, and what it is."""


def run_methods(command: MethodsCommand, console: Console) -> None:
    """Print the table of methods."""
    if command.name is not None:
        recipe = fcco.METHODS[pick("method", command.name, fcco.METHODS)]
        console.print(f"fcco.{recipe.__name__}{inspect.signature(recipe)}", highlight=False, markup=False)
        console.print(inspect.getdoc(recipe) or "", highlight=False, markup=False)
        return
    table = Table("method", "rates", "lag", "what it is")
    for name, recipe in fcco.METHODS.items():
        taken = dict(recipe_arguments(name))
        lag = taken.pop("lag", None)
        published = ""
        if lag is not None:
            published = str(lag.default)
        table.add_row(name, ", ".join(taken), published, _first_line(recipe))
    console.print(table)


@dataclass(frozen=True)
class ObjectivesCommand:
    """The ready objectives."""


def run_objectives(command: ObjectivesCommand, console: Console) -> None:
    """Print the table of objectives."""
    table = Table("objective", "data", "what it is")
    for name in sorted(fcco.objectives.__all__):
        kind = getattr(fcco.objectives, name)
        if inspect.isclass(kind) and issubclass(kind, fcco.objectives.OutputObjective) and _takes_data(kind):
            table.add_row(name, f"fcco.data.{_data_kind(kind)}", _first_line(kind))
    console.print(table)


def _takes_data(kind: type) -> bool:
    """Whether an objective is ready to be used over data."""
    return "data" in inspect.signature(kind).parameters


def _data_kind(kind: type) -> str:
    """The name of the structure that an objective takes."""
    return str(inspect.signature(kind).parameters["data"].annotation)


@dataclass(frozen=True)
class DataCommand:
    """The data sets, and which of them are at hand."""

    name: Annotated[str | None, tyro.conf.Positional] = None
    """One of them, or a path of your own: read it, fetching what is missing, and say what it holds."""
    target: tuple[str, ...] = ()
    """Label column of a table; several columns are several 0/1 labels."""
    image_size: int | None = None
    """Images of a folder are brought to this height and width."""


def run_data(command: DataCommand, console: Console) -> None:
    """Print the table of data sets, or read one."""
    if command.name is not None:
        data = load_data(command.name, command.target, command.image_size)
        console.print(str(data), highlight=False, markup=False, soft_wrap=True)
        return
    table = Table("name", "images", "train + test", "tasks", "at hand")
    table.add_row("digits", "1x8x8", "1442 + 355", "10", "embedded in scikit-learn")
    for spec in SPECS.values():
        shape = "x".join(map(str, spec.shape))
        table.add_row(spec.name, shape, f"{spec.train} + {spec.test}", str(len(spec.classes)), _at_hand(spec))
    console.print(table)


def _at_hand(spec: Spec) -> str:
    """Where a data set's files lie."""
    folders = [folder for folder in (data_folder(None), cache_folder()) if folder is not None]
    try:
        release = find_release(spec, folders)
        npz = find_npz(spec, folders)
    except datasets.DataError as error:
        return str(error)
    if release is not None:
        return f"original files in {next(iter(release[1].values())).parent}"
    if npz is not None:
        return f"user-provided {npz}"
    return f"no; `fcco data {spec.name}` fetches it"


@dataclass(frozen=True)
class ReportCommand:
    """Write one self-contained HTML page, and figures for a paper, from finished or running runs."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders, or folders that hold some."""
    out: Path | None = None
    """The page, or the folder for it; None: report.html in the first of the runs' folders."""
    title: str = "fcco report"
    """The page's title."""
    note: str = ""
    """Stands on the page and under every figure."""


def run_report(command: ReportCommand, console: Console) -> None:
    """Write a report."""
    if not command.runs:
        raise LabError("name at least one run folder: fcco report RUN...")
    out = command.out or command.runs[0]
    with refusing():
        page = reporting.write(command.runs, out, title=command.title, note=command.note)
    console.print(f"report: {page}", highlight=False, soft_wrap=True)


def run_rates(argv: list[str]) -> int:
    """Measure convergence rates against the paper's theorems; `fcco rates --help` for its own flags."""
    rates = importlib.import_module("fcco.lab.rates")
    entry = getattr(rates, "main", None)
    if entry is None:
        raise LabError("this version of fcco has no command for rates; use the module fcco.lab.rates")
    return int(entry(argv) or 0)


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").split("\n")[0]
