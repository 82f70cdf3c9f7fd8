"""The algorithm box: which points a step probes, in which order, and what weighs the gradient at each.

One loop for all: the Solver's engine runs it on a network, ``fcco rates`` on closed-form problems, vectorised
over seeds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple, Protocol, final

import torch
from torch import Tensor

from fcco.methods._recipes import Method
from fcco.methods.estimators import Weights
from fcco.methods.trackers import Coefficients, Values, combine, floor


class Point(Enum):
    """Where g is probed: at w_t, at w_{t-1}, at w_tau."""

    NOW = "now"
    PREVIOUS = "previous"
    REFERENCE = "reference"

    # Members are compared by identity. Enum's own hash is of the name, in Python, and a step looks these up often.
    __hash__ = object.__hash__


class Probe(NamedTuple):
    """What one probe saw: g (..., B, dim) without graph and J v where asked for; where a gradient was taken, the rows u
    (..., B, dim) that weighed it and f_i(u_i) (..., B)."""

    g: Tensor
    jvp: Tensor | None = None
    u: Tensor | None = None
    f: Tensor | None = None


#: The rows u at which grad f is taken, from the g and J v just probed.
WeighAt = Callable[[Tensor, Tensor | None], Tensor]


class Prober(Protocol):
    """Probes the drawn blocks."""

    def __call__(self, point: Point, weigh_at: WeighAt, weight: Any) -> Probe:
        """Evaluate g at the point; where ``weight`` is not None, add weight times the gradient to the buffer."""


@final
class Drawn(NamedTuple):
    """What is known of the drawn blocks before the step.

    Args:
        u: (..., B, dim) u_{t-1}.
        earlier: gives u_{t-2}; asked for only where a gradient at w_{t-1} needs it.
        new: (..., B, 1) bool, the blocks met for the first time; None: none of them.
        reference_u: (..., B, dim) u_{tau-1}, as it weighed the full gradient; None without a reference.
        full: (..., B, dim) g_i(w_tau); None without a reference.
        log_domain: as in :func:`fcco.methods.trackers.combine`.
        project: puts rows back onto the range of g.
    """

    u: Tensor
    earlier: Callable[[], Tensor]
    new: Tensor | None = None
    reference_u: Tensor | None = None
    full: Tensor | None = None
    log_domain: Tensor | bool | None = None
    project: Callable[[Tensor], Tensor] | None = None

    def first(self, g: Tensor, u: Tensor) -> Tensor:
        """Rows of u, with g where a block is met for the first time."""
        if self.new is None:
            return u
        return torch.where(self.new, g, u)


class Boxed(NamedTuple):
    """What a step found: u_t (..., B, dim), the u_{t-1} it replaces, what u_t was made from, and the probes."""

    u: Tensor
    replaced: Tensor
    values: Values
    probes: dict[Point, Probe]


def points(method: Method, c: Coefficients, k: Weights) -> list[Point]:
    """The points that a step probes, in order.

    With lag 1 the current weights come first: a new block's G- needs g at w_t. With lag 0 the earlier ones do, since
    u_t, which weighs G, needs g at w_{t-1}. One graph is alive at a time either way.
    """
    probes_previous = c.previous is not None or k.previous is not None
    probes_reference = c.reference is not None or k.reference is not None
    order = [Point.NOW]
    if probes_previous and method.lag == 0:
        order = [Point.PREVIOUS, Point.NOW]
    elif probes_previous:
        order = [Point.NOW, Point.PREVIOUS]
    if probes_reference:
        order.append(Point.REFERENCE)
    return order


@final
class Box:
    """One step: what was seen so far, and what follows from it.

    Args:
        method: gives the lag.
        c: the tracker's coefficients.
        drawn: what is known of the drawn blocks.
    """

    def __init__(self, method: Method, c: Coefficients, drawn: Drawn) -> None:
        self._method = method
        self._c = c
        self._drawn = drawn
        self._seen: dict[Point, Probe] = {}
        self._values: Values | None = None

    def run(self, k: Weights, probe: Prober) -> Boxed:
        """Probe every point in order, then track: u_t from what was seen."""
        gradient_weight = {Point.NOW: k.now, Point.PREVIOUS: k.previous, Point.REFERENCE: k.reference}
        for point in points(self._method, self._c, k):
            self._seen[point] = probe(point, functools.partial(self._weigh_at, point), gradient_weight[point])
        now = self._seen[Point.NOW]
        u = now.u  # with lag 0 this is u_t already: it has weighed G
        if self._method.lag == 1:
            u = self._track(now.g, now.jvp)
        assert u is not None
        assert self._values is not None
        return Boxed(u, self._drawn.first(now.g, self._drawn.u), self._values, self._seen)

    def _weigh_at(self, point: Point, g: Tensor, jvp: Tensor | None) -> Tensor:
        """The u that weighs the gradient at a point: lag 1 takes the u before the step, lag 0 the fresh one."""
        drawn = self._drawn
        lag = self._method.lag
        if point is Point.REFERENCE:
            assert drawn.reference_u is not None
            return drawn.reference_u  # as it weighed the full gradient, so that the two differ by noise alone
        if lag == 0 and point is Point.NOW:
            return self._track(g, jvp)
        if lag == 0 and self._method.tracker.memoryless:
            u = g
        elif lag == 0 or point is Point.NOW:
            u = drawn.first(g, drawn.u)
        else:
            # G- of lag 1 takes u_{t-2}; a new block has none, and takes its own first estimate in both gradients.
            u = drawn.first(self._seen[Point.NOW].g, drawn.earlier())
        return floor(u, g, self._c.beta, drawn.log_domain)

    def _track(self, g: Tensor, jvp: Tensor | None) -> Tensor:
        """u_t from the g at w_t and what was seen elsewhere."""
        drawn = self._drawn
        seen = {point: probe.g for point, probe in self._seen.items()}  # each (..., B, dim)
        self._values = Values(
            u=drawn.u,
            now=g,
            previous=seen.get(Point.PREVIOUS),
            reference=seen.get(Point.REFERENCE),
            full=drawn.full,
            jvp=jvp,
        )
        u = drawn.first(g, combine(self._c, self._values, drawn.log_domain))
        if drawn.project is None:
            return u
        return drawn.project(u)
