"""`fcco bench`: step times of every method beside plain SGD, hand-written floors and LibAUC, with verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fcco.lab.bench.parts import Part, all_parts
from fcco.lab.bench.rows import Results, Row
from fcco.lab.bench.tables import failures, rows_table, verdict_table
from fcco.lab.bench.timing import WARM, Budget
from fcco.lab.bench.verdicts import Verdict, verdicts
from fcco.lab.errors import LabError, pick, writing
from fcco.lab.runs import environment, write_json

WIDTH = 120  # of the tables where nobody's terminal says otherwise


@dataclass(frozen=True)
class BenchCommand:
    """Measure step times, with verdicts: methods against plain SGD, captured steps against hand-written floors, LibAUC.

    Parts on a CUDA device: resnet-small, resnet-own, mlp, ap-resnet, ap-mlp, launches. On the CPU: tiny, wide, memory,
    peers, ratios, blocks. Parts that cannot run on this machine are listed as left out.
    """

    only: tuple[str, ...] = ()
    """Run only these parts. cuda and cpu stand for all parts of that device."""
    seconds: float = 120.0
    """Total time to measure, divided among the parts. Creating and warming up the contenders takes more."""
    out: Path | None = None
    """Also write all numbers as JSON, updated after every setting."""
    quick: bool = False
    """One round of tiny sizes, for tests. The numbers mean nothing."""


def run_bench(command: BenchCommand, console: Console) -> Results:
    """Run the benchmark, and return all rows."""
    if not command.seconds > 0.0:
        raise LabError(f"--seconds must be > 0, got {command.seconds:g}")
    _check_out(command.out)
    console = _wide(console)
    parts = chosen(all_parts(quick=command.quick), command.only)
    where = measured_on()
    console.print(f"torch {where['torch']}, {where['device']}, threads: {where['threads']}", highlight=False)
    missing: dict[str, str] = {}
    present = []
    for part in parts:
        reason = part.missing()
        if reason is None:
            present.append(part)
        else:
            missing[part.name] = reason
            console.print(f"left out: {part.name}: {reason}", highlight=False, soft_wrap=True)
    results = Results()
    for part, budget in budgets(present, command):
        for rows in part.run(budget):
            for row in rows:
                results.add(row)
            _show(rows, results, console)
            _write(command.out, where, missing, results, about(verdicts(results), parts))
    found = about(verdicts(results), parts)
    if not command.quick:  # whose figures mean nothing
        console.print(verdict_table(about(found, present)))
    _write(command.out, where, missing, results, found)
    return results


def _check_out(path: Path | None) -> None:
    """Refuse a file that cannot be written before anything is measured."""
    if path is None:
        return
    if path.is_dir():
        raise LabError(f"--out must be a file, but {path} is a folder")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)


def budgets(parts: Sequence[Part], command: BenchCommand) -> list[tuple[Part, Budget]]:
    """Return each part with its share of the seconds."""
    if command.quick:
        return [(part, Budget(0.0, rounds=1, warm=1)) for part in parts]
    total = sum(part.share for part in parts)
    if total == 0.0:  # launches alone, which are counted and not timed
        total = 1.0
    return [(part, Budget(command.seconds * part.share / total)) for part in parts]


def chosen(parts: Sequence[Part], only: Sequence[str]) -> list[Part]:
    """Return the parts that were asked for, by their name or their group, in their own order; all without `only`."""
    names = [part.name for part in parts]
    groups = dict.fromkeys(part.group for part in parts)
    for name in only:
        pick("part", name, [*names, *groups])
    if not only:
        return list(parts)
    return [part for part in parts if part.name in only or part.group in only]


def about(found: Sequence[Verdict], parts: Sequence[Part]) -> list[Verdict]:
    """Return the verdicts of these parts."""
    names = {part.name for part in parts}
    return [verdict for verdict in found if verdict.part in names]


def measured_on() -> dict[str, Any]:
    """Return the machine and the versions."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())
    return environment(device, "random", {}) | {"cuda": torch.version.cuda, "warm_up_steps": WARM}


def _show(rows: Sequence[Row], results: Results, console: Console) -> None:
    console.print(rows_table(rows, results))
    for line in failures(rows):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _wide(console: Console) -> Console:
    """Return a wide console for a file or a pipe, which have no width of their own: tables need not be folded."""
    if console.is_terminal:
        return console
    return Console(file=console.file, width=WIDTH)


def _write(
    path: Path | None, where: dict[str, Any], missing: dict[str, str], results: Results, found: Sequence[Verdict]
) -> None:
    """Write all there is so far, whole or not at all."""
    if path is None:
        return
    content = {
        "environment": where,
        "left_out": missing,
        "rows": [row.as_json() for row in results.rows.values()],
        "verdicts": [verdict.as_json() for verdict in found],
    }
    write_json(path, content)
