"""Figures ready for a paper: PNG and PDF, one panel per problem, the seeds as a band."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fcco.lab.datasets.errors import require

from .columns import AXES, METRICS, Axis, Metric
from .curves import Curve, wide
from .groups import Group
from .payload import Curves

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito's, no yellow
DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)), (0, (10, 2, 3, 2)))  # 7 and 5: 35 that differ
COLUMN = 3.4  # inches: the width of one column of a paper
SETTINGS = {
    "axes.grid": True,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 8,
    "font.size": 8,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "legend.columnspacing": 1.2,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "legend.handletextpad": 0.6,
    "lines.linewidth": 1.4,
    "pdf.fonttype": 42,  # TrueType: journals refuse Type 3
    "savefig.dpi": 300,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
}


def style(position: int) -> tuple[str, Any]:
    """Return colour and dashes of the group with this number."""
    return COLORS[position % len(COLORS)], DASHES[position % len(DASHES)]


def figures_of(curves: Curves) -> Iterator[tuple[Metric, Axis]]:
    """Yield what is drawn: every listed metric against the samples, and the objective against every axis."""
    for metric in METRICS:
        if not metric.listed:
            continue
        found = [one for one in curves.get(metric.key, []) if one is not None]
        for axis in AXES:
            wanted = axis.key == "samples" or metric.key == "objective"
            if wanted and any(np.isfinite(one.x[axis.key]).any() for one in found):
                yield metric, axis


def write_figures(groups: Sequence[Group], curves: Curves, stem: Path, note: str) -> list[Path]:
    """Write STEM-METRIC-AXIS.png and .pdf for every figure, and return their paths."""
    matplotlib = require("matplotlib", "the figures of a report")
    paths = []
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a name in a script the font lacks
        for metric, axis in figures_of(curves):
            figure = draw(groups, curves[metric.key], metric, axis, note)
            name = f"{stem.name}-{metric.key.replace('_', '-')}-{axis.key}"
            png = stem.with_name(f"{name}.png")
            pdf = stem.with_name(f"{name}.pdf")
            figure.savefig(png, metadata={"Software": None})
            figure.set_layout_engine("none")  # laid out once; the second file keeps it
            figure.savefig(pdf, metadata={"CreationDate": None})
            paths += [png, pdf]
    return paths


def draw(groups: Sequence[Group], curves: Sequence[Curve | None], metric: Metric, axis: Axis, note: str) -> Any:
    """Return one figure, with a panel per problem and one legend for all."""
    problems = list(dict.fromkeys(group.problem for group in groups))
    labels = list(dict.fromkeys(group.label for group in groups))
    columns = min(3, len(problems))
    rows = math.ceil(len(problems) / columns)
    legend_columns = _legend_columns(labels, columns)
    legend_rows = math.ceil(len(labels) / legend_columns)
    width = COLUMN
    if columns > 1:
        width = 2.35 * columns
    height = 2.0 * rows + 0.16 * legend_rows + 0.3

    module = require("matplotlib.figure", "the figures of a report")
    figure = module.Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    handles: dict[str, Any] = {}
    for panel, problem in zip(panels, problems, strict=False):
        shown = []
        for group, one in zip(groups, curves, strict=True):
            if group.problem == problem and one is not None:
                shown.append((group, one))
        handles |= _panel(panel, shown, labels, metric, axis)
        if len(problems) > 1:
            panel.set_title(plain(problem))
    for panel in panels[::columns]:
        panel.set_ylabel(metric.label)
    for panel in panels[len(problems) :]:
        panel.set_visible(False)
    figure.legend(handles.values(), map(plain, handles), loc="outside upper center", ncols=legend_columns)
    if note:
        lines = textwrap.wrap(plain(note), 75 * columns)
        figure.supxlabel("\n".join(lines), fontsize=6, color="0.35")
    return figure


def _legend_columns(labels: Sequence[str], columns: int) -> int:
    """Return how many labels fit beside each other above this many panels."""
    longest = max(len(label) for label in labels)
    points = 31 + 4.2 * longest  # of a line and its label, in points
    fitting = int(columns * 245 / points)
    return max(1, min(len(labels), fitting))


def _panel(
    panel: Any, shown: Sequence[tuple[Group, Curve]], labels: list[str], metric: Metric, axis: Axis
) -> dict[str, Any]:
    """Draw the groups of one problem, and return the line of each label."""
    handles = {}
    log = wide([one for _, one in shown])
    for group, one in shown:
        color, dashes = style(labels.index(group.label))
        x = one.x[axis.key]
        (handles[group.label],) = panel.plot(x, one.mean, color=color, linestyle=dashes)
        sd = np.where(np.isfinite(one.sd), one.sd, 0.0)
        low = one.mean - sd
        if log:  # an axis without zero
            low = np.maximum(low, one.mean / 10)
        panel.fill_between(x, low, one.mean + sd, color=color, alpha=0.18, linewidth=0)
    panel.set_xlabel(axis.label)
    if log:
        panel.set_yscale("log")
    if axis.key != "seconds":
        ticker = require("matplotlib.ticker", "the figures of a report")
        panel.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    return handles


def plain(text: str) -> str:
    """Return a name that matplotlib shows as it is: no mathematics, no line breaks, not hidden by an underscore."""
    characters = []
    for character in text:
        if character.isprintable():
            characters.append(character)
        else:
            characters.append(" ")
    words = "".join(characters).split()
    shown = " ".join(words).replace("$", r"\$")
    if shown.startswith("_"):
        shown = f"\u200b{shown}"  # matplotlib leaves labels with a leading underscore out of the legend
    return shown
