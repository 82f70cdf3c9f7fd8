"""The loop of :class:`fcco.Solver`, vectorised over lanes (settings) and seeds, on a closed-form problem.

The update rules are the library's own: a lane's tracker gives its coefficients, ``combine`` applies them, the
estimator gives its weights. A lane is one setting (rates, step size); all lanes of a loop share the method's
structure and, seed by seed, the same draws. Shapes: L lanes, S seeds, B drawn blocks, m blocks, w in R^d.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from fcco.lab.rates.problems import Draw, Problem
from fcco.methods._recipes import Method
from fcco.methods.estimators import Sarah, Weights
from fcco.methods.trackers import Coefficients, Tracker, Values, combine


def stack(parts: Sequence[Any], dims: int) -> Any:
    """Coefficients or Weights of several lanes as one, its fields (L, 1, ...); one lane keeps its floats."""
    first_part = parts[0]
    if len(parts) == 1:
        return first_part
    columns = {field.name: [getattr(part, field.name) for part in parts] for field in fields(first_part)}
    return type(first_part)(**{name: _optional(values, dims) for name, values in columns.items()})


def _optional(values: list[Any], dims: int) -> Tensor | None:
    if all(value is None for value in values):
        return None
    return column([0.0 if value is None else value for value in values], dims)


def column(values: Sequence[float], dims: int) -> Tensor:
    """One number a lane as (L, 1, ...)."""
    return torch.tensor(values, dtype=torch.float64).view(-1, *[1] * dims)


def constant(part: Any) -> bool:
    """Whether a tracker or an estimator is the same at every step."""
    return not isinstance(part, Sarah) and not any(callable(getattr(part, f.name)) for f in fields(part))


def first(new: Tensor | None, g: Tensor, u: Tensor) -> Tensor:
    """Rows of u, with g where a block is met for the first time."""
    return u if new is None else torch.where(new, g, u)


@final
class Rows:
    """u of every lane and seed (L, S, m, 1), and the u before it where an estimator looks back.

    Args:
        trackers: one a lane.
        shape: (L, S, m).
        start: u_0 (L, S, m, 1), taken literally; None: a block starts at its first look.
    """

    def __init__(self, trackers: Sequence[Tracker], shape: tuple[int, int, int], start: Tensor | None = None) -> None:
        self.m, self._trackers = shape[2], list(trackers)
        self.u = torch.zeros(*shape, 1, dtype=torch.float64) if start is None else start.clone()
        self.before = self.u.clone()
        self.visited = torch.full(shape[1:], start is not None)
        self._complete = start is not None
        self._cache: dict[int, tuple[Coefficients, float | Tensor]] = {}

    def use(self, trackers: Sequence[Tracker]) -> None:
        """Go on with other rates."""
        self._trackers = list(trackers)
        self._cache.clear()

    def fill(self, rows: Tensor) -> None:
        """u_0 of every block, from a full pass."""
        self.u.copy_(rows)
        self.before.copy_(rows)
        self.visited.fill_(True)
        self._complete = True

    def rule(self, t: int, drawn: int) -> tuple[Coefficients, float | Tensor]:
        """The lanes' coefficients at step t, and what undrawn rows are multiplied by."""
        if drawn in self._cache:
            return self._cache[drawn]
        c = stack([tracker.coefficients(t, self.m / drawn, self.u) for tracker in self._trackers], 3)
        decays = [tracker.decay(t) for tracker in self._trackers]
        decay = decays[0] if len(set(decays)) == 1 else column(decays, 3)
        if all(constant(tracker) for tracker in self._trackers):
            self._cache[drawn] = (c, decay)
        return c, decay

    def place(self, index: Tensor) -> Tensor:
        """index (S, B) as it gathers from (L, S, m, 1)."""
        return index.unsqueeze(-1).expand(self.u.shape[0], *index.shape, 1)

    def new(self, index: Tensor) -> Tensor | None:
        """(S, B, 1) which blocks are met for the first time; None once all were met."""
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


class Anchor(NamedTuple):
    """v3's anchor: w_tau, g_i(w_tau), u_{tau-1}, Gfull_tau."""

    w: Tensor
    g: Tensor
    u: Tensor
    gradient: Tensor


class Mixing(NamedTuple):
    """The estimator's weights; those of G, G- and G_tau in one tensor (P, L or 1, 1, 1), as many as it uses."""

    z: float | Tensor
    points: Tensor
    full: float | Tensor | None


@final
class Loop:
    """Runs one method over lanes and seeds.

    Args:
        problem: with closed-form g and f.
        methods: one a lane, of one structure.
        lr: one step size a lane.
        w1: (d,) the start.
        seeds: how many.
        normalize: step along z/||z||.
        mu: a lane's weight of (mu/2)||w||^2, added exactly, outside z; None: 0.
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
    ) -> None:
        self.problem, self.normalize = problem, normalize
        self.mu = None if mu is None else column(mu, 2)
        self.w = w1.to(torch.float64).expand(len(methods), seeds, -1).clone()  # (L, S, d)
        self.previous = self.w  # w_0 = w_1
        self.rows = Rows([method.tracker for method in methods], (len(methods), seeds, problem.m))
        self.z: Tensor | None = None
        self.anchor: Anchor | None = None
        self.seen: tuple[Tensor, tuple[Tensor, ...]] | None = None  # u_{t-1} and the looks of the last step
        self.t = self.samples = self._anchored_at = 0
        self._renew = False
        self.use(methods, lr)

    def use(self, methods: Sequence[Method], lr: Sequence[float]) -> None:
        """Go on with other rates (a stage); everything else goes on from the step before."""
        self.methods = list(methods)
        self.rows.use([method.tracker for method in methods])
        self.lr = column(lr, 2)
        self._mixing: Mixing | None = None

    def renew_anchor(self) -> None:
        """Renew the anchor at the next step (a new stage does this)."""
        self._renew = self.methods[0].period is not None and self.t > 0

    def step(self, draw: Draw, samples: int) -> None:
        """One step of every lane and seed; ``samples`` is what the draw is charged."""
        self.t += 1
        self._anchor_if_due()
        rows = self.rows
        c, decay = rows.rule(self.t, draw.blocks.shape[1])
        mixing = self._mix()
        place, new = rows.place(draw.blocks), rows.new(draw.blocks)
        u = rows.u.gather(2, place)  # u_{t-1}
        points = self._points(c, mixing)  # (P, L, S, d): w_t, w_{t-1}, w_tau
        looks = self.problem.look(points, draw).unbind()
        self.seen = (u, looks)
        u_t = first(new, looks[0], self._update(c, draw, place, u, looks))
        weighs = self._weighs(mixing, place, new, (u, u_t), looks)
        pulled = self.problem.pull(points[: len(weighs)], draw, torch.stack(weighs))
        keep = self.methods[0].lag == 1 and len(weighs) > 1
        rows.write(place, first(new, looks[0], u), u_t, decay, keep)
        self._move(mixing, (mixing.points * pulled).sum(0) / draw.blocks.shape[1])
        self.samples += samples

    def _points(self, c: Coefficients, mixing: Mixing) -> Tensor:
        if self.anchor is not None:
            return torch.stack([self.w, self.previous, self.anchor.w])
        if c.previous is not None or len(mixing.points) > 1:
            return torch.stack([self.w, self.previous])
        return self.w.unsqueeze(0)

    def _update(self, c: Coefficients, draw: Draw, place: Tensor, u: Tensor, looks: Sequence[Tensor]) -> Tensor:
        jvp = None if c.jvp is None else self.problem.along(self.w, draw, self.w - self.previous)
        if self.anchor is None:
            return combine(c, Values(u, looks[0], looks[1] if len(looks) > 1 else None, jvp=jvp))
        return combine(c, Values(u, looks[0], looks[1], looks[2], self.anchor.g.gather(2, place), jvp))

    def _weighs(
        self,
        mixing: Mixing,
        place: Tensor,
        new: Tensor | None,
        u: tuple[Tensor, Tensor],
        looks: Sequence[Tensor],
    ) -> list[Tensor]:
        """The rows that weigh G, G- and G_tau, as many as the estimator uses; u is (u_{t-1}, u_t)."""
        method = self.methods[0]
        rows = [first(new, looks[0], u[0]) if method.lag == 1 else u[1]]
        if len(mixing.points) > 1:
            if method.lag == 1:
                rows.append(first(new, looks[0], self.rows.before.gather(2, place)))  # u_{t-2}
            else:
                rows.append(looks[1] if method.tracker.memoryless else first(new, looks[1], u[0]))
        if len(mixing.points) > 2 and self.anchor is not None:
            rows.append(self.anchor.u.gather(2, place))
        return rows

    def _mix(self) -> Mixing:
        """The estimator's weights; z_1 = G_1 where there is no z_0."""
        if self._mixing is not None:
            return self._mixing
        starts = self.z is None and self.methods[0].estimator.remembers
        k = stack([method.estimator.weights(self.t) for method in self.methods], 2)
        if starts:
            k = Weights(z=0.0, now=1.0, previous=None if k.previous is None else 0.0)
        pulls = [pull for pull in (k.now, k.previous, k.anchor) if pull is not None]
        points = torch.stack([pull if isinstance(pull, Tensor) else column([pull], 2) for pull in pulls])
        mixing = Mixing(k.z, points, k.full)
        if not starts and all(constant(method.estimator) for method in self.methods):
            self._mixing = mixing
        return mixing

    def _move(self, mixing: Mixing, total: Tensor) -> None:
        if self.z is not None:
            total = total + mixing.z * self.z
        if mixing.full is not None and self.anchor is not None:
            total = total + mixing.full * self.anchor.gradient
        step = self.z = total
        if self.normalize:
            norm = total.norm(dim=-1, keepdim=True)
            step = total / torch.where(norm > 0, norm, 1.0)
        if self.mu is not None:
            step = step + self.mu * self.w
        self.previous, self.w = self.w, self.w - self.lr * step

    def _anchor_if_due(self) -> None:
        """tau = t: a full pass, charged m n samples; the very first one also gives u_0 and z_0."""
        period = self.methods[0].period
        due = self.anchor is None or self._renew or self.t - self._anchored_at >= (period or 0)
        if period is None or not due:
            return
        g = self.problem.inner(self.w)
        if self.anchor is None:
            self.rows.fill(g)
        u = self.rows.u.clone()
        self.anchor = Anchor(self.w, g, u, self.problem.gradient(self.w, u))
        self.z = self.anchor.gradient if self.z is None else self.z
        self._anchored_at, self._renew = self.t, False
        self.samples += self.problem.m * self.problem.n
