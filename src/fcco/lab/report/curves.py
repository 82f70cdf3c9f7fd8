"""Mean and spread over the seeds, along the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from .columns import AXES
from .runs import Run

Array = NDArray[np.float64]
MOST_POINTS = 400  # more than a screen or a column of a paper can tell apart


@final
@dataclass(frozen=True)
class Curve:
    """A metric of one group.

    Attributes:
        x: (T,) one array per x axis, the mean over the runs; nan where no run has it.
        mean: (T,) mean over the runs.
        sd: (T,) standard deviation over the runs (n - 1 in the denominator); nan where n = 1.
        low: (T,) the least value.
        high: (T,) the greatest value.
        n: (T,) how many runs reach that far.
    """

    x: dict[str, Array]
    mean: Array
    sd: Array
    low: Array
    high: Array
    n: NDArray[np.int64]


def curve(runs: Sequence[Run], metric: str) -> Curve | None:
    """Return mean and spread at every step at which a run was evaluated; None where the metric was never measured.

    A run counts between its first and its last evaluation; seeds that were evaluated at other steps are
    interpolated linearly. With the usual runs, all evaluated at the same steps, nothing is interpolated.
    """
    kept = [run for run in runs if np.isfinite(run.columns[metric]).any()]
    if not kept:
        return None
    measured = [run.columns["step"][np.isfinite(run.columns[metric])] for run in kept]
    steps = thin(np.unique(np.concatenate(measured)))  # (T,)
    values = np.stack([_at(steps, run.columns["step"], run.columns[metric]) for run in kept])  # (runs, T)
    inside = np.isfinite(values)

    x = {}
    for axis in AXES:
        places = np.stack([_at(steps, run.columns["step"], run.axis(axis.key)) for run in kept])  # (runs, T)
        x[axis.key] = _mean(np.where(inside, places, np.nan))  # over the same runs as the metric

    n = inside.sum(0)
    mean = _mean(values)
    squares = np.where(inside, (values - mean) ** 2, 0.0).sum(0)
    sd = np.where(n > 1, np.sqrt(squares / np.maximum(n - 1, 1)), np.nan)
    return Curve(x, mean, sd, low=np.nanmin(values, 0), high=np.nanmax(values, 0), n=n)


def thin(values: Array, most: int = MOST_POINTS) -> Array:
    """Return at most `most` of the values, evenly chosen, with the first and the last among them."""
    if len(values) <= most:
        return values
    positions = np.linspace(0, len(values) - 1, most).round().astype(np.int64)
    return values[np.unique(positions)]


def _at(steps: Array, known: Array, values: Array) -> Array:
    """Return the values at `steps`, (T,); nan outside the steps where they are known."""
    mask = np.isfinite(values)
    if not mask.any():
        return np.full(len(steps), np.nan)
    return np.interp(steps, known[mask], values[mask], left=np.nan, right=np.nan)


def _mean(values: Array) -> Array:
    """Return the mean over the runs that have a value, (T,); nan where none has."""
    known = np.isfinite(values)
    n = known.sum(0)
    total = np.where(known, values, 0.0).sum(0)
    return np.where(n > 0, total / np.maximum(n, 1), np.nan)


def wide(curves: Sequence[Curve]) -> bool:
    """Return whether a logarithmic y axis reads better: all means are positive and span more than a decade."""
    if not curves:
        return False
    means = np.concatenate([one.mean for one in curves])
    return bool(means.size and means.min() > 0 and means.max() > 10 * means.min())
