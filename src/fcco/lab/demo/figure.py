"""The demo's figure: precision against recall, and the gap to the optimum against oracle calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fcco.lab.demo import rare, theory
from fcco.lab.errors import writing
from fcco.lab.figure import STYLES, short

PLAIN_COLOUR = "#7a7a7a"
FIT_COLOUR = "#D55E00"
NESTEROV_STYLE = ("#CC79A7", ":")
FLOOR = 1e-16  # rounding of float64, where F is about 1


def draw(path: Path, first: rare.Found, second: Sequence[theory.Found]) -> None:
    """Both parts side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((11.5, 4.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _draw_precision(left, first)
    _draw_gaps(right, second)
    for axes in (left, right):
        axes.grid(alpha=0.25, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)


def _draw_precision(axes: Any, found: rare.Found) -> None:
    """A thin line per digit, a thick one for their mean."""
    recalls = rare.RECALLS.numpy()
    models = (("cross-entropy, tuned", found.plain, PLAIN_COLOUR, "--"), ("fcco.fit", found.fit, FIT_COLOUR, "-"))
    for label, scored, colour, dashes in models:
        curves = np.array([one.precision for one in scored])
        for curve in curves:
            axes.plot(recalls, curve, color=colour, linewidth=0.6, alpha=0.4)
        text = f"{label}: AP {rare.mean_ap(scored):.3f}"
        axes.plot(recalls, curves.mean(0), color=colour, linestyle=dashes, linewidth=2.2, label=text)
    images, positives = found.test
    share = positives / images
    axes.axhline(share, color="black", linewidth=0.8, linestyle=":", label=f"chance: {share:.2f}")
    axes.set_title(f"Part 1: each digit as a rare class ({share:.0%}), test part", fontsize=10)
    axes.set_xlabel("recall: the share of the rare class that is found", fontsize=9)
    axes.set_ylabel("precision: the share of finds that are right", fontsize=9)
    axes.set_ylim(0.0, 1.02)
    axes.set_xlim(0.0, 1.0)
    axes.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0.0, 0.06))


def _draw_gaps(axes: Any, found: Sequence[theory.Found]) -> None:
    """Mean over seeds, and a band from the smallest to the largest."""
    for one in found:
        colour, dashes = STYLES.get(one.name, NESTEROV_STYLE)
        gaps = np.maximum(one.gaps, FLOOR)
        axes.fill_between(one.calls, gaps.min(-1), gaps.max(-1), color=colour, alpha=0.12, linewidth=0)
        axes.plot(one.calls, gaps.mean(-1), color=colour, linestyle=dashes, linewidth=1.8, label=one.title)
    axes.set_yscale("log")
    axes.set_ylim(FLOOR / 2, 10.0)
    axes.set_yticks([10.0**power for power in range(-16, 1, 2)])
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.set_title("Part 2: how close to the optimum, constant step size", fontsize=10)
    axes.set_xlabel("oracle calls: evaluations of g or of its gradient on one sample", fontsize=9)
    axes.set_ylabel("F(w) - F*  (log scale)", fontsize=9)
    axes.margins(x=0.01)
    axes.legend(fontsize=8, frameon=False, loc="upper right", bbox_to_anchor=(1.0, 0.74))
