"""Slopes with bootstrap intervals over the seeds, and the rows and curves that they become."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Seeds = npt.NDArray[np.int64]
Values = Callable[[Seeds], Array]  # the seeds to average over -> one value per point x

RESAMPLES = 1000
ROUNDING = 0.005  # intervals are read to two digits


@final
@dataclass(frozen=True)
class Row:
    """One line of the table: a measured number beside the claimed one.

    Attributes:
        claim: the theory's number; None where nothing is claimed.
        bound: "" where the number itself is claimed, ">" or "<" where it is to be above or below the claim.
        value, low, high: measured, with a 95 % bootstrap interval over the seeds.
        ends: the slopes between the first two and the last two points, which show how straight the line is.
        reason: why the interval misses the claim, as far as it was found out.
    """

    experiment: str
    name: str
    quantity: str
    claim: float | None
    value: float
    low: float
    high: float
    bound: str = ""
    ends: tuple[float, float] | None = None
    reason: str = ""

    @property
    def key(self) -> str:
        """What tells this row from all others."""
        return f"{self.experiment}: {self.name}: {self.quantity}"

    @property
    def verdict(self) -> str:
        """ "meets" where the interval holds the claim (or lies on its claimed side), else how it misses."""
        if self.claim is None:
            return ""
        if self._meets(self.claim):
            return "meets"
        if self.bound:
            return "misses"
        if abs(self.value) > abs(self.claim):
            return "misses: steeper"
        return "misses: flatter"

    def _meets(self, claim: float) -> bool:
        if self.bound == ">":
            return self.low > claim
        if self.bound == "<":
            return self.high < claim
        return self.low - ROUNDING <= claim <= self.high + ROUNDING


@final
@dataclass(frozen=True)
class Curve:
    """What a plot shows: points with their intervals, the fitted and the claimed line."""

    panel: str
    name: str
    x_label: str
    y_label: str
    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]
    slope: float
    claim: float | None
    log_x: bool = True


@final
@dataclass
class Outcome:
    """What an experiment hands back: rows, curves, maps to draw, its settings and its raw numbers."""

    rows: list[Row] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    maps: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    raw: list[tuple[str, float, str, int, float]] = field(default_factory=list)  # series, x, setting, seed, value

    def log(self, series: str, x: float, values: Array | Sequence[float], setting: str = "") -> None:
        """Keep one value per seed."""
        for seed, value in enumerate(values):
            self.raw.append((series, float(x), setting, seed, float(value)))

    def log_all(self, series: str, x: Sequence[float] | Array, values: Array | Sequence[Array]) -> None:
        """Keep one value per point and seed; values has a row per point."""
        for point, row in zip(x, values, strict=True):
            self.log(series, point, row)

    def add(self, measured: tuple[Row, Curve]) -> None:
        """Take a row and its curve."""
        self.rows.append(measured[0])
        self.curves.append(measured[1])

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the raw numbers, for JSON."""
        return {
            "settings": self.settings,
            "rows": [asdict(row) | {"verdict": row.verdict} for row in self.rows],
            "curves": [asdict(curve) for curve in self.curves],
            "maps": self.maps,
        }


def slope(x: Array, y: Array, log_x: bool = True) -> float:
    """Return the least-squares slope of log y on log x (or on x).

    Example:
        >>> round(slope(np.array([1.0, 2.0, 4.0]), np.array([3.0, 12.0, 48.0])), 6)
        2.0
    """
    across = x
    if log_x:
        across = np.log(x)
    upward = np.log(np.maximum(y, 1e-300))
    return float(np.polyfit(across, upward, 1)[0])


def bootstrap(statistic: Callable[[Seeds], Array], seeds: int) -> tuple[Array, Array, Array]:
    """Return a statistic of all seeds, and the ends of its 95 % interval from seeds drawn with replacement."""
    generator = np.random.default_rng(0)
    draws = []
    for _ in range(RESAMPLES):
        chosen = generator.integers(seeds, size=seeds)
        draws.append(statistic(chosen))
    low, high = np.quantile(np.stack(draws), [0.025, 0.975], axis=0)
    return statistic(np.arange(seeds)), low, high


def measure(
    experiment: str,
    name: str,
    quantity: str,
    x: Sequence[float] | Array,
    values: Values,
    seeds: int,
    claim: float | None,
    *,
    labels: tuple[str, str],
    panel: str = "",
    log_x: bool = True,
) -> tuple[Row, Curve]:
    """Return the slope of values against x with its interval, as a row and as a curve.

    Args:
        experiment: the experiment's name.
        name: the method's name.
        quantity: what is measured.
        x: (K,) the points.
        values: the values at the points, averaged over the seeds that it is given.
        seeds: how many seeds there are.
        claim: the theory's slope; None where nothing is claimed.
        labels: what stands beside the two axes.
        panel: the plot's title; "": the quantity.
        log_x: whether the slope is against log x.
    """
    points = np.asarray(x, dtype=np.float64)

    def values_and_slope(chosen: Seeds) -> Array:
        y = values(chosen)
        return np.append(y, slope(points, y, log_x))

    measured, low, high = bootstrap(values_and_slope, seeds)
    y = measured[:-1]
    first_slope = slope(points[:2], y[:2], log_x)
    last_slope = slope(points[-2:], y[-2:], log_x)
    row = Row(
        experiment=experiment,
        name=name,
        quantity=quantity,
        claim=claim,
        value=float(measured[-1]),
        low=float(low[-1]),
        high=float(high[-1]),
        ends=(first_slope, last_slope),
    )
    curve = Curve(
        panel=panel or quantity,
        name=name,
        x_label=labels[0],
        y_label=labels[1],
        x=points.tolist(),
        y=y.tolist(),
        low=low[:-1].tolist(),
        high=high[:-1].tolist(),
        slope=float(measured[-1]),
        claim=claim,
        log_x=log_x,
    )
    return row, curve


def number(
    experiment: str,
    name: str,
    quantity: str,
    statistic: Callable[[Seeds], float],
    seeds: int,
    claim: float | None,
    bound: str = "",
) -> Row:
    """Return the row of a number that is no slope, with its interval."""
    value, low, high = bootstrap(lambda chosen: np.array([statistic(chosen)]), seeds)
    return Row(experiment, name, quantity, claim, float(value[0]), float(low[0]), float(high[0]), bound)


def averaged(y: Array) -> Values:
    """Return a function of seeds: the mean of y (K, S) over them."""
    return lambda seeds: np.asarray(y[:, seeds].mean(-1))


def best(scores: Array) -> int:
    """Return the index of the smallest score; what diverged does not count."""
    return int(np.argmin(np.where(np.isfinite(scores), scores, np.inf)))
