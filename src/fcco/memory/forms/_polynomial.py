"""Polynomial inside the hinge: no pairs are needed, sorted sums of 1, s and s^2 give every row.

Rows and columns are the same two sums, over points p with weights w, at places q:

    value(q) = sum_p w_p k(p - q)        slope(q) = sum_p w_p k'(p - q)
    k(x) = scale max(margin + x, 0)^2    k'(x) = 2 scale max(margin + x, 0)

A row has q = s_a and p = s_o. A column has both with the other sign, since s_o - s_a = (-s_a) - (-s_o).
"""

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


def _sums_of_first(running: Tensor, number: Tensor) -> Tensor:
    """Sums over the first ``number`` (Q,) or (..., Q) points, (..., 3 C, Q), from running sums (..., 3 C, P)."""
    if number.dim() == 1:
        from_none = torch.nn.functional.pad(running, (1, 0))  # (..., 3 C, P + 1)
        return from_none.index_select(-1, number)
    number = number.unsqueeze(-2)  # (..., 1, Q)
    last = (number - 1).clamp(min=0).expand(*running.shape[:-1], number.shape[-1])
    return running.gather(-1, last).masked_fill(number == 0, 0.0)


def _moments(x: Tensor, w: Tensor) -> Tensor:
    """w, w x and w x^2 below one another, (..., 3 C, P), from x and w (..., C, P)."""
    first = w * x
    return torch.cat([w, first, first * x], -2)


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
            value, slope = self.sums(a, s, w)  # (A, C) each
            return self._relative_to_g(value, slope)
        values = []
        slopes = []
        anchors_per_piece = max(1, self.pairs // max(1, s.shape[1]))
        for anchors, tasks in zip(a.split(anchors_per_piece), task.split(anchors_per_piece), strict=True):
            value, slope = self.one_by_one(anchors.unsqueeze(1), s[tasks], w[tasks])  # (A, 1, C) each
            values.append(value)
            slopes.append(slope)
        return self._relative_to_g(torch.cat(values).squeeze(1), torch.cat(slopes).squeeze(1))

    def columns(self, s: Tensor, a: Tensor, log_g: Tensor, b: Tensor, *, waits: bool = True) -> Tensor:
        # sum_a (b_a / g_a) k'(s_o - s_a) is slope(q) with p = -s_a, q = -s_o and w = b / g.
        _, slope = self.sums(-s, -a, b * inverse(log_g))
        return slope

    def task_rows(self, asked: Asked, s: Ranked, w: Tensor, compared: Compared) -> tuple[Tensor, Tensor]:
        value, slope = self.sums(asked.a, s.s, w, s)  # (T, K, C) each
        return self._relative_to_g(value, slope)

    def task_columns(self, q: Tensor, anchors: Anchors, s: Ranked, log_g: Tensor, b: Tensor) -> Tensor:
        # As in columns, p = -s_a. Sorted sums want one list per task: all examples, those that are no anchors with
        # weight 0.
        weight = b.new_zeros(*s.s.shape, b.shape[1])  # (T, N, C)
        weight[anchors.task, anchors.example] = b * inverse(log_g)
        negated = s.negated
        _, slope = self.sums(-q, negated.s, weight, negated)
        return slope

    def task_all(self, anchors: Anchors, s: Ranked, w: Tensor, compared: Compared, weigh: Weigh) -> WholeTable:
        value, slope = self.sums(s.s, s.s, w, s)  # (T, N, C) each, as if every example were an anchor
        value_at_anchors = value[anchors.task, anchors.example]  # (A, C)
        slope_at_anchors = slope[anchors.task, anchors.example]
        log_g, relative_slope = self._relative_to_g(value_at_anchors, slope_at_anchors)
        outer = weigh(slice(None), log_g)
        by_component = self.task_columns(s.s, anchors, s, log_g, outer.slope)  # (T, N, C)
        by_other = (by_component * w).sum(2)  # (T, N)
        return WholeTable(log_g, relative_slope, outer, by_other)

    def largest(self, others: Others, a: Tensor) -> Tensor:
        distance = self._inside_hinge(self.margin + others.s - a.unsqueeze(1))  # (A, E)
        contribution = distance.square().unsqueeze(2) * (self.scale * others.w)  # (A, E, C)
        return contribution.amax(1).log().clamp(min=ZERO)

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
        most_pairs = self.pairs
        if not on_cpu:
            most_pairs = 8 * self.pairs
        has_few_places = on_cpu and q.dim() == 1 and q.numel() <= FEW
        if q.numel() * p.shape[-1] > most_pairs and not has_few_places:
            return self.by_sorting(q, p, w, ranked)
        places_per_piece = max(1, most_pairs // max(1, p.numel()))
        pieces = [self.one_by_one(places, p, w) for places in q.split(places_per_piece, -1)]
        values, slopes = zip(*pieces, strict=True)
        return torch.cat(values, -2), torch.cat(slopes, -2)

    def one_by_one(self, q: Tensor, p: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """The sums of :meth:`sums`, from all pairs."""
        distance = self._inside_hinge(self.margin + p.unsqueeze(-2) - q.unsqueeze(-1))  # (..., Q, P)
        value = self.scale * weighted_sums(distance.square(), w)
        slope = 2.0 * self.scale * weighted_sums(distance, w)
        return value, slope

    def by_sorting(self, q: Tensor, p: Tensor, w: Tensor, ranked: Ranked | None = None) -> tuple[Tensor, Tensor]:
        """The sums of :meth:`sums`, from three sums over the points inside the hinge, for any center c.

        With x = p - c and d = margin - (q - c), a pair has margin + p - q = x + d. It is inside the hinge where that is
        above 0, so that in falling order the points inside come first. With S_r = sum of w x^r over them

            slope / (2 scale) = sum w (x + d)   = S_1 + d S_0
            value / scale     = sum w (x + d)^2 = S_2 + d (S_1 + (S_1 + d S_0))
        """
        weight = w.mT.contiguous()  # (..., C, P)
        center = self._centers(p, weight)  # (..., C, 1)
        if ranked is None:
            ranked = Ranked(p)
        falling, order = ranked.falling  # (..., P) each
        weight = weight.gather(-1, order.unsqueeze(-2).expand(weight.shape))  # in that order, as all that follows
        x = falling.unsqueeze(-2) - center  # (..., C, P)
        running = running_sums(_moments(x, weight))  # (..., 3 C, P), along rows: a scan over columns is slow
        if self.hinge:
            number_inside = torch.searchsorted(-falling, (self.margin - q).contiguous())  # (Q,) or (..., Q)
        else:
            number_inside = torch.full_like(q, falling.shape[-1], dtype=torch.int64)
        s0, s1, s2 = _sums_of_first(running, number_inside).chunk(3, -2)  # (..., C, Q) each
        d = self.margin - (q.unsqueeze(-2) - center)  # (..., C, Q)
        linear = s1 + d * s0
        quadratic = s2 + d * (s1 + linear)
        return self.scale * quadratic.mT, 2.0 * self.scale * linear.mT

    def _relative_to_g(self, value: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """log g and slope / g, from g = value: 0 where g is 0."""
        log_g = value.clamp(min=0.0).log().clamp(min=ZERO)  # sorted sums may fall below 0 by rounding
        g = value.masked_fill(value <= 0.0, math.inf)
        return log_g, slope / g

    def _inside_hinge(self, distance: Tensor) -> Tensor:
        """max(margin + x, 0) where it is a hinge, from margin + x, in place."""
        if self.hinge:
            return distance.clamp_(min=0)
        return distance

    def _centers(self, p: Tensor, w: Tensor) -> Tensor:
        """The center c of each component, (..., C, 1), from p (..., P) and w (..., C, P).

        Sums begin at the top, so that with a hinge it is the largest point that counts: what lies far below spoils no
        digits of it.
        """
        if not self.hinge:
            return p.mean(-1)[..., None, None].expand(*w.shape[:-1], 1)
        far = 0.25 * torch.finfo(p.dtype).max
        has_no_weight = (w == 0.0).to(p.dtype)
        # Those that count nothing are moved far down: a sum is several times as fast as a choice.
        top = (p.unsqueeze(-2) - far * has_no_weight).amax(-1, keepdim=True)
        return top.masked_fill(top < -0.5 * far, 0.0)
