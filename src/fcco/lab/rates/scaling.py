"""Experiment 2. How error and iterations depend on m, B1 and B2, at constants tuned once.

Blocks repeat ten kinds, so F is the same function for every m: what changes is how many rows have to be tracked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import final

import numpy as np

from fcco.lab.rates import fit, forms
from fcco.lab.rates.fit import Array, Outcome, Seeds
from fcco.lab.rates.forms import Constants, Form, Sizes
from fcco.lab.rates.journeys import Norms, Setting, norms_at, recipe, start, travel
from fcco.lab.rates.problems import Problem, curved
from fcco.lab.rates.tracking import FINITE, ONLINE, Course, errors

KINDS = 10
LINES = ("m", "B1", "B2")

# the error's powers of m, B1 and B2, as they follow from Lemmas 1 to 3 (docs/theory.md): not the paper's words
ERROR_CLAIMS = {
    "moving average": (2 / 3, -2 / 3, -2 / 3),
    "STORM, naive": (2 / 3, -2 / 3, -2 / 3),
    "MSVR": (1.0, -1.0, -0.5),
    "MSVR-SP": (1.0, -1.0, -0.5),
    "MSVR, finite sum": (2.0, -2.0, -1.0),
}
# the iterations' claimed powers of m, B1 and B2 (v1: of m, and of B1 = B2)
STEP_CLAIMS = {Form.V2: (1.0, -1.0, -0.5), Form.SOX: (1.0, -1.0, -1.0), Form.V1_LATE: (0.0, -1.0)}
GRIDS = {
    Form.V2: (np.geomspace(0.1, 3, 5), np.geomspace(1, 300, 5), np.geomspace(0.1, 30, 4)),
    Form.SOX: (np.geomspace(0.3, 10, 5), np.geomspace(0.3, 30, 5), np.geomspace(0.1, 10, 4)),
    Form.V1_LATE: (np.geomspace(0.03, 1, 5), np.geomspace(0.3, 100, 5), np.geomspace(0.03, 3, 4)),
}


@final
@dataclass(frozen=True)
class Plan:
    """Sizes of the experiment. B1 and B2 are varied at m = ``wide``."""

    ms: tuple[int, ...] = (10, 20, 40, 100, 200, 400)
    wide: int = 80
    b1s: tuple[int, ...] = (1, 2, 4, 8, 16)
    b2s: tuple[int, ...] = (1, 4, 16, 64)
    finite_b2s: tuple[int, ...] = (1, 2, 4)  # the finite-sum form needs beta = B2/n <= 1/2
    n: int = 10
    d: float = 5e-4
    steps: int = 12_000
    horizon: int = 1_000  # where the constants are tuned, at the smallest m
    longest: int = 60_000
    seeds: int = 8

    def sizes(self) -> dict[str, list[Sizes]]:
        """Return the sizes along each line: what varies -> where."""
        equal = [b for b in self.b1s if b <= 8]
        return {
            "m": [Sizes(m) for m in self.ms],
            "B1": [Sizes(self.wide, b1=b) for b in self.b1s],
            "B2": [Sizes(self.wide, b2=b) for b in self.b2s],
            "finite B2": [Sizes(self.wide, b2=b) for b in self.finite_b2s],
            "B1 = B2": [Sizes(self.wide, b1=b, b2=b) for b in equal],
        }


def varied(line: str, along: Sequence[Sizes]) -> list[int]:
    """Return the number that varies along a line, at each of its points."""
    if line == "m":
        return [sizes.m for sizes in along]
    if line == "B1":
        return [sizes.b1 for sizes in along]
    return [sizes.b2 for sizes in along]


def power_beta(name: str, plan: Plan, sizes: Sizes, c: float) -> float:
    """Return the theory's best beta for tracking, with the constant c."""
    moved = sizes.ratio * plan.d
    if name in ("moving average", "STORM, naive"):
        return min(1.0, c * math.pow(moved, 2 / 3) * math.pow(sizes.b2, 1 / 3))
    return min(0.5, c * moved * math.sqrt(sizes.b2))


def tracking_errors(plan: Plan, sizes: Sizes, constants: Mapping[str, Sequence[float]]) -> dict[str, Array]:
    """Return the error of each tracker at each of its constants: name -> (constants, S)."""
    trackers = []
    for name, row in constants.items():
        for c in row:
            beta = power_beta(name, plan, sizes, c)
            trackers.append(ONLINE[name](beta))
    course = Course(trackers, [plan.d] * len(trackers), plan.seeds, plan.steps, sizes.b1, sizes.b2)
    found = errors(curved(sizes.m, kinds=KINDS), course)  # (lanes, S)
    ends = list(itertools.accumulate(len(row) for row in constants.values()))
    return dict(zip(constants, np.split(found, ends[:-1]), strict=True))


def finite_errors(plan: Plan, sizes: Sizes) -> Array:
    """Return the finite-sum form's error (S,) at the theorem's beta = B2/n and I = mn/(B1 B2)."""
    problem = curved(sizes.m, kinds=KINDS, n=plan.n)
    period = max(1, sizes.m * plan.n // (sizes.b1 * sizes.b2))
    steps = max(plan.steps // 6, 6 * period)  # m/(B1 beta), the time to forget, is one period
    tracker = FINITE["MSVR, finite sum"](sizes.b2 / plan.n)
    course = Course([tracker], [plan.d / 10], plan.seeds, steps, sizes.b1, sizes.b2, period)
    return np.asarray(errors(problem, course)[0])


def tracking_part(plan: Plan, outcome: Outcome) -> None:
    """Measure errors at tuned constants against m, B1 and B2."""
    grid = np.geomspace(0.2, 10, 12).tolist()
    tuned = tracking_errors(plan, Sizes(plan.ms[0]), dict.fromkeys(ONLINE, grid))
    constants = {name: grid[fit.best(error.mean(-1))] for name, error in tuned.items()}
    outcome.settings["beta constants"] = constants
    one_each = {name: [c] for name, c in constants.items()}
    for line in LINES:
        along = plan.sizes()[line]
        found = [tracking_errors(plan, sizes, one_each) for sizes in along]
        for name in ONLINE:
            y = np.concatenate([errors_at_point[name] for errors_at_point in found])  # (K, S)
            _add_errors(outcome, name, line, along, y)
        if line == "B2":
            along = plan.sizes()["finite B2"]
        y = np.stack([finite_errors(plan, sizes) for sizes in along])
        _add_errors(outcome, "MSVR, finite sum", line, along, y)


def _add_errors(outcome: Outcome, name: str, line: str, along: list[Sizes], y: Array) -> None:
    x = varied(line, along)
    quantity = f"tracking error against {line}"
    labels = (line, "mean squared tracking error")
    claim = ERROR_CLAIMS[name][LINES.index(line)]
    seeds = y.shape[1]
    outcome.log_all(f"{name}: {quantity}", x, y)
    outcome.add(fit.measure("scaling", name, quantity, x, fit.averaged(y), seeds, claim, labels=labels))


def tune(plan: Plan, form: Form) -> tuple[Constants, float]:
    """Return the constants that are best at the smallest m and the first horizon, and their norm at twice the steps."""
    sizes = Sizes(plan.ms[0])
    candidates = forms.grid(*GRIDS[form])
    setting = _setting(plan, form, sizes)

    def mean_norms(constants: list[Constants], steps: int) -> Array:
        lanes = [forms.decaying(form, sizes, c, steps) for c in constants]
        found = norms_at(travel(setting, lanes), [steps])
        return np.asarray(found.means[0].mean(-1))

    best = fit.best(mean_norms(candidates, plan.horizon))
    chosen = candidates[best]
    (level,) = mean_norms([chosen], 2 * plan.horizon)
    return chosen, float(level)


def _setting(plan: Plan, form: Form, sizes: Sizes) -> Setting:
    problem: Problem = curved(sizes.m, kinds=KINDS)
    made = recipe(forms.METHOD[form], problem)
    return Setting(problem, made, start(problem, 1.0), plan.seeds, sizes.b1, sizes.b2)


def decline(plan: Plan, form: Form, sizes: Sizes, c: Constants, level: float) -> tuple[Array, Array]:
    """Run until the mean of ||grad F|| so far is clearly below the level.

    Returns:
        steps (K,) and the running means (K, S).
    """
    stages = forms.decaying(form, sizes, c, plan.longest)
    norms = Norms()
    steps = []
    means = []
    turn = 16
    for loop in travel(_setting(plan, form, sizes), [stages]):
        norms.follow(loop)
        if loop.t >= turn:
            turn = int(turn * 1.08) + 1
            mean = norms.mean()[0]
            steps.append(loop.t)
            means.append(mean)
            if mean.mean() < 0.85 * level:
                break
    return np.array(steps, dtype=np.float64), np.stack(means)


def crossing(steps: Array, means: Array, level: float) -> float:
    """Return where a falling curve first passes a level, interpolated in logarithms.

    This is its end where it never does, and its start where it begins below.
    """
    below = np.flatnonzero(means <= level)
    if not below.size:
        return float(steps[-1])
    k = int(below[0])
    if k == 0:
        return float(steps[0])
    x = np.log(steps[k - 1 : k + 1])
    y = np.log(means[k - 1 : k + 1])
    share = np.clip((np.log(level) - y[0]) / (y[1] - y[0]), 0.0, 1.0)
    return float(np.exp(x[0] + share * (x[1] - x[0])))


def steps_part(plan: Plan, outcome: Outcome) -> None:
    """Measure iterations to one level of the mean norm against m, B1 and B2."""
    for form, claims in STEP_CLAIMS.items():
        constants, level = tune(plan, form)
        outcome.settings[f"constants of {form}"] = constants._asdict() | {"level": level}
        lines: tuple[str, ...] = LINES
        if form is Form.V1_LATE:
            lines = ("m", "B1 = B2")
        for line, claim in zip(lines, claims, strict=True):
            along = plan.sizes()[line]
            curves = [decline(plan, form, sizes, constants, level) for sizes in along]
            _add_steps(outcome, form, line, along, curves, level, claim)


def _add_steps(
    outcome: Outcome,
    form: Form,
    line: str,
    along: list[Sizes],
    curves: list[tuple[Array, Array]],
    level: float,
    claim: float,
) -> None:
    x = varied(line, along)
    quantity = f"iterations against {line}"
    for at, (steps, means) in zip(x, curves, strict=True):
        for step, row in zip(steps[::4], means[::4], strict=True):
            outcome.log(f"{form}: {quantity}", at, row, f"mean norm at step {step:.0f}")

    def values(seeds: Seeds) -> Array:
        return np.array([crossing(steps, means[:, seeds].mean(-1), level) for steps, means in curves])

    labels = (line, "iterations to one mean ||grad F||")
    seeds = curves[0][1].shape[1]
    outcome.add(fit.measure("scaling", form, quantity, x, values, seeds, claim, labels=labels))


def run(quick: bool, seeds: int) -> Outcome:
    """Measure the powers."""
    plan = Plan(seeds=seeds)
    if quick:
        plan = replace(
            plan,
            ms=(10, 40, 160),
            b1s=(1, 4, 16),
            b2s=(1, 16),
            finite_b2s=(1, 4),
            steps=1_600,
            horizon=200,
            longest=3_000,
        )
    outcome = Outcome(settings=asdict(plan))
    tracking_part(plan, outcome)
    steps_part(plan, outcome)
    return outcome
