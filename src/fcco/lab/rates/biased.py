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
    """Return a convex problem with a known optimum; with a kinked f', every g_i is at the kink there."""
    depth = 0.5
    if isinstance(outer, Kinked):
        depth = 0.0
    scales = (1.0, 0.7, 0.5, 0.35, 0.25)
    return paired(20, q=0.5, scales=scales, outer=outer, tilt=3.0, lopsided=2.0, depth=depth)


def floor(plan: Plan, problem: Problem, b2: int) -> tuple[Array, Array]:
    """Return grad F (S, d) and F - F* (S,) at the mean of w over the second half of a BSGD run with eta ~ t^(-1/2).

    All blocks are drawn at every step, so that only B2 is to blame for what is left.
    """
    b1 = problem.m
    draws = problem.draws(range(plan.seeds), b1, b2)
    loop = Loop(problem, [methods.bsgd()], [0.1], start(problem, 1.0), plan.seeds)
    total = torch.zeros_like(loop.w)
    count = 0
    for t in range(plan.steps):
        if t % 32 == 0:
            loop.use(loop.methods, [0.1 / math.sqrt(1 + t / 200)])
        loop.step(next(draws), b1 * b2)
        if 2 * t >= plan.steps:
            total = total + loop.w
            count += 1
    mean = total / count
    optimum = problem.value(torch.ones(problem.d, dtype=torch.float64))
    gap = problem.value(mean) - optimum
    return _array(problem.gradient(mean)[0]), _array(gap[0])


def floors(plan: Plan, outcome: Outcome) -> None:
    """Measure the floor of ||grad F|| and of F - F* against B2, for a smooth f and for one with a kink in f'."""
    for name, outer in (("BSGD, smooth f", Smooth()), ("BSGD, kinked f'", Kinked())):
        problem = floor_problem(outer)
        gradients = []
        gaps = []
        for b2 in plan.b2s:
            gradient, gap = floor(plan, problem, b2)
            outcome.log(f"{name}: norm", b2, np.linalg.norm(gradient, axis=-1))
            outcome.log(f"{name}: gap", b2, gap)
            gradients.append(gradient)
            gaps.append(gap)
        _add_floors(plan, outcome, name, np.stack(gradients), np.stack(gaps))


def _add_floors(plan: Plan, outcome: Outcome, name: str, gradients: Array, gaps: Array) -> None:
    """Fit the floors of the gradients (K, S, d) and of the gaps (K, S) against B2."""

    def norms(seeds: Seeds) -> Array:
        mean = gradients[:, seeds].mean(1)  # noise cancels, the bias stays
        return np.asarray(np.linalg.norm(mean, axis=-1))

    quantity = "floor of the gradient norm against B2"
    labels = ("B2", "||grad F|| where BSGD settles")
    outcome.add(fit.measure("biased", name, quantity, plan.b2s, norms, plan.seeds, -0.5, labels=labels))
    quantity = "floor of F - F* against B2"
    labels = ("B2", "F - F* where BSGD settles")
    averaged = fit.averaged(gaps)
    outcome.add(fit.measure("biased", name, quantity, plan.b2s, averaged, plan.seeds, -1.0, labels=labels))


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
        """How many samples the run draws."""
        large_steps = math.ceil(self.steps / self.period)
        small_steps = self.steps - large_steps
        return self.b2 * (large_steps * self.large + small_steps * self.b1)


def bsgd_batches(plan: Plan, scale: float) -> Batches:
    """Return T ~ eps^(-4), B1 = 1, B2 ~ eps^(-2)."""
    steps = round(plan.horizon * scale**4)
    return Batches(steps, b1=1, b2=round(2 * scale**2), period=1, large=1)


def spider_batches(plan: Plan, scale: float) -> Batches:
    """Return T ~ eps^(-2), B1 and q ~ eps^(-1), B2 and the large batch ~ eps^(-2)."""
    large = min(plan.wide, round(16 * scale**2))
    steps = round(plan.horizon * scale**2)
    period = round(4 * scale)
    return Batches(steps, b1=round(4 * scale), b2=round(2 * scale**2), period=period, large=large)


def mixed(problem: Problem, seeds: int, sizes: Batches) -> Iterator[Draw]:
    """Yield large batches at t = 1, 1 + q, ... and small ones between."""
    small = problem.draws(range(seeds), sizes.b1, sizes.b2)
    large = problem.draws(range(seeds), sizes.large, sizes.b2, purpose=1)
    for t in range(sizes.steps):
        if t % sizes.period == 0:
            yield next(large)
        else:
            yield next(small)


def mean_norms(plan: Plan, problem: Problem, method: str, sizes: Batches, etas: list[float]) -> Array:
    """Return the mean ||grad F|| over the run for each step size (L, S)."""
    if method == "bsgd":
        made = methods.bsgd()
    else:
        made = methods.bspiderboost(period=sizes.period)
    loop = Loop(problem, [made] * len(etas), etas, start(problem, 1.0), plan.seeds)
    norms = Norms()
    for draw in mixed(problem, plan.seeds, sizes):
        norms.follow(loop)
        loop.step(draw, draw.blocks.shape[1] * sizes.b2)
    return norms.mean()


def complexities(plan: Plan, outcome: Outcome) -> None:
    """Measure the mean ||grad F|| against samples: claimed -1/6 for BSGD, -1/5 for BSpiderBoost."""
    scales = [2 ** (k / 2) for k in range(plan.accuracies)]
    cases = (
        ("bsgd", curved(20), bsgd_batches, 2.0, -1 / 6),
        ("bspiderboost", curved(plan.wide), spider_batches, 0.0, -1 / 5),
    )
    etas = np.geomspace(0.003, 1.0, 9).tolist()
    quantity = "mean norm against samples"
    labels = ("samples", "||grad F||, mean over the run")
    for method, problem, batches, power, claim in cases:
        tuning = mean_norms(plan, problem, method, batches(plan, scales[0]), etas)
        eta = etas[fit.best(tuning.mean(-1))]
        outcome.settings[f"eta of {method}"] = eta
        samples = []
        norms = []
        for scale in scales:
            sizes = batches(plan, scale)
            (norm,) = mean_norms(plan, problem, method, sizes, [eta / scale**power])
            samples.append(sizes.samples)
            norms.append(norm)
        outcome.log_all(f"{method}: mean norm", samples, norms)
        y = fit.averaged(np.stack(norms))
        outcome.add(fit.measure("biased", TITLES[method], quantity, samples, y, plan.seeds, claim, labels=labels))


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
