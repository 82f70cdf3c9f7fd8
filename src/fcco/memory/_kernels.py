r"""Sums over pairs: :math:`g_a = \sum_o w_o k(s_o - s_a)` with its derivatives, for the two kinds of pair losses.

Polynomial inside the hinge: no pairs are needed, sorted sums of 1, s and s^2 give every row. Exponential inside the
hinge: chunks of pairs, only those inside. Both speak in log g, and of an anchor's slope relative to g.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, final

import torch
from torch import Tensor

from fcco.objectives._average_precision import ZERO
from fcco.objectives._surrogates import Square, SquaredHinge
from fcco.sampling.draws import exact_dtype


class Kernel(Protocol):
    """k(x), x = s_o - s_a, summed over others o with weights (P, C) or over anchors a."""

    def rows(self, a: Tensor, s: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """log g (A, C) and sum_o w_o k'(s_o - s_a) / g (A, C), from anchors (A,), others (P,), weights (P, C)."""

    def columns(self, s: Tensor, a: Tensor, log_g: Tensor, b: Tensor) -> Tensor:
        """sum_a b_a k'(s_o - s_a) / g_a (Q, C), from others (Q,), anchors (A,), their log g and b (A, C)."""

    def alone(self, ends: Ends, a: Tensor) -> Tensor:
        """log of the most that one of the others contributes to each anchor, (A, C), from their :func:`extremes`."""


class Ends(NamedTuple):
    """The largest and the smallest score (E,) of each class, and their weights (E, C); 0 where there is nobody."""

    s: Tensor
    w: Tensor


def extremes(s: Tensor, w: Tensor, own: Tensor | None) -> Ends:
    """The ends of the others' scores (Q,), in each of their two classes.

    Within a class all weigh the same, and k has its largest value at one of the two ends: so these stand for all.

    Args:
        w: (Q, C) the weights.
        own: (Q,) bool, who is of the anchors' class; None: nobody.
    """
    if own is None:
        return Ends(torch.stack(s.aminmax()), w[:1].expand(2, -1))
    sides = torch.stack([own, ~own])  # (2, Q)
    top, low = (torch.where(sides, s, empty) for empty in (-torch.inf, torch.inf))
    ends = torch.cat([top.amax(1), low.amin(1)])
    return Ends(ends.nan_to_num(posinf=0.0, neginf=0.0), (w * sides.unsqueeze(2)).amax(1).repeat(2, 1))


FEW = 32  # up to so many, sorting those that they are compared with costs more than it saves


def inverse(log_g: Tensor) -> Tensor:
    """1/g, 0 where g is 0."""
    return (-log_g).exp().masked_fill(log_g <= 0.5 * ZERO, 0.0)


@final
@dataclass(frozen=True)
class Polynomial:
    """scale * (margin + x)^2, of x > -margin only where it is a hinge.

    Args:
        pairs: up to so many pairs are summed one by one; beyond, the sorted sums are cheaper, but for a few q on the
            CPU. Eight times as many on an accelerator, where it takes longer to launch the sums than to make them.
    """

    margin: float
    scale: float
    hinge: bool
    pairs: int = 1 << 19

    def rows(self, a: Tensor, s: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = self.sums(a, s, w)
        log_g = value.clamp(min=0.0).log().clamp(min=ZERO)  # sorted sums may fall below 0 by rounding
        return log_g, slope / value.masked_fill(value <= 0.0, math.inf)

    def columns(self, s: Tensor, a: Tensor, log_g: Tensor, b: Tensor) -> Tensor:
        return self.sums(-s, -a, b * inverse(log_g))[1]

    def alone(self, ends: Ends, a: Tensor) -> Tensor:
        x = self.margin + ends.s - a.unsqueeze(1)  # (A, E)
        k = (x.clamp(min=0) if self.hinge else x).square()
        return (k.unsqueeze(2) * (self.scale * ends.w)).amax(1).log().clamp(min=ZERO)

    def sums(self, q: Tensor, p: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """sum_p w_p k(p - q) and sum_p w_p k'(p - q), (Q, C) each."""
        exact = exact_dtype(q.device)
        q, p, w = q.to(exact), p.to(exact), w.to(exact)
        on_cpu = q.device.type == "cpu"
        limit = self.pairs if on_cpu else 8 * self.pairs
        if q.numel() * p.numel() > limit and not (on_cpu and q.numel() <= FEW):
            return self.by_sorting(q, p, w)
        pieces = [self.one_by_one(some, p, w) for some in q.split(max(1, limit // max(1, p.numel())))]
        value, slope = zip(*pieces, strict=True)
        return torch.cat(value), torch.cat(slope)

    def one_by_one(self, q: Tensor, p: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        x = self.margin + p - q.unsqueeze(1)
        x = x.clamp(min=0) if self.hinge else x
        return self.scale * (x.square() @ w), 2.0 * self.scale * (x @ w)

    def by_sorting(self, q: Tensor, p: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the points above a threshold of 1, p and p^2, added up from the top."""
        center = self._centers(p, w)  # (C, 1)
        p, order = p.sort(descending=True)
        w, x = w[order].T, p - center  # (C, P) each
        moments = torch.cat([w, w * x, w * x.square()]).cumsum(1)  # along rows: a scan over columns is slow
        moments = torch.cat([torch.zeros_like(moments[:, :1]), moments], 1)
        above = torch.searchsorted(-p, self.margin - q) if self.hinge else torch.full_like(q, p.shape[0]).long()
        s0, s1, s2 = moments[:, above].T.chunk(3, 1)
        d = self.margin - (q.unsqueeze(1) - center.T)  # (Q, C)
        return self.scale * (s2 + d * (2.0 * s1 + d * s0)), 2.0 * self.scale * (s1 + d * s0)

    def _centers(self, p: Tensor, w: Tensor) -> Tensor:
        """What each column's points are measured from, (C, 1): sums begin at the top, so that there it is the largest
        point that counts, and what lies far below spoils no digits of it."""
        if not self.hinge:
            return p.mean().expand(w.shape[1], 1)
        top = p.unsqueeze(1).masked_fill(w == 0.0, -torch.inf).amax(0)
        return top.masked_fill(top == -torch.inf, 0.0).unsqueeze(1)


@final
@dataclass(frozen=True)
class Exponential:
    """exp(scale (margin + x)^2), of x > -margin only where it is a hinge: 1 elsewhere."""

    margin: float
    scale: float
    hinge: bool

    def rows(self, a: Tensor, s: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        edge = self.margin - a
        log_g, slope = (w.new_empty(a.shape[0], w.shape[1]) for _ in range(2))
        minus_top = -self._most(s, edge).unsqueeze(1)  # (A, 1)
        for some, r, w_in, rest in self._inside(edge, s, w):
            e = _exp_(torch.addcmul(minus_top[some], r, r, value=self.scale))
            g = e @ w_in
            if rest is not None:
                g += rest * minus_top[some].exp()
            slope[some] = 2.0 * self.scale * (e.mul_(r) @ w_in) / g
            log_g[some] = g.log() - minus_top[some]
        return log_g, slope

    def columns(self, s: Tensor, a: Tensor, log_g: Tensor, b: Tensor) -> Tensor:
        result = b.new_empty(s.shape[0], b.shape[1])
        for some, r, both, _ in self._inside(s, self.margin - a, torch.cat([b, log_g], 1)):  # r: (Q, A)
            b_in, log_in = both.chunk(2, 1)
            for c in range(b.shape[1]):
                e = _exp_(torch.addcmul(-log_in[:, c], r, r, value=self.scale))
                result[some, c] = e.mul_(r) @ b_in[:, c]
        return 2.0 * self.scale * result

    def alone(self, ends: Ends, a: Tensor) -> Tensor:
        r = self._root(self.margin + ends.s - a.unsqueeze(1))  # (A, E)
        e = torch.addcmul(ends.w.log(), r.unsqueeze(2), r.unsqueeze(2), value=self.scale)  # -inf where there is nobody
        return e.amax(1).clamp(min=ZERO)

    def _root(self, x: Tensor) -> Tensor:
        """The root of exponent / scale from margin + s_o - s_a, in place."""
        return x.clamp_(min=0) if self.hinge else x

    def _most(self, s: Tensor, edge: Tensor) -> Tensor:
        """The largest exponent of each anchor (A,), from the others and margin - s_a: it grows, or falls and grows."""
        top = self._root(edge + s.amax()).square()
        return self.scale * (top if self.hinge else torch.maximum(top, (edge + s.amin()).square()))

    def _inside(
        self, mine: Tensor, others: Tensor, w: Tensor
    ) -> Iterator[tuple[Tensor | slice, Tensor, Tensor, Tensor | None]]:
        """Chunks of ``mine``: which, their roots with the others inside their hinge, w of these, the sum of w outside.

        Args:
            mine: (A,) margin - s_a of the anchors, or s_o of the others.
            others: (P,) the other of the two: a pair's sum is its margin + x.
            w: (P, C) of the latter.
        """
        on_cpu = mine.device.type == "cpu"
        budget, rest = 1 << 18 if on_cpu else 1 << 25, None
        if self.hinge and mine.shape[0] > FEW and mine.shape[0] * others.shape[0] > 2 * budget:
            order = mine.argsort(descending=True)
            others, by_size = others.sort()
            w = w[by_size]
            below = torch.cat([w.new_zeros(1, w.shape[1]), w.cumsum(0)])
            at = 0
            while at < mine.shape[0]:
                first = int(torch.searchsorted(others, -mine[order[at]].reshape(1)))
                some = order[at : at + max(1, budget // max(1, others.shape[0] - first))]
                yield some, self._root(mine[some].unsqueeze(1) + others[first:]), w[first:], below[first]
                at += some.shape[0]
            return
        if self.hinge and on_cpu:  # elsewhere a device would wait for the number of those inside
            inside = others > -mine.amax()
            others, w, rest = others[inside], w[inside], w[~inside].sum(0)
        size = max(1, budget // max(1, others.shape[0]))
        for at in range(0, mine.shape[0], size):
            yield slice(at, at + size), self._root(mine[at : at + size].unsqueeze(1) + others), w, rest


def _exp_(x: Tensor) -> Tensor:
    """exp(x) in place, not below e^-80: on the CPU numbers that underflow take fifty times as long."""
    return x.clamp_(min=-80.0).exp_()


def exponential_of(loss: SquaredHinge | Square, temperature: float) -> Exponential:
    """exp(loss(x) / temperature)."""
    return Exponential(loss.margin, loss.scale / temperature, isinstance(loss, SquaredHinge))
