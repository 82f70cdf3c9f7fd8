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
from .statistics import finals

Curves = dict[str, list[Curve | None]]  # by metric, one per group


def draw_curves(groups: Sequence[Group]) -> Curves:
    """Return the curves of every metric that was measured at all."""
    curves = {}
    for metric in METRICS:
        found = [curve(group.runs, metric.key) for group in groups]
        if any(one is not None for one in found):
            curves[metric.key] = found
    return curves


def build(runs: Sequence[Run], groups: Sequence[Group], curves: Curves, title: str, note: str) -> dict[str, Any]:
    """Return all data of the page. Names are not escaped here; the page does that."""
    problems = list(dict.fromkeys(group.problem for group in groups))
    labels = list(dict.fromkeys(group.label for group in groups))
    configs = [run.config for run in runs if run.config]
    environments = [run.environment for run in runs]
    return {
        "title": title,
        "note": note,
        "axes": _axes(runs),
        "metrics": _metrics(curves),
        "problems": problems,
        "groups": _groups(groups, curves, problems, labels),
        "fitted": [run.fitted | {"name": run.name} for run in runs if run.fitted is not None],
        "runs": _runs(runs, groups, list(curves)),
        "config": _table(shared(configs), [group.config for group in groups], _names(configs)),
        "environment": _table(shared(list(filter(None, environments))), environments, _names(environments)),
    }


def _axes(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the x axes for which at least one run has a value."""
    axes = []
    for axis in AXES:
        if any(np.isfinite(run.axis(axis.key)).any() for run in runs):
            axes.append(asdict(axis))
    return axes


def _metrics(curves: Curves) -> list[dict[str, Any]]:
    """Return the metrics that have curves, and whether each is drawn on a logarithmic axis at first."""
    metrics = []
    for metric in METRICS:
        if metric.key in curves:
            found = [one for one in curves[metric.key] if one is not None]
            metrics.append(asdict(metric) | {"log": wide(found)})
    return metrics


def _groups(groups: Sequence[Group], curves: Curves, problems: list[str], labels: list[str]) -> list[dict[str, Any]]:
    tables = _final_tables(groups, problems)
    rows = []
    for position, group in enumerate(groups):
        own_curves = {}
        for key, found in curves.items():
            one = found[position]
            if one is not None:
                own_curves[key] = _curve(one)
        rows.append(
            {
                "label": group.label,
                "method": group.config.get("method"),
                "style": labels.index(group.label),
                "problem": problems.index(group.problem),
                "size": len(group.runs),
                "curves": own_curves,
                "final": tables[position],
                "end": {axis.key: _end(group, axis.key) for axis in AXES},
            }
        )
    return rows


def _final_tables(groups: Sequence[Group], problems: Sequence[str]) -> list[dict[str, dict[str, Any]]]:
    """Return the final values of each group by metric; groups are compared within their problem."""
    tables: list[dict[str, dict[str, Any]]] = [{} for _ in groups]
    for problem in problems:
        positions = [position for position, group in enumerate(groups) if group.problem == problem]
        rivals = [groups[position] for position in positions]
        for metric in METRICS:
            for position, row in zip(positions, finals(rivals, metric), strict=True):
                if row is not None:
                    tables[position][metric.key] = asdict(row) | {"values": list(row.values)}
    return tables


def _end(group: Group, axis: str) -> float | None:
    """Return how far the group's full runs were trained, on average."""
    ends = [run.axis(axis)[-1] for run in group.full]
    if not ends:
        return None
    return _number(float(np.mean(ends)))


def _curve(one: Curve) -> dict[str, Any]:
    return {
        "x": {key: numbers(values) for key, values in one.x.items()},
        "n": one.n.tolist(),
        "mean": numbers(one.mean),
        "sd": numbers(one.sd),
        "low": numbers(one.low),
        "high": numbers(one.high),
    }


def _runs(runs: Sequence[Run], groups: Sequence[Group], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Return one row per run, with its group's number and whether it counts for the final values."""
    group_of: dict[int, int] = {}
    full: set[int] = set()
    for position, group in enumerate(groups):
        group_of.update(dict.fromkeys(map(id, group.runs), position))
        full.update(map(id, group.full))
    rows = []
    for run in runs:
        row = _run(run, metrics)
        row["group"] = group_of.get(id(run))
        row["full"] = id(run) in full
        rows.append(row)
    return rows


def _run(run: Run, metrics: Sequence[str]) -> dict[str, Any]:
    seed = run.config.get("seed")
    if seed is not None:
        seed = show(seed)
    # A long run has more points than a screen can show, and the page holds all runs.
    kept = thin(np.arange(run.length, dtype=np.float64)).astype(np.int64)
    return {
        "name": run.name,
        "seed": seed,
        "status": run.status,
        "tone": run.tone,
        "message": run.message,
        "notes": run.notes,
        "length": run.length,
        "x": {axis.key: numbers(run.axis(axis.key)[kept]) for axis in AXES},
        "y": {key: numbers(run.columns[key][kept]) for key in metrics},
    }


def _names(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return every name that one of the configurations has, in order of appearance."""
    names: dict[str, None] = {}
    for config in configs:
        names.update(dict.fromkeys(config))
    return list(names)


def _table(common: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """Return what all agree on, and for the other names one row each, with the cells that depart from the usual."""
    hidden = NOT_COMPARED | {"method"}  # the method is in the label that heads each row
    keys = [name for name in names if name not in common and name not in hidden]
    table: list[list[list[object]]] = [[] for _ in rows]
    for key in keys:
        cells = [_cell(row, key) for row in rows]
        usual = _usual(cells)
        for row, cell in zip(table, cells, strict=True):
            row.append([cell, usual not in (None, cell)])
    return {"common": [[name, show(value)] for name, value in common.items()], "keys": keys, "rows": table}


def _cell(row: Mapping[str, Any], key: str) -> str:
    if key not in row:
        return "–"
    return show(row[key])


def _usual(cells: Sequence[str]) -> str | None:
    """Return the most frequent cell, if at least half of the rows have it and no other is as frequent."""
    ranked = Counter(cells).most_common(2)
    if not ranked:
        return None
    value, count = ranked[0]
    tied = len(ranked) > 1 and ranked[1][1] == count
    if tied or 2 * count < len(cells):
        return None
    return value


def numbers(values: NDArray[np.float64]) -> list[float | int | None]:
    """Return JSON numbers of seven digits, whole ones as integers, and null for what is not finite.

    >>> numbers(np.array([1.0, 0.123456789, np.nan]))
    [1, 0.1234568, None]
    """
    return [_number(float(value)) for value in values]


def _number(value: float) -> float | int | None:
    if not np.isfinite(value):
        return None
    if value.is_integer() and abs(value) < 2**53:  # up to there JavaScript's numbers are exact, too
        return int(value)
    return float(f"{value:.7g}")
