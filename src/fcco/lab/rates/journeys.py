"""Lanes on their way through stages, and what is measured along it."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
import torch
from torch import Tensor

from fcco import methods
from fcco.lab.rates.fit import Array
from fcco.lab.rates.loop import Loop, Scaling
from fcco.lab.rates.problems import Problem
from fcco.methods._recipes import Method
from fcco.methods.stages import Stage

Recipe = Callable[..., Method]  # alpha=, beta= -> a method


@final
@dataclass(frozen=True)
class Setting:
    """What all lanes of a journey share."""

    problem: Problem
    recipe: Recipe
    w1: Tensor
    seeds: int
    b1: int = 1
    b2: int = 1
    normalize: bool = False
    radius: float | None = None
    adaptive: Scaling | None = None


def recipe(name: str, problem: Problem, b1: int = 1, b2: int = 1) -> Recipe:
    """Return the library's recipe; a finite-sum method gets the theory's period I = mn/(B1 B2)."""
    made = methods.METHODS[name]
    if name == "msvr-v3":
        return partial(made, period=problem.m * problem.n // (b1 * b2))
    return made


def travel(setting: Setting, lanes: Sequence[Sequence[Stage]], mu: Sequence[float] | None = None) -> Iterator[Loop]:
    """Yield the loop before its first step and after every step, until the longest lane is through.

    A lane whose stages are through goes on with the last one; its numbers are taken when they end.
    """
    ends = [list(itertools.accumulate(stage.steps for stage in lane)) for lane in lanes]
    turns = set(itertools.chain.from_iterable(ends))
    stages = _stages_at(0, lanes, ends)
    loop = Loop(
        setting.problem,
        _methods_of(setting, stages),
        _step_sizes(stages),
        setting.w1,
        setting.seeds,
        normalize=setting.normalize,
        mu=mu,
        radius=setting.radius,
        adaptive=setting.adaptive,
    )
    draws = setting.problem.draws(range(setting.seeds), setting.b1, setting.b2)
    yield loop
    for t in range(max(turns)):
        if t in turns:
            stages = _stages_at(t, lanes, ends)
            loop.use(_methods_of(setting, stages), _step_sizes(stages))
        loop.step(next(draws), setting.b1 * setting.b2)
        yield loop


def _stages_at(t: int, lanes: Sequence[Sequence[Stage]], ends: Sequence[Sequence[int]]) -> list[Stage]:
    """Return the stage of each lane after t steps; ``ends`` are the steps at which its stages end."""
    stages = []
    for lane, lane_ends in zip(lanes, ends, strict=True):
        number = bisect_right(lane_ends, t)
        stages.append(lane[min(number, len(lane) - 1)])
    return stages


def _step_sizes(stages: Sequence[Stage]) -> list[float]:
    return [stage.lr for stage in stages]


def _methods_of(setting: Setting, stages: Sequence[Stage]) -> list[Method]:
    return [setting.recipe(alpha=stage.alpha, beta=stage.beta) for stage in stages]


@final
@dataclass
class Norms:
    """Running means of ||grad F(w_t)||, of its square, and of ||z - grad F||^2, looked at every few steps."""

    every: int = 4
    count: int = 0
    total: Tensor | float = 0.0
    squares: Tensor | float = 0.0
    errors: Tensor | float = 0.0

    def follow(self, loop: Loop) -> None:
        """Take in w_t, t counted from 0."""
        if loop.t % self.every != 0:
            return
        gradient = loop.problem.gradient(loop.w)
        norm = gradient.norm(dim=-1)  # (L, S)
        self.count += 1
        self.total = self.total + norm
        self.squares = self.squares + norm * norm
        if loop.z is not None:
            self.errors = self.errors + (loop.z - gradient).square().sum(-1)

    def mean(self) -> Array:
        """Return the mean of ||grad F|| so far (L, S)."""
        return _array(torch.as_tensor(self.total) / self.count)

    def root_mean_square(self) -> Array:
        """Return the root of the mean of ||grad F||^2 so far (L, S)."""
        return _array((torch.as_tensor(self.squares) / self.count).sqrt())

    def error_of_z(self) -> Array:
        """Return the root of the mean of ||z - grad F||^2 so far (L, S)."""
        return _array((torch.as_tensor(self.errors) / self.count).sqrt())


@final
@dataclass(frozen=True)
class Found:
    """Over the first T steps for each T of K marks.

    Attributes:
        means: of ||grad F||, (K, L, S).
        roots: of the mean ||grad F||^2, (K, L, S).
        errors: of z, roots of the mean ||z - grad F||^2, (K, L, S).
        samples: (K,).
    """

    means: Array
    roots: Array
    errors: Array
    samples: Array


def norms_at(journey: Iterator[Loop], marks: Sequence[int]) -> Found:
    """Return what was found over the steps up to each mark."""
    norms = Norms()
    wanted = set(marks)
    means = []
    roots = []
    errors = []
    samples = []
    for loop in journey:
        if loop.t in wanted and loop.t > 0:
            means.append(norms.mean())
            roots.append(norms.root_mean_square())
            errors.append(norms.error_of_z())
            samples.append(loop.samples)
        norms.follow(loop)
    return Found(np.stack(means), np.stack(roots), np.stack(errors), np.array(samples, dtype=np.float64))


def gaps_at(journey: Iterator[Loop], marks: Sequence[int], optimum: float, stop: float = 0.0) -> tuple[Array, Array]:
    """Return F(w) - F* after each of the marked steps (K, L, S), and the samples then (K,).

    The journey ends early where the mean gap is below ``stop``.
    """
    wanted = set(marks)
    gaps = []
    samples = []
    for loop in journey:
        if loop.t in wanted and loop.t > 0:
            gap = _array(loop.problem.value(loop.w) - optimum)
            gaps.append(gap)
            samples.append(loop.samples)
            if gap.mean() < stop:
                break
    return np.stack(gaps), np.array(samples, dtype=np.float64)


def final_gaps(journey: Iterator[Loop], lanes: Sequence[Sequence[Stage]], optimum: float) -> tuple[Array, Array]:
    """Return F(w) - F* of each lane at its own end (L, S), and its samples (L,)."""
    ends = [sum(stage.steps for stage in lane) for lane in lanes]
    marks = sorted(set(ends))
    gaps, samples = gaps_at(journey, marks, optimum)
    at = [marks.index(end) for end in ends]
    return gaps[at, np.arange(len(ends))], samples[at]


def start(problem: Problem, value: float) -> Tensor:
    """Return w_1 = (value, ..., value)."""
    return torch.full((problem.d,), value, dtype=torch.float64)


def _array(x: Tensor) -> Array:
    return np.asarray(x.numpy(), dtype=np.float64).copy()
