"""Two curves compared: F at equal cost, paired over seeds, with an interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.figures.runs import Row

CLOSE = 0.1  # two curves are close where F differs by less than a tenth


def axis(row: Row, x: str) -> list[float]:
    """The x of a run's curve.

    Args:
        x: a column of the curve; ``oracle_n`` is oracle calls with n per full pass in place of m n.
    """
    curve = row["curve"]
    if x != "oracle_n":
        return [float(value) for value in curve[x]]
    columns = zip(curve["oracle"], curve["samples"], curve["charged_n"], strict=True)
    return [float(oracle - 2 * (samples - charged)) for oracle, samples, charged in columns]


def heights(row: Row) -> list[float | None]:
    """F along a curve, or F - F* where F* is known."""
    optimum = row.get("optimum") or 0.0
    found: list[float | None] = []
    for value in row["curve"]["f"]:
        if value is None:
            found.append(None)
        else:
            found.append(max(value - optimum, 1e-16))
    return found


def path(row: Row, x: str) -> list[tuple[float, float | None]]:
    """A run's curve: (cost, F), level while a full pass is charged."""
    places = axis(row, x)
    values = heights(row)
    steps = row["curve"]["step"]
    found: list[tuple[float, float | None]] = []
    for number, (place, f) in enumerate(zip(places, values, strict=True)):
        # Evaluations one step apart stand around a full pass: the weights move at its end.
        if number > 0 and steps[number] == steps[number - 1] + 1:
            found.append((place, values[number - 1]))
        found.append((place, f))
    return found


def height_at(row: Row, x: str, place: float) -> float | None:
    """log F at a place on the curve, linear between points; None beyond its end."""
    before: tuple[float, float] | None = None
    for position, f in path(row, x):
        if f is None:
            return None
        height = math.log(f)
        if position > place and before is not None:
            share = (place - before[0]) / (position - before[0])
            return before[1] + share * (height - before[1])
        before = (position, height)
    if before is not None and before[0] == place:
        return before[1]
    return None


@dataclass(frozen=True)
class Comparison:
    """F of one method over F of another at equal cost.

    Attributes:
        ratio: the geometric mean over seeds; low, high: its 95 % interval, None with fewer than two pairs.
        pairs: seeds that both have.
        diverged: runs of either that did not end.
        place: where they were compared.
        cost: cost of the first to reach the other's final F, over the other's cost; None where it never does.
    """

    ratio: float
    low: float | None
    high: float | None
    pairs: int
    diverged: int
    place: float
    cost: float | None


def compare(
    first: Sequence[Row], second: Sequence[Row], x: str = "samples", other_x: str | None = None
) -> Comparison | None:
    """Compare at the largest cost that all runs reach; None where there is no pair of finished runs.

    Args:
        first, second: runs of two methods over seeds.
        x: what is equal; ``other_x``: for the second, where it counts otherwise.
    """
    other_x = other_x or x
    left = {row["run"]["config"]["seed"]: row for row in first if row["status"] == "finished"}
    right = {row["run"]["config"]["seed"]: row for row in second if row["status"] == "finished"}
    diverged = len(first) + len(second) - len(left) - len(right)
    seeds = sorted(left.keys() & right.keys())
    if not seeds:
        return None
    ends = [axis(left[seed], x)[-1] for seed in seeds] + [axis(right[seed], other_x)[-1] for seed in seeds]
    place = min(ends)
    gaps = []
    for seed in seeds:
        one = height_at(left[seed], x, place)
        two = height_at(right[seed], other_x, place)
        if one is not None and two is not None:
            gaps.append(one - two)
    if not gaps:
        return None
    middle = statistics.fmean(gaps)
    low, high = interval(gaps)
    cost = _cost([left[s] for s in seeds], x, [right[s] for s in seeds], other_x, place)
    return Comparison(math.exp(middle), low, high, len(gaps), diverged, place, cost)


def interval(gaps: Sequence[float]) -> tuple[float | None, float | None]:
    """The 95 % interval of a ratio from its logarithms, by Student's t."""
    if len(gaps) < 2:
        return None, None
    from scipy.stats import t as student

    middle = statistics.fmean(gaps)
    wide = float(student.ppf(0.975, len(gaps) - 1)) * statistics.stdev(gaps) / math.sqrt(len(gaps))
    return math.exp(middle - wide), math.exp(middle + wide)


def _cost(left: Sequence[Row], x: str, right: Sequence[Row], other_x: str, place: float) -> float | None:
    """The first place on the mean curve at or below the other's height at ``place``, as a share of ``place``."""
    targets = [height_at(row, other_x, place) for row in right]
    if any(target is None for target in targets) or place == 0:
        return None
    target = statistics.fmean(target for target in targets if target is not None)
    for position in axis(left[0], x):
        found = [height_at(row, x, position) for row in left]
        if any(height is None for height in found):
            continue
        if statistics.fmean(height for height in found if height is not None) <= target:
            return position / place
    return None


def verdict(found: Comparison | None, kind: str) -> str:
    """Whether a claim holds: ``better`` (F is lower) or ``close`` (within a tenth), by the interval."""
    if found is None or found.low is None or found.high is None:
        return "not decidable yet"
    if kind == "close":
        if found.low > 1 / (1 + CLOSE) and found.high < 1 + CLOSE:
            return "holds"
        if found.high < 1 / (1 + CLOSE) or found.low > 1 + CLOSE:
            return "does not hold"
        return "not decidable"
    if found.high < 1:
        return "holds"
    if found.low > 1:
        return "does not hold"
    return "not decidable"
