"""Experiment 6. BSGD's bias floor with small B2, and BSGD and BSpiderBoost with the batch sizes that their rates need.

Without a tracker the gradient is weighed with f'(g) of one batch, whose mean is not f'(E g): w settles where the biased
gradient vanishes, and only a larger B2 moves it closer. For f with a kink in f' the floor goes as B2^(-1/2), which
is the bound that BSGD's B2 = eps^(-2) comes from; for f with three derivatives it goes as 1/B2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import final

import numpy as np
import torch

from fcco import methods
from fcco.lab.rates import fit
from fcco.lab.rates.fit import Array, Outcome, Seeds
from fcco.lab.rates.forms import TITLES
from fcco.lab.rates.journeys import Norms, start
from fcco.lab.rates.loop import Loop
from fcco.lab.rates.problems import Draw, Kinked, Outer, Problem, Smooth, curved, paired


@final
@dataclass(frozen=True)
class Plan:
    """Sizes of the experiment."""

    b2s: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    steps: int = 4_000  # of a floor run
    accuracies: int = 4  # eps = 2^(-k/2)
    horizon: int = 500  # of the largest eps, where eta is tuned
    wide: int = 400  # blocks for BSpiderBoost's large batches
    seeds: int = 8


def floor_problem(outer: Outer) -> Problem:
    """A convex problem with a known optimum; with a kinked f', every g_i is at the kink there."""
    depth = 0.0 if isinstance(outer, Kinked) else 0.5
    scales = (1.0, 0.7, 0.5, 0.35, 0.25)
    return paired(20, q=0.5, scales=scales, outer=outer, tilt=3.0, lopsided=2.0, depth=depth)


def floor(plan: Plan, problem: Problem, b2: int) -> tuple[Array, Array]:
    """grad F (S, d) and F - F* (S,) at the mean of w over the second half of a BSGD run with eta ~ t^(-1/2).

    All blocks are drawn at every step, so that what is left is B2's doing.
    """
    b1, turn = problem.m, 32
    loop = Loop(problem, [methods.bsgd()], [0.1], start(problem, 1.0), plan.seeds)
    total, count = torch.zeros_like(loop.w), 0
    for t, draw in zip(range(plan.steps), problem.draws(range(plan.seeds), b1, b2), strict=False):
        if t % turn == 0:
            loop.use(loop.methods, [0.1 / math.sqrt(1 + t / 200)])
        loop.step(draw, b1 * b2)
        if 2 * t >= plan.steps:
            total, count = total + loop.w, count + 1
    mean = total / count
    optimum = problem.value(torch.ones(problem.d, dtype=torch.float64))
    return _array(problem.gradient(mean)[0]), _array((problem.value(mean) - optimum)[0])


def floors(plan: Plan, outcome: Outcome) -> None:
    """The floor of ||grad F|| and of F - F* against B2, for a smooth f and for one with a kink in its slope."""
    for name, outer in (("BSGD, smooth f", Smooth()), ("BSGD, kinked f'", Kinked())):
        problem = floor_problem(outer)
        found = [floor(plan, problem, b2) for b2 in plan.b2s]
        gradients, gaps = np.stack([one[0] for one in found]), np.stack([one[1] for one in found])
        for b2, gradient, gap in zip(plan.b2s, gradients, gaps, strict=True):
            outcome.log(f"{name}: norm", b2, np.linalg.norm(gradient, axis=-1))
            outcome.log(f"{name}: gap", b2, gap)

        def norms(seeds: Seeds, y: Array = gradients) -> Array:
            return np.asarray(np.linalg.norm(y[:, seeds].mean(1), axis=-1))  # noise cancels, the bias stays

        quantity, labels = "floor of the gradient norm against B2", ("B2", "||grad F|| where BSGD settles")
        outcome.add(fit.measure("biased", name, quantity, plan.b2s, norms, plan.seeds, -0.5, labels=labels))
        quantity, labels, y = "floor of F - F* against B2", ("B2", "F - F* where BSGD settles"), fit.averaged(gaps)
        outcome.add(fit.measure("biased", name, quantity, plan.b2s, y, plan.seeds, -1.0, labels=labels))


@final
@dataclass(frozen=True)
class Batches:
    """What one accuracy eps = 1/scale takes."""

    steps: int
    b1: int
    b2: int
    period: int
    large: int

    @property
    def samples(self) -> int:
        """In all."""
        rounds = math.ceil(self.steps / self.period)
        return self.b2 * (rounds * self.large + (self.steps - rounds) * self.b1)


def bsgd_batches(plan: Plan, scale: float) -> Batches:
    """T ~ eps^(-4), B1 = 1, B2 ~ eps^(-2)."""
    return Batches(round(plan.horizon * scale**4), 1, round(2 * scale**2), 1, 1)


def spider_batches(plan: Plan, scale: float) -> Batches:
    """T ~ eps^(-2), B1, q ~ eps^(-1), B2 and the large batch ~ eps^(-2)."""
    large = min(plan.wide, round(16 * scale**2))
    return Batches(round(plan.horizon * scale**2), round(4 * scale), round(2 * scale**2), round(4 * scale), large)


def mixed(problem: Problem, seeds: int, sizes: Batches) -> Iterator[Draw]:
    """Large batches at t = 1, 1 + q, ..., small ones between."""
    small = problem.draws(range(seeds), sizes.b1, sizes.b2)
    large = problem.draws(range(seeds), sizes.large, sizes.b2, purpose=1)
    for t in range(sizes.steps):
        yield next(large if t % sizes.period == 0 else small)


def mean_norms(plan: Plan, problem: Problem, method: str, sizes: Batches, etas: list[float]) -> Array:
    """Mean ||grad F|| over the run for each step size (L, S)."""
    made = methods.bsgd() if method == "bsgd" else methods.bspiderboost(period=sizes.period)
    loop = Loop(problem, [made] * len(etas), etas, start(problem, 1.0), plan.seeds)
    norms = Norms()
    for draw in mixed(problem, plan.seeds, sizes):
        norms.follow(loop)
        loop.step(draw, draw.blocks.shape[1] * sizes.b2)
    return norms.mean()


def complexities(plan: Plan, outcome: Outcome) -> None:
    """Mean ||grad F|| against samples: claimed -1/6 for BSGD, -1/5 for BSpiderBoost."""
    scales = [2 ** (k / 2) for k in range(plan.accuracies)]
    cases = (
        ("bsgd", curved(20), bsgd_batches, 2.0, -1 / 6),
        ("bspiderboost", curved(plan.wide), spider_batches, 0.0, -1 / 5),
    )
    for method, problem, batches, power, claim in cases:
        sizes = [batches(plan, scale) for scale in scales]
        etas = np.geomspace(0.003, 1.0, 9).tolist()
        eta = etas[fit.best(mean_norms(plan, problem, method, sizes[0], etas).mean(-1))]
        outcome.settings[f"eta of {method}"] = eta
        pairs = zip(sizes, scales, strict=True)
        runs = [mean_norms(plan, problem, method, one, [eta / scale**power])[0] for one, scale in pairs]
        y, x = np.stack(runs), [one.samples for one in sizes]
        for at, row in zip(x, y, strict=True):
            outcome.log(f"{method}: mean norm", at, row)
        quantity, labels = "mean norm against samples", ("samples", "||grad F||, mean over the run")
        averaged = fit.averaged(y)
        outcome.add(fit.measure("biased", TITLES[method], quantity, x, averaged, plan.seeds, claim, labels=labels))


def _array(x: torch.Tensor) -> Array:
    return np.asarray(x.numpy(), dtype=np.float64).copy()


def run(quick: bool, seeds: int) -> Outcome:
    """Measure floors and rates."""
    plan = Plan(seeds=seeds)
    if quick:
        plan = replace(plan, b2s=(1, 4, 16), steps=1_000, accuracies=3, horizon=150)
    outcome = Outcome(settings=asdict(plan))
    floors(plan, outcome)
    complexities(plan, outcome)
    return outcome
