"""Experiment 5. Which correction: the formula's gamma, none, 1 - beta, a tuned constant, or the Variant?

Over step sizes, m/B1 and beta: the mean ||grad F|| of the second half of a run with each correction, and beside it
the number that tells a user where the formula stops paying, measured from what the tracker sees anyway:

    rho = gamma^2 mean (g - g-)^2 / (beta (2 - beta) mean (g - u)^2)

A correction gamma (g - g-) that points nowhere in particular leaves gamma^2 (g - g-)^2/(beta (2 - beta)) in the
error of u, so rho is the share of what separates u from a fresh look that the correction has put there itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import final

import numpy as np
import torch
from torch import Tensor

from fcco.lab.rates import fit
from fcco.lab.rates.fit import Array, Outcome, Seeds
from fcco.lab.rates.journeys import start
from fcco.lab.rates.loop import Loop
from fcco.lab.rates.problems import Problem, curved, paired
from fcco.methods import estimators, trackers
from fcco.methods._box import Point
from fcco.methods._recipes import Method
from fcco.solver._watch import THRESHOLD

WORSE = 1.25  # how much larger than with gamma = 0 a mean norm must be to count as worse
CONSTANTS = (1.0, 4.0, 16.0)


class Kind(StrEnum):
    """The problem; the rule is read off the first and tried on the second."""

    WAVY = "non-convex"
    CONVEX = "strongly convex"


ESTIMATORS: dict[str, Callable[[float], estimators.Estimator]] = {
    "v1": estimators.Momentum,
    "v2": estimators.Storm,
}


@final
@dataclass(frozen=True)
class Plan:
    """Sizes of the experiment."""

    etas: int = 9  # from 0.001 to 1
    ratios: tuple[int, ...] = (2, 5, 20, 80)
    betas: tuple[float, ...] = (0.03, 0.1, 0.3)
    alpha: float = 0.1
    steps: int = 1_600
    seeds: int = 8

    def eta(self) -> list[float]:
        """Return the step sizes."""
        return [float(eta) for eta in np.geomspace(0.001, 1.0, self.etas)]


@final
@dataclass(frozen=True)
class Cell:
    """One m/B1 and beta: norms (corrections, etas, S), rho of the formula (etas, S)."""

    ratio: int
    beta: float
    norms: dict[str, Array]
    rho: Array


def problem_of(kind: Kind, ratio: int) -> tuple[Problem, int]:
    """Return a problem and the B1 for which m/B1 = ratio."""
    m = max(20, ratio)
    if kind is Kind.WAVY:
        problem = curved(m)
    else:
        problem = paired(m, q=0.3, scales=(1.0, 0.7, 0.5, 0.35, 0.25))
    return problem, m // ratio


def corrections(beta: float) -> dict[str, trackers.Tracker]:
    """Return the corrections by name; a tuned constant is the best of several."""
    named: dict[str, trackers.Tracker] = {
        "formula": trackers.MSVR(beta),
        "0": trackers.MSVR(beta, gamma=0.0),
        "1 - beta": trackers.MSVR(beta, gamma=1.0 - beta),
    }
    for gamma in CONSTANTS:
        named[f"constant {gamma:g}"] = trackers.MSVR(beta, gamma=gamma)
    return named


def tail(problem: Problem, b1: int, methods: list[Method], etas: list[float], plan: Plan) -> tuple[Array, Array, Array]:
    """Return means over the second half of a run, each (L, S): ||grad F||, (g - g-)^2, (g - u)^2."""
    loop = Loop(problem, methods, etas, start(problem, 0.0), plan.seeds)
    draws = problem.draws(range(plan.seeds), b1, 1)
    kept = []
    for t in range(plan.steps):
        loop.step(next(draws), b1)
        if 2 * t >= plan.steps and t % 4 == 0 and loop.seen is not None:
            u, probes = loop.seen
            now = probes[Point.NOW].g
            previous = probes[Point.PREVIOUS].g
            norm = problem.gradient(loop.w).norm(dim=-1)
            kept.append(torch.stack([norm, _square(now - previous), _square(now - u)]))
    found = np.asarray(torch.stack(kept).mean(0).numpy())
    return found[0], found[1], found[2]


def _square(x: Tensor) -> Tensor:
    return x.square().mean((-2, -1))


def measure_cell(plan: Plan, kind: Kind, form: str, ratio: int, beta: float) -> Cell:
    """Measure all corrections over all step sizes."""
    problem, b1 = problem_of(kind, ratio)
    named = corrections(beta)
    etas = plan.eta()
    z = ESTIMATORS[form](plan.alpha)
    methods: list[Method] = []
    for name, tracker in named.items():
        methods += [Method(name, tracker, z, lag=1)] * len(etas)
    norm, moved, apart = tail(problem, b1, methods, etas * len(named), plan)

    shape = (len(named), len(etas), plan.seeds)
    norms = dict(zip(named, norm.reshape(shape), strict=True))
    variant = Method("variant", trackers.Variant(beta), z, lag=1)
    norms["variant"], _, _ = tail(problem, b1, [variant] * len(etas), etas, plan)

    moved_by_formula = moved.reshape(shape)[0]
    apart_by_formula = apart.reshape(shape)[0]
    gamma = trackers.msvr_gamma(beta, ratio)
    rho = gamma**2 * moved_by_formula / (beta * (2 - beta) * apart_by_formula)
    return Cell(ratio, beta, norms, rho)


def compare(cell: Cell, seeds: Seeds) -> dict[str, Array]:
    """Return the mean norm of each correction and rho per step size, averaged over seeds; inf where it diverged."""
    means = {name: _mean(norm, seeds) for name, norm in cell.norms.items()}
    constants = [means.pop(f"constant {gamma:g}") for gamma in CONSTANTS]
    means["tuned constant"] = np.min(constants, axis=0)
    means["rho"] = _mean(cell.rho, seeds)
    return means


def _mean(x: Array, seeds: Seeds) -> Array:
    averaged = x[..., seeds].mean(-1)
    return np.where(np.isfinite(averaged), averaged, np.inf)


def judge(cells: list[dict[str, Array]]) -> Array:
    """Return what the rule promises, in numbers, in the order of ``PROMISES``."""
    joined = {}
    for name in cells[0]:
        joined[name] = np.concatenate([cell[name] for cell in cells])
    flagged = joined["rho"] > THRESHOLD
    ratio = np.minimum(joined["formula"], 1e6) / np.minimum(joined["0"], 1e6)
    worse = ratio > WORSE
    caught = 1.0
    if worse.any():
        caught = flagged[worse].mean()
    spared = (~flagged)[~worse].mean()
    others = []
    for name in ("0", "1 - beta", "variant"):
        others.append(np.median(joined[name][~flagged] / joined["formula"][~flagged]))
    return np.array([ratio[~flagged].max(), np.median(ratio[flagged]), caught, spared, *others])


PROMISES: tuple[tuple[str, float | None, str], ...] = (  # quantity, claim, bound
    ("rho <= 1/2: largest norm over that of gamma = 0", None, ""),
    ("rho > 1/2: median norm over that of gamma = 0", 1.0, ">"),
    ("points worse than gamma = 0 by a quarter: share that rho > 1/2 finds", None, ""),
    ("other points: share that rho > 1/2 spares", None, ""),
    ("rho <= 1/2: median norm of gamma = 0 over the formula's", 1.0, ">"),
    ("rho <= 1/2: median norm of gamma = 1 - beta over the formula's", 1.0, ">"),
    ("rho <= 1/2: median norm of the Variant over the formula's", 1.0, ">"),
)


def run(quick: bool, seeds: int) -> Outcome:
    """Draw the maps, read off the rule, try it on the other problem."""
    plan = Plan(seeds=seeds)
    if quick:
        plan = replace(plan, etas=6, ratios=(5, 20), betas=(0.1,), steps=800)
    outcome = Outcome(settings=asdict(plan) | {"threshold": THRESHOLD, "worse": WORSE})
    for kind in Kind:
        for form in ESTIMATORS:
            title = f"{kind}, {form}"
            cells = []
            for beta, ratio in itertools.product(plan.betas, plan.ratios):
                cell = measure_cell(plan, kind, form, ratio, beta)
                _log(outcome, plan, title, cell)
                cells.append(cell)
            outcome.maps.append(_map(plan, title, cells))
            _add_rows(outcome, title, cells, plan.seeds)
    return outcome


def _log(outcome: Outcome, plan: Plan, title: str, cell: Cell) -> None:
    where = f"m/B1={cell.ratio} beta={cell.beta:g}"
    for name, norm in (cell.norms | {"rho of the formula": cell.rho}).items():
        for eta, row in zip(plan.eta(), norm, strict=True):
            outcome.log(f"{title}: {name}", eta, row, where)


def _map(plan: Plan, title: str, cells: list[Cell]) -> dict[str, object]:
    """Return plain lists for the plot and for JSON; what diverged is 1e6."""
    all_seeds = np.arange(plan.seeds)
    rows = []
    for cell in cells:
        row: dict[str, object] = {"ratio": cell.ratio, "beta": cell.beta}
        for name, value in compare(cell, all_seeds).items():
            row[name] = np.minimum(value, 1e6).tolist()
        rows.append(row)
    return {"title": title, "eta": plan.eta(), "cells": rows}


def _add_rows(outcome: Outcome, title: str, cells: list[Cell], seeds: int) -> None:
    def judged(chosen: Seeds) -> Array:
        return judge([compare(cell, chosen) for cell in cells])

    values, lows, highs = (numbers.tolist() for numbers in fit.bootstrap(judged, seeds))
    for (quantity, claim, bound), value, low, high in zip(PROMISES, values, lows, highs, strict=True):
        outcome.rows.append(fit.Row("ablation", title, quantity, claim, value, low, high, bound))
