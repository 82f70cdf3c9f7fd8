"""The small commands: what there is (methods, objectives, data), reports, and what is handed on (rates)."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.table import Table

from fcco.lab import texts
from fcco.lab.errors import DataError, LabError, pick, refusing

if TYPE_CHECKING:
    from fcco.lab.datasets.registry import Spec


@dataclass(frozen=True)
class MethodsCommand:
    """List the methods, with the rates that each takes."""

    name: Annotated[str | None, tyro.conf.Positional] = None
    """Show this method only: how to call it in Python, and what it does."""


def run_methods(command: MethodsCommand, console: Console) -> None:
    """Print the table of methods."""
    if command.name is not None:
        import fcco

        name = pick("method", command.name, texts.METHODS)
        recipe = fcco.METHODS[name]
        for line in (texts.METHODS[name].what, "", in_python(recipe), "", without_markup(inspect.getdoc(recipe) or "")):
            console.print(line, highlight=False, markup=False)
        return
    console.print(texts.ABOUT_METHODS, highlight=False)
    table = Table("method", "rates", "what it does")
    for name, text in texts.METHODS.items():
        table.add_row(name, ", ".join(text.rates), text.what)
    console.print(table)
    console.print("Use one with `fcco train --method NAME`; `fcco methods NAME` describes it.", highlight=False)


def in_python(recipe: Callable[..., object]) -> str:
    """Return how a recipe is called, with its defaults.

    Args:
        recipe: of :data:`fcco.METHODS`.
    """
    parameters = inspect.signature(recipe).parameters.values()
    settings = [f"{parameter.name}={parameter.default}" for parameter in parameters]
    return f"fcco.{recipe.__name__}({', '.join(settings)})"


def without_markup(text: str) -> str:
    """Return a docstring as plain text: names without the marks that the reference turns into links.

    Args:
        text: of a docstring, without its indent.
    """
    text = re.sub(r":\w+:`~?([^`]+)`", r"\1", text)
    text = text.replace("``", "")
    return re.sub(r"^::\n\n", "", text, flags=re.MULTILINE)


@dataclass(frozen=True)
class ObjectivesCommand:
    """List the objectives, and which columns of a table each needs."""


def run_objectives(command: ObjectivesCommand, console: Console) -> None:
    """Print the table of objectives."""
    table = Table("objective", "a table needs", "what it trains for")
    for name, text in texts.OBJECTIVES.items():
        table.add_row(name, text.flags or f"in Python: fcco.data.{text.data}", text.what)
    console.print(table)
    console.print(
        "Use one with `fcco train --objective NAME`. Without it, `fcco train` chooses one by the metric.",
        highlight=False,
    )


@dataclass(frozen=True)
class DataCommand:
    """List the data sets, and which of them are on this machine; or describe one."""

    name: Annotated[str | None, tyro.conf.Positional] = None
    """A data set, or the path of your own data, to read and describe. Missing files are downloaded."""
    target: tuple[str, ...] = ()
    """Label column of a table. Several columns are several 0/1 labels."""
    drop: tuple[str, ...] = ()
    """Columns of a table to leave out."""
    positive: str | None = None
    """The class that counts as positive."""
    image_size: int | None = None
    """Resize the images of a folder to this height and width."""


def run_data(command: DataCommand, console: Console) -> None:
    """Print the table of data sets, or read one."""
    from fcco.lab.config import DataConfig
    from fcco.lab.datasets.registry import SPECS
    from fcco.lab.loaded import load

    if command.name is not None:
        with refusing():
            data = load(DataConfig(command.name, command.target, command.drop, command.positive,
                                   image_size=command.image_size))  # fmt: skip
        console.print(str(data), highlight=False, markup=False, soft_wrap=True)
        return
    table = Table("name", "images", "train + test", "tasks", "at hand")
    table.add_row("digits", "1x8x8", "1442 + 355", "10", "embedded in scikit-learn")
    for spec in SPECS.values():
        shape = "x".join(map(str, spec.shape))
        table.add_row(spec.name, shape, f"{spec.train} + {spec.test}", str(len(spec.classes)), _at_hand(spec))
    console.print(table)


def _at_hand(spec: Spec) -> str:
    """Say where a data set's files lie."""
    from fcco.lab.datasets.locate import cache_folder, data_folder, find_npz, find_release

    own = data_folder(None)
    folders = [cache_folder()]
    if own is not None:
        folders = [own, *folders]
    try:
        release = find_release(spec, folders)
        npz = find_npz(spec, folders)
    except DataError as error:
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
    """Run folders, or folders that contain run folders."""
    out: Path | None = None
    """The page to write, or a folder for it. None: report.html in the given folder, or here if there are several."""
    title: str = "fcco report"
    """Title of the page."""
    note: str = ""
    """A note to show on the page and under every figure."""


def run_report(command: ReportCommand, console: Console) -> None:
    """Write a report."""
    if not command.runs:
        raise LabError("give at least one run folder: fcco report RUN...")
    from fcco.lab import reporting

    out = command.out
    if out is None:
        out = Path()  # a page of several folders belongs to none of them
        if len(command.runs) == 1:
            out = command.runs[0]
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
