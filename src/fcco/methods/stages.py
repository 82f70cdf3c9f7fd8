"""The stages of the paper's Algorithm 3, for PL and for convex problems: their lengths and rates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from fcco._support import checks
from fcco.methods.schedules import at, check_sizes, constant, theorem_v3

__all__ = [
    "Stage",
    "convex_mu",
    "stages_v2",
    "stages_v3",
]


@final
@dataclass(frozen=True)
class Stage:
    """One stage: how many steps, and the rates in it.

    Args:
        steps: how many steps the stage takes.
        lr: the optimizer's learning rate in it.
        alpha: the estimator's rate.
        beta: the tracker's rate.
    """

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
    Valid while B2 mu eps <= 1089 C: capped there. The proof needs B2 <= m: a larger B2 is read as m.

    Args:
        gap: a bound on F(w_1) - F*.
        accuracy: the eps to reach; log2(2 eps_1/eps) stages.
        m: number of blocks.
        b1: blocks per step.
        b2: samples per block and step.
        c: C, at least 1; see :func:`fcco.theorem_constant`.
        mu: the PL constant.
    """
    check_sizes(m, b1, b2)
    c0, mu = 264 * constant(c), checks.positive("mu", mu)
    first = max(2 * c / mu, checks.non_negative("gap", gap))
    samples = min(b2, m)  # beyond m it is the draw of blocks that leaves the noise, and the proof has no term for it
    stages = []
    for s in range(_count(first, accuracy)):
        noise = min(samples * mu * first / 2**s, 1089 * c)  # B2 mu eps_s, capped where the proof ends
        steps = max(m * c0**2 / (b1 * mu * math.sqrt(noise)), m * c0**4 / (b1 * noise))
        beta = 2 * noise / c0**2
        stages.append(Stage(math.ceil(steps), 8 * b1 * math.sqrt(noise) / (m * c0**2), b1 * beta / m, beta))
    return stages


def stages_v3(*, m: int, n: int, b1: int, b2: int, c: float, mu: float, gap: float, accuracy: float) -> list[Stage]:
    """Stage-wise MSVR-v3 under the mu-PL condition (Theorem 5): constant rates, eps_1 = max{gap, 146 C/mu}.

    T = 6 max{1/(mu lr), 1/alpha, m/(beta B1)}, which makes each of the three terms of the proof's bound,
    (F_s - F*)/eps_{s-1} <= 1/(mu lr T) + 1/(alpha T) + m/(beta B1 T) <= 1/2, at most 1/6. The paper says only
    T = O(max{mn/(B1 B2), m sqrt(n)/(mu B1 sqrt(B2))}); the sqrt(3776 C) in lr has to come with it.
    docs/errata.md shows that the bounds on u and z, which the proof leaves out, follow with the same T.

    Args:
        m: number of blocks.
        n: samples of a block in all.
        b1: blocks per step.
        b2: samples per block and step.
        c: C, at least 1; see :func:`fcco.theorem_constant`.
        mu: the PL constant.
        gap: a bound on F(w_1) - F*.
        accuracy: the eps to reach.
    """
    rates = theorem_v3(m=m, n=n, b1=b1, b2=b2, c=c)
    first = max(checks.non_negative("gap", gap), 146 * c / checks.positive("mu", mu))
    lr, alpha, beta = (at(rate, 1, "rate", checks.positive) for rate in (rates.lr, rates.alpha, rates.beta))
    slowest = max(1 / (mu * lr), 1 / alpha, m / (beta * b1))
    return [Stage(math.ceil(6 * slowest), lr, alpha, beta) for _ in range(_count(first, accuracy))]


def convex_mu(*, accuracy: float, distance: float) -> float:
    """mu = eps/D for the convex case, D >= ||w*||^2: run the stages on F + (mu/2)||w||^2 to accuracy eps/2.

    Args:
        accuracy: eps, how close F is to come to its minimum.
        distance: D, a bound on ||w*||^2.
    """
    return checks.positive("accuracy", accuracy) / checks.positive("distance", distance)


def _count(first: float, accuracy: float) -> int:
    return max(1, math.ceil(math.log2(2 * first / checks.positive("accuracy", accuracy))))
