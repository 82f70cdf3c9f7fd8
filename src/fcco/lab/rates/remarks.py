"""Experiment 8. What the paper says besides its main rows: the other rows of Table 1, its remarks, its baselines.

- Theorem 6: adaptive v2, Adam style and AMSGrad style, on the non-convex problem.
- Section 3.2: the single-point forms, optimising, with the projection that they need.
- The introduction: all blocks probed at every step (SOX with B1 = m), the baseline that SOX does not beat.
- Table 1: SOX with its beta = 1 (no momentum; alpha = 1 here), convex; BSGD, convex and strongly convex.
- Theorems 3 and 5 under the PL condition alone, on a problem that is not convex.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import final

import numpy as np
import torch

from fcco import methods
from fcco.lab.rates import convex, fit, stationarity
from fcco.lab.rates.biased import floor_problem
from fcco.lab.rates.fit import Array, Outcome
from fcco.lab.rates.forms import TITLES, Constants, Form, Sizes
from fcco.lab.rates.journeys import Setting, recipe, start
from fcco.lab.rates.loop import Loop, Scaling
from fcco.lab.rates.problems import Kinked, Problem, paired, separate
from fcco.methods import Method

RADIUS = 3.0  # C_F of the single-point runs: above every ||grad F|| on the way
EVERY = "all blocks probed (SOX with B1 = m, the baseline)"
NORMS = ("samples", "||grad F||, mean over the run")
GAPS = ("samples", "F - F*")


@final
@dataclass(frozen=True)
class Plan:
    """Sizes of the experiment."""

    m: int = 20
    horizon: int = 1_000  # where constants are tuned
    doublings: int = 5
    lengths: int = 5  # of the runs with constant rates, a factor of 2 (SOX) or 4 (BSGD) apart
    budget: int = 2_000  # PL: where the first stage is tuned
    longest: int = 64_000  # PL: where runs end
    finite_m: int = 8
    n: int = 10
    passes: int = 80
    eta: float = 0.02  # of v3 under PL
    seeds: int = 8

    def stationarity(self) -> stationarity.Plan:
        """Return the same sizes for the runs on the non-convex problem."""
        return stationarity.Plan(horizon=self.horizon, doublings=self.doublings, m=self.m, seeds=self.seeds)

    def convex(self) -> convex.Plan:
        """Return the same sizes for the runs in stages."""
        return convex.Plan(m=self.m, budget=self.budget, longest=self.longest, seeds=self.seeds)


def _add(
    outcome: Outcome,
    name: str,
    quantity: str,
    x: Sequence[float] | Array,
    y: Array,
    claim: float | None,
    labels: tuple[str, str],
    panel: str,
) -> None:
    """Log and fit y (K, S) against x (K,)."""
    outcome.log_all(f"{name}: {quantity}", x, y)
    seeds = y.shape[1]
    measured = fit.measure("remarks", name, quantity, x, fit.averaged(y), seeds, claim, labels=labels, panel=panel)
    outcome.add(measured)


def norms(plan: Plan, outcome: Outcome) -> None:
    """Measure the mean ||grad F|| against samples, at the theorems' rates, for everything but the plain forms."""
    inner = plan.stationarity()
    _adaptive(outcome, inner, Sizes(plan.m))
    _single_point(outcome, inner, Form.V1_LATE, Sizes(4), "msvr-v1-sp", -1 / 4)
    _single_point(outcome, inner, Form.V2, Sizes(plan.m), "msvr-v2-sp", -1 / 3)
    every = stationarity.Case(Form.SOX, Sizes(plan.m, b1=plan.m))
    constants = stationarity.tune(inner, every)
    _follow(outcome, inner, EVERY, every, constants, -1 / 4, "mean norm, all blocks probed")
    _against_all_blocks(outcome, inner, every, constants)


def _adaptive(outcome: Outcome, plan: stationarity.Plan, sizes: Sizes) -> None:
    """Measure adaptive v2 in both styles (Theorem 6)."""
    for style, delta in itertools.product(("Adam", "AMSGrad"), (1.0, 0.1)):
        scaling = Scaling(0.1, delta, amsgrad=style == "AMSGrad")
        case = stationarity.Case(Form.V2, sizes, adaptive=scaling)
        constants = stationarity.tune(plan, case)
        _follow(outcome, plan, f"adaptive MSVR-v2, {style} style, delta = {delta:g}", case, constants, -1 / 3)


def _single_point(
    outcome: Outcome, plan: stationarity.Plan, form: Form, sizes: Sizes, method: str, claim: float
) -> None:
    """Measure a single-point form (Section 3.2)."""
    # Tuned with two points, so that what is measured is what the single point changes.
    constants = stationarity.tune(plan, stationarity.Case(form, sizes))
    case = stationarity.Case(form, sizes, method=method, radius=RADIUS)
    _follow(outcome, plan, f"{form} with SP", case, constants, claim)


def _follow(
    outcome: Outcome,
    plan: stationarity.Plan,
    name: str,
    case: stationarity.Case,
    constants: Constants,
    claim: float,
    panel: str = "mean norm",
) -> None:
    found = stationarity.follow(plan, case, constants, plan.horizons())
    outcome.settings[f"constants of {name}"] = constants._asdict()
    _add(outcome, name, "mean norm", found.samples, found.means[:, 0], claim, NORMS, panel)


def _against_all_blocks(
    outcome: Outcome, plan: stationarity.Plan, every: stationarity.Case, constants: Constants
) -> None:
    """Compare SOX at B1 = 1 and at B1 = m after the same number of samples; the introduction says: no better."""
    m = every.sizes.m
    steps = plan.horizons()[0]
    one = stationarity.Case(Form.SOX, Sizes(m))
    tuned = stationarity.tune(plan, one)
    few = stationarity.follow(plan, one, tuned, [steps * m])
    many = stationarity.follow(plan, every, constants, [steps])

    def ratio(seeds: fit.Seeds) -> float:
        return float(few.means[0, 0, seeds].mean() / many.means[0, 0, seeds].mean())

    quantity = f"mean norm over that of all blocks probed, {steps * m:,} samples each"
    outcome.rows.append(fit.number("remarks", "SOX", quantity, ratio, plan.seeds, None))


def mean_gaps(
    problem: Problem, made: Sequence[Method], etas: Sequence[float], horizons: Sequence[int], b2: int, seeds: int
) -> Array:
    """Return F - F* at the mean of a lane's iterates over its own horizon (L, S); one block per step."""
    loop = Loop(problem, made, etas, start(problem, 0.0), seeds)
    draws = problem.draws(range(seeds), 1, b2)
    optimum = convex.optimum(problem)
    total = torch.zeros_like(loop.w)
    gaps = np.zeros((len(made), seeds))
    for t in range(1, max(horizons) + 1):
        loop.step(next(draws), b2)
        total = total + loop.w
        if t in horizons:
            gap = (problem.value(total / t) - optimum).numpy()
            ends = np.array(horizons) == t
            gaps[ends] = gap[ends]
    return gaps


def without_momentum(plan: Plan, outcome: Outcome) -> None:
    """Measure SOX with its beta = 1: eta, beta ~ T^(-1/2), claimed eps^(-2) where f is convex and rises, g convex."""
    problem = paired(plan.m, q=0.0, scales=convex.LONG)
    grid = list(itertools.product(np.geomspace(0.01, 1, 6).tolist(), np.geomspace(0.03, 1, 5).tolist()))
    lanes = [methods.sox(alpha=1.0, beta=beta) for _, beta in grid]
    etas = [eta for eta, _ in grid]
    tuned = mean_gaps(problem, lanes, etas, [plan.horizon] * len(grid), 1, plan.seeds)
    eta, beta = grid[fit.best(tuned.mean(-1))]
    outcome.settings["SOX, beta = 1"] = {"eta": eta, "beta": beta}

    horizons = [2 * plan.horizon * 2**k for k in range(plan.lengths)]
    lanes = []
    etas = []
    for horizon in horizons:
        shrink = (plan.horizon / horizon) ** 0.5
        lanes.append(methods.sox(alpha=1.0, beta=min(1.0, beta * shrink)))
        etas.append(eta * shrink)
    gaps = mean_gaps(problem, lanes, etas, horizons, 1, plan.seeds)
    name = "SOX (its beta = 1: no momentum)"
    _add(outcome, name, "gap against samples, convex", horizons, gaps, -1 / 2, GAPS, "convex")


def bsgd(plan: Plan, outcome: Outcome) -> None:
    """Measure BSGD with B2 ~ 1/eps, T ~ eps^(-2), eta ~ eps: claimed eps^(-3) for convex and strongly convex F."""
    scales = (1.0, 0.7, 0.5, 0.35, 0.25)
    problems = {
        "convex": paired(plan.m, q=0.0, scales=scales, outer=Kinked(), tilt=3.0, lopsided=2.0, depth=0.0),
        "strongly convex": floor_problem(Kinked()),
    }
    etas = np.geomspace(0.003, 0.3, 9).tolist()
    first = plan.horizon // 4
    for kind, problem in problems.items():
        tuned = mean_gaps(problem, [methods.bsgd()] * len(etas), etas, [first] * len(etas), 2, plan.seeds)
        eta = etas[fit.best(tuned.mean(-1))]
        outcome.settings[f"eta of BSGD, {kind}"] = eta
        gaps = []
        samples = []
        for k in range(plan.lengths - 1):
            b2 = 2 * 2**k
            steps = first * 4**k
            (gap,) = mean_gaps(problem, [methods.bsgd()], [eta / 2**k], [steps], b2, plan.seeds)
            gaps.append(gap)
            samples.append(b2 * steps)
        _add(outcome, "BSGD", f"gap against samples, {kind}", samples, np.stack(gaps), -1 / 3, GAPS, kind)


def pl(plan: Plan, outcome: Outcome) -> None:
    """Measure PL without convexity: stages of v2 and SOX, and v3's straight line."""
    inner = plan.convex()
    problem = separate(plan.m)
    for method in ("msvr-v2", "sox"):
        one = convex.tune(inner, method, problem)
        outcome.settings[f"first stage of {method}, PL"] = one._asdict()
        samples, gaps = convex.decline(inner, method, one, problem)
        later = samples >= 0.9 * plan.budget
        quantity = "gap against samples, PL"
        _add(outcome, TITLES[method], quantity, samples[later], gaps[later], -1.0, GAPS, "PL, not convex")
    _linear(plan, outcome)


def _linear(plan: Plan, outcome: Outcome) -> None:
    problem = separate(plan.finite_m, n=plan.n)
    setting = Setting(problem, recipe("msvr-v3", problem), start(problem, 0.0), plan.seeds)
    passes, gaps = convex.passes_of_v3(setting, plan.passes, plan.eta, optimum=0.0)
    kept = gaps.mean(-1) > convex.ROUNDING
    passes = passes[kept]
    gaps = gaps[kept]
    outcome.log_all("MSVR-v3: PL", passes, gaps)

    late = passes >= passes[len(passes) // 3]  # past the start, where F is not yet near its quadratic part
    x = passes[late]
    y = gaps[late]
    measured = fit.measure(
        "remarks",
        "MSVR-v3",
        "log gap against passes, PL",
        x,
        fit.averaged(y),
        plan.seeds,
        None,
        labels=("passes over the data", "F - F*"),
        panel="PL, not convex: v3",
        log_x=False,
    )
    outcome.add(measured)

    def squared_correlation(seeds: fit.Seeds) -> float:
        return convex.straight(x, y[:, seeds].mean(-1))

    quantity = "R^2 of that line, PL"
    outcome.rows.append(fit.number("remarks", "MSVR-v3", quantity, squared_correlation, plan.seeds, 0.99, ">"))


def run(quick: bool, seeds: int) -> Outcome:
    """Measure them all."""
    plan = Plan(seeds=seeds)
    if quick:
        plan = replace(plan, horizon=120, doublings=3, lengths=3, budget=400, longest=3_000, passes=20)
    outcome = Outcome(settings=asdict(plan))
    norms(plan, outcome)
    without_momentum(plan, outcome)
    bsgd(plan, outcome)
    pl(plan, outcome)
    return outcome
