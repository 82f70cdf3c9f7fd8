"""The rows and the verdicts as plain-text tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from fcco.lab.bench.rows import Name, Results, Row, Step, Way
from fcco.lab.bench.verdicts import Verdict


def setting_table(setting: str, results: Results) -> Table:
    """One setting: a line per step, a column per way."""
    rows = results.of(setting)
    if any(row.launches is not None for row in rows):
        return _launch_table(setting, rows)
    ways = [way for way in Way if any(row.name.way is way for row in rows)]
    table = _empty(f"{setting} (ms per step)", "step")
    for way in ways:
        table.add_column(way.value, justify="right", no_wrap=True)
    has_floors = Way.FLOOR in ways and Way.CAPTURED in ways
    has_memory = any(row.peak_mb is not None for row in rows)
    table.add_column("eager / plain", justify="right", no_wrap=True)
    if has_floors:
        table.add_column("captured / floor", justify="right", no_wrap=True)
    if has_memory:
        table.add_column("peak MB", justify="right", no_wrap=True)
    plain = Name(setting, Step.PLAIN)
    for step in dict.fromkeys(row.name.step for row in rows):
        cells = [_ms(results.rows.get(Name(setting, step, way))) for way in ways]
        cells.append(_number(results.ratio(Name(setting, step), plain), 2))
        if has_floors:
            captured = Name(setting, step, Way.CAPTURED)
            cells.append(_number(results.ratio(captured, Name(setting, step, Way.FLOOR)), 3))
        if has_memory:
            peaks = [results.rows.get(Name(setting, step, way)) for way in ways]
            cells.append(" / ".join(_peak(row) for row in peaks))
        table.add_row(step.value, *cells)
    return table


def failures(rows: Sequence[Row]) -> list[str]:
    """A line for every contender that failed."""
    lines = []
    for row in rows:
        if row.failed is not None:
            lines.append(f"{row.name.setting}: {row.name.way} {row.name.step} failed: {row.failed}")
    return lines


def _launch_table(setting: str, rows: Sequence[Row]) -> Table:
    table = _empty(setting, "step")
    for column in ("kernels", "graphs", "copies", "waits"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        found = row.launches
        if found is None:
            continue
        figures = (found.kernels, found.graphs, found.copies, found.waits)
        table.add_row(f"{row.name.way} {row.name.step}", *(_number(figure, 2) for figure in figures))
    return table


def verdict_table(found: Sequence[Verdict]) -> Table:
    """What was measured beside its bound."""
    table = _empty("It must hold", "what")
    table.add_column("bound", no_wrap=True)
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for verdict in found:
        table.add_row(verdict.line, verdict.bound_text, _number(verdict.figure, 3), verdict.verdict)
    return table


def _empty(title: str, first: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    table.add_column(first, overflow="fold")
    return table


def _ms(row: Row | None) -> str:
    if row is None:
        return ""
    if row.failed is not None:
        return "failed"
    return _number(row.ms, 3)


def _peak(row: Row | None) -> str:
    if row is None or row.peak_mb is None:
        return "-"
    return f"{row.peak_mb:.0f}"


def _number(value: float | None, digits: int) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}f}"
