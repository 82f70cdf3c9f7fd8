"""Experiment 4. Strongly convex (so PL), and convex but not strongly: stage-wise runs to a known optimum.

What the first stage takes is tuned once, at a first budget of samples; the powers of mu and eps_s do the rest.
The strongly convex problem has one direction whose curvature is mu alone, so q sets the condition number.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, replace
from typing import final

import numpy as np
import torch

from fcco.lab.rates import fit
from fcco.lab.rates.fit import Array, Outcome, Seeds
from fcco.lab.rates.forms import TITLES, First, halving
from fcco.lab.rates.journeys import Setting, final_gaps, gaps_at, recipe, start, travel
from fcco.lab.rates.problems import Problem, paired
from fcco.lab.rates.scaling import crossing
from fcco.methods.stages import Stage

METHODS = ("msvr-v2", "msvr-v1", "sox")
MU_CLAIMS = {"msvr-v2": 1.0, "msvr-v1": 2.0, "sox": 2.0}
CONVEX_CLAIMS = {"msvr-v2": -1 / 2, "msvr-v1": -1 / 3, "sox": -1 / 3}
ROUND = (1.0, 0.9, 0.8, 0.7, 0.0)  # scales of the strongly convex problem
LONG = tuple(2.0 ** (-j / 2) for j in range(10))  # scales of the convex one: eigenvalues over three decades


@final
@dataclass(frozen=True)
class Plan:
    """Sizes of the experiment; ``budget`` is where the first stage is tuned, ``longest`` where runs end."""

    m: int = 20
    qs: tuple[float, ...] = (0.8, 0.4, 0.2, 0.1)
    budget: int = 2_000
    longest: int = 64_000
    level: float = 0.005  # the gap whose samples are counted against 1/mu
    finite_m: int = 10
    n: int = 10
    passes: int = 80
    eta: float = 0.005  # v3's, the same for every mu, as in its theorem
    accuracy: float = 0.05  # convex: the first eps
    halvings: int = 3  # convex: how often eps is halved (v2); the others take 8 times the samples each time
    seeds: int = 8


def optimum(problem: Problem) -> float:
    """F* = F(1, ..., 1)."""
    return float(problem.value(torch.ones(problem.d, dtype=torch.float64)))


def setting(plan: Plan, method: str, problem: Problem) -> Setting:
    """From w_1 = 0, with one block and one sample a step."""
    return Setting(problem, recipe(method, problem), start(problem, 0.0), plan.seeds)


def candidates(method: str) -> list[First]:
    """The grid for the first stage."""
    betas = np.geomspace(0.1, 1.0 if method == "sox" else 0.5, 3)
    grid = itertools.product(np.geomspace(0.003, 0.5, 6), (31, 63, 125, 250), np.geomspace(0.03, 1, 4), betas)
    return [First(float(eta), steps, float(alpha), float(beta)) for eta, steps, alpha, beta in grid]


def tune(plan: Plan, method: str, problem: Problem, mu: float = 0.0) -> First:
    """The first stage whose run has the smallest gap at the budget."""
    firsts = candidates(method)
    journey = travel(setting(plan, method, problem), [_upto(method, one, plan.budget) for one in firsts],
                     [mu] * len(firsts))  # fmt: skip
    gaps, _ = gaps_at(journey, [plan.budget], optimum(problem))
    return firsts[fit.best(gaps[0].mean(-1))]


def _upto(method: str, one: First, budget: int) -> list[Stage]:
    """Stages that end at the budget, the last one cut."""
    stages, left = [], budget
    for stage in halving(method, one, 40):
        stages.append(replace(stage, steps=min(stage.steps, left)))
        left -= stages[-1].steps
        if left == 0:
            break
    return stages


def _whole(method: str, one: First, longest: int, mu: float) -> list[Stage]:
    """As many whole stages as fit, at least two."""
    stages = halving(method, one, 40, mu)
    ends = np.cumsum([stage.steps for stage in stages])
    return stages[: max(2, int((ends <= longest).sum()))]


def strongly(plan: Plan, outcome: Outcome) -> dict[str, tuple[Array, Array]]:
    """Gap against samples, and samples to one gap against 1/mu; returns each method's curve at the largest mu."""
    curves: dict[str, tuple[Array, Array]] = {}
    for method in METHODS:
        one = tune(plan, method, paired(plan.m, q=plan.qs[0], scales=ROUND))
        outcome.settings[f"first stage of {method}"] = one._asdict()
        found = [_decline_at(plan, method, one, q) for q in plan.qs]
        curves[method] = found[0]
        samples, gaps = found[0]
        later = samples >= 0.9 * plan.budget
        _log(outcome, f"{method}: strongly convex", samples, gaps)
        outcome.add(_fit(TITLES[method], "gap against samples, strongly convex", samples[later], gaps[later], -1.0))
        _add_mu(plan, outcome, method, found)
    return curves


def _decline_at(plan: Plan, method: str, one: First, q: float) -> tuple[Array, Array]:
    stop = 0.4 * plan.level if q < plan.qs[0] else 0.0  # only the largest mu has to run to the end
    return decline(plan, method, one, paired(plan.m, q=q, scales=ROUND), q / plan.qs[0], stop)


def decline(
    plan: Plan, method: str, one: First, problem: Problem, mu: float = 1.0, stop: float = 0.0
) -> tuple[Array, Array]:
    """Samples (K,) and gaps (K, S) at the middles and the ends of the stages; ``mu`` is relative to ``one``'s."""
    stages = _whole(method, one, plan.longest, mu)
    ends = np.cumsum([stage.steps for stage in stages])
    halves = [int(end) - stage.steps // 2 for end, stage in zip(ends, stages, strict=True)]
    marks = sorted({*halves, *map(int, ends)})
    gaps, samples = gaps_at(travel(setting(plan, method, problem), [stages]), marks, optimum(problem), stop)
    return samples, gaps[:, 0]


def _add_mu(plan: Plan, outcome: Outcome, method: str, found: list[tuple[Array, Array]]) -> None:
    x = [plan.qs[0] / q for q in plan.qs]
    for at, (samples, gaps) in zip(x, found, strict=True):
        _log(outcome, f"{method}: mu_1/mu = {at:g}", samples, gaps)

    def values(seeds: Seeds) -> Array:
        return np.array([crossing(samples, gaps[:, seeds].mean(-1), plan.level) for samples, gaps in found])

    outcome.add(
        fit.measure("convex", TITLES[method], "samples to one gap against 1/mu", x, values, plan.seeds,
                    MU_CLAIMS[method], labels=("mu_1/mu", f"samples to a gap of {plan.level:g}"))
    )  # fmt: skip


def _fit(name: str, quantity: str, x: Array, y: Array, claim: float) -> tuple[fit.Row, fit.Curve]:
    labels = ("samples", "F - F*")
    return fit.measure("convex", name, quantity, x, fit.averaged(y), y.shape[1], claim, labels=labels)


def _log(outcome: Outcome, series: str, x: Array, y: Array) -> None:
    for at, row in zip(x, y, strict=True):
        outcome.log(series, at, row)


def linear(plan: Plan, outcome: Outcome) -> None:
    """v3: log gap against passes is a straight line whose slope is a multiple of mu."""
    passes = []
    for q in plan.qs:
        problem = paired(plan.finite_m, q=q, scales=ROUND, n=plan.n)
        period = plan.finite_m * plan.n
        stages = [[Stage(period * plan.passes // 2, plan.eta, 1 / period, 1 / plan.n)]]
        marks = [period * k for k in range(1, plan.passes // 2 + 1)]
        gaps, samples = gaps_at(travel(setting(plan, "msvr-v3", problem), stages), marks, optimum(problem))
        x, y = samples / period, gaps[:, 0]
        _log(outcome, f"msvr-v3: q = {q:g}", x, y)
        kept = y.mean(-1) > 1e-12  # above rounding
        passes.append((x[kept], y[kept]))
    x, y = passes[0]
    outcome.add(
        fit.measure("convex", "MSVR-v3", "log gap against passes", x, fit.averaged(y),
                    plan.seeds, None, labels=("passes over the data", "F - F*"), log_x=False)
    )  # fmt: skip
    outcome.rows.append(
        fit.number("convex", "MSVR-v3", "R^2 of that line", lambda s: straight(x, y[:, s].mean(-1)), plan.seeds,
                   0.99, ">")
    )  # fmt: skip

    def values(seeds: Seeds) -> Array:
        return np.array([-1 / _rate(x, y[:, seeds].mean(-1)) for x, y in passes])

    across = [plan.qs[0] / q for q in plan.qs]
    outcome.add(
        fit.measure("convex", "MSVR-v3", "passes to a factor e against 1/mu", across, values, plan.seeds, 1.0,
                    labels=("mu_1/mu", "passes to a factor e"))
    )  # fmt: skip


def _rate(x: Array, y: Array) -> float:
    half = x >= x[len(x) // 2]  # past the start, where the other directions still count
    return fit.slope(x[half], y[half], log_x=False)


def straight(x: Array, y: Array) -> float:
    """R^2 of log y on x."""
    return float(np.corrcoef(x, np.log(y))[0, 1] ** 2)


def behind(plan: Plan, outcome: Outcome, curves: dict[str, tuple[Array, Array]]) -> None:
    """Table 1 puts SOX (and v1) behind v2: samples times gap at the end of the run over v2's, claimed above 1."""
    samples, gaps = curves["msvr-v2"]
    last = samples[-1] * gaps[-1]
    for method in ("sox", "msvr-v1"):
        own = curves[method][0][-1] * curves[method][1][-1]

        def ratio(seeds: Seeds, own: Array = own) -> float:
            return float(own[seeds].mean() / last[seeds].mean())

        quantity = "samples times gap over v2's, strongly convex"
        outcome.rows.append(fit.number("convex", TITLES[method], quantity, ratio, plan.seeds, 1.0, ">"))


def regularised(plan: Plan, outcome: Outcome) -> None:
    """Convex: stages on F + (mu/2)||w||^2 with mu = eps/D, D = ||w*||^2; eps is halved, everything else follows."""
    problem = paired(plan.m, q=0.0, scales=LONG)
    mu = plan.accuracy / problem.d
    for method, claim in CONVEX_CLAIMS.items():
        one = tune(replace(plan, budget=plan.budget // 2), method, problem, mu)
        outcome.settings[f"first stage of {method}, convex"] = one._asdict()
        length = len(_upto(method, one, plan.budget // 2))
        halvings = range(plan.halvings + 1 if method == "msvr-v2" else plan.halvings)
        lanes = [halving(method, one, length + k, 2.0**-k) for k in halvings]
        journey = travel(setting(plan, method, problem), lanes, [mu * 2.0**-k for k in halvings])
        gaps, samples = final_gaps(journey, lanes, optimum(problem))
        _log(outcome, f"{method}: convex", samples, gaps)
        outcome.add(_fit(TITLES[method], "gap against samples, convex", samples, gaps, claim))
    _regularised_v3(plan, outcome, mu)


def _regularised_v3(plan: Plan, outcome: Outcome, mu: float) -> None:
    problem = paired(plan.finite_m, q=0.0, scales=LONG, n=plan.n)
    period, halvings = plan.finite_m * plan.n, range(plan.halvings + 2)
    steps = [round(plan.budget / 4 * 2**k * (1 + 0.25 * k)) for k in halvings]  # (1/eps) log(1/eps)
    lanes = [[Stage(t, 4 * plan.eta, 1 / period, 1 / plan.n)] for t in steps]
    journey = travel(setting(plan, "msvr-v3", problem), lanes, [mu * 2.0**-k for k in halvings])
    gaps, samples = final_gaps(journey, lanes, optimum(problem))
    _log(outcome, "msvr-v3: convex", samples, gaps)
    outcome.add(_fit("MSVR-v3", "gap against samples, convex", samples, gaps, -1.0))


def run(quick: bool, seeds: int) -> Outcome:
    """Measure rates and the dependence on mu."""
    plan = Plan(seeds=seeds)
    if quick:
        plan = replace(plan, qs=(0.8, 0.2), budget=500, longest=4_000, level=0.01, passes=30, halvings=2)
    outcome = Outcome(settings=asdict(plan))
    curves = strongly(plan, outcome)
    behind(plan, outcome, curves)
    linear(plan, outcome)
    regularised(plan, outcome)
    return outcome
