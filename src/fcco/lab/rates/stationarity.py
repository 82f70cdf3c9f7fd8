"""Experiment 3. Stationarity on a non-convex problem, f = sqrt(1 + u^2) + 0.75 sin u.

Constants are tuned once, at a first horizon, and carried to longer ones by the theorems' exponents. Two forms:
the theorems' own decaying rates, where one run serves every horizon, and the constant-free rates of
:mod:`fcco.schedules` with normalised steps, where every horizon is a lane of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import final

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
        """Where the slope is fitted."""
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
    for x, row in zip(samples, y, strict=True):
        outcome.log(f"{name}: {quantity}", x, row)
    outcome.add(
        fit.measure("stationarity", name, quantity, samples, fit.averaged(y),
                    plan.seeds, claim, labels=labels, panel=panel)
    )  # fmt: skip


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
        """On the non-convex problem."""
        problem, sizes = curved(self.sizes.m), self.sizes
        made = recipe(self.method or forms.METHOD[self.form], problem)
        return Setting(problem, made, start(problem, 1.0), plan.seeds, sizes.b1, sizes.b2, False, self.radius,
                       self.adaptive)  # fmt: skip


def tune(plan: Plan, case: Case) -> Constants:
    """The constants of the grid that are best at the first horizon."""
    form, sizes = case.form, case.sizes
    candidates = [Constants(*map(float, c)) for c in itertools.product(*GRIDS[form])]
    journey = travel(case.setting(plan), [forms.decaying(form, sizes, c, plan.horizon) for c in candidates])
    return candidates[fit.best(norms_at(journey, [plan.horizon]).means[0].mean(-1))]


def follow(plan: Plan, case: Case, constants: Constants, marks: list[int]) -> Found:
    """What the marked steps found at the theorem's rates with these constants."""
    stages = forms.decaying(case.form, case.sizes, constants, marks[-1])
    return norms_at(travel(case.setting(plan), [stages]), marks)


def theorem_v3(plan: Plan) -> tuple[float, Found]:
    """v3's rates are constants (alpha = 1/I, beta = 1/n); only eta is tuned."""
    problem, marks = curved(plan.finite_m, n=plan.n), plan.horizons()
    period, beta = plan.finite_m * plan.n, 1 / plan.n
    setting = Setting(problem, recipe("msvr-v3", problem), start(problem, 1.0), plan.seeds)
    etas = np.geomspace(0.003, 0.3, 12).tolist()
    tuning = travel(setting, [[Stage(plan.horizon, eta, 1 / period, beta)] for eta in etas])
    eta = etas[fit.best(norms_at(tuning, [plan.horizon]).means[0].mean(-1))]
    return eta, norms_at(travel(setting, [[Stage(marks[-1], eta, 1 / period, beta)]]), marks)


def _constant_free(plan: Plan) -> dict[str, tuple[Problem, str, Callable[[int], Rates], float]]:
    online, finite, few = curved(plan.m), curved(plan.finite_m, n=plan.n), curved(4)
    return {
        Form.SOX: (online, "sox", lambda t: schedules.constant_free_sox(m=plan.m, b1=1, horizon=t), -1 / 4),
        Form.V1_LATE: (few, "msvr-v1", lambda t: schedules.constant_free_v1(m=4, b1=1, horizon=t), -1 / 4),
        Form.V2: (online, "msvr-v2", lambda t: schedules.constant_free_v2(m=plan.m, b1=1, horizon=t), -1 / 3),
        "MSVR-v3": (
            finite,
            "msvr-v3",
            lambda t: schedules.constant_free_v3(m=plan.finite_m, n=plan.n, b1=1, horizon=t),
            -1 / 2,
        ),
    }


def _stage(rates: Rates, steps: int, scale: float) -> Stage:
    lr, alpha, beta = (at(rate, 1, "rate", checks.positive) for rate in (rates.lr, rates.alpha, rates.beta))
    return Stage(steps, scale * lr, alpha, beta)


def normalised(plan: Plan, problem: Problem, method: str, rates: Callable[[int], Rates]) -> tuple[float, Array, Array]:
    """Constant-free rates, their step size times one tuned factor: the factor, mean norms (K, S), samples (K,)."""
    setting = Setting(problem, recipe(method, problem), start(problem, 1.0), plan.seeds, normalize=True)
    scales, marks = np.geomspace(0.1, 10, 9).tolist(), plan.horizons()
    lanes = [[_stage(rates(plan.horizon), plan.horizon, scale)] for scale in scales]
    scale = scales[fit.best(norms_at(travel(setting, lanes), [plan.horizon]).means[0].mean(-1))]
    found = norms_at(travel(setting, [[_stage(rates(t), t, scale)] for t in marks]), marks)
    return scale, np.stack([found.means[k, k] for k in range(len(marks))]), found.samples


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
            add(outcome, plan, form, "error of z", found.samples, found.errors[:, 0], claim,
                "theorems' rates: error of z", ERROR_LABELS)  # fmt: skip
    eta, found = theorem_v3(plan)
    tuned["MSVR-v3"] = {"eta": eta}
    _add_theorem(outcome, plan, "MSVR-v3", found, -1 / 2)
    for name, (problem, method, rates, claim) in _constant_free(plan).items():
        scale, means, samples = normalised(plan, problem, method, rates)
        tuned[f"{name}, constant-free"] = {"scale": scale}
        panel = "constant-free rates, normalised steps: mean norm"
        add(outcome, plan, name, "mean norm, constant-free", samples, means, claim, panel)
    outcome.settings["tuned"] = tuned
    return outcome
