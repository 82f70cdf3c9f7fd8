"""Exponential inside the hinge: chunks of pairs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from fcco._support.logs import ZERO
from fcco.memory.forms._form import OuterValues
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
    sums_of_rows,
    weighted_sums,
)
from fcco.memory.forms._pairs_kernel import has_kernel, pair_sums

BUDGET = 1 << 16  # pairs of one piece on the CPU, for many tasks: as many as stay in its cache
_LOG2E = math.log2(math.e)
_LOWEST = -80.0 * _LOG2E  # exponents of 2: on the CPU numbers that underflow take fifty times as long


class _Chunk(NamedTuple):
    """Some of mine, with the others inside their hinge.

    Args:
        which: of mine.
        root: (A, P) the roots of exponent / scale.
        w: (P, C) of the others inside, or (A, P, C) where each of mine has its own.
        outside: (C,) the sum of w over those that are not; None: there are none.
    """

    which: Tensor | slice
    root: Tensor
    w: Tensor
    outside: Tensor | None


@final
@dataclass(frozen=True)
class _Part:
    """Some anchors of a few tasks.

    Args:
        edge: (A,) margin - s_a.
        shift: (A, 1) what their exponents are taken from, as powers of 2.
        task: (A,) which of the few tasks.
    """

    edge: Tensor
    shift: Tensor
    task: Tensor

    def rows(self, s: Tensor) -> Tensor:
        """(A, P) of each anchor's task, from (T, P); (1, P) where there is one."""
        if s.shape[0] == 1:
            return s
        return s.index_select(0, self.task)

    def summed(self, x: Tensor, w: Tensor) -> Tensor:
        """sum_p x_ap w_p (A, C), from x (A, P) and the tasks' weights (T, P, C)."""
        if w.shape[0] == 1:
            return weighted_sums(x, w[0])
        return sums_of_rows(x, w.index_select(0, self.task))

    def spread(self, x: Tensor, factor: Tensor, total: Tensor) -> None:
        """Add sum_a x_ap factor_a, over the anchors of each task, to the total (C, T, P), in place."""
        if total.shape[1] == 1:
            total[:, 0] += (x.T @ factor).T
            return
        for column, sums in zip(factor.unbind(1), total, strict=True):
            # Into a tensor of its own first: to add rows to a part of a larger one is slow.
            sums += torch.zeros_like(sums).index_add_(0, self.task, x * column.unsqueeze(1))


def joined_values(parts: list[OuterValues]) -> OuterValues:
    """f and slopes one after another, the gradients of the objective's own parameters added up."""
    gradients = [torch.stack(same).sum(0) for same in zip(*(part.param_gradients for part in parts), strict=True)]
    return OuterValues(torch.cat([part.f for part in parts]), torch.cat([part.slope for part in parts]), gradients)


@final
@dataclass(frozen=True)
class Exponential(Kernel):
    """exp(scale (margin + x)^2), of x > -margin only where it is a hinge: 1 elsewhere."""

    margin: float
    scale: float
    hinge: bool

    def rows(
        self, a: Tensor, s: Tensor, w: Tensor, task: Tensor | None = None, *, waits: bool = True
    ) -> tuple[Tensor, Tensor]:
        edge = self.margin - a
        minus_top = -self._most(s, edge, task).unsqueeze(1)  # (A, 1), as powers of 2
        if task is None and has_kernel(s):
            g, root_sums = self._pair_sums(edge, s, w, minus_top.squeeze(1))  # (A, C) each
            return g.log() - minus_top / _LOG2E, 2.0 * self.scale * root_sums / g
        log_g = w.new_empty(a.shape[0], w.shape[-1])
        slope = torch.empty_like(log_g)
        if task is None:
            chunks = self._chunks(edge, s, w, waits)
        else:
            chunks = self._task_chunks(edge, s, w, task)
        for some in chunks:
            shift = minus_top[some.which]
            e = self._powers(some.root, shift)  # (A, P), at most 1
            g = sums_of_rows(e, some.w)  # (A, C)
            if some.outside is not None:
                g += some.outside * shift.exp2()  # k = 1 outside of the hinge
            slope[some.which] = 2.0 * self.scale * sums_of_rows(e.mul_(some.root), some.w) / g
            log_g[some.which] = g.log() - shift / _LOG2E
        return log_g, slope

    def columns(self, s: Tensor, a: Tensor, log_g: Tensor, b: Tensor, *, waits: bool = True) -> Tensor:
        if has_kernel(s):
            return 2.0 * self.scale * self._pair_sums(s, self.margin - a, b, -_LOG2E * log_g)[1]
        result = b.new_empty(s.shape[0], b.shape[1])
        for some in self._chunks(s, self.margin - a, torch.cat([b, -_LOG2E * log_g], 1), waits):  # roots (Q, A)
            b_in, shift = some.w.chunk(2, 1)
            for column in range(b.shape[1]):
                e = self._powers(some.root, shift[:, column])
                result[some.which, column] = e.mul_(some.root) @ b_in[:, column]
        return 2.0 * self.scale * result

    def task_rows(self, asked: Asked, s: Ranked, w: Tensor, compared: Compared) -> tuple[Tensor, Tensor]:
        others = compared.at(s.s, w)
        if 2 * asked.most > asked.mask.numel():  # little would be saved
            return self._dense_rows(asked.a, others, compared)
        # Of all (task, draw) pairs the anchors alone, at the front of a list that has room for the most there can be.
        tasks, draws = asked.mask.shape
        mask = asked.mask.flatten()
        place = torch.where(mask, mask.cumsum(0) - 1, asked.most)
        entry = mask.new_zeros(asked.most + 1, dtype=torch.int64)
        entry = entry.scatter_(0, place, torch.arange(mask.shape[0], device=mask.device))[:-1]  # (M,)
        found = self.rows(asked.a.flatten()[entry], others.s, others.w, entry // draws)
        place = place.clamp(max=asked.most - 1)
        log_g, slope = (value[place].reshape(tasks, draws, -1) for value in found)
        return log_g, slope

    def _dense_rows(self, a: Tensor, others: Others, compared: Compared) -> tuple[Tensor, Tensor]:
        """log g and relative slopes (T, K, C) of all draws (T, K) in all tasks."""
        edge = self.margin - a
        low, high = (end.unsqueeze(1) for end in others.s.aminmax(dim=1))
        shift = -self._exponent(edge, low, high).unsqueeze(2)  # (T, K, 1)
        log_g = []
        slope = []
        for some in _pieces(edge, edge.shape[1] * others.s.shape[1]):
            size = max(compared.count[some])  # of the others of these tasks
            root = self._root(edge[some].unsqueeze(2) + others.s[some, :size].unsqueeze(1))  # (T, K, P)
            e = self._powers(root, shift[some])
            w = others.w[some, :size]
            g = weighted_sums(e, w)  # (T, K, C)
            slope.append(2.0 * self.scale * weighted_sums(e.mul_(root), w) / g)
            log_g.append(g.log() - shift[some] / _LOG2E)
        return torch.cat(log_g), torch.cat(slope)

    def task_columns(self, q: Tensor, anchors: Anchors, s: Ranked, log_g: Tensor, b: Tensor) -> Tensor:
        result = [torch.zeros_like(q) for _ in range(b.shape[1])]
        shift = -_LOG2E * log_g
        edge = self.margin - anchors.a
        for some in _pieces(edge, q.shape[1]):
            task = anchors.task[some]
            root = self._root(q.index_select(0, task).add_(edge[some].unsqueeze(1)))  # (A, K)
            for column, total in enumerate(result):
                e = self._powers(root, shift[some, column].unsqueeze(1))
                total.index_add_(0, task, e.mul_(root).mul_(b[some, column].unsqueeze(1)))
        return 2.0 * self.scale * torch.stack(result, -1)

    def task_all(self, anchors: Anchors, s: Ranked, w: Tensor, compared: Compared, weigh: Weigh) -> WholeTable:
        others = compared.at(s.s, w)
        columns = w.new_zeros(w.shape[2], *others.s.shape)  # (C, T, P)
        edge = self.margin - anchors.a
        minus_top = -self._most(others.s, edge, anchors.task).unsqueeze(1)  # (A, 1)
        log_g: list[Tensor] = []
        slope: list[Tensor] = []
        outer: list[OuterValues] = []
        for some, tasks, size in compared.pieces(2 * _budget(edge)):
            part = _Part(edge[some], minus_top[some], anchors.task[some] - tasks.start)
            mine = Others(others.s[tasks, :size], others.w[tasks, :size])
            power, g = self._task_powers(part, mine)  # (A, P) and (A, C)
            log_g.append(g.log() - part.shift / _LOG2E)
            slope.append(2.0 * self.scale * part.summed(power, mine.w) / g)
            outer.append(weigh(some, log_g[-1]))
            # The same pairs serve both ways: a pair's part in g is what it gets back.
            part.spread(power, outer[-1].slope / g.masked_fill(g == 0.0, math.inf), columns[:, tasks, :size])
        by_other = 2.0 * self.scale * (columns.permute(1, 2, 0) * others.w).sum(2)  # (T, P)
        by_example = torch.zeros_like(s.s).scatter(1, compared.index, by_other)
        return WholeTable(torch.cat(log_g), torch.cat(slope), joined_values(outer), by_example)

    def _task_powers(self, part: _Part, others: Others) -> tuple[Tensor, Tensor]:
        """exp(scale root^2) root over the largest such exponential (A, P), and g over the same (A, C)."""
        root = self._root(part.rows(others.s) + part.edge.unsqueeze(1))
        e = self._powers(root, part.shift)
        g = part.summed(e, others.w)
        return e.mul_(root), g

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

    def _powers(self, root: Tensor, shift: Tensor) -> Tensor:
        """exp(scale root^2) 2^shift, not below e^-80."""
        # A power of 2 takes half as long as one of e.
        return torch.addcmul(shift, root, root, value=self.scale * _LOG2E).clamp_(min=_LOWEST).exp2_()

    def _pair_sums(self, mine: Tensor, others: Tensor, w: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """sum_p e_ap w_p and sum_p e_ap root_ap w_p (A, C), with the powers e of all pairs, by one kernel."""
        factor = self.scale * _LOG2E
        return pair_sums(mine, others, w, shift, factor=factor, lowest=_LOWEST, hinge=self.hinge)

    def _most(self, s: Tensor, edge: Tensor, task: Tensor | None) -> Tensor:
        """The largest exponent of each anchor (A,), as a power of 2, from the others and margin - s_a: it grows, or
        falls and grows."""
        low, high = s.aminmax(dim=-1)  # () or (T,)
        if task is not None:
            low = low[task]
            high = high[task]
        return self._exponent(edge, low, high)

    def _exponent(self, edge: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The larger exponent of the two ends."""
        top = self._root(edge + high).square()
        if not self.hinge:
            top = torch.maximum(top, (edge + low).square())
        return self.scale * _LOG2E * top

    def _chunks(self, mine: Tensor, others: Tensor, w: Tensor, waits: bool) -> Iterator[_Chunk]:
        """Chunks of ``mine`` against the others inside their hinge.

        Args:
            mine: (A,) margin - s_a of the anchors, or s_o of the others.
            others: (P,) the other of the two: a pair's sum is its margin + x.
            w: (P, C) of the latter.
        """
        budget = 2 * _budget(mine)  # here pieces are made of fewer tensors
        outside = None
        if self.hinge and waits:
            if mine.shape[0] > FEW and mine.shape[0] * others.shape[0] > 2 * budget:
                yield from self._sorted_chunks(mine, others, w, budget)
                return
            if mine.device.type == "cpu":  # elsewhere a device would wait for their number
                inside = others > -mine.amax()
                outside = w[~inside].sum(0)
                others = others[inside]
                w = w[inside]
        for some in _pieces(mine, others.shape[0] // 2):
            yield _Chunk(some, self._root(mine[some].unsqueeze(1) + others), w, outside)

    def _task_chunks(self, mine: Tensor, others: Tensor, w: Tensor, task: Tensor) -> Iterator[_Chunk]:
        """The same where each task has others (T, P) of its own."""
        for some in _pieces(mine, others.shape[1]):
            number = task[some]
            root = others.index_select(0, number).add_(mine[some].unsqueeze(1))
            yield _Chunk(some, self._root(root), w.index_select(0, number), None)

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


def _budget(mine: Tensor) -> int:
    """How many pairs a piece may have: on the CPU as many as stay in its cache."""
    if mine.device.type == "cpu":
        return BUDGET
    return 1 << 25


def _pieces(mine: Tensor, others: int) -> Iterator[slice]:
    """``mine`` in parts, each small enough to be set against so many others."""
    size = max(1, _budget(mine) // max(1, others))
    return (slice(at, at + size) for at in range(0, mine.shape[0], size))
