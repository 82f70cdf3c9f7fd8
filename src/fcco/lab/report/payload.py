"""The page's data: everything that it shows, as plain lists and dictionaries for JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .columns import AXES, METRICS
from .curves import Curve, curve, thin, wide
from .groups import NOT_COMPARED, Group, shared, show
from .runs import Run
from .statistics import Final, finals

Curves = dict[str, list[Curve | None]]  # by metric, one per group


def draw_curves(groups: Sequence[Group]) -> Curves:
    """The curves of every metric that was measured at all."""
    curves = {metric.key: [curve(group.runs, metric.key) for group in groups] for metric in METRICS}
    return {key: found for key, found in curves.items() if any(one is not None for one in found)}


def build(runs: Sequence[Run], groups: Sequence[Group], curves: Curves, title: str, note: str) -> dict[str, Any]:
    """The whole of it; names are as they came, escaping is the page's business."""
    place = {id(run): position for position, group in enumerate(groups) for run in group.runs}
    full = {id(run) for group in groups for run in group.full}
    problems = list(dict.fromkeys(group.problem for group in groups))
    labels = list(dict.fromkeys(group.label for group in groups))
    return {
        "title": title,
        "note": note,
        "axes": [asdict(axis) for axis in AXES if any(np.isfinite(run.axis(axis.key)).any() for run in runs)],
        "metrics": [
            asdict(metric) | {"log": wide([one for one in curves[metric.key] if one is not None])}
            for metric in METRICS
            if metric.key in curves
        ],
        "problems": problems,
        "groups": _groups(groups, curves, problems, labels),
        "fitted": [run.fitted | {"name": run.name} for run in runs if run.fitted is not None],
        "runs": [_run(run, place.get(id(run)), list(curves)) | {"full": id(run) in full} for run in runs],
        "config": _table([run.config for run in runs if run.config], [group.config for group in groups]),
        "environment": _table([run.environment for run in runs if run.environment], [run.environment for run in runs]),
    }


def _groups(groups: Sequence[Group], curves: Curves, problems: list[str], labels: list[str]) -> list[dict[str, Any]]:
    tables: dict[int, dict[str, dict[str, Any]]] = {position: {} for position in range(len(groups))}
    for problem in problems:
        places = [position for position, group in enumerate(groups) if group.problem == problem]
        for metric in METRICS:
            rows = finals([groups[position] for position in places], metric)
            for position, row in zip(places, rows, strict=True):
                if row is not None:
                    tables[position][metric.key] = _final(row)
    return [
        {
            "label": group.label,
            "method": group.config.get("method"),
            "style": labels.index(group.label),
            "problem": problems.index(group.problem),
            "size": len(group.runs),
            "curves": {key: _curve(found[position]) for key, found in curves.items() if found[position] is not None},
            "final": tables[position],
            "end": {axis.key: _end(group, axis.key) for axis in AXES},
        }
        for position, group in enumerate(groups)
    ]


def _final(row: Final) -> dict[str, Any]:
    return asdict(row) | {"values": list(row.values)}


def _end(group: Group, axis: str) -> float | None:
    """How far the group's full runs were trained, in the mean."""
    ends = [run.axis(axis)[-1] for run in group.full]
    return _plain(float(np.mean(ends))) if ends else None


def _curve(one: Curve | None) -> dict[str, Any]:
    assert one is not None
    x = {key: numbers(values) for key, values in one.x.items()}
    spread = {key: numbers(getattr(one, key)) for key in ("mean", "sd", "low", "high")}
    return {"x": x, "n": one.n.tolist()} | spread


def _run(run: Run, group: int | None, metrics: Sequence[str]) -> dict[str, Any]:
    kept = thin(np.arange(run.length, dtype=np.float64)).astype(np.int64)
    return {
        "name": run.name,
        "group": group,
        "seed": None if run.config.get("seed") is None else show(run.config["seed"]),
        "status": run.status,
        "tone": run.tone,
        "message": run.message,
        "notes": run.notes,
        "length": run.length,
        "x": {axis.key: numbers(run.axis(axis.key)[kept]) for axis in AXES},
        "y": {key: numbers(run.columns[key][kept]) for key in metrics},
    }


def _table(everything: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all agree on, once; of the rest one row per run, with whether the cell departs from what most have."""
    common = shared(everything)
    names = dict.fromkeys(name for one in everything for name in one)
    keys = [name for name in names if name not in common and name not in NOT_COMPARED and name != "method"]
    table = [[show(row[key]) if key in row else "–" for key in keys] for row in rows]
    usual = [_usual([row[column] for row in table]) for column in range(len(keys))]
    return {
        "common": [[name, show(value)] for name, value in common.items()],
        "keys": keys,
        "rows": [[[cell, usual[column] not in (None, cell)] for column, cell in enumerate(row)] for row in table],
    }


def _usual(cells: Sequence[str]) -> str | None:
    """What most have, where at least half do."""
    (value, count), (_, second) = [*Counter(cells).most_common(2), ("", 0), ("", 0)][:2]
    return value if 2 * count >= len(cells) and count > second else None


def numbers(values: NDArray[np.float64]) -> list[float | int | None]:
    """JSON numbers of seven digits (counts whole), null for what is not finite.

    >>> numbers(np.array([1.0, 0.123456789, np.nan]))
    [1, 0.1234568, None]
    """
    return [_plain(float(value)) for value in values]


def _plain(value: float) -> float | int | None:
    if not np.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else float(f"{value:.7g}")
