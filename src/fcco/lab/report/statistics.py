"""Final values: mean and spread over the seeds, and whether a group differs from the best one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from fcco.lab.datasets.errors import require

from .columns import Metric
from .groups import Group

RESAMPLES = 9999  # random permutations, where there are more than can be gone through one by one
LEVEL = 0.05


@final
@dataclass(frozen=True)
class Comparison:
    """A group against the best one, two-sided; None where a test is undefined (fewer than two runs, no spread).

    Attributes:
        difference: mean minus the best group's mean.
        low: lower end of Welch's 95 % confidence interval of the difference.
        high: upper end.
        welch: p of Welch's t-test.
        permutation: p of the permutation test of the difference in means.
        exact: whether every permutation was gone through.
        welch_holm: Welch's p after Holm's correction over the problem's groups.
        permutation_holm: the permutation test's p, likewise.
    """

    difference: float
    low: float | None
    high: float | None
    welch: float | None
    permutation: float | None
    exact: bool
    welch_holm: float | None = None
    permutation_holm: float | None = None


@final
@dataclass(frozen=True)
class Final:
    """A group's final values of one metric.

    Attributes:
        values: one per run that was trained to the end.
        mean: their mean.
        sd: their standard deviation (n - 1); None with one run.
        best: whether no group of the problem has a better mean.
        against: the comparison with the best group; None for the best itself.
    """

    values: tuple[float, ...]
    mean: float
    sd: float | None
    best: bool = False
    against: Comparison | None = None


def finals(groups: Sequence[Group], metric: Metric) -> list[Final | None]:
    """One per group of a problem, compared with the best; None where no run ended with a finite value."""
    rows = [summary(final_values(group, metric.key)) for group in groups]
    means = [row.mean for row in rows if row is not None]
    if not means:
        return rows
    top = min(means) if metric.lower else max(means)
    best = next(position for position, row in enumerate(rows) if row is not None and row.mean == top)
    champion = rows[best]
    assert champion is not None
    others = [position for position, row in enumerate(rows) if row is not None and position != best]
    tests = [compare(row.values, champion.values) for row in map(rows.__getitem__, others) if row is not None]
    corrected = zip(holm([test.welch for test in tests]), holm([test.permutation for test in tests]), strict=True)
    result: list[Final | None] = list(rows)
    result[best] = replace(champion, best=True)
    for position, test, (p, q) in zip(others, tests, corrected, strict=True):
        row = rows[position]
        assert row is not None
        result[position] = replace(row, against=replace(test, welch_holm=p, permutation_holm=q))
    return result


def final_values(group: Group, metric: str) -> tuple[float, ...]:
    """The last value of each run that was trained as far as the group's furthest.

    A metric that is measured at some evaluations only counts at the last of these; one that was measured and is
    no longer finite (the run diverged) does not count.
    """
    last = (run.columns[metric][~np.isnan(run.columns[metric])][-1:] for run in group.full)
    return tuple(float(value[0]) for value in last if value.size and np.isfinite(value[0]))


def summary(values: Sequence[float]) -> Final | None:
    """Mean and standard deviation."""
    if not values:
        return None
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Final(tuple(values), float(np.mean(values)), sd)


def compare(values: Sequence[float], best: Sequence[float]) -> Comparison:
    """Welch's t-test and a permutation test of the difference in means; the permutations are all where they are few."""
    difference = float(np.mean(values) - np.mean(best))
    exact = math.comb(len(values) + len(best), len(best)) <= RESAMPLES
    if min(len(values), len(best)) < 2 or (_constant(values) and _constant(best)):
        return Comparison(difference, None, None, None, None, exact)
    p, margin = welch(values, best)
    stats = require("scipy.stats", "significance in a report")
    permutation = stats.permutation_test(
        (values, best),
        lambda x, y, axis: np.mean(x, axis=axis) - np.mean(y, axis=axis),
        vectorized=True,
        n_resamples=np.inf if exact else RESAMPLES,
        rng=np.random.default_rng(0),
    )
    return Comparison(difference, difference - margin, difference + margin, p, float(permutation.pvalue), exact)


def welch(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """(p, half the width of the 95 % confidence interval) of Welch's t-test; one of the two must have a spread."""
    t = require("scipy.stats", "significance in a report").t
    parts = [float(np.var(values, ddof=1)) / len(values) for values in (first, second)]
    error = math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True)
    )
    statistic = float(np.mean(first) - np.mean(second)) / error
    return float(2 * t.sf(abs(statistic), freedom)), float(t.ppf(1 - LEVEL / 2, freedom)) * error


def _constant(values: Sequence[float]) -> bool:
    return float(np.ptp(values)) <= 1e-12 * float(np.max(np.abs(values)))


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction; undefined values are no part of the family.

    >>> holm([0.01, 0.04, 0.03, None])
    [0.03, 0.06, 0.06, None]
    """
    order = sorted((value, position) for position, value in enumerate(p) if value is not None)
    result: list[float | None] = [None] * len(p)
    largest = 0.0
    for rank, (value, position) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * value))
        result[position] = largest
    return result
