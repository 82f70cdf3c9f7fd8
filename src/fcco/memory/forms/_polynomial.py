"""Polynomial inside the hinge: no pairs are needed, sorted sums of 1, s and s^2 give every row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fcco._support.logs import ZERO
from fcco.data._draws import exact_dtype
from fcco.memory.forms._kernels import (
    FEW,
    Anchors,
    Asked,
    Compared,
    Kernel,
    Others,
    Ranked,
    Weigh,
    WholeTable,
    weighted_sums,
)
from fcco.memory.forms._scan import running_sums


def inverse(log_g: Tensor) -> Tensor:
    """1/g, 0 where g is 0."""
    return (-log_g).exp().masked_fill(log_g <= 0.5 * ZERO, 0.0)


def _sums_of_first(moments: Tensor, number: Tensor) -> Tensor:
    """The sums over the first so many (..., Q), as (..., 3 C, Q), from running sums (..., 3 C, P)."""
    if number.dim() == 1:
        return torch.nn.functional.pad(moments, (1, 0)).index_select(-1, number)
    number = number.unsqueeze(-2)  # (..., 1, Q)
    last = (number - 1).clamp(min=0).expand(*moments.shape[:-1], number.shape[-1])
    return moments.gather(-1, last).masked_fill(number == 0, 0.0)


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

    def rows(
        self, a: Tensor, s: Tensor, w: Tensor, task: Tensor | None = None, *, waits: bool = True
    ) -> tuple[Tensor, Tensor]:
        if task is None:
            return self._relative(*self.sums(a, s, w))
        size = max(1, self.pairs // max(1, s.shape[1]))
        pieces = []
        for mine, number in zip(a.split(size), task.split(size), strict=True):
            pieces.append(self.one_by_one(mine.unsqueeze(1), s[number], w[number]))
        value, slope = (torch.cat(parts).squeeze(1) for parts in zip(*pieces, strict=True))
        return self._relative(value, slope)

    def columns(self, s: Tensor, a: Tensor, log_g: Tensor, b: Tensor, *, waits: bool = True) -> Tensor:
        # Sums over anchors are the same sums with the signs turned: k'(s_o - s_a) with q = -s_o, p = -s_a.
        return self.sums(-s, -a, b * inverse(log_g))[1]

    def task_rows(self, asked: Asked, s: Ranked, w: Tensor, compared: Compared) -> tuple[Tensor, Tensor]:
        return self._relative(*self.sums(asked.a, s.s, w, s))

    def task_columns(self, q: Tensor, anchors: Anchors, s: Ranked, log_g: Tensor, b: Tensor) -> Tensor:
        # Sorted sums want one list per task: all examples, of which those that are no anchors count nothing.
        weight = b.new_zeros(*s.s.shape, b.shape[1])  # (T, N, C)
        weight[anchors.task, anchors.example] = b * inverse(log_g)
        turned = s.turned
        return self.sums(-q, turned.s, weight, turned)[1]

    def task_all(self, anchors: Anchors, s: Ranked, w: Tensor, compared: Compared, weigh: Weigh) -> WholeTable:
        found = self.sums(s.s, s.s, w, s)
        value, slope = (part[anchors.task, anchors.example] for part in found)  # (A, C) each
        log_g, slope = self._relative(value, slope)
        outer = weigh(slice(None), log_g)
        by_other = self.task_columns(s.s, anchors, s, log_g, outer.slope)  # (T, N, C)
        return WholeTable(log_g, slope, outer, (by_other * w).sum(2))

    def largest(self, others: Others, a: Tensor) -> Tensor:
        k = self._inside(self.margin + others.s - a.unsqueeze(1)).square()  # (A, E)
        return (k.unsqueeze(2) * (self.scale * others.w)).amax(1).log().clamp(min=ZERO)

    def cost(self, anchors: int, others: int) -> int:
        return 64 * (anchors + others)

    def sums(self, q: Tensor, p: Tensor, w: Tensor, ranked: Ranked | None = None) -> tuple[Tensor, Tensor]:
        """sum_p w_p k(p - q) and sum_p w_p k'(p - q), (..., Q, C) each, from q (..., Q), p (..., P), w (..., P, C).

        Args:
            ranked: p, where it may be sorted already.
        """
        exact = exact_dtype(q.device)
        q = q.to(exact)
        p = p.to(exact)
        w = w.to(exact)
        on_cpu = q.device.type == "cpu"
        limit = self.pairs
        if not on_cpu:
            limit = 8 * self.pairs
        number = p.shape[-1]
        is_few = on_cpu and q.dim() == 1 and q.numel() <= FEW
        if q.numel() * number > limit and not is_few:
            return self.by_sorting(q, p, w, ranked)
        pieces = [self.one_by_one(some, p, w) for some in q.split(max(1, limit // max(1, p.numel())), -1)]
        value, slope = zip(*pieces, strict=True)
        return torch.cat(value, -2), torch.cat(slope, -2)

    def one_by_one(self, q: Tensor, p: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        x = self._inside(self.margin + p.unsqueeze(-2) - q.unsqueeze(-1))  # (..., Q, P)
        return self.scale * weighted_sums(x.square(), w), 2.0 * self.scale * weighted_sums(x, w)

    def by_sorting(self, q: Tensor, p: Tensor, w: Tensor, ranked: Ranked | None = None) -> tuple[Tensor, Tensor]:
        """Sums over the points above a threshold of 1, p and p^2, added up from the top."""
        w = w.mT.contiguous()  # (..., C, P)
        center = self._centers(p, w)  # (..., C, 1)
        if ranked is None:
            ranked = Ranked(p)
        p, order = ranked.falling
        w = w.gather(-1, order.unsqueeze(-2).expand(w.shape))
        x = p.unsqueeze(-2) - center  # (..., C, P)
        first = w * x
        moments = running_sums(torch.cat([w, first, first * x], -2))  # along rows: a scan over columns is slow
        if self.hinge:
            above = torch.searchsorted(-p, (self.margin - q).contiguous())  # how many are inside
        else:
            above = torch.full_like(q, p.shape[-1], dtype=torch.int64)
        s0, s1, s2 = _sums_of_first(moments, above).chunk(3, -2)  # (..., C, Q) each
        d = self.margin - (q.unsqueeze(-2) - center)  # (..., C, Q)
        slope = s1 + d * s0
        value = s2 + d * (s1 + slope)
        return self.scale * value.mT, 2.0 * self.scale * slope.mT

    def _relative(self, value: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """log g and the slope over g."""
        log_g = value.clamp(min=0.0).log().clamp(min=ZERO)  # sorted sums may fall below 0 by rounding
        return log_g, slope / value.masked_fill(value <= 0.0, math.inf)

    def _inside(self, x: Tensor) -> Tensor:
        if self.hinge:
            return x.clamp_(min=0)
        return x

    def _centers(self, p: Tensor, w: Tensor) -> Tensor:
        """What each component's points are measured from, (..., C, 1), from p (..., P) and w (..., C, P): sums begin at
        the top, so that there it is the largest point that counts, and what lies far below spoils no digits of it."""
        if not self.hinge:
            return p.mean(-1)[..., None, None].expand(*w.shape[:-1], 1)
        far = 0.25 * torch.finfo(p.dtype).max
        # Those that count nothing are moved far down: a sum is several times as fast as a choice.
        top = (p.unsqueeze(-2) - far * (w == 0.0).to(p.dtype)).amax(-1, keepdim=True)
        return top.masked_fill(top < -0.5 * far, 0.0)
