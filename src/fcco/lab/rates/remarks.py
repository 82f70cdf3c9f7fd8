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
from fcco.lab.rates.journeys import Setting, gaps_at, recipe, start, travel
from fcco.lab.rates.loop import Loop, Scaling
from fcco.lab.rates.problems import Kinked, Problem, paired, separate
from fcco.methods import Method
from fcco.methods.stages import Stage

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
        """The same sizes for the runs on the non-convex problem."""
        return stationarity.Plan(horizon=self.horizon, doublings=self.doublings, m=self.m, seeds=self.seeds)

    def convex(self) -> convex.Plan:
        """The same sizes for the runs in stages."""
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
    for at, row in zip(x, y, strict=True):
        outcome.log(f"{name}: {quantity}", at, row)
    outcome.add(
        fit.measure("remarks", name, quantity, x, fit.averaged(y), y.shape[1], claim, labels=labels, panel=panel)
    )


def norms(plan: Plan, outcome: Outcome) -> None:
    """Mean ||grad F|| against samples, at the theorems' rates, for everything but the plain forms."""
    inner, sizes = plan.stationarity(), Sizes(plan.m)
    for amsgrad, delta in itertools.product((False, True), (1.0, 0.1)):
        style = "AMSGrad" if amsgrad else "Adam"
        case = stationarity.Case(Form.V2, sizes, adaptive=Scaling(0.1, delta, amsgrad))
        constants = stationarity.tune(inner, case)
        _follow(outcome, inner, f"adaptive MSVR-v2, {style} style, delta = {delta:g}", case, constants, -1 / 3)
    for form, own, method, claim in (
        (Form.V1_LATE, Sizes(4), "msvr-v1-sp", -1 / 4),
        (Form.V2, sizes, "msvr-v2-sp", -1 / 3),
    ):
        # Tuned with two points, so that what is measured is what the single point changes.
        constants = stationarity.tune(inner, stationarity.Case(form, own))
        case = stationarity.Case(form, own, method=method, radius=RADIUS)
        _follow(outcome, inner, f"{form} with SP", case, constants, claim)
    every = stationarity.Case(Form.SOX, Sizes(plan.m, b1=plan.m))
    constants = stationarity.tune(inner, every)
    _follow(outcome, inner, EVERY, every, constants, -1 / 4, "mean norm, all blocks probed")
    _against_all_blocks(outcome, inner, every, constants)


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
    """SOX at B1 = 1 against B1 = m after the same number of samples; the introduction says: no better."""
    m, steps = every.sizes.m, plan.horizons()[0]
    one = stationarity.Case(Form.SOX, Sizes(m))
    few = stationarity.follow(plan, one, stationarity.tune(plan, one), [steps * m])
    many = stationarity.follow(plan, every, constants, [steps])

    def ratio(seeds: fit.Seeds) -> float:
        return float(few.means[0, 0, seeds].mean() / many.means[0, 0, seeds].mean())

    quantity = f"mean norm over that of all blocks probed, {steps * m:,} samples each"
    outcome.rows.append(fit.number("remarks", "SOX", quantity, ratio, plan.seeds, None))


def mean_gaps(
    problem: Problem, made: Sequence[Method], etas: Sequence[float], horizons: Sequence[int], b2: int, seeds: int
) -> Array:
    """F - F* at the mean of a lane's iterates over its own horizon (L, S); one block per step."""
    loop = Loop(problem, made, etas, start(problem, 0.0), seeds)
    total = torch.zeros_like(loop.w)
    optimum = convex.optimum(problem)
    gaps = np.zeros((len(made), seeds))
    for t, draw in zip(range(1, max(horizons) + 1), problem.draws(range(seeds), 1, b2), strict=False):
        loop.step(draw, b2)
        total = total + loop.w
        if t in horizons:
            value = (problem.value(total / t) - optimum).numpy()
            for lane, horizon in enumerate(horizons):
                if horizon == t:
                    gaps[lane] = value[lane]
    return gaps


def without_momentum(plan: Plan, outcome: Outcome) -> None:
    """SOX with its beta = 1: eta, beta ~ T^(-1/2), claimed eps^(-2) where f is convex and rises and g is convex."""
    problem = paired(plan.m, q=0.0, scales=convex.LONG)
    horizons = [2 * plan.horizon * 2**k for k in range(plan.lengths)]
    grid = list(itertools.product(np.geomspace(0.01, 1, 6).tolist(), np.geomspace(0.03, 1, 5).tolist()))
    made = [methods.sox(alpha=1.0, beta=beta) for _, beta in grid]
    tuned = mean_gaps(problem, made, [eta for eta, _ in grid], [plan.horizon] * len(grid), 1, plan.seeds)
    eta, beta = grid[fit.best(tuned.mean(-1))]
    outcome.settings["SOX, beta = 1"] = {"eta": eta, "beta": beta}
    shrink = [(plan.horizon / t) ** 0.5 for t in horizons]
    lanes = [methods.sox(alpha=1.0, beta=min(1.0, beta * by)) for by in shrink]
    gaps = mean_gaps(problem, lanes, [eta * by for by in shrink], horizons, 1, plan.seeds)
    name = "SOX (its beta = 1: no momentum)"
    _add(outcome, name, "gap against samples, convex", horizons, gaps, -1 / 2, GAPS, "convex")


def bsgd(plan: Plan, outcome: Outcome) -> None:
    """BSGD with B2 ~ 1/eps, T ~ eps^(-2), eta ~ eps: claimed eps^(-3), both for convex and strongly convex F."""
    kinked = {"outer": Kinked(), "tilt": 3.0, "lopsided": 2.0, "depth": 0.0}
    problems = {
        "convex": paired(plan.m, q=0.0, scales=(1.0, 0.7, 0.5, 0.35, 0.25), **kinked),  # type: ignore[arg-type]
        "strongly convex": floor_problem(Kinked()),
    }
    etas = np.geomspace(0.003, 0.3, 9).tolist()
    for kind, problem in problems.items():
        first = plan.horizon // 4
        tuned = mean_gaps(problem, [methods.bsgd()] * len(etas), etas, [first] * len(etas), 2, plan.seeds)
        eta = etas[fit.best(tuned.mean(-1))]
        outcome.settings[f"eta of BSGD, {kind}"] = eta
        gaps, samples = [], []
        for k in range(plan.lengths - 1):
            b2, steps = 2 * 2**k, first * 4**k
            gaps.append(mean_gaps(problem, [methods.bsgd()], [eta / 2**k], [steps], b2, plan.seeds)[0])
            samples.append(b2 * steps)
        _add(outcome, "BSGD", f"gap against samples, {kind}", samples, np.stack(gaps), -1 / 3, GAPS, kind)


def pl(plan: Plan, outcome: Outcome) -> None:
    """PL without convexity: stages of v2 and SOX, and v3's straight line."""
    inner, problem = plan.convex(), separate(plan.m)
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
    period = plan.finite_m * plan.n
    setting = Setting(problem, recipe("msvr-v3", problem), start(problem, 0.0), plan.seeds)
    stages = [[Stage(period * plan.passes // 2, plan.eta, 1 / period, 1 / plan.n)]]
    marks = [period * k for k in range(1, plan.passes // 2 + 1)]
    gaps, samples = gaps_at(travel(setting, stages), marks, 0.0)
    x, y = samples / period, gaps[:, 0]
    kept = y.mean(-1) > 1e-12  # above rounding
    x, y = x[kept], y[kept]
    for at, row in zip(x, y, strict=True):
        outcome.log("MSVR-v3: PL", at, row)
    late = x >= x[len(x) // 3]  # past the start, where F is not yet near its quadratic part
    labels = ("passes over the data", "F - F*")
    outcome.add(
        fit.measure("remarks", "MSVR-v3", "log gap against passes, PL", x[late], fit.averaged(y[late]), plan.seeds,
                    None, labels=labels, panel="PL, not convex: v3", log_x=False)
    )  # fmt: skip

    def squared_correlation(seeds: fit.Seeds) -> float:
        return convex.straight(x[late], y[late][:, seeds].mean(-1))

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
