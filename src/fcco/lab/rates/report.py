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
    """Three digits after the point, without a minus on zero."""
    return f"{x + 0.0:.3f}" if abs(x) < 1000 else f"{x:.3g}"


def table_row(row: Row) -> str:
    """One line of the Markdown table."""
    claim = "" if row.claim is None else f"{row.bound} {number(row.claim)}".strip()
    ends = "" if row.ends is None else f"{number(row.ends[0])}, {number(row.ends[1])}"
    interval = f"[{number(row.low)}, {number(row.high)}]"
    cells = (row.experiment, row.name, row.quantity, claim, number(row.value), interval, ends, row.verdict)
    return "| " + " | ".join(cells) + " |\n"


def markdown(rows: Sequence[Row], facts: Mapping[str, Any]) -> str:
    """The table, then every miss with its reason."""
    text = "# Measured rates\n\n" + "".join(f"{name}: {value}  \n" for name, value in facts.items())
    text += "\n" + HEAD + "|" + "---|" * 8 + "\n" + "".join(map(table_row, rows))
    missed = [row for row in rows if row.verdict.startswith("misses")]
    text += f"\n## Misses ({len(missed)} of {sum(row.claim is not None for row in rows)} claims)\n\n"
    for row in missed:
        text += f"- **{row.key}**: claimed {row.bound} {number(row.claim or 0.0)}, measured {number(row.value)}. "
        text += row.reason + "\n"
    return text


def environment() -> dict[str, Any]:
    """Versions and the kind of machine."""
    return {
        "fcco": fcco.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
    }


def commit() -> str:
    """The commit of the source tree, with + where it was changed; "unknown" outside a repository."""
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "HEAD").strip()
        return head + ("+" if _git(here, "status", "--porcelain", "--", ".").strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def with_reasons(rows: Sequence[Row], quick: bool) -> list[Row]:
    """Rows whose miss is explained, as far as it was found out."""
    return [reason(row, quick) if row.verdict.startswith("misses") else row for row in rows]


def write(out: Path, outcomes: Mapping[str, Outcome], facts: Mapping[str, Any]) -> list[Row]:
    """Write table.md, rates.json and raw/*.csv.gz under ``out``; returns all rows."""
    (out / "raw").mkdir(parents=True, exist_ok=True)
    rows = [row for outcome in outcomes.values() for row in outcome.rows]
    (out / "table.md").write_text(markdown(rows, facts), encoding="utf-8")
    content = {"facts": dict(facts), "experiments": {name: one.as_dict() for name, one in outcomes.items()}}
    (out / "rates.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for name, outcome in outcomes.items():
        with gzip.open(out / "raw" / f"{name}.csv.gz", "wt", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["series", "x", "setting", "seed", "value"])
            writer.writerows((s, f"{x:.8g}", where, seed, f"{value:.8g}") for s, x, where, seed, value in outcome.raw)
    return rows
