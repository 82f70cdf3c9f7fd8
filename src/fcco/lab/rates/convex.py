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
from fcco.lab.rates.forms import TITLES, First, halving, largest_beta
from fcco.lab.rates.journeys import Setting, final_gaps, gaps_at, recipe, start, travel
from fcco.lab.rates.problems import Problem, paired
from fcco.lab.rates.scaling import crossing
from fcco.methods.stages import Stage

METHODS = ("msvr-v2", "msvr-v1", "sox")
MU_CLAIMS = {"msvr-v2": 1.0, "msvr-v1": 2.0, "sox": 2.0}
CONVEX_CLAIMS = {"msvr-v2": -1 / 2, "msvr-v1": -1 / 3, "sox": -1 / 3}
ROUNDING = 1e-12  # gaps below it are rounding
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
    """Return F* = F(1, ..., 1)."""
    return float(problem.value(torch.ones(problem.d, dtype=torch.float64)))


def setting(plan: Plan, method: str, problem: Problem) -> Setting:
    """Return a setting that starts from w_1 = 0 and draws one block and one sample per step."""
    return Setting(problem, recipe(method, problem), start(problem, 0.0), plan.seeds)


def candidates(method: str) -> list[First]:
    """Return the grid for the first stage."""
    etas = np.geomspace(0.003, 0.5, 6).tolist()
    alphas = np.geomspace(0.03, 1, 4).tolist()
    betas = np.geomspace(0.1, largest_beta(method), 3).tolist()
    grid = itertools.product(etas, (31, 63, 125, 250), alphas, betas)
    return [First(*point) for point in grid]


def tune(plan: Plan, method: str, problem: Problem, mu: float = 0.0) -> First:
    """Return the first stage whose run has the smallest gap at the budget."""
    firsts = candidates(method)
    lanes = [_upto(method, one, plan.budget) for one in firsts]
    journey = travel(setting(plan, method, problem), lanes, [mu] * len(lanes))
    gaps, _ = gaps_at(journey, [plan.budget], optimum(problem))
    return firsts[fit.best(gaps[0].mean(-1))]


def _upto(method: str, one: First, budget: int) -> list[Stage]:
    """Return stages that end at the budget; the last one is cut short."""
    stages = []
    left = budget
    for stage in halving(method, one, 40):
        steps = min(stage.steps, left)
        stages.append(replace(stage, steps=steps))
        left -= steps
        if left == 0:
            break
    return stages


def _whole(method: str, one: First, longest: int, mu: float) -> list[Stage]:
    """Return as many whole stages as fit, at least two."""
    stages = halving(method, one, 40, mu)
    ends = np.cumsum([stage.steps for stage in stages])
    fitting = int((ends <= longest).sum())
    return stages[: max(2, fitting)]


def strongly(plan: Plan, outcome: Outcome) -> dict[str, tuple[Array, Array]]:
    """Measure gap against samples, and samples to one gap against 1/mu; return the curves at the largest mu."""
    curves: dict[str, tuple[Array, Array]] = {}
    for method in METHODS:
        one = tune(plan, method, paired(plan.m, q=plan.qs[0], scales=ROUND))
        outcome.settings[f"first stage of {method}"] = one._asdict()
        found = [_decline_at(plan, method, one, q) for q in plan.qs]
        curves[method] = found[0]
        samples, gaps = found[0]
        later = samples >= 0.9 * plan.budget
        outcome.log_all(f"{method}: strongly convex", samples, gaps)
        outcome.add(_fit(TITLES[method], "gap against samples, strongly convex", samples[later], gaps[later], -1.0))
        _add_mu(plan, outcome, method, found)
    return curves


def _decline_at(plan: Plan, method: str, one: First, q: float) -> tuple[Array, Array]:
    stop = 0.0
    if q < plan.qs[0]:  # only the largest mu has to run to the end
        stop = 0.4 * plan.level
    problem = paired(plan.m, q=q, scales=ROUND)
    return decline(plan, method, one, problem, q / plan.qs[0], stop)


def decline(
    plan: Plan, method: str, one: First, problem: Problem, mu: float = 1.0, stop: float = 0.0
) -> tuple[Array, Array]:
    """Return samples (K,) and gaps (K, S) at the middle and the end of each stage.

    ``mu`` is relative to the one that ``one`` was tuned for.
    """
    stages = _whole(method, one, plan.longest, mu)
    marks = set()
    end = 0
    for stage in stages:
        end += stage.steps
        marks.add(end - stage.steps // 2)
        marks.add(end)
    journey = travel(setting(plan, method, problem), [stages])
    gaps, samples = gaps_at(journey, sorted(marks), optimum(problem), stop)
    return samples, gaps[:, 0]


def _add_mu(plan: Plan, outcome: Outcome, method: str, found: list[tuple[Array, Array]]) -> None:
    x = [plan.qs[0] / q for q in plan.qs]
    for at, (samples, gaps) in zip(x, found, strict=True):
        outcome.log_all(f"{method}: mu_1/mu = {at:g}", samples, gaps)

    def values(seeds: Seeds) -> Array:
        return np.array([crossing(samples, gaps[:, seeds].mean(-1), plan.level) for samples, gaps in found])

    quantity = "samples to one gap against 1/mu"
    labels = ("mu_1/mu", f"samples to a gap of {plan.level:g}")
    claim = MU_CLAIMS[method]
    outcome.add(fit.measure("convex", TITLES[method], quantity, x, values, plan.seeds, claim, labels=labels))


def _fit(name: str, quantity: str, x: Array, y: Array, claim: float) -> tuple[fit.Row, fit.Curve]:
    labels = ("samples", "F - F*")
    return fit.measure("convex", name, quantity, x, fit.averaged(y), y.shape[1], claim, labels=labels)


def linear(plan: Plan, outcome: Outcome) -> None:
    """Measure v3: log gap against passes is a straight line whose slope is a multiple of mu."""
    curves = []
    for q in plan.qs:
        problem = paired(plan.finite_m, q=q, scales=ROUND, n=plan.n)
        passes, gaps = passes_of_v3(setting(plan, "msvr-v3", problem), plan.passes, plan.eta, optimum(problem))
        outcome.log_all(f"msvr-v3: q = {q:g}", passes, gaps)
        kept = gaps.mean(-1) > ROUNDING
        curves.append((passes[kept], gaps[kept]))

    passes, gaps = curves[0]
    quantity = "log gap against passes"
    labels = ("passes over the data", "F - F*")
    averaged = fit.averaged(gaps)
    outcome.add(
        fit.measure("convex", "MSVR-v3", quantity, passes, averaged, plan.seeds, None, labels=labels, log_x=False)
    )

    def squared_correlation(seeds: Seeds) -> float:
        return straight(passes, gaps[:, seeds].mean(-1))

    quantity = "R^2 of that line"
    outcome.rows.append(fit.number("convex", "MSVR-v3", quantity, squared_correlation, plan.seeds, 0.99, ">"))

    def passes_per_factor(seeds: Seeds) -> Array:
        return np.array([-1 / _rate(x, y[:, seeds].mean(-1)) for x, y in curves])

    x = [plan.qs[0] / q for q in plan.qs]
    quantity = "passes to a factor e against 1/mu"
    labels = ("mu_1/mu", "passes to a factor e")
    outcome.add(fit.measure("convex", "MSVR-v3", quantity, x, passes_per_factor, plan.seeds, 1.0, labels=labels))


def passes_of_v3(setting: Setting, passes: int, eta: float, optimum: float) -> tuple[Array, Array]:
    """Run v3 at the theorem's alpha and beta; return passes over the data (K,) and gaps (K, S)."""
    problem = setting.problem
    period = problem.m * problem.n
    stage = Stage(period * passes // 2, eta, alpha=1 / period, beta=1 / problem.n)
    marks = [period * k for k in range(1, passes // 2 + 1)]
    gaps, samples = gaps_at(travel(setting, [[stage]]), marks, optimum)
    return samples / period, gaps[:, 0]


def _rate(x: Array, y: Array) -> float:
    """Return the slope of log y on x over the second half."""
    half = x >= x[len(x) // 2]  # past the start, where the other directions still count
    return fit.slope(x[half], y[half], log_x=False)


def straight(x: Array, y: Array) -> float:
    """Return R^2 of log y on x."""
    correlation = np.corrcoef(x, np.log(y))[0, 1]
    return float(correlation**2)


def behind(plan: Plan, outcome: Outcome, curves: dict[str, tuple[Array, Array]]) -> None:
    """Measure samples times gap at the end of the run over v2's; Table 1 puts SOX (and v1) behind v2, so above 1."""
    products = {}
    for method, (samples, gaps) in curves.items():
        products[method] = samples[-1] * gaps[-1]  # (S,)
    quantity = "samples times gap over v2's, strongly convex"
    for method in ("sox", "msvr-v1"):

        def ratio(seeds: Seeds, product: Array = products[method]) -> float:
            return float(product[seeds].mean() / products["msvr-v2"][seeds].mean())

        outcome.rows.append(fit.number("convex", TITLES[method], quantity, ratio, plan.seeds, 1.0, ">"))


def regularised(plan: Plan, outcome: Outcome) -> None:
    """Measure the convex case by stages on F + (mu/2)||w||^2 with mu = eps/D and D = ||w*||^2.

    eps is halved from lane to lane, and everything else follows from it.
    """
    problem = paired(plan.m, q=0.0, scales=LONG)
    mu = plan.accuracy / problem.d
    budget = plan.budget // 2
    for method, claim in CONVEX_CLAIMS.items():
        one = tune(replace(plan, budget=budget), method, problem, mu)
        outcome.settings[f"first stage of {method}, convex"] = one._asdict()
        length = len(_upto(method, one, budget))
        halvings = plan.halvings
        if method == "msvr-v2":
            halvings += 1
        lanes = [halving(method, one, length + k, 2.0**-k) for k in range(halvings)]
        mus = [mu * 2.0**-k for k in range(halvings)]
        journey = travel(setting(plan, method, problem), lanes, mus)
        gaps, samples = final_gaps(journey, lanes, optimum(problem))
        outcome.log_all(f"{method}: convex", samples, gaps)
        outcome.add(_fit(TITLES[method], "gap against samples, convex", samples, gaps, claim))
    _regularised_v3(plan, outcome, mu)


def _regularised_v3(plan: Plan, outcome: Outcome, mu: float) -> None:
    problem = paired(plan.finite_m, q=0.0, scales=LONG, n=plan.n)
    period = plan.finite_m * plan.n
    lanes = []
    mus = []
    for k in range(plan.halvings + 2):
        steps = round(plan.budget / 4 * 2**k * (1 + 0.25 * k))  # (1/eps) log(1/eps)
        lanes.append([Stage(steps, 4 * plan.eta, alpha=1 / period, beta=1 / plan.n)])
        mus.append(mu * 2.0**-k)
    journey = travel(setting(plan, "msvr-v3", problem), lanes, mus)
    gaps, samples = final_gaps(journey, lanes, optimum(problem))
    outcome.log_all("msvr-v3: convex", samples, gaps)
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
