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
        x: (T,) an array an x axis, the mean over the runs; nan where no run has it.
        mean: (T,) mean over the runs.
        sd: (T,) standard deviation over the runs (n - 1 in the denominator); nan where n = 1.
        low: (T,) the least value.
        high: (T,) the greatest value.
        n: (T,) how many runs reach so far.
    """

    x: dict[str, Array]
    mean: Array
    sd: Array
    low: Array
    high: Array
    n: NDArray[np.int64]


def curve(runs: Sequence[Run], metric: str) -> Curve | None:
    """The runs' values at every step at which one of them was evaluated; None where the metric was never measured.

    A run counts between its first and its last evaluation; seeds that were evaluated at other steps are
    interpolated linearly. With the usual runs, all evaluated at the same steps, nothing is interpolated.
    """
    measured = [np.isfinite(run.columns[metric]) for run in runs]
    kept = [(run, mask) for run, mask in zip(runs, measured, strict=True) if mask.any()]
    if not kept:
        return None
    steps = thin(np.unique(np.concatenate([run.columns["step"][mask] for run, mask in kept])))  # (T,)
    values = np.stack([_at(steps, run.columns["step"], run.columns[metric]) for run, _ in kept])  # (runs, T)
    inside = np.isfinite(values)  # an axis is averaged over the same runs as the metric
    x = {
        axis.key: _mean(
            np.where(inside, [_at(steps, run.columns["step"], run.axis(axis.key)) for run, _ in kept], np.nan)
        )
        for axis in AXES
    }
    n = inside.sum(0)
    mean = _mean(values)
    squares = np.where(inside, (values - mean) ** 2, 0.0).sum(0)
    sd = np.where(n > 1, np.sqrt(squares / np.maximum(n - 1, 1)), np.nan)
    return Curve(x, mean, sd, np.nanmin(values, 0), np.nanmax(values, 0), n)


def thin(values: Array, most: int = MOST_POINTS) -> Array:
    """At most `most` of the values, evenly chosen, the first and the last among them."""
    if len(values) <= most:
        return values
    return values[np.unique(np.linspace(0, len(values) - 1, most).round().astype(np.int64))]


def _at(steps: Array, known: Array, values: Array) -> Array:
    """(T,) the values at `steps`; nan outside the steps where they are known."""
    mask = np.isfinite(values)
    if not mask.any():
        return np.full(len(steps), np.nan)
    return np.interp(steps, known[mask], values[mask], left=np.nan, right=np.nan)


def _mean(values: Array) -> Array:
    """(T,) the mean over the runs that have a value; nan where none has."""
    known = np.isfinite(values)
    n = known.sum(0)
    return np.where(n > 0, np.where(known, values, 0.0).sum(0) / np.maximum(n, 1), np.nan)


def wide(curves: Sequence[Curve]) -> bool:
    """Whether a logarithmic y axis reads better: all means positive, over more than a decade."""
    means = np.concatenate([one.mean for one in curves]) if curves else np.array([])
    return bool(means.size and means.min() > 0 and means.max() > 10 * means.min())
