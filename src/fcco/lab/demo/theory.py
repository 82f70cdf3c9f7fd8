"""Part 2 of the demo: the paper's methods where theory says that they differ.

A strongly convex finite sum with a known optimum: m blocks of n samples, whose noise does not vanish at the optimum.
With a constant step size SOX, MSVR-v1 and MSVR-v2 stop at a floor that their noise sets; MSVR-v3, whose full passes
remove the noise as w settles, goes down exponentially (Theorem 5).

The problem and the loop are those of ``fcco rates``. SOX, v1 and v2 are tuned: for each the curve is that of the
setting, among many, that is best at the end. v3 has the theorem's I, alpha and beta and one step size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np

from fcco import methods
from fcco.lab.rates import convex, fit
from fcco.lab.rates.fit import Array
from fcco.lab.rates.journeys import Recipe, Setting, recipe, start, travel
from fcco.lab.rates.loop import Loop
from fcco.lab.rates.problems import Problem, paired
from fcco.methods.stages import Stage

LEVELS = (1e-2, 1e-8)  # how many calls each method needs for these


@final
@dataclass(frozen=True)
class Plan:
    """Sizes of part 2.

    Args:
        m, n: blocks, and samples of each.
        calls: oracle calls that every method has.
        marks: points of a curve.
        etas, alphas, betas: the grid on which SOX, v1 and v2 are tuned.
        eta: v3's step size.
    """

    m: int = 10
    n: int = 10
    calls: int = 60_000
    marks: int = 150
    seeds: int = 5
    etas: tuple[float, ...] = (2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2)
    alphas: tuple[float, ...] = (0.01, 0.1, 0.5, 0.9)
    betas: tuple[float, ...] = (0.01, 0.1, 0.5)
    eta: float = 0.02


@final
@dataclass(frozen=True)
class Entry:
    """A method of the demo: its name, its recipe, its g and J evaluations per drawn sample."""

    name: str
    title: str
    recipe: Recipe
    calls: int


@final
@dataclass(frozen=True)
class Found:
    """One method's result.

    Attributes:
        calls: (K,) oracle calls.
        gaps: (K, S) F(w) - F*.
        error: the root mean square of |u_i - g_i(w)| over blocks and seeds at the end.
        tried: how many settings.
    """

    name: str
    title: str
    eta: float
    alpha: float
    beta: float
    tried: int
    calls: Array
    gaps: Array
    error: float

    def gap(self) -> float:
        """F - F* at the end, mean over seeds."""
        return float(self.gaps[-1].mean())

    def needed(self, level: float) -> float | None:
        """Oracle calls until the mean of F - F* is below the level for the first time; None: never."""
        below = self.gaps.mean(-1) < level
        if not below.any():
            return None
        return float(self.calls[below.argmax()])


def problem(plan: Plan) -> Problem:
    """g_i quadratic, f_i smooth and convex, w in R^5, optimum w* = (1, ..., 1)."""
    return paired(plan.m, q=0.8, scales=convex.ROUND, n=plan.n)


def entries(plan: Plan) -> list[Entry]:
    """Every evaluation of g or of its Jacobian on one sample is an oracle call."""
    made = problem(plan)
    nesterov = partial(methods.sox, nesterov=True)
    return [
        Entry("sox", "SOX, heavy ball", methods.sox, 2),  # g and J at w_t
        Entry("sox-nesterov", "SOX, Nesterov", nesterov, 2),
        Entry("msvr-v1", "MSVR-v1", methods.msvr_v1, 3),  # g at w_{t-1} too
        Entry("msvr-v2", "MSVR-v2", methods.msvr_v2, 4),  # g and J at w_t and w_{t-1}
        Entry("msvr-v3", "MSVR-v3", recipe("msvr-v3", made), 6),  # and at the reference point
    ]


def run(plan: Plan, told: Callable[[str], None]) -> list[Found]:
    """All methods, with the same oracle calls, from the same start and with the same draws."""
    found = []
    for entry in entries(plan):
        told(entry.title)
        if entry.name == "msvr-v3":
            period = plan.m * plan.n
            grid = [(plan.eta, 1 / period, 1 / plan.n)]
        else:
            grid = list(itertools.product(plan.etas, plan.alphas, plan.betas))
        found.append(_best(plan, entry, grid))
    return found


def _best(plan: Plan, entry: Entry, grid: Sequence[tuple[float, float, float]]) -> Found:
    """The setting with the smallest F - F* at the end."""
    calls, gaps, errors = _follow(plan, entry, grid)
    best = fit.best(gaps[-1].mean(-1))
    eta, alpha, beta = grid[best]
    own = np.maximum(gaps[:, best], 0.0)  # rounding may put F(w) below F*
    return Found(entry.name, entry.title, eta, alpha, beta, len(grid), calls, own, float(errors[best]))


def _follow(plan: Plan, entry: Entry, grid: Sequence[tuple[float, float, float]]) -> tuple[Array, Array, Array]:
    """Oracle calls (K,), F - F* (K, L, S), and the error of u at the end (L,)."""
    made = problem(plan)
    setting = Setting(made, entry.recipe, start(made, 0.0), plan.seeds)
    optimum = convex.optimum(made)
    lanes = [[Stage(plan.calls, *rates)] for rates in grid]
    turns: Iterator[float] = iter(np.linspace(0, plan.calls, plan.marks + 1).tolist())
    turn = next(turns)
    at: list[int] = []
    gaps: list[Array] = []
    for loop in travel(setting, lanes):
        spent = _spent(loop, entry)
        if spent > plan.calls:
            break
        if spent >= turn:
            at.append(spent)
            gaps.append((made.value(loop.w) - optimum).numpy().copy())
            while spent >= turn:
                turn = next(turns, float("inf"))
    error = (loop.rows.u - made.inner(loop.w)).square().mean(dim=(1, 2, 3)).sqrt()
    return np.array(at, dtype=np.float64), np.stack(gaps), error.numpy()


def _spent(loop: Loop, entry: Entry) -> int:
    """Oracle calls so far; a full pass evaluates g and J on all m n samples."""
    drawn = loop.t  # one block and one sample per step
    full_passes = loop.samples - drawn
    return entry.calls * drawn + 2 * full_passes
