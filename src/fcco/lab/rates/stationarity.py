"""Experiment 3. Stationarity on a non-convex problem, f = sqrt(1 + u^2) + 0.75 sin u.

Constants are tuned once, at a first horizon, and carried to longer ones by the theorems' exponents. Two forms:
the theorems' own decaying rates, where one run serves every horizon, and the constant-free rates of
:mod:`fcco.schedules` with normalised steps, where every horizon is a lane of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple, final

import numpy as np

from fcco._support import checks
from fcco.lab.rates import fit, forms
from fcco.lab.rates.fit import Array, Outcome
from fcco.lab.rates.forms import Constants, Form, Sizes
from fcco.lab.rates.journeys import Found, Setting, norms_at, recipe, start, travel
from fcco.lab.rates.loop import Scaling
from fcco.lab.rates.problems import Problem, curved
from fcco.methods import schedules
from fcco.methods.schedules import Rates, at
from fcco.methods.stages import Stage

LABELS = ("samples", "||grad F||, mean over the run")
ERROR_LABELS = ("samples", "||z - grad F||, root mean square")
GRIDS = {
    Form.SOX: (np.geomspace(0.3, 10, 6), np.geomspace(0.1, 30, 6), np.geomspace(0.1, 10, 4)),
    Form.V1_LATE: (np.geomspace(0.03, 1, 6), np.geomspace(0.1, 100, 6), np.geomspace(0.003, 3, 4)),
    Form.V1_EARLY: (np.geomspace(0.3, 30, 6), np.geomspace(0.1, 100, 6), np.geomspace(0.0003, 0.3, 4)),
    Form.V2: (np.geomspace(0.1, 3, 6), np.geomspace(0.3, 300, 6), np.geomspace(0.03, 30, 4)),
}
# form -> (m, claim): v1 goes as T^(-1/3) while 1/eps < m (B1 = B2 = 1) and as T^(-1/4) after
CASES = {
    Form.SOX: (20, -1 / 4),
    Form.V1_LATE: (4, -1 / 4),
    Form.V1_EARLY: (100, -1 / 3),
    Form.V2: (20, -1 / 3),
}


@final
@dataclass(frozen=True)
class Plan:
    """Sizes of the experiment; horizons are horizon * 4 * 2^k, the tuned one itself is not fitted."""

    horizon: int = 1_000
    doublings: int = 5
    m: int = 20
    finite_m: int = 10
    n: int = 10
    seeds: int = 8

    def horizons(self) -> list[int]:
        """Return where the slope is fitted."""
        return [4 * self.horizon * 2**k for k in range(self.doublings)]


def add(
    outcome: Outcome,
    plan: Plan,
    name: str,
    quantity: str,
    samples: Array,
    y: Array,
    claim: float,
    panel: str,
    labels: tuple[str, str] = LABELS,
) -> None:
    """Log and fit a norm (K, S) against samples (K,)."""
    outcome.log_all(f"{name}: {quantity}", samples, y)
    measured = fit.measure(
        "stationarity", name, quantity, samples, fit.averaged(y), plan.seeds, claim, labels=labels, panel=panel
    )
    outcome.add(measured)


@final
@dataclass(frozen=True)
class Case:
    """What is run at a form's rates.

    Args:
        method: None: the form's own.
    """

    form: Form
    sizes: Sizes
    method: str | None = None
    radius: float | None = None
    adaptive: Scaling | None = None

    def setting(self, plan: Plan) -> Setting:
        """Return the setting on the non-convex problem."""
        problem = curved(self.sizes.m)
        return Setting(
            problem=problem,
            recipe=recipe(self.method or forms.METHOD[self.form], problem),
            w1=start(problem, 1.0),
            seeds=plan.seeds,
            b1=self.sizes.b1,
            b2=self.sizes.b2,
            radius=self.radius,
            adaptive=self.adaptive,
        )


def tune(plan: Plan, case: Case) -> Constants:
    """Return the constants of the grid that are best at the first horizon."""
    candidates = forms.grid(*GRIDS[case.form])
    lanes = [forms.decaying(case.form, case.sizes, c, plan.horizon) for c in candidates]
    return candidates[_best_lane(case.setting(plan), lanes, plan.horizon)]


def _best_lane(setting: Setting, lanes: list[list[Stage]], horizon: int) -> int:
    """Return the lane with the smallest mean ||grad F|| over the horizon."""
    found = norms_at(travel(setting, lanes), [horizon])
    return fit.best(found.means[0].mean(-1))


def follow(plan: Plan, case: Case, constants: Constants, marks: list[int]) -> Found:
    """Return what the marked steps found at the theorem's rates with these constants."""
    stages = forms.decaying(case.form, case.sizes, constants, marks[-1])
    return norms_at(travel(case.setting(plan), [stages]), marks)


def theorem_v3(plan: Plan) -> tuple[float, Found]:
    """Run v3, whose rates are constants (alpha = 1/I, beta = 1/n); return the tuned eta, and what was found with it."""
    problem = curved(plan.finite_m, n=plan.n)
    setting = Setting(problem, recipe("msvr-v3", problem), start(problem, 1.0), plan.seeds)
    alpha = 1 / (plan.finite_m * plan.n)
    beta = 1 / plan.n
    etas = np.geomspace(0.003, 0.3, 12).tolist()
    lanes = [[Stage(plan.horizon, eta, alpha, beta)] for eta in etas]
    eta = etas[_best_lane(setting, lanes, plan.horizon)]
    marks = plan.horizons()
    stage = Stage(marks[-1], eta, alpha, beta)
    return eta, norms_at(travel(setting, [[stage]]), marks)


class ConstantFree(NamedTuple):
    """A method with constant-free rates."""

    name: str
    method: str
    problem: Problem
    rates: Callable[[int], Rates]  # of a horizon
    claim: float


def _constant_free(plan: Plan) -> tuple[ConstantFree, ...]:
    online = curved(plan.m)
    few = curved(4)
    finite = curved(plan.finite_m, n=plan.n)

    def sox(horizon: int) -> Rates:
        return schedules.constant_free_sox(m=plan.m, b1=1, horizon=horizon)

    def v1(horizon: int) -> Rates:
        return schedules.constant_free_v1(m=4, b1=1, horizon=horizon)

    def v2(horizon: int) -> Rates:
        return schedules.constant_free_v2(m=plan.m, b1=1, horizon=horizon)

    def v3(horizon: int) -> Rates:
        return schedules.constant_free_v3(m=plan.finite_m, n=plan.n, b1=1, horizon=horizon)

    return (
        ConstantFree(Form.SOX, "sox", online, sox, -1 / 4),
        ConstantFree(Form.V1_LATE, "msvr-v1", few, v1, -1 / 4),
        ConstantFree(Form.V2, "msvr-v2", online, v2, -1 / 3),
        ConstantFree("MSVR-v3", "msvr-v3", finite, v3, -1 / 2),
    )


def _stage(rates: Rates, steps: int, scale: float) -> Stage:
    """Return one stage of the rates at the first step; constant-free rates do not change over the run."""
    lr = at(rates.lr, 1, "rate", checks.positive)
    alpha = at(rates.alpha, 1, "rate", checks.positive)
    beta = at(rates.beta, 1, "rate", checks.positive)
    return Stage(steps, scale * lr, alpha, beta)


def normalised(plan: Plan, case: ConstantFree) -> tuple[float, Array, Array]:
    """Run constant-free rates with normalised steps, the step size times one tuned factor.

    Returns:
        the factor, mean norms (K, S) and samples (K,).
    """
    problem = case.problem
    setting = Setting(problem, recipe(case.method, problem), start(problem, 1.0), plan.seeds, normalize=True)
    scales = np.geomspace(0.1, 10, 9).tolist()
    rates = case.rates(plan.horizon)
    lanes = [[_stage(rates, plan.horizon, scale)] for scale in scales]
    scale = scales[_best_lane(setting, lanes, plan.horizon)]
    marks = plan.horizons()
    lanes = [[_stage(case.rates(horizon), horizon, scale)] for horizon in marks]
    found = norms_at(travel(setting, lanes), marks)
    each = np.arange(len(marks))
    return scale, found.means[each, each], found.samples  # each lane at its own horizon


def _add_theorem(outcome: Outcome, plan: Plan, name: str, found: Found, claim: float) -> None:
    add(outcome, plan, name, "mean norm", found.samples, found.means[:, 0], claim, "theorems' rates: mean norm")
    panel = "theorems' rates: root mean square"
    add(outcome, plan, name, "root mean square", found.samples, found.roots[:, 0], claim, panel)


def run(quick: bool, seeds: int) -> Outcome:
    """Measure the slopes."""
    plan = Plan(seeds=seeds)
    if quick:
        plan = replace(plan, horizon=250, doublings=3)
    outcome = Outcome(settings=asdict(plan))
    tuned: dict[str, dict[str, float]] = {}
    for form, (m, claim) in CASES.items():
        case = Case(form, Sizes(m))
        constants = tune(plan, case)
        found = follow(plan, case, constants, plan.horizons())
        tuned[form] = constants._asdict() | {"m": m}
        _add_theorem(outcome, plan, form, found, claim)
        if form is not Form.V1_EARLY:  # whose alpha goes as T^(-1/3): no bound of its error is below T^(-1/6)
            panel = "theorems' rates: error of z"
            errors = found.errors[:, 0]
            add(outcome, plan, form, "error of z", found.samples, errors, claim, panel, ERROR_LABELS)
    eta, found = theorem_v3(plan)
    tuned["MSVR-v3"] = {"eta": eta}
    _add_theorem(outcome, plan, "MSVR-v3", found, -1 / 2)
    panel = "constant-free rates, normalised steps: mean norm"
    for one in _constant_free(plan):
        scale, means, samples = normalised(plan, one)
        tuned[f"{one.name}, constant-free"] = {"scale": scale}
        add(outcome, plan, one.name, "mean norm, constant-free", samples, means, one.claim, panel)
    outcome.settings["tuned"] = tuned
    return outcome
