"""The stages of the paper's Algorithm 3, for PL and for convex problems: their lengths and rates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from fcco._support import checks
from fcco.methods.schedules import at, check_sizes, constant, theorem_v3


@final
@dataclass(frozen=True)
class Stage:
    """One stage: how many steps, and the rates in it."""

    steps: int
    lr: float
    alpha: float
    beta: float

    def __post_init__(self) -> None:
        checks.positive_int("steps", self.steps)
        checks.positive("lr", self.lr)
        checks.rate("alpha", self.alpha)
        checks.rate("beta", self.beta)


def stages_v2(*, m: int, b1: int, b2: int, c: float, mu: float, gap: float, accuracy: float) -> list[Stage]:
    """Stage-wise MSVR-v2 under the mu-PL condition, with the constants of Theorem 3's proof (Appendix A.6).

    The proof gives beta twice, with different constants; this one is the first, which eta and c0 imply.

    eps_1 = max{2C/mu, gap}, halved each stage; lr = 8 B1 sqrt(B2 mu eps)/(m c0^2),
    T = max{m c0^2/(B1 mu sqrt(B2 mu eps)), m c0^4/(B1 B2 mu eps)}, beta = 2 B2 mu eps/c0^2, alpha = B1 beta/m.
    Valid while B2 mu eps <= 1089 C: capped there.

    Args:
        gap: a bound on F(w_1) - F*.
        accuracy: the eps to reach; log2(2 eps_1/eps) stages.
    """
    check_sizes(m, b1, b2)
    c0, mu = 264 * constant(c), checks.positive("mu", mu)
    first = max(2 * c / mu, checks.non_negative("gap", gap))
    stages = []
    for s in range(_count(first, accuracy)):
        noise = min(b2 * mu * first / 2**s, 1089 * c)  # B2 mu eps_s, capped where the proof ends
        steps = max(m * c0**2 / (b1 * mu * math.sqrt(noise)), m * c0**4 / (b1 * noise))
        beta = 2 * noise / c0**2
        stages.append(Stage(math.ceil(steps), 8 * b1 * math.sqrt(noise) / (m * c0**2), b1 * beta / m, beta))
    return stages


def stages_v3(*, m: int, n: int, b1: int, b2: int, c: float, mu: float, gap: float, accuracy: float) -> list[Stage]:
    """Stage-wise MSVR-v3 under the mu-PL condition (Theorem 5): constant rates, eps_1 = max{gap, 146 C/mu}.

    T = max{mn/(B1 B2), m sqrt(n)/(mu B1 sqrt(B2))} with the proof's O(1) taken as 1; a sqrt(3776 C) comes with
    the step size.
    """
    rates = theorem_v3(m=m, n=n, b1=b1, b2=b2, c=c)
    first = max(checks.non_negative("gap", gap), 146 * c / checks.positive("mu", mu))
    steps = max(m * n / (b1 * b2), m * math.sqrt(n) / (mu * b1 * math.sqrt(b2)))
    lr, alpha, beta = (at(rate, 1, "rate", checks.positive) for rate in (rates.lr, rates.alpha, rates.beta))
    return [Stage(math.ceil(steps), lr, alpha, beta) for _ in range(_count(first, accuracy))]


def convex_mu(*, accuracy: float, distance: float) -> float:
    """mu = eps/D for the convex case, D >= ||w*||^2: run the stages on F + (mu/2)||w||^2 to accuracy eps/2."""
    return checks.positive("accuracy", accuracy) / checks.positive("distance", distance)


def _count(first: float, accuracy: float) -> int:
    return max(1, math.ceil(math.log2(2 * first / checks.positive("accuracy", accuracy))))
