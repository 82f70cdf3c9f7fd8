"""Experiment 5. Which correction: the formula's gamma, none, 1 - beta, a tuned constant, or the Variant?

Over step sizes, m/B1 and beta: the mean ||grad F|| of the second half of a run with each correction, and beside it
the number that tells a user where the formula stops paying, measured from what the tracker sees anyway:

    rho = gamma^2 mean (g - g-)^2 / (beta (2 - beta) mean (g - u)^2)

A correction gamma (g - g-) that points nowhere in particular leaves gamma^2 (g - g-)^2/(beta (2 - beta)) in the
error of u, so rho is the share of what separates u from a fresh look that the correction has put there itself.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from fcco import estimators, trackers
from fcco.lab.rates import fit
from fcco.lab.rates.fit import Array, Outcome
from fcco.lab.rates.journeys import start
from fcco.lab.rates.loop import Loop
from fcco.lab.rates.problems import Problem, curved, paired
from fcco.methods import Method

THRESHOLD = 0.25  # of rho: above it the formula does not pay
WORSE = 1.25  # how much larger than the best alternative's a mean norm must be to count as worse
CONSTANTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
PROBLEMS = ("non-convex", "strongly convex")  # the rule is read off the first and tried on the second


@final
@dataclass(frozen=True)
class Plan:
    """Sizes of the experiment."""

    etas: int = 10  # from 0.001 to 1
    ratios: tuple[int, ...] = (2, 5, 20, 80)
    betas: tuple[float, ...] = (0.03, 0.1, 0.3)
    alpha: float = 0.1
    steps: int = 2_400
    seeds: int = 8

    def eta(self) -> list[float]:
        """The step sizes."""
        return np.geomspace(0.001, 1.0, self.etas).tolist()


@final
@dataclass(frozen=True)
class Cell:
    """One m/B1 and beta: norms (corrections, etas, S), rho of the formula (etas, S)."""

    ratio: int
    beta: float
    norms: dict[str, Array]
    rho: Array


def problem_of(kind: str, ratio: int) -> tuple[Problem, int]:
    """A problem and B1 with m/B1 = ratio."""
    m = max(20, ratio)
    if kind == "non-convex":
        return curved(m), m // ratio
    return paired(m, q=0.3, scales=(1.0, 0.7, 0.5, 0.35, 0.25)), m // ratio


def corrections(beta: float) -> dict[str, trackers.Tracker]:
    """The corrections by name; a tuned constant is the best of several."""
    named: dict[str, trackers.Tracker] = {
        "formula": trackers.MSVR(beta),
        "0": trackers.MSVR(beta, gamma=0.0),
        "1 - beta": trackers.MSVR(beta, gamma=1.0 - beta),
    }
    return named | {f"constant {c:g}": trackers.MSVR(beta, gamma=c) for c in CONSTANTS}


def estimator(kind: str, alpha: float) -> estimators.Estimator:
    """v1's or v2's."""
    return estimators.Storm(alpha) if kind == "v2" else estimators.Momentum(alpha)


def tail(problem: Problem, b1: int, methods: list[Method], etas: list[float], plan: Plan) -> tuple[Array, Array, Array]:
    """Means over the second half, each (L, S): ||grad F||, (g - g-)^2, (g - u)^2."""
    loop = Loop(problem, methods, etas, start(problem, 0.0), plan.seeds)
    draws, kept = problem.draws(range(plan.seeds), b1, 1), []
    for t in range(plan.steps):
        loop.step(next(draws), b1)
        if 2 * t >= plan.steps and t % 4 == 0 and loop.seen is not None:
            u, looks = loop.seen
            norm = problem.gradient(loop.w).norm(dim=-1)
            kept.append(torch.stack([norm, _square(looks[0] - looks[1]), _square(looks[0] - u)]))
    found = np.asarray(torch.stack(kept).mean(0).numpy())
    return found[0], found[1], found[2]


def _square(x: Tensor) -> Tensor:
    return x.square().mean((-2, -1))


def measure_cell(plan: Plan, kind: str, form: str, ratio: int, beta: float) -> Cell:
    """All corrections over all step sizes."""
    problem, b1 = problem_of(kind, ratio)
    named, etas, z = corrections(beta), plan.eta(), estimator(form, plan.alpha)
    lanes = [(Method(name, tracker, z, lag=1), eta) for name, tracker in named.items() for eta in etas]
    norm, moved, apart = tail(problem, b1, [m for m, _ in lanes], [eta for _, eta in lanes], plan)
    shape = (len(named), len(etas), plan.seeds)
    norms = dict(zip(named, norm.reshape(shape), strict=True))
    variant = [Method("variant", trackers.Variant(beta), z, lag=1)] * len(etas)
    norms["variant"] = tail(problem, b1, variant, etas, plan)[0]
    gamma = trackers.formula(beta, ratio)
    rho = gamma**2 * moved.reshape(shape)[0] / (beta * (2 - beta) * apart.reshape(shape)[0])
    return Cell(ratio, beta, norms, rho)


def means(norms: Array) -> Array:
    """Over seeds; what diverged is infinite."""
    mean = norms.mean(-1)
    return np.where(np.isfinite(mean), mean, np.inf)


def compare(cell: Cell) -> dict[str, Array]:
    """Per step size: the mean norm of the formula, of the best alternative, of the best constant, and rho."""
    by = {name: means(norm) for name, norm in cell.norms.items()}
    constant = np.min([by[f"constant {c:g}"] for c in CONSTANTS], axis=0)
    best = np.min([by["0"], by["1 - beta"], constant], axis=0)
    rho = cell.rho.mean(-1)
    return {
        "formula": by["formula"],
        "0": by["0"],
        "1 - beta": by["1 - beta"],
        "tuned constant": constant,
        "variant": by["variant"],
        "best other": best,
        "rho": np.where(np.isfinite(rho), rho, np.inf),
    }


def judge(cells: list[dict[str, Array]], threshold: float) -> tuple[float, float]:
    """Of the points where the formula is worse, and of those where it is not: the shares that rho tells right."""
    worse = np.concatenate([cell["formula"] > WORSE * cell["best other"] for cell in cells])
    flagged = np.concatenate([cell["rho"] > threshold for cell in cells])
    return float(flagged[worse].mean()), float((~flagged)[~worse].mean())


def run(quick: bool, seeds: int) -> Outcome:
    """Draw the maps, read off the rule, try it on the other problem."""
    plan = Plan(seeds=seeds)
    if quick:
        plan = replace(plan, etas=6, ratios=(5, 20), betas=(0.1,), steps=800)
    outcome = Outcome(settings=asdict(plan) | {"threshold": THRESHOLD, "worse": WORSE})
    for kind in PROBLEMS:
        for form in ("v1", "v2"):
            cells = [measure_cell(plan, kind, form, ratio, beta) for beta in plan.betas for ratio in plan.ratios]
            compared = [compare(cell) for cell in cells]
            for cell in cells:
                _log(outcome, plan, f"{kind}, {form}", cell)
            outcome.maps.append(_map(plan, f"{kind}, {form}", cells, compared))
            _add_rows(outcome, f"{kind}, {form}", compared)
    return outcome


def _log(outcome: Outcome, plan: Plan, title: str, cell: Cell) -> None:
    where = f"m/B1={cell.ratio} beta={cell.beta:g}"
    for name, norm in (cell.norms | {"rho of the formula": cell.rho}).items():
        for eta, row in zip(plan.eta(), norm, strict=True):
            outcome.log(f"{title}: {name}", eta, row, where)


def _map(plan: Plan, title: str, cells: list[Cell], compared: list[dict[str, Array]]) -> dict[str, object]:
    """Plain lists for the plot and for JSON."""
    return {
        "title": title,
        "eta": plan.eta(),
        "cells": [
            {"ratio": cell.ratio, "beta": cell.beta} | {name: row.tolist() for name, row in found.items()}
            for cell, found in zip(cells, compared, strict=True)
        ],
    }


def _add_rows(outcome: Outcome, title: str, compared: list[dict[str, Array]]) -> None:
    caught, spared = judge(compared, THRESHOLD)
    formula = np.concatenate([cell["formula"] for cell in compared])
    calm = np.concatenate([cell["rho"] for cell in compared]) <= THRESHOLD

    def ratio(name: str) -> float:
        other = np.concatenate([cell[name] for cell in compared])
        return float(np.exp(np.median(np.log(other[calm] / formula[calm]))))

    numbers = {
        f"share of the points where the formula is worse that rho > {THRESHOLD:g} finds": (caught, 0.9, ">"),
        f"share of the other points that rho > {THRESHOLD:g} spares": (spared, 0.9, ">"),
        "median norm of gamma = 0 over the formula's, where rho is small": (ratio("0"), 1.0, ">"),
        "median norm of gamma = 1 - beta over the formula's, where rho is small": (ratio("1 - beta"), 1.0, ">"),
        "median norm of the Variant over the formula's, where rho is small": (ratio("variant"), 1.0, ">"),
    }
    for quantity, (value, claim, bound) in numbers.items():
        outcome.rows.append(fit.Row("ablation", title, quantity, claim, value, value, value, bound))
