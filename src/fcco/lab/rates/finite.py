"""Experiment 7. MSVR-v3 on the non-convex problem: iterations against m, n, B1 and B2, and with a single block.

Theorem 4 takes I = mn/(B1 B2), alpha = 1/I, beta = B2/n, eta = c B1 sqrt(B2)/(m sqrt(n)), and needs 1/eta iterations.
With c tuned once the iterations follow that power only as long as the errors of u and z stay small at such steps:
that is measured first. Then every size takes its own best step, for which nothing is claimed: the theorem is a bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import final

import numpy as np

from fcco.lab.rates import fit
from fcco.lab.rates.fit import Array, Outcome, Seeds
from fcco.lab.rates.journeys import Norms, Setting, recipe, start, travel
from fcco.lab.rates.problems import curved
from fcco.lab.rates.scaling import KINDS, crossing
from fcco.methods.stages import Stage


@final
@dataclass(frozen=True)
class Point:
    """The sizes of one run."""

    m: int
    n: int
    b1: int = 1
    b2: int = 1

    @property
    def period(self) -> int:
        """The period I of full passes."""
        return max(1, self.m * self.n // (self.b1 * self.b2))

    @property
    def eta(self) -> float:
        """The theorem's step size, without its constant."""
        return self.b1 * math.sqrt(self.b2) / (self.m * math.sqrt(self.n))

    def stage(self, steps: int, eta: float) -> Stage:
        """Return the theorem's rates at a step size."""
        return Stage(steps, eta, 1 / self.period, self.b2 / self.n)


@final
@dataclass(frozen=True)
class Plan:
    """Sizes of the experiment; the first point of the line in m is where the step size is tuned."""

    ms: tuple[int, ...] = (10, 20, 40, 80)
    ns: tuple[int, ...] = (10, 40, 160, 640)
    b1s: tuple[int, ...] = (1, 2, 4, 8)
    b2s: tuple[int, ...] = (1, 2, 4, 8, 16)
    many: int = 64  # n of the line in B2
    alone: tuple[int, ...] = (16, 64, 256, 1024)  # n of the line at m = 1
    horizon: int = 1_000
    longest: int = 30_000
    etas: int = 9
    seeds: int = 8

    def lines(self) -> dict[str, tuple[list[Point], list[float], float]]:
        """Return what varies -> the points, the numbers along the line, the claimed power of the iterations."""
        first = Point(self.ms[0], self.ns[0])
        widest = replace(first, m=self.ms[-1])
        with_many = replace(first, n=self.many)
        return {
            "m": ([replace(first, m=m) for m in self.ms], list(self.ms), 1.0),
            "n": ([replace(first, n=n) for n in self.ns], list(self.ns), 0.5),
            "B1": ([replace(widest, b1=b1) for b1 in self.b1s], list(self.b1s), -1.0),
            "B2": ([replace(with_many, b2=b2) for b2 in self.b2s], list(self.b2s), -0.5),
            "n, m = 1": ([Point(1, n) for n in self.alone], list(self.alone), 0.5),
        }


def decline(plan: Plan, point: Point, etas: Sequence[float], level: float, steps: int) -> tuple[Array, Array]:
    """Run until one lane's root mean square of ||grad F|| is clearly below the level.

    Returns:
        steps (K,) and the root mean square so far (K, L, S).
    """
    problem = curved(point.m, kinds=min(point.m, KINDS), n=point.n)
    made = recipe("msvr-v3", problem, point.b1, point.b2)
    setting = Setting(problem, made, start(problem, 1.0), plan.seeds, point.b1, point.b2)
    lanes = [[point.stage(steps, eta)] for eta in etas]
    norms = Norms(every=1)
    at = []
    roots = []
    turn = 4
    for loop in travel(setting, lanes):
        norms.follow(loop)
        if loop.t >= turn:
            turn = int(turn * 1.05) + 1
            root = norms.root_mean_square()
            at.append(loop.t)
            roots.append(root)
            if np.nanmin(root.mean(-1)) < 0.97 * level:
                break
    return np.array(at, dtype=np.float64), np.stack(roots)


def tune(plan: Plan, point: Point) -> tuple[float, float]:
    """Return the constant of eta that is best at the first horizon, and the level that it reaches.

    The horizon grows as the theorem says, so that every line starts from runs that have settled.
    """
    constants = np.geomspace(0.1, 10, 2 * plan.etas - 1)
    longer = max(1.0, Point(plan.ms[0], plan.ns[0]).eta / point.eta)
    steps = round(plan.horizon * longer)
    etas = (constants * point.eta).tolist()
    _, roots = decline(plan, point, etas, 0.0, steps)
    last = roots[-1].mean(-1)
    best = fit.best(last)
    return float(constants[best]), float(last[best])


def _add(
    outcome: Outcome,
    plan: Plan,
    quantity: str,
    x: Sequence[float],
    curves: list[tuple[Array, Array]],
    level: float,
    claim: float | None,
) -> None:
    def values(seeds: Seeds) -> Array:
        return np.array([_soonest(steps, roots[:, :, seeds].mean(-1), level) for steps, roots in curves])

    for at, (steps, roots) in zip(x, curves, strict=True):
        per_seed = [_soonest(steps, roots[:, :, seed], level) for seed in range(plan.seeds)]
        outcome.log(f"MSVR-v3: {quantity}", at, per_seed)
    along = quantity.rsplit("against ", 1)[1]
    labels = (along, "iterations to one root mean ||grad F||^2")
    outcome.add(fit.measure("finite", "MSVR-v3", quantity, x, values, plan.seeds, claim, labels=labels))


def _soonest(steps: Array, roots: Array, level: float) -> float:
    """Return when the first lane of roots (K, L) is below the level; lanes that never are do not count."""
    reached = np.any(roots <= level, axis=0)
    if not reached.any():
        return float(steps[-1])
    return min(crossing(steps, lane, level) for lane in roots[:, reached].T)


def run(quick: bool, seeds: int) -> Outcome:
    """Measure the powers."""
    plan = Plan(seeds=seeds)
    if quick:
        plan = replace(
            plan,
            ms=(4, 16),
            ns=(4, 16),
            b1s=(1, 4),
            b2s=(1, 4),
            many=16,
            alone=(4, 16),
            horizon=100,
            longest=2_000,
            etas=4,
        )
    outcome = Outcome(settings=asdict(plan))
    for line, (points, x, claim) in plan.lines().items():
        constant, level = tune(plan, points[0])
        outcome.settings[f"along {line}"] = {"constant": constant, "level": level}
        spread = np.geomspace(0.3, 30, plan.etas) * constant
        by_theorem = []
        by_search = []
        for point in points:
            etas = (spread * point.eta).tolist()
            by_theorem.append(decline(plan, point, [constant * point.eta], level, plan.longest))
            by_search.append(decline(plan, point, etas, level, plan.longest))
        _add(outcome, plan, f"iterations against {line}", x, by_theorem, level, claim)
        _add(outcome, plan, f"iterations at the best step against {line}", x, by_search, level, None)
    return outcome
