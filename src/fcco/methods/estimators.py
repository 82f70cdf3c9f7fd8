"""Estimators: how z follows grad F. Pure: every rule is one linear combination,

    z_t = k.z z_{t-1} + k.now G_t + k.previous G-_t + k.reference G_tau + k.full Gfull_tau,

so the backward passes accumulate, scaled, into one gradient buffer. A weight of None means that the
gradient is not needed and is never computed. The optimizer gets z_t, or with ``k.lookahead`` = l not None
Nesterov's mixture k.fresh (k.now G_t) + l z_t.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, final

from torch import Tensor

from fcco._support import checks
from fcco.methods.schedules import Schedule, at

__all__ = [
    "Estimator",
    "Momentum",
    "Plain",
    "Sarah",
    "Storm",
    "Weights",
]

Weight = float | Tensor


@final
@dataclass(frozen=True)
class Weights:
    """The weights of one update, floats or () tensors.

    Args:
        z: of z_{t-1}.
        now: of G_t, at w_t.
        previous: of G-_t, at w_{t-1}; None: not needed, never computed.
        reference: of G_tau, at w_tau; None: likewise.
        full: of Gfull_tau, over all data; None: likewise.
        fresh: Nesterov's mixture takes this times now G_t.
        lookahead: and this times z_t; None: the optimizer gets z_t.
    """

    z: Weight
    now: Weight
    previous: Weight | None = None
    reference: Weight | None = None
    full: Weight | None = None
    fresh: Weight = 1.0
    lookahead: Weight | None = None


class Estimator(ABC):
    """How z follows grad F. Final subclasses hold hyper-parameters only."""

    #: z_{t-1} is needed
    remembers: ClassVar[bool] = True

    @property
    def probes_previous(self) -> bool:
        """Whether any step needs the gradient at w_{t-1}."""
        return False

    def __post_init__(self) -> None:
        # Rates are checked whenever they are read, so a first read refuses bad ones where they are given.
        self.weights(1)

    @abstractmethod
    def weights(self, t: int, large: bool | None = None) -> Weights:
        """The weights of step t (1, 2, ...).

        Args:
            large: whether the batch is one of its loader's large ones; None: the loader has none.
            t: number of the step.
        """

    def start(self, t: int) -> Weights:
        """The weights of a step before which there is no z: z_t = G_t.

        Args:
            t: number of the step.
        """
        usual = self.weights(t)
        if usual.previous is None:
            return replace(usual, z=0.0, now=1.0)
        # Weighed by 0, not left out: the first step probes the same points as every other.
        return replace(usual, z=0.0, now=1.0, previous=0.0)


@final
@dataclass(frozen=True)
class Plain(Estimator):
    """z_t = G_t."""

    remembers: ClassVar[bool] = False

    def weights(self, t: int, large: bool | None = None) -> Weights:
        return Weights(z=0.0, now=1.0)


@final
@dataclass(frozen=True)
class Momentum(Estimator):
    """z_t = (1 - alpha) z + alpha G_t, the estimator of MSVR-v1 (equation 7) and of SOX.

    Args:
        alpha: in (0, 1].
        nesterov: hand alpha G_t + (1 - alpha) z_t to the optimizer in place of z_t. That is torch's
            ``SGD(momentum=1 - alpha, nesterov=True)`` with lr alpha on G, once the start values agree.
    """

    alpha: Schedule
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.flag("nesterov", self.nesterov)

    def weights(self, t: int, large: bool | None = None) -> Weights:
        alpha = at(self.alpha, t, "alpha", checks.rate)
        if self.nesterov:
            # The buffer holds alpha G_t already, so the mixture adds (1 - alpha) z_t to it.
            return Weights(z=1.0 - alpha, now=alpha, lookahead=1.0 - alpha)
        return Weights(z=1.0 - alpha, now=alpha)

    def start(self, t: int) -> Weights:
        usual = super().start(t)
        if not self.nesterov:
            return usual
        return replace(usual, fresh=at(self.alpha, t, "alpha", checks.rate))  # G_t has the weight 1 in the buffer


@final
@dataclass(frozen=True)
class Storm(Estimator):
    """z_t = (1 - alpha) z + alpha G_t + zeta (1 - alpha)(G_t - G-_t), the estimator of MSVR-v2 (equation 8: zeta = 1).

    Args:
        alpha: in (0, 1].
        finite_sum: MSVR-v3's form (equation 10), - alpha G_tau + alpha Gfull_tau besides.
        zeta: in [0, 1], how much of the correction is taken: 1 is the paper's, 0 is momentum (and as a number, not a
            schedule, saves the backward pass at w_{t-1}).
    """

    alpha: Schedule
    finite_sum: bool = False
    zeta: Schedule = 1.0

    @property
    def probes_previous(self) -> bool:
        return self.zeta != 0.0  # momentum by choice: the gradient at w_{t-1} would be thrown away

    def weights(self, t: int, large: bool | None = None) -> Weights:
        alpha = at(self.alpha, t, "alpha", checks.rate)
        correction = at(self.zeta, t, "zeta", checks.fraction) * (1.0 - alpha)
        weights = Weights(z=1.0 - alpha, now=alpha + correction)  # 1 where zeta is 1
        if self.probes_previous:
            weights = replace(weights, previous=-correction)
        if self.finite_sum:
            weights = replace(weights, reference=-alpha, full=alpha)
        return weights


@final
@dataclass(frozen=True)
class Sarah(Estimator):
    """z_t = z + G_t - G-_t, and z_t = G_t of a larger batch at t = 1, 1 + period, ... (BSpiderBoost).

    Args:
        period: steps between two large batches.
    """

    period: int

    @property
    def probes_previous(self) -> bool:
        return True

    def __post_init__(self) -> None:
        checks.positive_int("period", self.period)

    def weights(self, t: int, large: bool | None = None) -> Weights:
        # A loader counts batches and this counts steps: after a skipped step the batch's own word is what holds.
        afresh = (t - 1) % self.period == 0
        if large is not None:
            afresh = large
        if afresh:
            return Weights(z=0.0, now=1.0)
        return Weights(z=1.0, now=1.0, previous=-1.0)
