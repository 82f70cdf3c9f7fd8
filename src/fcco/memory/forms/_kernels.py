r"""Sums over pairs: :math:`g_a = \sum_o w_o k(s_o - s_a)` with its derivatives, for the two kinds of pair losses.

Polynomial inside the hinge: no pairs are needed, sorted sums of 1, s and s^2 give every row. Exponential inside the
hinge: chunks of pairs, only those inside. Both speak in log g, and of an anchor's slope relative to g. A surrogate
names its kernel (``Surrogate.kernel``, ``Surrogate.exponential_kernel``).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from fcco._support.logs import ZERO
from fcco.data._draws import exact_dtype

FEW = 32  # up to this many, sorting what they are compared with costs more than it saves
_LOWEST = -80.0  # exponents of e: on the CPU numbers that underflow take fifty times as long


class Others(NamedTuple):
    """Scores (E,) of some of the others and their weights (E, C)."""

    s: Tensor
    w: Tensor


class Kernel(ABC):
    """k(x), x = s_o - s_a, summed over others o with weights (P, C) or over anchors a; abstract."""

    @abstractmethod
    def rows(self, a: Tensor, s: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """log g (A, C) and sum_o w_o k'(s_o - s_a) / g (A, C), from anchors (A,), others (P,), weights (P, C)."""

    @abstractmethod
    def columns(self, s: Tensor, a: Tensor, log_g: Tensor, b: Tensor) -> Tensor:
        """sum_a b_a k'(s_o - s_a) / g_a (Q, C), from others (Q,), anchors (A,), their log g and b (A, C)."""

    @abstractmethod
    def largest(self, others: Others, a: Tensor) -> Tensor:
        """log of the most that one of the others contributes to each anchor, (A, C)."""

    @abstractmethod
    def cost(self, anchors: int, others: int) -> int:
        """What all rows and columns cost, in pairs."""


def extremes(s: Tensor, w: Tensor, same_class: Tensor | None) -> Others:
    """The ends of the others' scores (Q,), in each of their two classes; weight 0 where a class is empty.

    Within a class all weigh the same, and k has its largest value at one of the two ends: so these stand for all.

    Args:
        w: (Q, C) the weights.
        same_class: (Q,) bool, which are of the anchors' class; None: none.
    """
    if same_class is None:
        return Others(torch.stack(s.aminmax()), w[:1].expand(2, -1))
    sides = torch.stack([same_class, ~same_class])  # (2, Q)
    top = torch.where(sides, s, -torch.inf).amax(1)
    low = torch.where(sides, s, torch.inf).amin(1)
    ends = torch.cat([top, low]).nan_to_num(posinf=0.0, neginf=0.0)
    return Others(ends, (w * sides.unsqueeze(2)).amax(1).repeat(2, 1))


def inverse(log_g: Tensor) -> Tensor:
    """1/g, 0 where g is 0."""
    return (-log_g).exp().masked_fill(log_g <= 0.5 * ZERO, 0.0)


@final
@dataclass(frozen=True)
class Polynomial(Kernel):
    """scale * (margin + x)^2, of x > -margin only where it is a hinge.

    Args:
        pairs: up to this many pairs are summed one by one; beyond, the sorted sums are cheaper, but for a few q on the
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
        # Sums over anchors are the same sums with the signs turned: k'(s_o - s_a) with q = -s_o, p = -s_a.
        return self.sums(-s, -a, b * inverse(log_g))[1]

    def largest(self, others: Others, a: Tensor) -> Tensor:
        k = self._inside(self.margin + others.s - a.unsqueeze(1)).square()  # (A, E)
        return (k.unsqueeze(2) * (self.scale * others.w)).amax(1).log().clamp(min=ZERO)

    def cost(self, anchors: int, others: int) -> int:
        return 64 * (anchors + others)

    def sums(self, q: Tensor, p: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """sum_p w_p k(p - q) and sum_p w_p k'(p - q), (Q, C) each."""
        exact = exact_dtype(q.device)
        q = q.to(exact)
        p = p.to(exact)
        w = w.to(exact)
        on_cpu = q.device.type == "cpu"
        limit = self.pairs
        if not on_cpu:
            limit = 8 * self.pairs
        if q.numel() * p.numel() > limit and not (on_cpu and q.numel() <= FEW):
            return self.by_sorting(q, p, w)
        pieces = [self.one_by_one(some, p, w) for some in q.split(max(1, limit // max(1, p.numel())))]
        value, slope = zip(*pieces, strict=True)
        return torch.cat(value), torch.cat(slope)

    def one_by_one(self, q: Tensor, p: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        x = self._inside(self.margin + p - q.unsqueeze(1))  # (Q, P)
        return self.scale * (x.square() @ w), 2.0 * self.scale * (x @ w)

    def by_sorting(self, q: Tensor, p: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the points above a threshold of 1, p and p^2, added up from the top."""
        center = self._centers(p, w)  # (C, 1)
        p, order = p.sort(descending=True)
        w = w[order].T  # (C, P)
        x = p - center  # (C, P)
        moments = torch.cat([w, w * x, w * x.square()]).cumsum(1)  # along rows: a scan over columns is slow
        moments = torch.cat([torch.zeros_like(moments[:, :1]), moments], 1)
        if self.hinge:
            above = torch.searchsorted(-p, self.margin - q)
        else:
            above = torch.full_like(q, p.shape[0]).long()
        s0, s1, s2 = moments[:, above].T.chunk(3, 1)  # (Q, C) each
        d = self.margin - (q.unsqueeze(1) - center.T)  # (Q, C)
        return self.scale * (s2 + d * (2.0 * s1 + d * s0)), 2.0 * self.scale * (s1 + d * s0)

    def _inside(self, x: Tensor) -> Tensor:
        if self.hinge:
            return x.clamp(min=0)
        return x

    def _centers(self, p: Tensor, w: Tensor) -> Tensor:
        """What each column's points are measured from, (C, 1): sums begin at the top, so that there it is the largest
        point that counts, and what lies far below spoils no digits of it."""
        if not self.hinge:
            return p.mean().expand(w.shape[1], 1)
        top = p.unsqueeze(1).masked_fill(w == 0.0, -torch.inf).amax(0)
        return top.masked_fill(top == -torch.inf, 0.0).unsqueeze(1)


class _Chunk(NamedTuple):
    """Some of mine, with the others inside their hinge.

    Args:
        which: of mine.
        root: (A, P) the roots of exponent / scale.
        w: (P, C) of the others inside.
        outside: (C,) the sum of w over those that are not; None: there are none.
    """

    which: Tensor | slice
    root: Tensor
    w: Tensor
    outside: Tensor | None


@final
@dataclass(frozen=True)
class Exponential(Kernel):
    """exp(scale (margin + x)^2), of x > -margin only where it is a hinge: 1 elsewhere."""

    margin: float
    scale: float
    hinge: bool

    def rows(self, a: Tensor, s: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        edge = self.margin - a
        log_g = w.new_empty(a.shape[0], w.shape[1])
        slope = torch.empty_like(log_g)
        minus_top = -self._most(s, edge).unsqueeze(1)  # (A, 1)
        for some in self._chunks(edge, s, w):
            shift = minus_top[some.which]
            e = _exp_(torch.addcmul(shift, some.root, some.root, value=self.scale))  # (A, P), at most 1
            g = e @ some.w  # (A, C)
            if some.outside is not None:
                g += some.outside * shift.exp()  # k = 1 outside of the hinge
            slope[some.which] = 2.0 * self.scale * (e.mul_(some.root) @ some.w) / g
            log_g[some.which] = g.log() - shift
        return log_g, slope

    def columns(self, s: Tensor, a: Tensor, log_g: Tensor, b: Tensor) -> Tensor:
        result = b.new_empty(s.shape[0], b.shape[1])
        for some in self._chunks(s, self.margin - a, torch.cat([b, log_g], 1)):  # roots (Q, A)
            b_in, log_in = some.w.chunk(2, 1)
            for column in range(b.shape[1]):
                e = _exp_(torch.addcmul(-log_in[:, column], some.root, some.root, value=self.scale))
                result[some.which, column] = e.mul_(some.root) @ b_in[:, column]
        return 2.0 * self.scale * result

    def largest(self, others: Others, a: Tensor) -> Tensor:
        root = self._root(self.margin + others.s - a.unsqueeze(1)).unsqueeze(2)  # (A, E, 1)
        e = torch.addcmul(others.w.log(), root, root, value=self.scale)  # -inf where a class is empty
        return e.amax(1).clamp(min=ZERO)

    def cost(self, anchors: int, others: int) -> int:
        return anchors * others

    def _root(self, x: Tensor) -> Tensor:
        """The root of exponent / scale from margin + s_o - s_a, in place."""
        if self.hinge:
            return x.clamp_(min=0)
        return x

    def _most(self, s: Tensor, edge: Tensor) -> Tensor:
        """The largest exponent of each anchor (A,), from the others and margin - s_a: it grows, or falls and grows."""
        top = self._root(edge + s.amax()).square()
        if not self.hinge:
            top = torch.maximum(top, (edge + s.amin()).square())
        return self.scale * top

    def _chunks(self, mine: Tensor, others: Tensor, w: Tensor) -> Iterator[_Chunk]:
        """Chunks of ``mine`` against the others inside their hinge.

        Args:
            mine: (A,) margin - s_a of the anchors, or s_o of the others.
            others: (P,) the other of the two: a pair's sum is its margin + x.
            w: (P, C) of the latter.
        """
        on_cpu = mine.device.type == "cpu"
        budget = 1 << 25
        if on_cpu:
            budget = 1 << 18
        if self.hinge and mine.shape[0] > FEW and mine.shape[0] * others.shape[0] > 2 * budget:
            yield from self._sorted_chunks(mine, others, w, budget)
            return
        outside = None
        if self.hinge and on_cpu:  # elsewhere a device would wait for the number of those inside
            inside = others > -mine.amax()
            outside = w[~inside].sum(0)
            others = others[inside]
            w = w[inside]
        size = max(1, budget // max(1, others.shape[0]))
        for at in range(0, mine.shape[0], size):
            some = slice(at, at + size)
            yield _Chunk(some, self._root(mine[some].unsqueeze(1) + others), w, outside)

    def _sorted_chunks(self, mine: Tensor, others: Tensor, w: Tensor, budget: int) -> Iterator[_Chunk]:
        """The same by size: those that have few inside meet few."""
        order = mine.argsort(descending=True)  # the highest have the most inside
        others, by_size = others.sort()
        w = w[by_size]
        below = torch.cat([w.new_zeros(1, w.shape[1]), w.cumsum(0)])
        at = 0
        while at < mine.shape[0]:
            first = int(torch.searchsorted(others, -mine[order[at]].reshape(1)))
            some = order[at : at + max(1, budget // max(1, others.shape[0] - first))]
            yield _Chunk(some, self._root(mine[some].unsqueeze(1) + others[first:]), w[first:], below[first])
            at += some.shape[0]


def _exp_(x: Tensor) -> Tensor:
    """exp(x) in place, not below e^-80."""
    return x.clamp_(min=_LOWEST).exp_()
