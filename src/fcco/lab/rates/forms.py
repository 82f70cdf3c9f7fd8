"""The theorems' rates with the constants left free, as stages of constant rates.

The theorems fix the powers of t, m, B1, B2, mu and eps; their constants would take 10^9 steps. So the constants are
tuned once, at one problem size and one horizon, and the powers carry them everywhere else.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, final

from fcco.methods.stages import Stage


class Form(StrEnum):
    """Whose rates; v1's theorem has two, early while max(B1, B2)/eps < m sqrt(B2) and late after."""

    SOX = "SOX"
    V1_LATE = "MSVR-v1 (late)"
    V1_EARLY = "MSVR-v1 (early)"
    V2 = "MSVR-v2"


METHOD = {Form.SOX: "sox", Form.V1_LATE: "msvr-v1", Form.V1_EARLY: "msvr-v1", Form.V2: "msvr-v2"}
TITLES = {"sox": "SOX", "msvr-v1": "MSVR-v1", "msvr-v2": "MSVR-v2", "bsgd": "BSGD", "bspiderboost": "BSpiderBoost"}


class Constants(NamedTuple):
    """The free constants of eta, alpha and beta."""

    eta: float
    alpha: float
    beta: float


def grid(etas: Iterable[float], alphas: Iterable[float], betas: Iterable[float]) -> list[Constants]:
    """Return all combinations of the constants."""
    return [Constants(*map(float, c)) for c in itertools.product(etas, alphas, betas)]


@final
@dataclass(frozen=True)
class Sizes:
    """m/B1 and the batch sizes."""

    m: int
    b1: int = 1
    b2: int = 1

    @property
    def ratio(self) -> float:
        """m/B1."""
        return self.m / self.b1


def rates(form: Form, sizes: Sizes, c: Constants, s: float) -> tuple[float, float, float]:
    """Return eta, alpha and beta at a + t = s.

    SOX:         eta = c (B1 B2/m)^(1/2) s^(-1/2),  alpha = c (min(B1, B2)/s)^(1/2),  beta = c (m/B1) eta
    v1 (late):   eta = c (min(B1, B2)/s)^(1/2),     alpha = c eta,                    beta = c (m/B1)^2 eta^2
    v1 (early):  eta = c (B1 sqrt(B2)/m)^(2/3) s^(-1/3), alpha and beta as above
    v2:          eta as v1 (early),                 alpha = c (m/B1) eta^2,           beta = c (m/B1)^2 eta^2
    """
    ratio = sizes.ratio
    smaller = min(sizes.b1, sizes.b2)
    if form is Form.SOX:
        eta = c.eta * math.sqrt(sizes.b2 / (ratio * s))
        alpha = c.alpha * math.sqrt(smaller / s)
        beta = c.beta * ratio * eta
        return eta, alpha, beta
    if form is Form.V1_LATE:
        eta = c.eta * math.sqrt(smaller / s)
    else:
        eta = c.eta * (math.sqrt(sizes.b2) / ratio) ** (2 / 3) * s ** (-1 / 3)
    if form is Form.V2:
        alpha = c.alpha * ratio * eta * eta
    else:
        alpha = c.alpha * eta
    beta = c.beta * (ratio * eta) ** 2
    return eta, alpha, beta


def decaying(form: Form, sizes: Sizes, c: Constants, steps: int) -> list[Stage]:
    """Return the rates over a horizon, in stages over which a + t grows by 5 %.

    Here a = m B2/B1, alpha is at most 1, and beta is at most what the theorem proves.

    Example:
        >>> stages = decaying(Form.V2, Sizes(m=20), Constants(1.0, 1.0, 1.0), steps=1000)
        >>> sum(stage.steps for stage in stages)
        1000
    """
    offset = sizes.ratio * sizes.b2
    stages = []
    t = 0
    while t < steps:
        length = min(max(1, int(0.05 * (offset + t))), steps - t)
        eta, alpha, beta = rates(form, sizes, c, offset + t + length / 2)
        stages.append(Stage(length, eta, min(1.0, alpha), min(largest_beta(METHOD[form]), beta)))
        t += length
    return stages


def largest_beta(method: str) -> float:
    """Return up to which beta a method is proved: 1 for the moving average, 1/2 for MSVR."""
    if method == "sox":
        return 1.0
    return 0.5


class First(NamedTuple):
    """What the first stage of a stage-wise run takes, tuned once."""

    eta: float
    steps: int
    alpha: float
    beta: float


# powers of (mu eps_s) in eta, alpha and beta; power of mu in T_s, which is 1/eps_s besides
POWERS = {"sox": (1.0, 1.0, 1.0, 2), "msvr-v1": (1.0, 1.0, 2.0, 2), "msvr-v2": (0.5, 1.0, 1.0, 1)}


def halving(method: str, one: First, stages: int, mu: float = 1.0) -> list[Stage]:
    """Return stages with eps_s halved each time; ``mu`` is relative to the one that ``one`` was tuned for.

    msvr-v2: eta_s ~ (mu eps_s)^(1/2), alpha_s, beta_s ~ mu eps_s, T_s ~ 1/(mu eps_s) (the spec's stage-wise form).
    sox, msvr-v1: eta_s, alpha_s ~ mu eps_s, beta_s ~ mu eps_s (v1: squared), T_s ~ 1/(mu^2 eps_s); for v1 no
    theorem gives them.
    """
    eta_power, alpha_power, beta_power, length_power = POWERS[method]
    made = []
    for s in range(stages):
        scale = mu * 2.0**-s
        steps = max(1, round(one.steps * 2**s * mu**-length_power))
        eta = one.eta * scale**eta_power
        alpha = min(1.0, one.alpha * scale**alpha_power)
        beta = min(largest_beta(method), one.beta * scale**beta_power)
        made.append(Stage(steps, eta, alpha, beta))
    return made
