r"""Sums over pairs: :math:`g_a = \sum_o w_o k(s_o - s_a)` with its derivatives, for the two kinds of pair losses.

Polynomial inside the hinge: no pairs are needed, sorted sums of 1, s and s^2 give every row. Exponential inside the
hinge: chunks of pairs, only those inside. Both speak in log g, and of an anchor's slope relative to g.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor

from fcco.objectives.average_precision import ZERO
from fcco.objectives.surrogates import Square, SquaredHinge


class Kernel(Protocol):
    """k(x), x = s_o - s_a, summed over others o with weights (P, C) or over anchors a."""

    def rows(self, a: Tensor, s: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """log g (A, C) and sum_o w_o k'(s_o - s_a) / g (A, C), from anchors (A,), others (P,), weights (P, C)."""

    def columns(self, s: Tensor, a: Tensor, log_g: Tensor, b: Tensor) -> Tensor:
        """sum_a b_a k'(s_o - s_a) / g_a (Q, C), from others (Q,), anchors (A,), their log g and b (A, C)."""

    def alone(self, s: Tensor, w: Tensor, a: Tensor) -> Tensor:
        """log of the most that one of the others (Q,), weights (Q, C), contributes to each anchor: (A, C)."""


def inverse(log_g: Tensor) -> Tensor:
    """1/g, 0 where g is 0."""
    return torch.where(log_g > 0.5 * ZERO, (-log_g).exp(), 0.0)


@final
@dataclass(frozen=True)
class Polynomial:
    """scale * (margin + x)^2, of x > -margin only where it is a hinge.

    Args:
        pairs: up to so many pairs are summed one by one; beyond, the sorted sums are cheaper.
    """

    margin: float
    scale: float
    hinge: bool
    pairs: int = 1 << 19

    def rows(self, a: Tensor, s: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = self.sums(a, s, w)
        log_g = torch.where(value > 0.0, torch.where(value > 0.0, value, 1.0).log(), ZERO)
        return log_g, slope * inverse(log_g)

    def columns(self, s: Tensor, a: Tensor, log_g: Tensor, b: Tensor) -> Tensor:
        return self.sums(-s, -a, b * inverse(log_g))[1]

    def alone(self, s: Tensor, w: Tensor, a: Tensor) -> Tensor:
        x = self.margin + s - a.unsqueeze(1)
        k = self.scale * (x.clamp(min=0) if self.hinge else x).square()  # (A, Q)
        most = (k.unsqueeze(2) * w).amax(1)
        return torch.where(most > 0.0, most, 1.0).log().where(most > 0.0, torch.full_like(most, ZERO))

    def sums(self, q: Tensor, p: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """sum_p w_p k(p - q) and sum_p w_p k'(p - q), (Q, C) each."""
        q, p, w = q.double(), p.double(), w.double()
        return self.one_by_one(q, p, w) if q.numel() * p.numel() <= self.pairs else self.by_sorting(q, p, w)

    def one_by_one(self, q: Tensor, p: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        x = self.margin + p - q.unsqueeze(1)
        x = x.clamp(min=0) if self.hinge else x
        return self.scale * (x.square() @ w), 2.0 * self.scale * (x @ w)

    def by_sorting(self, q: Tensor, p: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the points above a threshold of 1, p and p^2, added up from the top."""
        center = p.mean()
        p, order = (p - center).sort(descending=True)
        w = w[order].T
        moments = torch.cat([w, w * p, w * p.square()]).cumsum(1)  # along rows: a scan over columns is slow
        moments = torch.cat([torch.zeros_like(moments[:, :1]), moments], 1)
        d = self.margin - (q - center)
        above = torch.searchsorted(-p, d) if self.hinge else torch.full_like(d, p.shape[0], dtype=torch.int64)
        s0, s1, s2 = moments[:, above].T.chunk(3, 1)
        d = d.unsqueeze(1)
        return self.scale * (s2 + d * (2.0 * s1 + d * s0)), 2.0 * self.scale * (s1 + d * s0)


@final
@dataclass(frozen=True)
class Exponential:
    """exp(scale (margin + x)^2), of x > -margin only where it is a hinge: 1 elsewhere."""

    margin: float
    scale: float
    hinge: bool

    @property
    def edge(self) -> float:
        """The exponent is flat below."""
        return -self.margin if self.hinge else -math.inf

    def exponent(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """e(x) and e'(x)."""
        x = (x + self.margin).clamp(min=0) if self.hinge else x + self.margin
        return self.scale * x.square(), 2.0 * self.scale * x

    def rows(self, a: Tensor, s: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        order = a.argsort()
        log_g, slope = (w.new_empty(a.shape[0], w.shape[1]) for _ in range(2))
        top = self._most(s, a).unsqueeze(1)  # (A, 1)
        for some, s_in, w_in, rest in self._inside(a, order, s, w):
            r = self._root(s_in, a[some].unsqueeze(1))
            e = torch.addcmul(-top[some], r, r).exp_()
            g = e @ w_in + rest * (-top[some]).exp()
            slope[some] = 2.0 * math.sqrt(self.scale) * (e.mul_(r) @ w_in) / g
            log_g[some] = g.log() + top[some]
        return log_g, slope

    def columns(self, s: Tensor, a: Tensor, log_g: Tensor, b: Tensor) -> Tensor:
        order = s.argsort(descending=True)
        result = b.new_zeros(s.shape[0], b.shape[1])
        both = torch.cat([b, log_g], 1)
        for some, minus_a, both_in, _ in self._inside(-s, order, -a, both):
            b_in, log_in = both_in.chunk(2, 1)
            r = self._root(s[some].unsqueeze(1), -minus_a)  # (Q, A)
            for c in range(b.shape[1]):
                result[some, c] = torch.addcmul(-log_in[:, c], r, r).exp_().mul_(r) @ b_in[:, c]
        return 2.0 * math.sqrt(self.scale) * result

    def _root(self, s: Tensor, a: Tensor) -> Tensor:
        """The root of the exponent at every pair: scaled before there are pairs, so that few passes are made."""
        k = math.sqrt(self.scale)
        r = k * s - k * (a - self.margin)
        return r.clamp_(min=0) if self.hinge else r

    def alone(self, s: Tensor, w: Tensor, a: Tensor) -> Tensor:
        if w.shape[1] == 1:  # the others of one class weigh the same
            return self._most(s, a).unsqueeze(1) + w.amax().log()
        e = self.exponent(s - a.unsqueeze(1))[0].unsqueeze(2)  # (A, Q, 1)
        return (e + w.log().clamp(min=ZERO)).amax(1)

    def _most(self, s: Tensor, a: Tensor) -> Tensor:
        """The largest exponent of each anchor (A,): e grows, or falls and then grows."""
        return torch.maximum(self.exponent(s.amax() - a)[0], self.exponent(s.amin() - a)[0])

    def _inside(
        self, a: Tensor, order: Tensor, s: Tensor, w: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Chunks of the anchors in ``order`` (growing), with the others inside their hinge, and the weight outside."""
        budget = 1 << 18 if a.device.type == "cpu" else 1 << 25
        if a.shape[0] * s.shape[0] > 2 * budget and math.isfinite(self.edge):
            s, by_size = s.sort()
            w = w[by_size]
            below = torch.cat([w.new_zeros(1, w.shape[1]), w.cumsum(0)])
            at = 0
            while at < a.shape[0]:
                first = int(torch.searchsorted(s, (a[order[at]] + self.edge).reshape(1)))
                some = order[at : at + max(1, budget // max(1, s.shape[0] - first))]
                yield some, s[first:], w[first:], below[first]
                at += some.shape[0]
            return
        if math.isfinite(self.edge) and a.device.type == "cpu":
            inside = s > a[order[0]] + self.edge
            rest = w[~inside].sum(0)
            s, w = s[inside], w[inside]
        else:
            rest = w.new_zeros(w.shape[1])
        for some in order.split(max(1, budget // max(1, s.shape[0]))):
            yield some, s, w, rest


def exponential_of(loss: SquaredHinge | Square, temperature: float) -> Exponential:
    """exp(loss(x) / temperature)."""
    return Exponential(loss.margin, loss.scale / temperature, isinstance(loss, SquaredHinge))
