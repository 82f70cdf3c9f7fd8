"""Experiment 1. Tracking: w moves on a circle by steps of length d, no optimizer; how well does u follow g(w)?

The mean squared error, minimised over beta, is a power of d: 2/3 for the moving average and for STORM as it
stands, 1 for MSVR and MSVR-SP, 2 for the finite-sum form. The paper has no such statement: "claimed" is what follows
from its Lemmas 1 to 3 (docs/theory.md shows how).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from fcco.lab.rates import fit
from fcco.lab.rates.fit import Array, Outcome
from fcco.lab.rates.loop import Rows, column
from fcco.lab.rates.problems import Problem, curved
from fcco.methods.trackers import MSVR, MovingAverage, Storm, Tracker, Values, combine

Maker = Callable[[float], Tracker]  # beta -> tracker

CLAIMS = {"moving average": 2 / 3, "STORM, naive": 2 / 3, "MSVR": 1.0, "MSVR-SP": 1.0, "MSVR, finite sum": 2.0}
ONLINE: dict[str, Maker] = {
    "moving average": MovingAverage,
    "STORM, naive": Storm,
    "MSVR": MSVR,
    "MSVR-SP": lambda beta: MSVR(beta, single_point=True),
}
FINITE: dict[str, Maker] = {"MSVR, finite sum": lambda beta: MSVR(beta, finite_sum=True)}

RADIUS = 2.0


@final
@dataclass(frozen=True)
class Plan:
    """Sizes of the experiment; beta goes down to where six relaxation times m/(B1 beta) fit into the run."""

    m: int = 20
    n: int = 20
    steps: int = 60_000
    finite_steps: int = 20_000
    shortest: float = 3e-4
    lengths: int = 5  # step lengths d, a factor of 2 apart
    betas: int = 15
    seeds: int = 8

    @property
    def d(self) -> list[float]:
        """The step lengths."""
        return [self.shortest * 2**k for k in range(self.lengths)]

    def beta(self, steps: int) -> list[float]:
        """Return the grid of beta, from 1/2 down."""
        return [float(beta) for beta in np.geomspace(0.5, 6 * self.m / steps, self.betas)]


@final
@dataclass(frozen=True)
class Course:
    """Lanes that move: a tracker and a step length each, with the batch sizes."""

    trackers: Sequence[Tracker]
    d: Sequence[float]
    seeds: int
    steps: int
    b1: int = 1
    b2: int = 1
    period: int | None = None  # of the reference
    other: bool = False  # broken on purpose: another xi at the second point

    def path(self, dim: int) -> Iterator[Tensor]:
        """Yield w_0, w_1, ... (L, S, dim) on the circle; seeds start at phases that are evenly spread."""
        turn = column([2 * math.asin(d / (2 * RADIUS)) for d in self.d], 1)
        phase = torch.arange(self.seeds, dtype=torch.float64) * (2 * math.pi / self.seeds)
        w = torch.zeros(len(self.d), self.seeds, dim, dtype=torch.float64)
        for t in range(self.steps + 1):
            angle = turn * t + phase
            w = w.clone()
            w[..., 0] = RADIUS * angle.cos()
            w[..., 1] = RADIUS * angle.sin()
            yield w


def errors(problem: Problem, course: Course, every: int = 8) -> Array:
    """Return the mean of (u_i - g_i(w))^2 over blocks and the second half of the run (L, S)."""
    path = course.path(problem.d)
    w = next(path)
    rows = Rows(course.trackers, (len(course.d), course.seeds, problem.m), problem.inner(w))
    draws = problem.draws(range(course.seeds), course.b1, course.b2)
    others = problem.draws(range(course.seeds), course.b1, course.b2, purpose=1)
    total = torch.zeros(w.shape[:2], dtype=torch.float64)
    count = 0
    reference = w
    for t, now in enumerate(path, 1):
        draw = next(draws)
        second = draw
        if course.other:
            second = next(others)._replace(blocks=draw.blocks)
        if course.period is not None and (t - 1) % course.period == 0:
            reference = now
        c, decay = rows.rule(t, course.b1)
        place = rows.place(draw.blocks)
        u = rows.u.gather(2, place)
        seen = Values(u, problem.probe(now, draw))
        if c.previous is not None:
            seen = seen._replace(previous=problem.probe(w, second))
        if c.reference is not None:
            seen = seen._replace(reference=problem.probe(reference, draw))
        if c.full is not None:
            seen = seen._replace(full=problem.inner(reference).gather(2, place))
        if c.jvp is not None:
            seen = seen._replace(jvp=problem.along(now, draw, now - w))
        rows.write(place, u, combine(c, seen), decay, keep=False)
        w = now
        if 2 * t > course.steps and t % every == 0:
            total += (rows.u - problem.inner(w)).square().mean((2, 3))
            count += 1
    return np.asarray((total / count).numpy())


def grid_errors(
    makers: Mapping[str, Maker], problem: Problem, plan: Plan, steps: int, *, other: bool = False
) -> dict[str, Array]:
    """Return the error for every tracker, step length and beta: name -> (D, betas, S)."""
    trackers = []
    lengths = []
    for make, d, beta in itertools.product(makers.values(), plan.d, plan.beta(steps)):
        trackers.append(make(beta))
        lengths.append(d)
    period = problem.m * problem.n or None
    course = Course(trackers, lengths, plan.seeds, steps, period=period, other=other)
    shape = (len(makers), len(plan.d), plan.betas, plan.seeds)
    return dict(zip(makers, errors(problem, course).reshape(shape), strict=True))


def smallest(error: Array) -> fit.Values:
    """Return a function of seeds: the error averaged over them, at the best beta for each step length."""
    return lambda seeds: np.asarray(error[:, :, seeds].mean(-1).min(1))


def run(quick: bool, seeds: int) -> Outcome:
    """Measure the slopes."""
    plan = Plan(seeds=seeds)
    if quick:
        plan = replace(plan, steps=6_000, finite_steps=4_000, shortest=1e-3, lengths=4, betas=8)
    found = grid_errors(ONLINE, curved(plan.m), plan, plan.steps)
    found |= grid_errors(FINITE, curved(plan.m, n=plan.n), plan, plan.finite_steps)
    outcome = Outcome(settings=asdict(plan))
    quantity = "error against d"
    labels = ("step length d", "mean squared error, best beta")
    for name, error in found.items():
        steps = plan.steps
        if name in FINITE:
            steps = plan.finite_steps
        for d, errors_at_d in zip(plan.d, error, strict=True):
            for beta, row in zip(plan.beta(steps), errors_at_d, strict=True):
                outcome.log(name, d, row, f"beta={beta:.6g}")
        outcome.add(
            fit.measure("tracking", name, quantity, plan.d, smallest(error), seeds, CLAIMS[name], labels=labels)
        )
    return outcome
