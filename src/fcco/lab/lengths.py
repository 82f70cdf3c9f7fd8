"""How long a run is: in epochs, in steps, or in samples as the paper counts them; and the step size over it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import fcco
from fcco.lab.config import TrainConfig
from fcco.lab.errors import LabError


@final
@dataclass(frozen=True)
class Costs:
    """What a run draws.

    Args:
        step: samples per step.
        full_pass: samples that the paper charges for a full pass, m n.
        evaluations: examples that go through the network in a full pass.
        large: samples of a restart's larger batch; None: the method has none.
    """

    step: int
    full_pass: int
    evaluations: int
    large: int | None = None


def total_steps(config: TrainConfig, method: fcco.Method, steps_per_epoch: int, costs: Costs) -> int:
    """Return how many steps the run takes."""
    if config.steps is not None:
        return config.steps
    if config.total_samples is None:
        steps = config.epochs * steps_per_epoch
        if steps >= 2**63:
            raise LabError(f"--epochs must give fewer than 2^63 steps, got {config.epochs:g}")
        return max(1, round(steps))
    period = config.period
    extra = 0
    if method.finite_sum:
        extra = costs.full_pass
        if period is None:
            period = max(1, math.ceil(costs.evaluations / costs.step))  # the solver's own epoch
    elif costs.large is not None:
        extra = costs.large - costs.step
    return max(1, steps_within(config.total_samples, costs.step, period, extra))


def steps_within(samples: int, step: int, period: int | None, extra: int) -> int:
    """Return how many steps draw at most so many samples, where every period begins with ``extra`` ones.

    Example:
        >>> steps_within(100, 10, None, 0), steps_within(100, 10, 4, 20), steps_within(75, 10, 4, 20)
        (10, 6, 4)
    """
    if period is None:
        return samples // step
    whole, rest = divmod(samples, period * step + extra)
    return whole * period + max(0, rest - extra) // step


def schedule(config: TrainConfig, total: int) -> Callable[[int], float]:
    """Return the step size at each step."""
    assert config.lr is not None  # resolved
    lr = config.lr

    def at(t: int) -> float:
        done = min(1.0, (t - 1) / total)
        if config.schedule == "cosine":
            return lr * 0.5 * (1 + math.cos(math.pi * done))
        if config.schedule == "linear":
            return lr * (1 - done)
        if config.schedule == "step" and done >= 0.75:
            return lr * 0.01
        if config.schedule == "step" and done >= 0.5:
            return lr * 0.1
        return lr

    return at
