"""Curves with bands: mean and spread over seeds, one colour per method, safe for colour-blind readers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from fcco.lab.errors import writing

Rows = Sequence[Mapping[str, Any]]

#: The palette of Okabe and Ito, with a dash pattern per method, so that curves differ in print too.
STYLES: dict[str, tuple[str, str]] = {
    "sox": ("#000000", "--"),
    "msvr-v1": ("#E69F00", "-."),
    "msvr-v2": ("#0072B2", "-"),
    "msvr-v3": ("#009E73", "-"),
    "variant-v1": ("#D55E00", ":"),
    "variant-v2": ("#CC79A7", ":"),
    "variant-v3": ("#56B4E9", ":"),
}
#: An axis that spans less than this has more ticks: 1, 2 and 5 alone would leave two or three.
NARROW = 20.0
#: One that spans more has powers of ten alone: beside others they would crowd each other out.
WIDE = 1e5
OTHERS = (("#D55E00", "-"), ("#CC79A7", "--"), ("#56B4E9", "-."), ("#F0E442", "-"))


@final
@dataclass(frozen=True)
class Curve:
    """A mean with its spread, point by point."""

    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def curve(runs: Sequence[Rows], x: str, y: str) -> Curve:
    """Return mean and one standard deviation over seeds, as far as every run goes.

    Example:
        >>> runs = [[{"step": 0, "objective": 1.0}], [{"step": 0, "objective": 3.0}]]
        >>> curve(runs, "step", "objective").mean
        [2.0]
    """
    found = Curve([], [], [], [])
    for rows in zip(*runs, strict=False):
        if any(row[y] is None for row in rows):
            continue
        values = [float(row[y]) for row in rows]
        mean = statistics.fmean(values)
        spread = 0.0
        if len(values) > 1:
            spread = statistics.stdev(values)
        low = mean - spread
        if low <= 0:  # the axis is logarithmic
            low = max(low, min(values))
        found.x.append(float(rows[0][x]))
        found.mean.append(mean)
        found.low.append(low)
        found.high.append(mean + spread)
    return found


@final
@dataclass(frozen=True)
class Panel:
    """One set of axes.

    Args:
        title: above it.
        runs: label -> its runs over seeds.
        drawn_as: label -> the method in STYLES that it is drawn as; other labels take the other colours in turn.
        y, y_label: the field of metrics.jsonl that is drawn, and what it is called.
    """

    title: str
    runs: Mapping[str, Sequence[Rows]]
    drawn_as: Mapping[str, str]
    y: str = "objective"
    y_label: str = "F(w)"


def draw(path: Path, panels: Sequence[Panel], *, x: str, x_label: str, title: str, note: str) -> None:
    """Write a figure (its ending says the format): the panels side by side, three per row.

    Args:
        x, x_label: the field of metrics.jsonl that the panels are drawn against, and what it is called.
        note: small print below: what was chosen, what was run.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(3, len(panels))
    lines = math.ceil(len(panels) / columns)
    width = 4.6 * columns
    if columns == 1:
        width = 7.2
    wrapped = wrap(note, int(width * 17))
    figure = Figure((width, 3.7 * lines + 0.9 + 0.15 * wrapped.count("\n")), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(lines, columns, squeeze=False)
    for place, panel in enumerate(panels):
        _draw_panel(axes[place // columns][place % columns], panel, x, x_label)
    for unused in range(len(panels), lines * columns):
        axes[unused // columns][unused % columns].set_axis_off()
    figure.suptitle(title, fontsize=12, fontweight="bold")
    if note:
        figure.supxlabel(wrapped, fontsize=7, color="#444444", x=0.02, ha="left", linespacing=1.4)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)


def wrap(text: str, width: int) -> str:
    """Return the text in lines of at most so many characters."""
    import textwrap

    lines = []
    for part in text.split("\n"):
        lines += textwrap.wrap(part, width)
    return "\n".join(lines)


def _draw_panel(axes: Any, panel: Panel, x: str, x_label: str) -> None:
    for number, (label, runs) in enumerate(panel.runs.items()):
        found = curve(runs, x, panel.y)
        if not found.x:
            continue
        colour, dashes = STYLES.get(panel.drawn_as.get(label, label), OTHERS[number % len(OTHERS)])
        axes.fill_between(found.x, found.low, found.high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(found.x, found.mean, color=colour, linestyle=dashes, linewidth=1.8, label=label)
    axes.set_yscale("log")
    _plain_ticks(axes)
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(x_label, fontsize=9)
    axes.set_ylabel(panel.y_label, fontsize=9)
    axes.tick_params(labelsize=8, which="both")
    axes.grid(alpha=0.25, which="both", linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.01)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=7, frameon=False)


def _plain_ticks(axes: Any) -> None:
    """Label the ticks with 0.05 rather than 5 x 10^-2, and with thousands in short."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_ylim()
    steps: tuple[float, ...] = (1.0, 2.0, 5.0)
    if high / low < NARROW:
        steps = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    if high / low > WIDE:
        steps = (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=steps))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def short(number: float, digits: int = 6) -> str:
    """Return a large number in few characters.

    Example:
        >>> short(0), short(950), short(12_500), short(3_000_000), short(71_640, 3)
        ('0', '950', '12.5k', '3M', '71.6k')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.{digits}g}{letter}"
    return f"{number:.{digits}g}"
