"""The steps of :class:`fcco.Solver`, vectorised over lanes (settings) and seeds, on a closed-form problem.

The algorithm box is the library's own (:class:`fcco.methods._box.Box`): which points are probed, what weighs each
gradient, how u follows. A lane is one setting (rates, step size); all lanes of a loop share the method's
structure and, seed by seed, the same draws. Shapes: L lanes, S seeds, B drawn blocks, m blocks, w in R^d.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from fcco.lab.rates.problems import Draw, Problem
from fcco.methods import Method
from fcco.methods._box import Box, Drawn, Point, Probe, WeighAt
from fcco.methods.estimators import Sarah, Weights
from fcco.methods.trackers import Coefficients, Tracker


def stack(parts: Sequence[Any], dims: int) -> Any:
    """Return the Coefficients or Weights of several lanes as one, its fields (L, 1, ...); one lane keeps its floats."""
    first_part = parts[0]
    if len(parts) == 1:
        return first_part
    columns = {}
    for field in fields(first_part):
        values = [getattr(part, field.name) for part in parts]
        columns[field.name] = _optional(values, dims)
    return type(first_part)(**columns)


def _optional(values: list[Any], dims: int) -> Tensor | None:
    """Return the column of the values, with 0 for None; None where all are None."""
    if all(value is None for value in values):
        return None
    filled = []
    for value in values:
        if value is None:
            value = 0.0
        filled.append(value)
    return column(filled, dims)


def column(values: Sequence[float], dims: int) -> Tensor:
    """Return one number per lane as (L, 1, ...)."""
    return torch.tensor(values, dtype=torch.float64).view(-1, *[1] * dims)


def constant(part: Any) -> bool:
    """Return whether a tracker or an estimator is the same at every step."""
    if isinstance(part, Sarah):
        return False
    return not any(callable(getattr(part, field.name)) for field in fields(part))


@final
class Rows:
    """u of every lane and seed (L, S, m, 1), and the u before it where an estimator needs it.

    Args:
        trackers: one per lane.
        shape: (L, S, m).
        start: u_0 (L, S, m, 1); None: a block starts at its first probe.
    """

    def __init__(self, trackers: Sequence[Tracker], shape: tuple[int, int, int], start: Tensor | None = None) -> None:
        self.m = shape[2]
        self._trackers = list(trackers)
        self.u = torch.zeros(*shape, 1, dtype=torch.float64)
        self.before = self.u.clone()
        self.visited = torch.zeros(shape[1:], dtype=torch.bool)
        self._complete = False
        if start is not None:
            self.fill(start)
        self._cache: dict[int, tuple[Coefficients, float | Tensor]] = {}

    def use(self, trackers: Sequence[Tracker]) -> None:
        """Go on with other rates."""
        self._trackers = list(trackers)
        self._cache.clear()

    def fill(self, rows: Tensor) -> None:
        """Set u_0 of every block."""
        self.u.copy_(rows)
        self.before.copy_(rows)
        self.visited.fill_(True)
        self._complete = True

    def rule(self, t: int, drawn: int) -> tuple[Coefficients, float | Tensor]:
        """Return the lanes' coefficients at step t, and what undrawn rows are multiplied by."""
        if drawn in self._cache:
            return self._cache[drawn]
        ratio = self.m / drawn
        c = stack([tracker.coefficients(t, ratio, self.u) for tracker in self._trackers], 3)
        decays = [tracker.decay(t) for tracker in self._trackers]
        decay: float | Tensor = decays[0]
        if len(set(decays)) > 1:
            decay = column(decays, 3)
        if all(constant(tracker) for tracker in self._trackers):
            self._cache[drawn] = (c, decay)
        return c, decay

    def place(self, index: Tensor) -> Tensor:
        """Return index (S, B) in the shape that gathers from (L, S, m, 1)."""
        return index.unsqueeze(-1).expand(self.u.shape[0], *index.shape, 1)

    def new(self, index: Tensor) -> Tensor | None:
        """Return which blocks are met for the first time (S, B, 1); None once all were met."""
        if self._complete:
            return None
        fresh = ~self.visited.gather(1, index).unsqueeze(-1)
        self.visited.scatter_(1, index, True)
        self._complete = bool(self.visited.all())
        return fresh

    def write(self, place: Tensor, old: Tensor, new: Tensor, decay: float | Tensor, keep: bool) -> None:
        """Put u_t in place of u_{t-1} for the drawn blocks; the others decay."""
        if keep:
            self.before.copy_(self.u)
            self.before.scatter_(2, place, old)
        if isinstance(decay, Tensor) or decay != 1.0:
            self.u.mul_(decay)
        self.u.scatter_(2, place, new)


class Reference(NamedTuple):
    """v3's reference: w_tau, g_i(w_tau), u_{tau-1}, Gfull_tau, and the step tau."""

    w: Tensor
    g: Tensor
    u: Tensor
    gradient: Tensor
    step: int


class Scaling(NamedTuple):
    """The adaptive step of :class:`fcco.Adaptive`: b', delta, and which style."""

    beta: float
    delta: float
    amsgrad: bool


@final
class Loop:
    """Runs one method over lanes and seeds.

    Args:
        problem: with closed-form g and f.
        methods: one per lane, of one structure.
        lr: one step size per lane.
        w1: (d,) the start.
        seeds: how many.
        normalize: step along z/||z||.
        mu: a lane's weight of (mu/2)||w||^2, added exactly, outside z; None: 0.
        radius: z is projected onto the ball of this radius; None: it is not.
        adaptive: step as :class:`fcco.Adaptive` does; None: as SGD does.
    """

    def __init__(
        self,
        problem: Problem,
        methods: Sequence[Method],
        lr: Sequence[float],
        w1: Tensor,
        seeds: int,
        *,
        normalize: bool = False,
        mu: Sequence[float] | None = None,
        radius: float | None = None,
        adaptive: Scaling | None = None,
    ) -> None:
        self.problem = problem
        self.normalize = normalize
        self.radius = radius
        self.adaptive = adaptive
        self.mu: Tensor | None = None
        if mu is not None:
            self.mu = column(mu, 2)
        self.w = w1.to(torch.float64).expand(len(methods), seeds, -1).clone()  # (L, S, d)
        self.previous = self.w  # w_0 = w_1
        self.average = torch.zeros_like(self.w)  # h'
        self.largest = torch.zeros_like(self.w)  # h, AMSGrad style
        self.rows = Rows([method.tracker for method in methods], (len(methods), seeds, problem.m))
        self.z: Tensor | None = None
        self.reference: Reference | None = None
        self.seen: tuple[Tensor, dict[Point, Probe]] | None = None  # u_{t-1} and the probes of the last step
        self.t = 0
        self.samples = 0
        self._renew = False
        self.use(methods, lr)

    def use(self, methods: Sequence[Method], lr: Sequence[float]) -> None:
        """Go on with other rates (a stage); everything else goes on from the step before."""
        self.methods = list(methods)
        self.rows.use([method.tracker for method in methods])
        self.lr = column(lr, 2)
        self._weights: Weights | None = None

    def renew_reference(self) -> None:
        """Renew the reference at the next step (a new stage does this)."""
        self._renew = self.reference is not None

    def step(self, draw: Draw, samples: int) -> None:
        """Take one step of every lane and seed; ``samples`` is what the draw is charged."""
        self.t += 1
        self._renew_if_due()
        method = self.methods[0]
        c, decay = self.rows.rule(self.t, draw.blocks.shape[1])
        k = self._mix()
        place = self.rows.place(draw.blocks)
        drawn = self._drawn(draw, place)
        total = torch.zeros_like(self.w)

        def probe(point: Point, weigh_at: WeighAt, weight: Any) -> Probe:
            w = self._weights_at(point)
            g = self.problem.probe(w, draw)
            jvp = None
            if c.jvp is not None and point is Point.NOW:
                jvp = self.problem.along(w, draw, w - self.previous)
            if weight is None:
                return Probe(g, jvp)
            u = weigh_at(g, jvp)
            total.add_(weight * self.problem.pull(w, draw, u))
            return Probe(g, jvp, u)

        boxed = Box(method, c, drawn).run(k, probe)
        self.seen = (drawn.u, boxed.probes)
        keeps_earlier = method.lag == 1 and k.previous is not None
        self.rows.write(place, boxed.replaced, boxed.u, decay, keeps_earlier)
        self._move(k, total / draw.blocks.shape[1])
        self.samples += samples

    def _drawn(self, draw: Draw, place: Tensor) -> Drawn:
        reference_u = None
        reference_g = None
        if self.reference is not None:
            reference_u = self.reference.u.gather(2, place)
            reference_g = self.reference.g.gather(2, place)
        return Drawn(
            u=self.rows.u.gather(2, place),  # u_{t-1}
            earlier=lambda: self.rows.before.gather(2, place),  # u_{t-2}
            new=self.rows.new(draw.blocks),
            reference_u=reference_u,
            full=reference_g,
        )

    def _weights_at(self, point: Point) -> Tensor:
        if point is Point.NOW:
            return self.w
        if point is Point.PREVIOUS:
            return self.previous
        assert self.reference is not None
        return self.reference.w

    def _mix(self) -> Weights:
        """Return the estimators' weights of all lanes; z_1 = G_1 where there is no z_0."""
        if self._weights is not None:
            return self._weights
        estimators = [method.estimator for method in self.methods]
        if self.z is None and estimators[0].remembers:
            weights: Weights = stack([estimator.start(self.t) for estimator in estimators], 2)
            return weights
        weights = stack([estimator.weights(self.t) for estimator in estimators], 2)
        if all(constant(estimator) for estimator in estimators):
            self._weights = weights
        return weights

    def _move(self, k: Weights, total: Tensor) -> None:
        fresh = total
        if self.z is not None:
            total = total + k.z * self.z
        if k.full is not None and self.reference is not None:
            total = total + k.full * self.reference.gradient
        total = self._projected(total)
        self.z = total
        step = total
        if k.lookahead is not None:
            step = self._projected(k.fresh * fresh + k.lookahead * total)
        if self.normalize:
            norm = step.norm(dim=-1, keepdim=True)
            step = step / torch.where(norm > 0, norm, 1.0)
        if self.mu is not None:
            step = step + self.mu * self.w
        self.previous = self.w
        self.w = self.w - self.lr * self._scaled(step)

    def _projected(self, z: Tensor) -> Tensor:
        if self.radius is None:
            return z
        norm: Tensor = z.norm(dim=-1, keepdim=True)
        return z * (self.radius / norm).clamp(max=1.0)

    def _scaled(self, step: Tensor) -> Tensor:
        """Return step / (sqrt(h) + delta), with h from the squares so far (equation 17)."""
        rule = self.adaptive
        if rule is None:
            return step
        self.average = (1 - rule.beta) * self.average + rule.beta * step * step
        h = self.average
        if rule.amsgrad:
            self.largest = torch.maximum(self.largest, h)
            h = self.largest
        return step / (h.sqrt() + rule.delta)

    def _renew_if_due(self) -> None:
        """Set tau = t by a full pass, charged m n samples; the very first one also gives u_0 and z_0."""
        method = self.methods[0]
        if not method.finite_sum or not self._is_due(method.period):
            return
        g = self.problem.inner(self.w)
        if self.reference is None:
            self.rows.fill(g)
        u = self.rows.u.clone()
        self.reference = Reference(self.w, g, u, self.problem.gradient(self.w, u), self.t)
        if self.z is None:
            self.z = self.reference.gradient
        self._renew = False
        self.samples += self.problem.m * self.problem.n

    def _is_due(self, period: int | None) -> bool:
        if self.reference is None or self._renew:
            return True
        assert period is not None
        return self.t - self.reference.step >= period
