"""Trackers: how u_i follows g_i(w). Pure: coefficients in, coefficients out; tensors in, tensors out.

Every tracker is one linear combination of the same few values,

    u_t = c.u u_{t-1} + c.now g_i(w_t; xi) + c.previous g_i(w_{t-1}; xi)
        + c.reference g_i(w_tau; xi) + c.full g_i(w_tau) + c.jvp J_i(w_t; xi)(w_t - w_{t-1}),

so a tracker says its coefficients and :func:`combine` applies them, in the plain or in the log domain. A coefficient
of None means that the value is not needed and is never computed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor

from fcco._support import checks
from fcco.methods.schedules import Schedule, at

__all__ = [
    "MSVR",
    "Coefficients",
    "Extrapolation",
    "MovingAverage",
    "NoTracker",
    "OwnRate",
    "Storm",
    "Tracker",
    "Values",
    "Variant",
    "combine",
    "floor",
    "msvr_gamma",
    "with_derivative",
]

Coefficient = float | Tensor


@final
@dataclass(frozen=True)
class Coefficients:
    """The coefficients of one update; None where the value is not needed.

    Args:
        u: of u_{t-1}.
        now: of g at w_t.
        previous: of g at w_{t-1}, on the same samples.
        reference: of g at w_tau, on the same samples.
        full: of g at w_tau over all samples.
        jvp: of the Jacobian times w_t - w_{t-1}.
        beta: weight of a fresh probe, the floor of the safeguard.
    """

    u: Coefficient
    now: Coefficient
    previous: Coefficient | None = None
    reference: Coefficient | None = None
    full: Coefficient | None = None
    jvp: Coefficient | None = None
    beta: Coefficient = 1.0


@final
class Values(NamedTuple):
    """What was probed for the drawn blocks, each (..., B, dim) or None where not needed.

    Args:
        u: u_{t-1}.
        now: g at w_t.
        previous: g at w_{t-1}, on the same samples.
        reference: g at w_tau, on the same samples.
        full: g at w_tau over all samples.
        jvp: the Jacobian times w_t - w_{t-1}.
    """

    u: Tensor
    now: Tensor
    previous: Tensor | None = None
    reference: Tensor | None = None
    full: Tensor | None = None
    jvp: Tensor | None = None


def combine(c: Coefficients, v: Values, log_domain: Tensor | bool | None = None) -> Tensor:
    """The new rows u_t.

    Args:
        c: coefficients, floats or tensors that broadcast against the rows.
        v: values, (..., B, dim) each; logarithms in the components that ``log_domain`` marks.
        log_domain: (dim,) bool, which components are in the log domain; True: all of them, None: none.

    Returns:
        (..., B, dim), log u_t in the marked components, where it is at least log(beta g).

    Example:
        >>> u, g = torch.tensor([[1.0]]), torch.tensor([[3.0]])
        >>> combine(Coefficients(u=0.5, now=0.5, beta=0.5), Values(u, g))
        tensor([[2.]])
    """
    if isinstance(log_domain, Tensor):
        return torch.where(log_domain, _combine_log(c, v), _combine_plain(c, v))
    if log_domain:
        return _combine_log(c, v)
    return _combine_plain(c, v)


def _terms(c: Coefficients, v: Values) -> list[tuple[Coefficient, Tensor]]:
    """Every needed value with its coefficient, but for the Jacobian-vector product."""
    # The order is that of the equation: floating-point sums depend on it, and the reference tests compare to 1e-12.
    pairs = [(c.u, v.u), (c.now, v.now), (c.previous, v.previous), (c.reference, v.reference), (c.full, v.full)]
    return [(weight, value) for weight, value in pairs if weight is not None and value is not None]


def _combine_plain(c: Coefficients, v: Values) -> Tensor:
    total = c.u * v.u
    for weight, value in _terms(c, v)[1:]:
        total = total + weight * value
    if c.jvp is None or v.jvp is None:
        return total
    return total + c.jvp * v.jvp


def _combine_log(c: Coefficients, v: Values) -> Tensor:
    terms = _terms(c, v)
    if len(terms) == 2 and c.jvp is None:  # a moving average: positive weights, and never below beta g
        return torch.logaddexp(v.u + _log(c.u), v.now + _log(c.now))
    top = torch.stack([value for _, value in terms]).amax(0)  # (..., B, dim), each row's largest exponent
    total = torch.zeros_like(v.now)
    for weight, value in terms:
        total = total + weight * (value - top).exp()  # at most |weight|: nothing overflows
    if c.jvp is not None and v.jvp is not None:
        total = total + c.jvp * v.jvp * (v.now - top).exp()  # d g = g d(log g)
    # The floor is taken outside the exponentials: beta g may lie too far below the row's top to be seen there.
    return torch.maximum(top + total.clamp(min=0.0).log(), v.now + _log(c.beta))


def floor(u: Tensor, g: Tensor, beta: Coefficient, log_domain: Tensor | bool | None) -> Tensor:
    """The u that a weight may use: at least beta*g in the log components, so that no weight exceeds 1/beta.

    Args:
        u: rows (..., B, dim), logarithms in the log components.
        g: the fresh probe, likewise.
        beta: weight of a fresh probe.
        log_domain: (dim,) bool, which components are in the log domain; True: all of them, None: none.
    """
    if log_domain is None or log_domain is False:
        return u
    above = torch.maximum(u, g + _log(beta))  # (..., B, dim)
    if log_domain is True:
        return above
    return torch.where(log_domain, above, u)


def with_derivative(u: Tensor, g: Tensor, log_domain: Tensor | bool | None) -> Tensor:
    """The rows u with the derivative of g put behind them: f of this has the value f(u) and the gradient f'(u) dg.

    Args:
        u: (B, dim) without graph, log u in the components that ``log_domain`` marks.
        g: (B, dim) with its graph, log g there.
        log_domain: as in :func:`combine`.

    Example:
        >>> g = torch.tensor([[3.0]], requires_grad=True)
        >>> with_derivative(torch.tensor([[2.0]]), g, None).square().sum().backward()
        >>> g.grad
        tensor([[4.]])
    """
    rows = g.detach()
    change = g - rows  # 0, with the derivative of g
    if log_domain is None or log_domain is False:
        return u + change
    ratio = (rows - u).exp()
    if log_domain is not True:
        ratio = torch.where(log_domain, ratio, 1.0)
    return torch.addcmul(u, ratio, change)  # log u + (g/u) d(log g) = log u + d g / u


def _log(weight: Coefficient) -> Coefficient:
    if isinstance(weight, Tensor):
        return weight.log()
    if weight > 0.0:
        return math.log(weight)
    return -math.inf


def msvr_gamma(beta: float, ratio: float) -> float:
    """The paper's gamma = (m - B1)/(B1 (1 - beta)) + (1 - beta), with ratio = m/B1; 0 at beta = 1 (equation 5).

    Args:
        beta: rate of the tracker, in (0, 1].
        ratio: m/B1, at least 1.

    Example:
        >>> msvr_gamma(0.5, 2.0)
        2.5
    """
    # At beta = 1 u_t is g itself; the formula divides by 0 there.
    if beta == 1.0:
        return 0.0
    return (ratio - 1.0) / (1.0 - beta) + (1.0 - beta)


class Tracker(ABC):
    """How u follows g. Final subclasses hold hyper-parameters only."""

    #: u_t is g itself: each gradient uses the g of its own point
    memoryless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        # Rates are checked whenever they are read, so a first read refuses bad ones where they are given.
        self.coefficients(1, 1.0, torch.zeros(1, 1))

    @property
    def probes_previous(self) -> bool:
        """Whether any step needs w_{t-1}."""
        return False

    @abstractmethod
    def coefficients(self, t: int, ratio: float, u: Tensor) -> Coefficients:
        """The coefficients of step t (1, 2, ...), with ratio = m/B1 and the rows u_{t-1} (B, dim).

        Args:
            t: number of the step.
            ratio: m/B1.
            u: the drawn blocks' rows (B, dim); OwnRate alone reads them.
        """

    def decay(self, t: int) -> float:
        """What the rows of blocks that are not drawn at step t are multiplied by.

        Args:
            t: number of the step.
        """
        return 1.0


@final
@dataclass(frozen=True)
class NoTracker(Tracker):
    """u_t = g: the latest probe, as BSGD takes it."""

    memoryless: ClassVar[bool] = True

    def coefficients(self, t: int, ratio: float, u: Tensor) -> Coefficients:
        return Coefficients(u=0.0, now=1.0)


@final
@dataclass(frozen=True)
class MovingAverage(Tracker):
    """u_t = (1 - beta) u + beta g (SOX; equation 3 of the paper).

    Args:
        beta: weight of a fresh probe, in (0, 1], or a function of t.
    """

    beta: Schedule

    def coefficients(self, t: int, ratio: float, u: Tensor) -> Coefficients:
        beta = at(self.beta, t, "beta", checks.rate)
        return Coefficients(u=1.0 - beta, now=beta, beta=beta)


@final
@dataclass(frozen=True)
class Storm(Tracker):
    """u_t = (1 - beta) u + beta g + (1 - beta)(g - g-): STORM, naive in that it ignores the draw of the blocks
    (equation 4 of the paper).

    Args:
        beta: weight of a fresh probe, in (0, 1], or a function of t.
    """

    beta: Schedule

    @property
    def probes_previous(self) -> bool:
        return True

    def coefficients(self, t: int, ratio: float, u: Tensor) -> Coefficients:
        beta = at(self.beta, t, "beta", checks.rate)
        return Coefficients(u=1.0 - beta, now=beta + (1.0 - beta), previous=-(1.0 - beta), beta=beta)


@final
@dataclass(frozen=True)
class MSVR(Tracker):
    """u_t = (1 - beta) u + beta g + gamma (g - g-), equation 5 of the paper.

    Args:
        beta: in (0, 1].
        gamma: None takes the paper's formula from m and the batch's B1; a number or a schedule overrides it.
        finite_sum: the finite-sum form (equation 9), g -> g - g_i(w_tau; xi) + g_i(w_tau) in the beta term.
        single_point: MSVR-SP (equation 6), g - g- -> J(w_t - w_{t-1}), a Jacobian-vector product.
    """

    beta: Schedule
    gamma: Schedule | None = None
    finite_sum: bool = False
    single_point: bool = False

    @property
    def probes_previous(self) -> bool:
        return self.gamma != 0.0  # without it the second probe would be thrown away: a moving average by choice

    def coefficients(self, t: int, ratio: float, u: Tensor) -> Coefficients:
        beta = at(self.beta, t, "beta", checks.rate)
        gamma = msvr_gamma(beta, ratio)
        if self.gamma is not None:
            gamma = at(self.gamma, t, "gamma", checks.non_negative)
        if not self.probes_previous:
            c = Coefficients(u=1.0 - beta, now=beta, beta=beta)
        elif self.single_point:
            return Coefficients(u=1.0 - beta, now=beta, jvp=gamma, beta=beta)
        else:
            c = Coefficients(u=1.0 - beta, now=beta + gamma, previous=-gamma, beta=beta)
        if not self.finite_sum:
            return c
        # Equation 9: the probe at w_tau takes its noise out of the beta term, the exact value puts the mean back.
        return replace(c, reference=-beta, full=beta)


@final
@dataclass(frozen=True)
class Variant(Tracker):
    """The paper's ablation (equations 18 and 19): STORM on the blocks scaled by m/B1, the others decay.

    u_t = (1-b) u + b (m/B1) g + (1-b)(m/B1)(g - g-) for drawn blocks, u_t = (1-b) u for the others.

    Args:
        beta: weight of a fresh probe, in (0, 1], or a function of t.
        finite_sum: equation 19: corrected by the reference's full pass.
    """

    beta: Schedule
    finite_sum: bool = False

    @property
    def probes_previous(self) -> bool:
        return True

    def coefficients(self, t: int, ratio: float, u: Tensor) -> Coefficients:
        beta = at(self.beta, t, "beta", checks.rate)
        gamma = (1.0 - beta) * ratio
        c = Coefficients(u=1.0 - beta, now=beta * ratio + gamma, previous=-gamma, beta=beta)
        if not self.finite_sum:
            return c
        return replace(c, reference=-beta * ratio, full=beta * ratio)

    def decay(self, t: int) -> float:
        # Undrawn rows have no probe of their own: all that is left of the update is its first term.
        return 1.0 - at(self.beta, t, "beta", checks.rate)


@final
@dataclass(frozen=True)
class Extrapolation(Tracker):
    """u_t = (1 - beta) u + beta g + beta theta (g - g-): ALEXR's dual step, theta in [0, 1].

    Args:
        beta: weight of a fresh probe, in (0, 1], or a function of t.
        theta: weight of the extrapolation, in [0, 1], or a function of t.
    """

    beta: Schedule
    theta: Schedule

    @property
    def probes_previous(self) -> bool:
        # As for MSVR's gamma: with theta 0 a second probe would be thrown away.
        return self.theta != 0.0

    def coefficients(self, t: int, ratio: float, u: Tensor) -> Coefficients:
        beta = at(self.beta, t, "beta", checks.rate)
        gamma = beta * at(self.theta, t, "theta", checks.fraction)
        if not self.probes_previous:
            return Coefficients(u=1.0 - beta, now=beta, beta=beta)
        return Coefficients(u=1.0 - beta, now=beta + gamma, previous=-gamma, beta=beta)


@final
@dataclass(frozen=True)
class OwnRate(Tracker):
    """The moving average with each row's own rate b_i = step u_i / (1 + step u_i) (SCENT); log domain only.

    With v = log u the rate is sigmoid(log step + v), u before the update.

    Args:
        step: step size of the rate, positive, or a function of t.
    """

    step: Schedule

    def coefficients(self, t: int, ratio: float, u: Tensor) -> Coefficients:
        step = at(self.step, t, "step", checks.positive)
        offset = math.log(step)
        beta = torch.sigmoid(offset + u)
        # 1 - sigmoid(x) would be 0 long before sigmoid(-x) is.
        return Coefficients(u=torch.sigmoid(-(offset + u)), now=beta, beta=beta)
