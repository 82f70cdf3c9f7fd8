"""Final values: mean and spread over the seeds, and whether a group differs from the best one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    """Return the final values of each group of a problem, each compared with the best group.

    A group is None where no run ended with a finite value.
    """
    rows = [summary(final_values(group, metric.key)) for group in groups]
    measured = {position: row for position, row in enumerate(rows) if row is not None}
    if not measured:
        return rows
    best = _position_of_best(measured, metric)
    others = [position for position in measured if position != best]
    comparisons = _compare_all([measured[position].values for position in others], measured[best].values)
    rows[best] = replace(measured[best], best=True)
    for position, comparison in zip(others, comparisons, strict=True):
        rows[position] = replace(measured[position], against=comparison)
    return rows


def _position_of_best(rows: Mapping[int, Final], metric: Metric) -> int:
    """Return the position of the best mean; of equal ones the first."""
    means = {position: row.mean for position, row in rows.items()}
    if metric.lower:
        return min(means, key=means.__getitem__)
    return max(means, key=means.__getitem__)


def _compare_all(others: Sequence[Sequence[float]], best: Sequence[float]) -> list[Comparison]:
    """Compare each group's values with the best group's, corrected for how many comparisons there are."""
    comparisons = [compare(values, best) for values in others]
    welch_holm = holm([comparison.welch for comparison in comparisons])
    permutation_holm = holm([comparison.permutation for comparison in comparisons])
    corrected = []
    for comparison, p_welch, p_permutation in zip(comparisons, welch_holm, permutation_holm, strict=True):
        corrected.append(replace(comparison, welch_holm=p_welch, permutation_holm=p_permutation))
    return corrected


def final_values(group: Group, metric: str) -> tuple[float, ...]:
    """Return the last value of each run that was trained as far as the group's furthest.

    For a metric that is measured at some evaluations only, this is the last of these; a run whose last value is
    not finite (it diverged) does not count.
    """
    values = []
    for run in group.full:
        column = run.columns[metric]
        measured = column[~np.isnan(column)]
        if measured.size and np.isfinite(measured[-1]):
            values.append(float(measured[-1]))
    return tuple(values)


def summary(values: Sequence[float]) -> Final | None:
    """Return mean and standard deviation of the values; None where there are no values."""
    if not values:
        return None
    mean = float(np.mean(values))
    sd = None
    if len(values) > 1:
        sd = float(np.std(values, ddof=1))
    return Final(tuple(values), mean, sd)


def compare(values: Sequence[float], best: Sequence[float]) -> Comparison:
    """Compare two groups by Welch's t-test and by a permutation test of the difference in means.

    The permutation test goes through every permutation where there are few, and draws some where there are many.
    """
    difference = float(np.mean(values) - np.mean(best))
    exact = math.comb(len(values) + len(best), len(best)) <= RESAMPLES
    too_few = min(len(values), len(best)) < 2
    if too_few or (_constant(values) and _constant(best)):
        return Comparison(difference, None, None, None, None, exact)
    p, margin = welch(values, best)
    resamples: float = RESAMPLES
    if exact:
        resamples = np.inf
    stats = require("scipy.stats", "significance in a report")
    permutation = stats.permutation_test(
        (values, best),
        lambda x, y, axis: np.mean(x, axis=axis) - np.mean(y, axis=axis),
        vectorized=True,
        n_resamples=resamples,
        rng=np.random.default_rng(0),  # the same runs give the same page
    )
    return Comparison(
        difference=difference,
        low=difference - margin,
        high=difference + margin,
        welch=p,
        permutation=float(permutation.pvalue),
        exact=exact,
    )


def welch(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Welch's t-test of the difference in means; at least one of the two groups must have a spread.

    Returns:
        p, and half the width of the 95 % confidence interval of the difference.
    """
    t = require("scipy.stats", "significance in a report").t
    difference = float(np.mean(first) - np.mean(second))
    variance_first = float(np.var(first, ddof=1)) / len(first)
    variance_second = float(np.var(second, ddof=1)) / len(second)
    variance = variance_first + variance_second
    error = math.sqrt(variance)
    # the Welch-Satterthwaite equation
    freedom = variance**2 / (variance_first**2 / (len(first) - 1) + variance_second**2 / (len(second) - 1))
    p = float(2 * t.sf(abs(difference / error), freedom))
    margin = float(t.ppf(1 - LEVEL / 2, freedom)) * error
    return p, margin


def _constant(values: Sequence[float]) -> bool:
    return float(np.ptp(values)) <= 1e-12 * float(np.max(np.abs(values)))


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Return the p-values after Holm's step-down correction; None stays None and does not count as a test.

    >>> holm([0.01, 0.04, 0.03, None])
    [0.03, 0.06, 0.06, None]
    """
    order = sorted((value, position) for position, value in enumerate(p) if value is not None)
    result: list[float | None] = [None] * len(p)
    largest = 0.0
    for rank, (value, position) in enumerate(order):
        adjusted = min(1.0, (len(order) - rank) * value)
        largest = max(largest, adjusted)  # a larger p stays the larger one after the correction
        result[position] = largest
    return result
