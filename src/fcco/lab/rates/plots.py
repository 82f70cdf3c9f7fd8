"""Log-log plots with fitted and claimed slopes, and the map of the ablation, as PNG."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter, NullLocator

from fcco.lab.rates.fit import Curve, Outcome
from fcco.solver._watch import THRESHOLD

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def draw(name: str, outcome: Outcome, out: Path) -> list[Path]:
    """Draw all figures of one experiment, and return their paths."""
    paths = []
    panels: dict[str, list[Curve]] = {}
    for curve in outcome.curves:
        panels.setdefault(curve.panel, []).append(curve)
    if panels:
        paths.append(_panels(panels, out / f"{name}.png"))
    if outcome.maps:
        stem = name
        if panels:
            stem = f"{name}-map"
        paths.append(_maps(outcome.maps, out / f"{stem}.png"))
    return paths


def _panels(panels: dict[str, list[Curve]], path: Path) -> Path:
    across = min(3, len(panels))
    down = math.ceil(len(panels) / across)
    figure, axes = plt.subplots(down, across, figsize=(5.2 * across, 4.2 * down), squeeze=False, layout="constrained")
    styles: dict[str, int] = {}  # a method looks the same in all panels
    for axis, (title, curves) in zip(axes.flat, panels.items(), strict=False):
        axis.set_title(title, fontsize=10)
        for curve in curves:
            style = styles.setdefault(curve.name, len(styles) % len(COLOURS))
            _curve(axis, curve, style)
        axis.set_xlabel(curves[0].x_label)
        axis.set_ylabel(curves[0].y_label)
        _ticks(axis, curves)
        axis.legend(fontsize=7.5)
        axis.grid(alpha=0.25, which="major")
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    return _save(figure, path)


def _ticks(axis: Axes, curves: Sequence[Curve]) -> None:
    """Set ticks at the points where these are few and apart, else at powers of ten alone.

    A logarithmic axis over little more than a decade labels too many numbers between them.
    """
    points = sorted(set(itertools.chain.from_iterable(curve.x for curve in curves)))
    if curves[0].log_x:
        axis.xaxis.set_minor_formatter(NullFormatter())
        if _are_few_and_apart(points):
            axis.set_xticks(points, labels=[f"{x:g}" for x in points])
            axis.xaxis.set_minor_locator(NullLocator())
    smallest = min(min(curve.y) for curve in curves)
    largest = max(max(curve.y) for curve in curves)
    if largest > 10 * smallest:
        axis.yaxis.set_minor_formatter(NullFormatter())


def _are_few_and_apart(points: Sequence[float]) -> bool:
    if len(points) > 8:
        return False
    return all(following > 1.5 * point for point, following in itertools.pairwise(points))


def _curve(axis: Axes, curve: Curve, style: int) -> None:
    """Draw points with intervals, the fitted line solid, and the claimed one dashed through the points' middle."""
    x = np.array(curve.x)
    y = np.array(curve.y)
    label = f"{curve.name}: {curve.slope:.2f}"
    if curve.claim is not None:
        label += f" (claimed {curve.claim:.2f})"
    axis.errorbar(
        x,
        y,
        [y - np.minimum(curve.low, y), np.maximum(curve.high, y) - y],
        fmt=MARKERS[style],
        color=COLOURS[style],
        markersize=4.5,
        capsize=2,
        linestyle="none",
        label=label,
    )
    axis.set_yscale("log")
    scale = x
    if curve.log_x:
        axis.set_xscale("log")
        scale = np.log(x)
    middle = np.exp(np.log(y).mean())
    for slope, dash in ((curve.slope, "-"), (curve.claim, "--")):
        if slope is not None:
            line = middle * np.exp(slope * (scale - scale.mean()))
            axis.plot(x, line, dash, color=COLOURS[style], linewidth=1, alpha=0.8)


def _maps(maps: Sequence[dict[str, Any]], path: Path) -> Path:
    """Draw the formula's norm over that of gamma = 0, a column per beta: step size across, m/B1 upward."""
    betas = sorted({cell["beta"] for cell in maps[0]["cells"]})
    figure, axes = plt.subplots(
        len(maps), len(betas), figsize=(4.3 * len(betas), 2.9 * len(maps)), squeeze=False, layout="constrained"
    )
    image: Any = None
    for line, one in zip(axes, maps, strict=True):
        for axis, beta in zip(line, betas, strict=True):
            cells = [cell for cell in one["cells"] if cell["beta"] == beta]
            cells.sort(key=lambda cell: float(cell["ratio"]))
            image = _map(axis, one["eta"], cells)
            axis.set_title(f"{one['title']}, beta = {beta:g}", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("step size eta")
    for axis in axes[:, 0]:
        axis.set_ylabel("m/B1")
    bar = figure.colorbar(image, ax=axes, shrink=0.6)
    bar.set_label("||grad F||: formula over gamma = 0")
    bar.set_ticks([-1, -0.5, 0, 0.5, 1], labels=["1/2", "0.7", "1", "1.4", "2 or more"])
    return _save(figure, path)


def _map(axis: Axes, eta: list[float], cells: list[dict[str, Any]]) -> Any:
    """Draw one map, with a cross where rho is above 1/2."""
    formula = np.array([cell["formula"] for cell in cells])
    without = np.array([cell["0"] for cell in cells])
    rho = np.array([cell["rho"] for cell in cells])
    worse = np.log2(formula / without)
    image = axis.imshow(np.clip(worse, -1, 1), origin="lower", aspect="auto", cmap="RdBu_r", vmin=-1, vmax=1)
    for row, column in zip(*np.nonzero(rho > THRESHOLD), strict=True):
        axis.plot(column, row, "x", color="black", markersize=5)
    ticks = range(0, len(eta), 2)
    axis.set_xticks(list(ticks), labels=[f"{eta[k]:.3g}" for k in ticks])
    axis.set_yticks(range(len(cells)), labels=[str(cell["ratio"]) for cell in cells])
    return image


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=90)
    plt.close(figure)
    return path
