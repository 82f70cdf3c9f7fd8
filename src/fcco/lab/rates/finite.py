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
        """I."""
        return max(1, self.m * self.n // (self.b1 * self.b2))

    @property
    def eta(self) -> float:
        """The theorem's step size, without its constant."""
        return self.b1 * math.sqrt(self.b2) / (self.m * math.sqrt(self.n))

    def stage(self, steps: int, eta: float) -> Stage:
        """The theorem's rates at a step size."""
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
        """What varies -> the points, the numbers along the line, the claimed power of the iterations."""
        m, n = self.ms[0], self.ns[0]
        return {
            "m": ([Point(one, n) for one in self.ms], list(self.ms), 1.0),
            "n": ([Point(m, one) for one in self.ns], list(self.ns), 0.5),
            "B1": ([Point(self.ms[-1], n, b1=one) for one in self.b1s], list(self.b1s), -1.0),
            "B2": ([Point(m, self.many, b2=one) for one in self.b2s], list(self.b2s), -0.5),
            "n, m = 1": ([Point(1, one) for one in self.alone], list(self.alone), 0.5),
        }


def decline(plan: Plan, point: Point, etas: Sequence[float], level: float, steps: int) -> tuple[Array, Array]:
    """Steps (K,) and the root mean square of ||grad F|| so far (K, L, S), until one lane's mean is below the level."""
    problem = curved(point.m, kinds=min(point.m, KINDS), n=point.n)
    made = recipe("msvr-v3", problem, point.b1, point.b2)
    setting = Setting(problem, made, start(problem, 1.0), plan.seeds, point.b1, point.b2)
    norms, at, found = Norms(every=1), [], []
    turn = 4
    for loop in travel(setting, [[point.stage(steps, eta)] for eta in etas]):
        norms.follow(loop)
        if loop.t >= turn:
            at.append(loop.t)
            found.append(norms.root_mean_square())
            turn = int(turn * 1.05) + 1
            if np.nanmin(found[-1].mean(-1)) < 0.97 * level:
                break
    return np.array(at, dtype=np.float64), np.stack(found)


def tune(plan: Plan, point: Point) -> tuple[float, float]:
    """The constant of eta that is best at the first horizon, and the level that it reaches.

    The horizon grows as the theorem says, so that every line starts from runs that have settled.
    """
    constants = np.geomspace(0.1, 10, 2 * plan.etas - 1)
    longer = max(1.0, Point(plan.ms[0], plan.ns[0]).eta / point.eta)
    _, roots = decline(plan, point, (constants * point.eta).tolist(), 0.0, round(plan.horizon * longer))
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
    """When the first lane of roots (K, L) is below the level; lanes that never are do not count."""
    reached = [lane for lane in range(roots.shape[1]) if np.any(roots[:, lane] <= level)]
    if not reached:
        return float(steps[-1])
    return min(crossing(steps, roots[:, lane], level) for lane in reached)


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
        steady = [decline(plan, point, [constant * point.eta], level, plan.longest) for point in points]
        _add(outcome, plan, f"iterations against {line}", x, steady, level, claim)
        spread = np.geomspace(0.3, 30, plan.etas) * constant
        free = [decline(plan, point, (spread * point.eta).tolist(), level, plan.longest) for point in points]
        _add(outcome, plan, f"iterations at the best step against {line}", x, free, level, None)
    return outcome
