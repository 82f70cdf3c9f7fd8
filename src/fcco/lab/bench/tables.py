"""The rows and the verdicts as plain-text tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from fcco.lab.bench.rows import Name, Results, Row, Step, Way
from fcco.lab.bench.verdicts import Verdict

#: The whole table is evaluated now and then: a median does not see that, a mean does.
REFRESHED = (Step.MEMORY_AP, Step.MEMORY_PAUC)


class Column(NamedTuple):
    """A column, from the setting and the step of a line."""

    title: str
    cell: Callable[[str, Step], str]


def rows_table(rows: Sequence[Row], results: Results) -> Table:
    """Return the rows that were measured together: a line per step, a column per way."""
    if any(row.launches is not None for row in rows):
        return _launch_table(rows)
    table = _empty("ms per step", "step")
    columns = _columns(rows, results)
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    setting = ""
    for name in dict.fromkeys(Name(row.name.setting, row.name.step) for row in rows):
        if name.setting != setting:
            setting = name.setting
            table.add_row(f"[bold]{setting}[/bold]")
        cells = [column.cell(name.setting, name.step) for column in columns]
        table.add_row(f"  {name.step}", *cells)
    return table


def _columns(rows: Sequence[Row], results: Results) -> list[Column]:
    """Return the columns that are not empty."""
    measured_ways = {row.name.way for row in rows}
    measured_steps = {row.name.step for row in rows}
    ways = [way for way in Way if way in measured_ways]
    columns = [Column(way, _time_in(way, results)) for way in ways]
    if Step.PLAIN in measured_steps:
        columns.append(Column("eager / plain", _ratio_to_plain(results)))
    if Way.FLOOR in ways and Way.CAPTURED in ways:
        columns.append(Column("captured / floor", _ratio_to_floor(results)))
    if measured_steps.intersection(REFRESHED):
        columns.append(Column(f"mean ({', '.join(ways)})", _means_in(ways, results)))
    if any(row.peak_mb is not None for row in rows):
        columns.append(Column(f"peak MB ({', '.join(ways)})", _peaks_in(ways, results)))
    return columns


def _time_in(way: Way, results: Results) -> Callable[[str, Step], str]:
    def cell(setting: str, step: Step) -> str:
        row = results.rows.get(Name(setting, step, way))
        if row is None:
            return ""
        if row.failed is not None:
            return "failed"
        return _number(row.ms, 3)

    return cell


def _ratio_to_plain(results: Results) -> Callable[[str, Step], str]:
    def cell(setting: str, step: Step) -> str:
        ratio = results.ratio(Name(setting, step), Name(setting, Step.PLAIN))
        return _number(ratio, 2)

    return cell


def _ratio_to_floor(results: Results) -> Callable[[str, Step], str]:
    def cell(setting: str, step: Step) -> str:
        ratio = results.ratio(Name(setting, step, Way.CAPTURED), Name(setting, step, Way.FLOOR))
        return _number(ratio, 3)

    return cell


def _means_in(ways: Sequence[Way], results: Results) -> Callable[[str, Step], str]:
    return _joined(ways, results, lambda row: row.mean_ms, 3)


def _peaks_in(ways: Sequence[Way], results: Results) -> Callable[[str, Step], str]:
    return _joined(ways, results, lambda row: row.peak_mb, 0)


def _joined(
    ways: Sequence[Way], results: Results, figure: Callable[[Row], float | None], digits: int
) -> Callable[[str, Step], str]:
    """Return cells that hold a figure of every way, with - where there is none."""

    def cell(setting: str, step: Step) -> str:
        texts: list[str] = []
        for way in ways:
            row = results.rows.get(Name(setting, step, way))
            text = ""
            if row is not None:
                text = _number(figure(row), digits)
            texts.append(text or "-")
        return ", ".join(texts)

    return cell


def failures(rows: Sequence[Row]) -> list[str]:
    """Return a line for every contender that failed."""
    lines = []
    for row in rows:
        if row.failed is not None:
            lines.append(f"{row.name.setting}: {row.name.way} {row.name.step} failed: {row.failed}")
    return lines


def _launch_table(rows: Sequence[Row]) -> Table:
    table = _empty(rows[0].name.setting, "step")
    for column in ("kernels", "graphs", "copies", "waits"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        found = row.launches
        if found is not None:
            table.add_row(
                f"{row.name.way} {row.name.step}",
                _number(found.kernels, 2),
                _number(found.graphs, 2),
                _number(found.copies, 2),
                _number(found.waits, 2),
            )
    return table


def verdict_table(found: Sequence[Verdict]) -> Table:
    """Return what was measured beside its bound."""
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


def _number(value: float | None, digits: int) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}f}"
