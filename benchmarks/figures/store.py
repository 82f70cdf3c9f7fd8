"""Rows on disk: one JSON line per finished run, in any number of files of one folder, which may be carried about."""

from __future__ import annotations

import json
import lzma
import os
from pathlib import Path
from typing import IO

from benchmarks.figures.runs import Row

#: A run that failed so often (its process died, or it raised) is given up.
MOST_FAILURES = 2


def read(folder: Path) -> list[Row]:
    """Every row of a folder, the oldest file first; a half-written last line is passed over."""
    rows: list[Row] = []
    for path in sorted([*folder.glob("*.jsonl"), *folder.glob("*.jsonl.xz")]):
        for line in _text(path).splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return rows


def _text(path: Path) -> str:
    """A journal's text; those that are kept for good are compressed."""
    if path.suffix == ".xz":
        with lzma.open(path, "rt", encoding="utf-8") as file:
            return file.read()
    return path.read_text(encoding="utf-8")


def settled(rows: list[Row]) -> dict[str, Row]:
    """Key -> its row, for runs that need not be made again: finished, diverged, or failed too often."""
    found: dict[str, Row] = {}
    failures: dict[str, int] = {}
    for row in rows:
        key = row["key"]
        if row["status"] != "failed":
            found[key] = row
            continue
        failures[key] = failures.get(key, 0) + 1
        if failures[key] >= MOST_FAILURES:
            found.setdefault(key, row)
    return found


class Journal:
    """Appends rows to a file of its own; each is on disk before the next one is asked for."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def append(self, row: Row) -> None:
        self._file.write(json.dumps(row, allow_nan=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
