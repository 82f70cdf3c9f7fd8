"""Schedules: a float or a function of the step t = 1, 2, ..., anywhere a float goes.

Besides the mechanism this file holds the schedules that the proofs give: with their constants
(``theorem_*``, tiny steps for any practical horizon) and without (``constant_free_*``, B2 = 1, for steps along
z/||z||, so ``Solver(..., normalize=True)``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fcco._support import checks

__all__ = [
    "LRSchedule",
    "MeanStart",
    "Rates",
    "Schedule",
    "constant_free_sox",
    "constant_free_v1",
    "constant_free_v2",
    "constant_free_v3",
    "theorem_constant",
    "theorem_v1",
    "theorem_v2",
    "theorem_v3",
]

Schedule = float | Callable[[int], float]


def at(schedule: Schedule, t: int, name: str, check: checks.Check) -> float:
    """The value at step t, checked.

    Example:
        >>> at(lambda t: 1 / t, 4, "beta", checks.rate)
        0.25
    """
    if not callable(schedule):
        return check(name, schedule)
    return check(f"{name} at step {t}", schedule(t))


@final
@dataclass(frozen=True)
class MeanStart:
    """max(rate, 1/t): with it as alpha, z starts as the plain mean of the first gradients.

    z_1 = G_1 weighs the first gradient 1/alpha times as much as each later one; this start does not. At a given alpha
    it ends lower on most problems; once alpha and the learning rate are tuned there is nothing left of that
    (results/starts), so it is an option and not the default.

    Args:
        rate: the rate from step 1/rate on, in (0, 1].

    Example:
        >>> alpha = MeanStart(0.1)
        >>> [round(alpha(t), 2) for t in (1, 2, 5, 20)]
        [1.0, 0.5, 0.2, 0.1]
    """

    rate: float

    def __post_init__(self) -> None:
        checks.rate("rate", self.rate)

    def __call__(self, t: int) -> float:
        return max(self.rate, 1.0 / t)


@final
@dataclass(frozen=True)
class Rates:
    """One algorithm's schedules.

    Args:
        lr: learning rate.
        alpha: rate of the estimator z.
        beta: rate of the tracker u.
        period: steps between two full passes; None: the method takes none.
    """

    lr: Schedule
    alpha: Schedule
    beta: Schedule
    period: int | None = None


@final
class LRSchedule(LRScheduler):
    """Sets every group's learning rate to ``lr(t)`` for step t; call ``step()`` after each solver step.

    Args:
        optimizer: whose learning rates are set.
        lr: a number, or a function of the step t = 1, 2, ....

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        >>> scheduler = LRSchedule(optimizer, lambda t: 0.5 / t)
        >>> optimizer.param_groups[0]["lr"]
        0.5
    """

    def __init__(self, optimizer: Optimizer, lr: Schedule) -> None:
        self._schedule = lr
        super().__init__(optimizer)

    def get_lr(self) -> list[float | Any]:
        value = at(self._schedule, self.last_epoch + 1, "lr", checks.non_negative)
        return [value for _ in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        hidden = ("optimizer", "_schedule")  # a function is the caller's, not state
        return {key: value for key, value in self.__dict__.items() if key not in hidden}


def check_sizes(m: int, b1: int, b2: int) -> None:
    for name, value in (("m", m), ("b1", b1), ("b2", b2)):
        checks.positive_int(name, value)
    if b1 > m:
        raise ValueError(f"b1 must be at most m = {m}, got {b1}")


def constant(c: float) -> float:
    if checks.positive("c", c) < 1.0:
        raise ValueError(f"c must be >= 1 (it is a maximum over terms that include 1), got {c}")
    return c


def theorem_constant(*, c_f: float, l_f: float, c_g: float, l_g: float, sigma: float) -> float:
    """The constant C of the theorems (Appendix A.4), from what the assumptions bound.

    C = max{1, C_g^2, L_F^2, C_F^2, sigma^2, L_f^2 C_g^2, L_g^2 C_f^2, L_f^2 C_g^4, L_f^2 C_g^2 sigma^2,
    C_f^2 (sigma^2 + C_g^2)} with C_F = C_f C_g and L_F = C_f L_g + C_g^2 L_f (the paper prints C_f^2 L_g there).

    Args:
        c_f, l_f: Lipschitz constants of every f_i and of its gradient.
        c_g, l_g: those of every g_i and of its Jacobian, in the mean square over samples too.
        sigma: of one sample: E||g_i(w; xi) - g_i(w)||^2 <= sigma^2, and the same for the Jacobian.

    Example:
        >>> theorem_constant(c_f=2.0, l_f=1.0, c_g=1.0, l_g=0.5, sigma=1.0)  # C_f^2 (sigma^2 + C_g^2)
        8.0
    """
    for name, value in (("c_f", c_f), ("l_f", l_f), ("c_g", c_g), ("l_g", l_g), ("sigma", sigma)):
        checks.non_negative(name, value)
    smoothness = c_f * l_g + c_g**2 * l_f  # L_F
    terms = (
        1.0,
        c_g**2,
        smoothness**2,
        (c_f * c_g) ** 2,
        sigma**2,
        (l_f * c_g) ** 2,
        (l_g * c_f) ** 2,
        (l_f * c_g**2) ** 2,
        (l_f * c_g * sigma) ** 2,
        c_f**2 * (sigma**2 + c_g**2),
    )
    return float(max(terms))


def theorem_v1(*, m: int, b1: int, b2: int, c: float, smoothness: float | None = None) -> Rates:
    """MSVR-v1's schedule with the constants of Theorem 1's proof, at the smallest offset a that it allows.

    lr_t = min{(B1 sqrt(B2)/m)^(2/3) (a+t)^(-1/3), sqrt(min(B1,B2)) (a+t)^(-1/2)}, alpha_{t+1} = 36 C lr_t,
    beta_{t+1} = 256 m^2 C^2 lr_t^2/B1^2; alpha <= 1/15, beta <= 0.44, lr <= min{B1/4m, 1/2L_F}.

    Args:
        m, b1, b2: blocks, blocks per step, samples per block.
        c: the constant C of Appendix A.4, >= 1; :func:`theorem_constant` computes it.
        smoothness: L_F; None takes its bound sqrt(C).
    """
    check_sizes(m, b1, b2)
    c = constant(c)
    bound = math.sqrt(c) if smoothness is None else checks.positive("smoothness", smoothness)
    # The largest lr that every condition of the proof allows; a is the offset at which lr_0 meets it.
    top = min(1 / (15 * 36 * c), math.sqrt(0.44) * b1 / (16 * m * c), b1 / (4 * m), 1 / (2 * bound))
    fast, slow = (b1 * math.sqrt(b2) / m) ** (2 / 3), math.sqrt(min(b1, b2))
    a = min((fast / top) ** 3, (slow / top) ** 2)

    def lr(t: int) -> float:
        return float(min(fast * (a + t) ** (-1 / 3), slow * (a + t) ** (-1 / 2)))

    return Rates(lr, lambda t: 36 * c * lr(t - 1), lambda t: (16 * m * c * lr(t - 1) / b1) ** 2)


def theorem_v2(*, m: int, b1: int, b2: int, c: float) -> Rates:
    """MSVR-v2's schedule with the constants of Theorem 2's proof, at the smallest offset a that it allows.

    c0 = 264 C, lr_t = (B1 sqrt(B2)/m)^(2/3) (a+t)^(-1/3), beta_{t+1} = m^2 c0^2 lr_t^2/(32 B1^2),
    alpha = B1 beta/m; lr <= B1/(m c0), beta <= 1/(32C); B2 > m is read as m.

    Args:
        m: number of blocks.
        b1: blocks per step.
        b2: samples per block and step.
        c: C, at least 1; see :func:`fcco.theorem_constant`.

    Example:
        >>> rates = theorem_v2(m=10, b1=2, b2=4, c=1.0)
        >>> round(rates.beta(1), 6)
        0.03125
    """
    check_sizes(m, b1, b2)
    c0, scale = 264 * constant(c), (b1 * math.sqrt(min(b2, m)) / m) ** (2 / 3)
    a = (scale * m * c0 * math.sqrt(c) / b1) ** 3  # from beta_1 <= 1/(32 C), the tighter of the two bounds since C >= 1

    def lr(t: int) -> float:
        return float(scale * (a + t) ** (-1 / 3))

    def beta(t: int) -> float:
        return (m * c0 * lr(t - 1) / b1) ** 2 / 32

    return Rates(lr, lambda t: b1 * beta(t) / m, beta)


def theorem_v3(*, m: int, n: int, b1: int, b2: int, c: float) -> Rates:
    """Theorem 4's constants for v3: I = mn/(B1 B2), alpha = 1/I, beta = B2/n, lr = B1 sqrt(beta)/(m sqrt(3776 C)).

    Args:
        m: number of blocks.
        n: samples of a block in all.
        b1: blocks per step.
        b2: samples per block and step.
        c: C, at least 1; see :func:`fcco.theorem_constant`.
    """
    check_sizes(m, b1, b2)
    beta = b2 / checks.positive_int("n", n)
    if beta > 0.5:
        raise ValueError(f"b2 must be at most n/2 = {n / 2} (the proof needs beta = b2/n <= 1/2), got {b2}")
    period = math.ceil(m * n / (b1 * b2) - 1e-9)  # a whole quotient may come out a hair above
    # A rounded-up period breaks beta I <= m/B1 and alpha I <= 1 by less than one step: shrink both to fit.
    beta = min(beta, m / (b1 * period))
    return Rates(b1 * math.sqrt(beta) / (m * math.sqrt(3776 * constant(c))), 1 / period, beta, period)


def constant_free_sox(*, m: int, b1: int, horizon: int) -> Rates:
    """SOX-like (moving-average u, momentum): alpha = sqrt(B1/T), beta = sqrt(m/(B1 T)), ..., B2 = 1.

    Args:
        m: number of blocks.
        b1: blocks per step.
        horizon: T, how many steps will be taken.
    """
    check_sizes(m, b1, 1)
    t = checks.positive_int("horizon", horizon)
    beta = min(1.0, math.sqrt(m / (b1 * t)))
    return Rates((b1 / m) ** 0.25 * t**-0.75, min(1.0, math.sqrt(b1 / t)), beta)


def constant_free_v1(*, m: int, b1: int, horizon: int, b2: int = 1) -> Rates:
    """MSVR-v1: alpha = sqrt(B/T), lr = B^(1/4) T^(-3/4), beta = (m/B1) lr, with B = min(B1, B2).

    Args:
        m: number of blocks.
        b1: blocks per step.
        horizon: T, how many steps will be taken.
        b2: samples per block and step.
    """
    check_sizes(m, b1, b2)
    t, b = checks.positive_int("horizon", horizon), min(b1, b2)
    lr = b**0.25 * t**-0.75
    return Rates(lr, min(1.0, math.sqrt(b / t)), min(1.0, m / b1 * lr))


def constant_free_v2(*, m: int, b1: int, horizon: int) -> Rates:
    """MSVR-v2: beta = (m/(B1 T))^(2/3), alpha = B1 beta/m, lr = (B1/m)^(1/3) T^(-2/3), B2 = 1.

    Args:
        m: number of blocks.
        b1: blocks per step.
        horizon: T, how many steps will be taken.

    Example:
        >>> rates = constant_free_v2(m=8, b1=1, horizon=1000)
        >>> round(rates.beta, 3), round(rates.lr, 4)
        (0.04, 0.005)
    """
    check_sizes(m, b1, 1)
    t = checks.positive_int("horizon", horizon)
    beta = min(1.0, (m / (b1 * t)) ** (2 / 3))
    return Rates((b1 / m) ** (1 / 3) * t ** (-2 / 3), min(1.0, b1 * beta / m), beta)


def constant_free_v3(*, m: int, n: int, b1: int, horizon: int) -> Rates:
    """MSVR-v3: alpha = B1/(mn), beta = 1/n, lr = B1^(1/2) m^(-1/2) n^(-1/4) T^(-1/2), I = mn/B1, B2 = 1.

    Args:
        m: number of blocks.
        n: samples of a block in all.
        b1: blocks per step.
        horizon: T, how many steps will be taken.
    """
    check_sizes(m, b1, 1)
    t, n = checks.positive_int("horizon", horizon), checks.positive_int("n", n)
    return Rates(math.sqrt(b1 / m) * n**-0.25 * t**-0.5, b1 / (m * n), 1 / n, math.ceil(m * n / b1))
