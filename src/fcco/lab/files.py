"""JSON and text files that are whole or not there."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fcco.lab.errors import LabError, writing


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the evaluations of a metrics.jsonl, up to the first line that is none: the last may be half-written."""
    rows: list[dict[str, Any]] = []
    if not path.exists():
        return rows
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            break
        if not isinstance(row, dict):
            break
        rows.append(row)
    return rows


def step_of(row: Mapping[str, Any]) -> int:
    """Which step an evaluation was made after; -1 where a damaged row does not tell."""
    step = row.get("step")
    if not isinstance(step, int):
        return -1
    return step


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise LabError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise LabError(f"{path} is damaged: it holds no JSON object")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object to a file, whole or not at all."""
    write_aside(path, json.dumps(finite(content), indent=2, allow_nan=False) + "\n")


def write_aside(path: Path, text: str) -> None:
    """Replace a file by this text, all or nothing."""
    from fcco._support.files import replace_file  # it loads torch, which reading does not need

    with writing(path):
        replace_file(path, lambda file: file.write(text.encode("utf-8")))


def finite(value: Any) -> Any:
    """Return the same value with None in place of numbers that JSON does not know."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
