"""The way to `fcco.lab.report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fcco.lab.errors import LabError, one_line


def write(runs: Sequence[Path], out: Path, *, title: str = "fcco report", note: str = "") -> Path:
    """Write a report of the runs; where the page lies.

    Args:
        runs: run folders, or folders that hold some.
        out: the page, or the folder for it.
    """
    try:
        from fcco.lab.report import write_report

        return write_report(list(runs), out, title, note=note)
    except (ImportError, ValueError) as error:
        raise LabError(one_line(error)) from error
