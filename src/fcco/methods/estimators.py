"""Estimators: how z follows grad F. Pure: every rule is one linear combination,

    z_t = k.z z_{t-1} + k.now G_t + k.previous G-_t + k.anchor G_tau + k.full Gfull_tau,

so the backward passes accumulate, scaled, into one gradient buffer. A weight of None means that the
gradient is not needed and is never computed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

from fcco._support import checks
from fcco.methods.schedules import Schedule, at


@final
@dataclass(frozen=True)
class Weights:
    """The weights of one update."""

    z: float
    now: float
    previous: float | None = None
    anchor: float | None = None
    full: float | None = None


class Estimator(ABC):
    """How z follows grad F. Final subclasses hold hyper-parameters only."""

    remembers: ClassVar[bool] = True  # z_{t-1} is needed
    looks_back: ClassVar[bool] = False  # the gradient at w_{t-1} is needed

    @abstractmethod
    def weights(self, t: int) -> Weights:
        """The weights of step t (1, 2, ...)."""


@final
@dataclass(frozen=True)
class Plain(Estimator):
    """z_t = G_t."""

    remembers: ClassVar[bool] = False

    def weights(self, t: int) -> Weights:
        return Weights(z=0.0, now=1.0)


@final
@dataclass(frozen=True)
class Momentum(Estimator):
    """z_t = (1 - alpha) z + alpha G_t (L265)."""

    alpha: Schedule

    def __post_init__(self) -> None:
        at(self.alpha, 1, "alpha", checks.rate)

    def weights(self, t: int) -> Weights:
        a = at(self.alpha, t, "alpha", checks.rate)
        return Weights(z=1.0 - a, now=a)


@final
@dataclass(frozen=True)
class Storm(Estimator):
    """z_t = (1 - alpha) z + G_t - (1 - alpha) G-_t (L278).

    Args:
        alpha: in (0, 1].
        anchored: the finite-sum form (L356-363), - alpha G_tau + alpha Gfull_tau besides.
    """

    alpha: Schedule
    anchored: bool = False
    looks_back: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at(self.alpha, 1, "alpha", checks.rate)

    def weights(self, t: int) -> Weights:
        a = at(self.alpha, t, "alpha", checks.rate)
        anchor, full = (-a, a) if self.anchored else (None, None)
        return Weights(z=1.0 - a, now=1.0, previous=-(1.0 - a), anchor=anchor, full=full)


@final
@dataclass(frozen=True)
class Sarah(Estimator):
    """z_t = z + G_t - G-_t, and z_t = G_t of a larger batch at t = 1, 1 + period, ... (BSpiderBoost)."""

    period: int
    looks_back: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.positive_int("period", self.period)

    def weights(self, t: int) -> Weights:
        afresh = (t - 1) % self.period == 0
        return Weights(z=0.0, now=1.0) if afresh else Weights(z=1.0, now=1.0, previous=-1.0)
