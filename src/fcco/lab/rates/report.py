"""What a run leaves behind: a table in Markdown, everything in JSON, the raw numbers in compressed CSV."""

from __future__ import annotations

import csv
import gzip
import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fcco
from fcco.lab.rates.fit import Outcome, Row
from fcco.lab.rates.reasons import reason

HEAD = "| experiment | method | quantity | claimed | measured | 95 % interval | first, last two points | |\n"


def number(x: float) -> str:
    """Return a number with three digits after the point, without a minus on zero."""
    if abs(x) >= 1000:
        return f"{x:.3g}"
    return f"{x + 0.0:.3f}"


def table_row(row: Row) -> str:
    """Return one line of the Markdown table."""
    claim = ""
    if row.claim is not None:
        claim = f"{row.bound} {number(row.claim)}".strip()
    ends = ""
    if row.ends is not None:
        first, last = row.ends
        ends = f"{number(first)}, {number(last)}"
    interval = f"[{number(row.low)}, {number(row.high)}]"
    cells = (row.experiment, row.name, row.quantity, claim, number(row.value), interval, ends, row.verdict)
    return "| " + " | ".join(cells) + " |\n"


def markdown(rows: Sequence[Row], facts: Mapping[str, Any]) -> str:
    """Return the table, then every miss with its reason."""
    claims = [row for row in rows if row.claim is not None]
    missed = [row for row in rows if row.verdict.startswith("misses")]
    text = "# Measured rates\n\n"
    for name, value in facts.items():
        text += f"{name}: {value}  \n"
    text += "\n" + table(rows)
    text += f"\n## Misses ({len(missed)} of {len(claims)} claims)\n\n"
    for row in missed:
        text += f"- **{row.key}**: claimed {row.bound} {number(row.claim or 0.0)}, measured {number(row.value)}. "
        text += row.reason + "\n"
    return text


def table(rows: Sequence[Row]) -> str:
    """Return the Markdown table."""
    rule = "|" + "---|" * 8 + "\n"
    return HEAD + rule + "".join(map(table_row, rows))


def environment() -> dict[str, Any]:
    """Return the versions and the kind of machine."""
    return {
        "fcco": fcco.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
    }


def commit() -> str:
    """Return the commit of the source tree, with + where it was changed; "unknown" outside a repository."""
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "HEAD").strip()
        changes = _git(here, "status", "--porcelain", "--", ".").strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    if changes:
        head += "+"
    return head


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def with_reasons(rows: Sequence[Row], quick: bool) -> list[Row]:
    """Return the rows; those that miss their claim say why, as far as it was found out."""
    explained = []
    for row in rows:
        if row.verdict.startswith("misses"):
            row = reason(row, quick)
        explained.append(row)
    return explained


def write(out: Path, outcomes: Mapping[str, Outcome], facts: Mapping[str, Any]) -> list[Row]:
    """Write table.md, rates.json and raw/*.csv.gz under ``out``, and return all rows."""
    (out / "raw").mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for outcome in outcomes.values():
        rows += outcome.rows
    (out / "table.md").write_text(markdown(rows, facts), encoding="utf-8")
    experiments = {name: outcome.as_dict() for name, outcome in outcomes.items()}
    content = {"facts": dict(facts), "experiments": experiments}
    (out / "rates.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for name, outcome in outcomes.items():
        _write_raw(out / "raw" / f"{name}.csv.gz", outcome)
    return rows


def _write_raw(path: Path, outcome: Outcome) -> None:
    with gzip.open(path, "wt", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["series", "x", "setting", "seed", "value"])
        for series, x, setting, seed, value in outcome.raw:
            writer.writerow([series, f"{x:.8g}", setting, seed, f"{value:.8g}"])
