"""Figures ready for a paper: PNG and PDF, one panel per problem, the seeds as a band."""

from __future__ import annotations

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
    """Colour and dashes of the group with this number."""
    return COLORS[position % len(COLORS)], DASHES[position % len(DASHES)]


def figures_of(curves: Curves) -> Iterator[tuple[Metric, Axis]]:
    """What is drawn: every listed metric against the samples, the objective against every axis."""
    for metric in (metric for metric in METRICS if metric.listed):
        for axis in AXES:
            found = [one for one in curves.get(metric.key, []) if one is not None]
            if (axis.key == "samples" or metric.key == "objective") and any(
                np.isfinite(one.x[axis.key]).any() for one in found
            ):
                yield metric, axis


def write_figures(groups: Sequence[Group], curves: Curves, stem: Path, note: str) -> list[Path]:
    """STEM-METRIC-AXIS.png and .pdf; returns their paths."""
    matplotlib = require("matplotlib", "the figures of a report")
    paths = []
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a name in a script the font lacks
        for metric, axis in figures_of(curves):
            figure = draw(groups, curves[metric.key], metric, axis, note)
            for ending, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
                path = stem.with_name(f"{stem.name}-{metric.key.replace('_', '-')}-{axis.key}.{ending}")
                figure.savefig(path, metadata=metadata)
                figure.set_layout_engine("none")  # laid out once; the second file keeps it
                paths.append(path)
    return paths


def draw(groups: Sequence[Group], curves: Sequence[Curve | None], metric: Metric, axis: Axis, note: str) -> Any:
    """One figure: one panel per problem, one legend for all."""
    problems = list(dict.fromkeys(group.problem for group in groups))
    labels = list(dict.fromkeys(group.label for group in groups))
    columns = min(3, len(problems))
    rows = -(-len(problems) // columns)
    legend_columns = max(1, min(len(labels), int(columns * 245 / (31 + 4.2 * max(map(len, labels))))))
    height = 2.0 * rows + 0.16 * -(-len(labels) // legend_columns) + 0.3
    figure = require("matplotlib.figure", "the figures of a report").Figure(
        figsize=(COLUMN if columns == 1 else 2.35 * columns, height), layout="constrained"
    )
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    handles: dict[str, Any] = {}
    for panel, problem in zip(panels, problems, strict=False):
        shown = [(g, c) for g, c in zip(groups, curves, strict=True) if g.problem == problem and c is not None]
        handles |= _panel(panel, shown, labels, metric, axis)
        panel.set_title(plain(problem) if len(problems) > 1 else "")
    for panel in panels[::columns]:
        panel.set_ylabel(metric.label)
    for panel in panels[len(problems) :]:
        panel.set_visible(False)
    figure.legend(handles.values(), map(plain, handles), loc="outside upper center", ncols=legend_columns)
    if note:
        figure.supxlabel("\n".join(textwrap.wrap(plain(note), 75 * columns)), fontsize=6, color="0.35")
    return figure


def _panel(
    panel: Any, shown: Sequence[tuple[Group, Curve]], labels: list[str], metric: Metric, axis: Axis
) -> dict[str, Any]:
    """Draw the groups of one problem; returns the line of each label."""
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
    panel.set_yscale("log" if log else "linear")
    panel.set_xlabel(axis.label)
    if axis.key != "seconds":
        panel.xaxis.set_major_formatter(require("matplotlib.ticker", "the figures of a report").EngFormatter(sep=""))
    return handles


def plain(text: str) -> str:
    """A name without meaning to matplotlib: no mathematics, no line breaks, not hidden by an underscore."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split()).replace("$", r"\$")
    return f"\u200b{text}" if text.startswith("_") else text
