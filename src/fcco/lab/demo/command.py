"""`fcco demo`: two parts, a table and a sentence each, one figure, one page, all numbers in JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import fcco
from fcco.lab.console import Bar
from fcco.lab.demo import figure, page, rare, theory
from fcco.lab.demo.story import TERMS, Part, rare_part, theory_part
from fcco.lab.errors import LabError, writing
from fcco.lab.files import write_json
from fcco.lab.machine import thread_count
from fcco.lab.runs import fresh_folder

TITLE = "fcco demo: a rare class, and the paper's methods"
WIDTH = 100  # of the text, at most


@dataclass(frozen=True)
class DemoConfig:
    """Show fcco.fit on a rare class, and the paper's methods where theory says that they differ. Needs no download."""

    out: Path | None = None
    """Where to write. None: runs/demo-1, -2, ..."""
    digits: int = 10
    """Number of digits that take turns as the rare class, in part 1."""
    seeds: int = 5
    """Number of random seeds in part 2."""
    quick: bool = False
    """Shorter runs that take seconds and show less."""


def plans(demo: DemoConfig) -> tuple[rare.Plan, theory.Plan]:
    """The sizes of both parts."""
    first = rare.Plan(digits=demo.digits)
    second = theory.Plan(seeds=demo.seeds)
    if demo.quick:
        first = replace(first, examples=4_000, rates=(3e-3, 1e-2), checks=5)
        second = replace(second, calls=16_000, marks=40, etas=(1e-3, 1e-2), alphas=(0.1,), betas=(0.1,))
    return first, second


def run_demo(demo: DemoConfig, console: Console) -> Path:
    """Run it; returns the folder."""
    if demo.seeds < 1:
        raise LabError(f"--seeds must be at least 1, got {demo.seeds}")
    if not 1 <= demo.digits <= 10:
        raise LabError(f"--digits must be 1 to 10, got {demo.digits}")
    out = _folder(demo)
    first, second = plans(demo)
    runs = 2 * first.digits + len(theory.entries(second))
    # The networks are too small for two threads to help.
    with Bar(console, "demo", runs) as bar, thread_count(0, small=True):
        found_rare = rare.run(first, bar.next)
        found_theory = theory.run(second, bar.next)

    parts = [rare_part(first, found_rare), theory_part(second, found_theory)]
    for part in parts:
        _tell(console, part)
    _terms(console)

    plot = out / "demo.png"
    figure.draw(plot, found_rare, found_theory)
    report = out / "report.html"
    page.write(report, TITLE, parts, plot)
    numbers = out / "demo.json"
    write_json(numbers, _numbers(first, found_rare, second, found_theory))
    for name, path in (("plot:", plot), ("report:", report), ("numbers:", numbers)):
        console.print(f"{name:<8} {path}", soft_wrap=True, highlight=False)
    return out


def _folder(demo: DemoConfig) -> Path:
    if demo.out is None:
        return fresh_folder(Path("runs"), "demo")
    if demo.out.exists() and (not demo.out.is_dir() or any(demo.out.iterdir())):
        raise LabError(f"--out {demo.out} is not empty")
    with writing(demo.out):
        demo.out.mkdir(parents=True, exist_ok=True)
    return demo.out


def _tell(console: Console, part: Part) -> None:
    console.print()
    console.print(part.title, style="bold", highlight=False)
    _paragraph(console, part.done)
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for number, name in enumerate(part.columns):
        if number == 0:
            table.add_column(name, no_wrap=True)
        else:
            table.add_column(name, justify="right", no_wrap=True)
    for row in part.rows:
        table.add_row(*row)
    console.print(table)
    _paragraph(console, part.lesson)


def _terms(console: Console) -> None:
    console.print()
    for term, meaning in TERMS.items():
        _paragraph(console, f"{term}: {meaning}.")
    console.print()


def _paragraph(console: Console, text: str) -> None:
    lines = textwrap.wrap(text, min(WIDTH, console.width))
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _numbers(
    first: rare.Plan, found_rare: rare.Found, second: theory.Plan, found_theory: Sequence[theory.Found]
) -> dict[str, Any]:
    mean, low, high = found_rare.difference()
    methods = []
    for one in found_theory:
        row = asdict(one)
        row["calls"] = one.calls.tolist()
        row["gaps"] = one.gaps.mean(-1).tolist()
        row["gap"] = one.gap()
        methods.append(row)
    return {
        "fcco": fcco.__version__,
        "torch": torch.__version__,
        "rare_class": {
            "plan": asdict(first),
            **asdict(found_rare),
            "difference": {"mean": mean, "low": low, "high": high},
        },
        "methods": {"plan": asdict(second), "found": methods},
    }
