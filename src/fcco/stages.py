"""The stage-wise form (the paper's Algorithm 3), for PL and for convex problems.

A stage changes lr, alpha and beta; everything else, (w_{T+1}, w_T, u_T, u_{T-1}, z_T), goes on from the step
before, because it stays in the solver. A boundary that changes no rate changes no bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch

from fcco import _checks
from fcco.report import Report
from fcco.schedules import _constant, _sizes, at, theorem_v3
from fcco.solver import Solver


@final
@dataclass(frozen=True)
class Stage:
    """One stage: how many steps, and the rates in it."""

    steps: int
    lr: float
    alpha: float
    beta: float

    def __post_init__(self) -> None:
        _checks.positive_int("steps", self.steps)
        _checks.positive("lr", self.lr)
        _checks.rate("alpha", self.alpha)
        _checks.rate("beta", self.beta)


@final
class StageWise:
    """Runs a solver through stages: call ``step`` instead of the solver's, until ``finished``.

    Args:
        solver: any solver; its method's alpha and beta are replaced stage by stage.
        stages: what to run, in order.
        drawn: hand over the state after a step drawn uniformly from each stage, as the theory does (the
            rest of the stage is then not run, since nothing of it would be used); else after its last step.
        mu: for a convex problem made strongly convex, the weight of (mu/2)||w||^2. The term is the
            optimizer's weight decay (exact, and outside the projection of z): it must be set to mu.
        seed: of the draws.

    Example:
        >>> from fcco import Solver, msvr_v2, objective
        >>> w = torch.nn.Parameter(torch.ones(1))
        >>> f = objective(
        ...     lambda i, x: w.expand(len(i), 1) + x,
        ...     lambda i, u: u.square().squeeze(1),
        ...     num_blocks=2,
        ...     parameters=[w],
        ... )
        >>> solver = Solver(f, torch.optim.SGD([w], lr=1.0), msvr_v2(alpha=1.0, beta=1.0))
        >>> run = StageWise(solver, [Stage(2, 0.1, 0.5, 0.5), Stage(2, 0.05, 0.25, 0.25)])
        >>> while not run.finished:
        ...     report = run.step(torch.tensor([0]), torch.zeros(1, 1))
        >>> solver.t, run.stage
        (4, 1)
    """

    def __init__(
        self, solver: Solver, stages: list[Stage], *, drawn: bool = False, mu: float = 0.0, seed: int = 0
    ) -> None:
        if not isinstance(solver, Solver):
            raise TypeError(f"solver must be a Solver, got {type(solver).__name__}")
        if not isinstance(stages, Sequence) or not stages or not all(isinstance(stage, Stage) for stage in stages):
            raise ValueError(f"stages must be a non-empty list of Stage, got {stages!r}")
        _checks.flag("drawn", drawn)
        _checks.whole("seed", seed)
        _checks.non_negative("mu", mu)
        for group in solver.optimizer.param_groups:
            if group.get("weight_decay", 0.0) != mu:
                raise ValueError(
                    f"mu is {mu}, so the optimizer's weight_decay must be {mu} in every parameter group, "
                    f"got {group.get('weight_decay', 0.0)}"
                )
        self.solver, self.stages, self.drawn = solver, list(stages), drawn
        self._method = solver.method  # as it was before the first stage
        self._generator = torch.Generator().manual_seed(seed)
        self.stage, self._left = -1, 0

    @property
    def finished(self) -> bool:
        """Whether the last step of the last stage was taken."""
        return self._left == 0 and self.stage == len(self.stages) - 1

    def step(self, index: Any, *data: Any) -> Report:
        """One solver step; enters the next stage where the last one is through."""
        if self.finished:
            raise ValueError(f"all {len(self.stages)} stages are through; step has nothing left to run")
        with self._all_or_nothing():
            if self._left == 0:
                self._enter(self.stage + 1)
            report = self.solver.step(index, *data)
        self._left -= not report.skipped
        return report

    def _enter(self, stage: int) -> None:
        self._take_rates(stage)
        for group in self.solver.optimizer.param_groups:
            group["lr"] = self.stages[stage].lr
        self._left = self._length()
        if stage > 0:
            self.solver.renew_anchor()

    def _take_rates(self, stage: int) -> None:
        self.stage, method = stage, self._method
        if stage >= 0:
            method = method.with_rates(alpha=self.stages[stage].alpha, beta=self.stages[stage].beta)
        self.solver.method = method

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Where the step fails, the stage that it was to begin has not begun."""
        solver, before = self.solver, self.state_dict()
        groups = solver.optimizer.param_groups
        renew, rates = solver._renew, [group["lr"] for group in groups]
        try:
            yield
        except BaseException:
            self.load_state_dict(before)
            solver._renew = renew
            for group, lr in zip(groups, rates, strict=True):
                group["lr"] = lr
            raise

    def _length(self) -> int:
        steps = self.stages[self.stage].steps
        if not self.drawn:
            return steps
        return int(torch.randint(1, steps + 1, (), generator=self._generator))

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands; the solver's state (the learning rates in it) is the solver's."""
        return {"stage": self.stage, "left": self._left, "random": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, with the same stages."""
        if not -1 <= state["stage"] < len(self.stages):
            raise ValueError(f"the state is in stage {state['stage']}, but there are {len(self.stages)} stages")
        self._generator.set_state(state["random"])
        self._take_rates(state["stage"])
        self._left = state["left"]


def stages_v2(*, m: int, b1: int, b2: int, c: float, mu: float, gap: float, accuracy: float) -> list[Stage]:
    """Stage-wise MSVR-v2 under the mu-PL condition, with the proof's constants (L926; the spec's erratum 4).

    eps_1 = max{2C/mu, gap}, halved each stage; lr = 8 B1 sqrt(B2 mu eps)/(m c0^2),
    T = max{m c0^2/(B1 mu sqrt(B2 mu eps)), m c0^4/(B1 B2 mu eps)}, beta = 2 B2 mu eps/c0^2, alpha = B1 beta/m.
    Valid while B2 mu eps <= 1089 C: capped there.

    Args:
        gap: a bound on F(w_1) - F*.
        accuracy: the eps to reach; log2(2 eps_1/eps) stages.
    """
    _sizes(m, b1, b2)
    c0, mu = 264 * _constant(c), _checks.positive("mu", mu)
    first = max(2 * c / mu, _checks.non_negative("gap", gap))
    stages = []
    for s in range(_count(first, accuracy)):
        noise = min(b2 * mu * first / 2**s, 1089 * c)
        steps = max(m * c0**2 / (b1 * mu * math.sqrt(noise)), m * c0**4 / (b1 * noise))
        beta = 2 * noise / c0**2
        stages.append(Stage(math.ceil(steps), 8 * b1 * math.sqrt(noise) / (m * c0**2), b1 * beta / m, beta))
    return stages


def stages_v3(*, m: int, n: int, b1: int, b2: int, c: float, mu: float, gap: float, accuracy: float) -> list[Stage]:
    """Stage-wise MSVR-v3 under the mu-PL condition: constant rates, eps_1 = max{gap, 146 C/mu}.

    T = max{mn/(B1 B2), m sqrt(n)/(mu B1 sqrt(B2))} with the proof's O(1) taken as 1; a sqrt(3776 C) comes with
    the step size.
    """
    rates = theorem_v3(m=m, n=n, b1=b1, b2=b2, c=c)
    first = max(_checks.non_negative("gap", gap), 146 * c / _checks.positive("mu", mu))
    steps = max(m * n / (b1 * b2), m * math.sqrt(n) / (mu * b1 * math.sqrt(b2)))
    lr, alpha, beta = (at(rate, 1, "rate", _checks.positive) for rate in (rates.lr, rates.alpha, rates.beta))
    return [Stage(math.ceil(steps), lr, alpha, beta) for _ in range(_count(first, accuracy))]


def convex_mu(*, accuracy: float, distance: float) -> float:
    """mu = eps/D for the convex case, D >= ||w*||^2: run the stages on F + (mu/2)||w||^2 to accuracy eps/2."""
    return _checks.positive("accuracy", accuracy) / _checks.positive("distance", distance)


def _count(first: float, accuracy: float) -> int:
    return max(1, math.ceil(math.log2(2 * first / _checks.positive("accuracy", accuracy))))
