r"""Sums over pairs: :math:`g_a = \sum_o w_o k(s_o - s_a)` with its derivatives, for the two kinds of pair losses.

Polynomial inside the hinge: no pairs are needed, sorted sums of 1, s and s^2 give every row. Exponential inside the
hinge: chunks of pairs. Both speak in log g, and of an anchor's slope relative to g. A surrogate names its kernel
(``Surrogate.kernel``, ``Surrogate.exponential_kernel``).

In a step every shape depends on sizes alone: no device waits, and a graph can be captured. Only the evaluation of a
whole table (``waits=True``) may look at the scores, to leave out pairs outside of the hinge.
"""

from __future__ import annotations

import bisect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from fcco._support.logs import ZERO
from fcco.data._draws import exact_dtype
from fcco.memory.forms._form import OuterValues

FEW = 32  # up to this many, sorting what they are compared with costs more than it saves
_LOG2E = math.log2(math.e)
_LOWEST = -80.0 * _LOG2E  # exponents of 2: on the CPU numbers that underflow take fifty times as long


class Others(NamedTuple):
    """Scores (..., E) of some of the others and their weights (..., E, C)."""

    s: Tensor
    w: Tensor


class Anchors(NamedTuple):
    """The anchors of T tasks, one after another.

    Args:
        a: (A,) their scores.
        task: (A,) in growing order.
        example: (A,) their examples.
    """

    a: Tensor
    task: Tensor
    example: Tensor


class Asked(NamedTuple):
    """Drawn examples as anchors of T tasks.

    Args:
        a: (T, K) their scores.
        mask: (T, K) bool, which of them are anchors of which task.
        most: how many are marked, at most.
    """

    a: Tensor
    mask: Tensor
    most: int


@final
@dataclass(frozen=True)
class Compared:
    """Who the others of T tasks are.

    Args:
        index: (T, P) the examples, and any others up to the longest list.
        count: how many each task has.
        first: where each task's anchors begin, and where the last one's end.
    """

    index: Tensor
    count: list[int]
    first: list[int]

    @classmethod
    def of(cls, entering: Tensor, task: Tensor) -> Compared:
        """From who counts in the means (T, N) bool, and the anchors' tasks (A,)."""
        count = entering.sum(1).tolist()
        index = (~entering).int().argsort(dim=1, stable=True)[:, : max(count)]
        first = [0, *task.bincount(minlength=len(count)).cumsum(0).tolist()]
        return cls(index.contiguous(), count, first)

    def pieces(self, budget: int) -> Iterator[tuple[slice, slice, int]]:
        """The anchors in parts: which, of which tasks, and how many others these have at most."""
        at = 0
        while at < self.first[-1]:
            low = bisect.bisect_right(self.first, at) - 1
            end = min(at + max(1, budget // max(1, self.count[low])), self.first[-1])
            high = bisect.bisect_left(self.first, end)
            yield slice(at, end), slice(low, high), max(self.count[low:high])
            at = end


class WholeTable(NamedTuple):
    """What the evaluation of everything gives: log g and the relative slope (A, C) of every anchor, f, and dPhi/ds
    (T, N) of the others, before the sign."""

    log_g: Tensor
    slope: Tensor
    outer: OuterValues
    by_other: Tensor


#: f of some of the anchors at their log g, with its slopes
Weigh = Callable[[slice, Tensor], OuterValues]


class Kernel(ABC):
    """k(x), x = s_o - s_a, summed over others o with weights (P, C) or over anchors a; abstract."""

    @abstractmethod
    def rows(
        self, a: Tensor, s: Tensor, w: Tensor, task: Tensor | None = None, *, waits: bool = True
    ) -> tuple[Tensor, Tensor]:
        """log g (A, C) and sum_o w_o k'(s_o - s_a) / g (A, C), from anchors (A,), others (P,), weights (P, C).

        Args:
            task: (A,), where each task has others (T, P) and weights (T, P, C) of its own.
            waits: whether the host may look at the scores.
        """

    @abstractmethod
    def columns(self, s: Tensor, a: Tensor, log_g: Tensor, b: Tensor, *, waits: bool = True) -> Tensor:
        """sum_a b_a k'(s_o - s_a) / g_a (Q, C), from others (Q,), anchors (A,), their log g and b (A, C)."""

    @abstractmethod
    def task_rows(self, asked: Asked, s: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """:meth:`rows` (T, K, C) of drawn anchors, from others (T, N) and weights (T, N, C); elsewhere any number."""

    @abstractmethod
    def task_columns(self, q: Tensor, anchors: Anchors, s: Tensor, log_g: Tensor, b: Tensor) -> Tensor:
        """:meth:`columns` (T, K, C) of drawn others (T, K), from all anchors; s (T, N) are the scores of all."""

    @abstractmethod
    def task_all(self, anchors: Anchors, s: Tensor, w: Tensor, compared: Compared, weigh: Weigh) -> WholeTable:
        """Rows and columns of everything, from all scores (T, N) and weights (T, N, C)."""

    @abstractmethod
    def largest(self, others: Others, a: Tensor) -> Tensor:
        """log of the most that one of the others contributes to each anchor, (A, C); each may have its own others."""

    @abstractmethod
    def cost(self, anchors: int, others: int) -> int:
        """What all rows and columns cost, in pairs."""


def extremes(s: Tensor, w: Tensor, same_class: Tensor | None, there: Tensor | None = None) -> Others:
    """The ends of the others' scores (..., Q), in each of their two classes; weight 0 where a class is empty.

    Within a class all weigh the same, and k has its largest value at one of the two ends: so these stand for all.

    Args:
        w: (..., Q, C) the weights.
        same_class: (..., Q) bool, which are of the anchors' class; None: none.
        there: (..., Q) bool, which count; None: all.
    """
    if there is None:
        there = torch.ones_like(s, dtype=torch.bool)
    sides = there.unsqueeze(-2)  # (..., 1, Q)
    if same_class is not None:
        sides = torch.stack([same_class & there, ~same_class & there], -2)  # (..., 2, Q)
    s = s.unsqueeze(-2)
    top = torch.where(sides, s, -torch.inf).amax(-1)  # (..., 2)
    low = torch.where(sides, s, torch.inf).amin(-1)
    ends = torch.cat([top, low], -1).nan_to_num(posinf=0.0, neginf=0.0)
    weight = (w.unsqueeze(-3) * sides.unsqueeze(-1)).amax(-2)  # (..., 2, C)
    return Others(ends, torch.cat([weight, weight], -2))


def between(s: Tensor, w: Tensor) -> Tensor:
    """Scores (..., P) with the largest that counts in place of those of weight 0: an exponent is taken from the top."""
    counts = (w != 0.0).any(-1)  # (..., P)
    top = torch.where(counts, s, -torch.inf).amax(-1, keepdim=True)
    return torch.where(counts, s, top.masked_fill(top == -torch.inf, 0.0))


def inverse(log_g: Tensor) -> Tensor:
    """1/g, 0 where g is 0."""
    return (-log_g).exp().masked_fill(log_g <= 0.5 * ZERO, 0.0)


def _weighted(x: Tensor, w: Tensor) -> Tensor:
    """sum_p x_ap w_p (A, C) from x (A, P) and weights (P, C), or (A, P, C) where each row has its own."""
    if w.dim() == 2:
        return x @ w
    return (x.unsqueeze(-2) @ w).squeeze(-2)


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

    def task_rows(self, asked: Asked, s: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return self._relative(*self.sums(asked.a, s, w))

    def task_columns(self, q: Tensor, anchors: Anchors, s: Tensor, log_g: Tensor, b: Tensor) -> Tensor:
        # Sorted sums want one list per task: all examples, of which those that are no anchors count nothing.
        weight = b.new_zeros(*s.shape, b.shape[1])  # (T, N, C)
        weight[anchors.task, anchors.example] = b * inverse(log_g)
        return self.sums(-q, -s, weight)[1]

    def task_all(self, anchors: Anchors, s: Tensor, w: Tensor, compared: Compared, weigh: Weigh) -> WholeTable:
        found = self._relative(*self.sums(s, s, w))
        log_g, slope = (value[anchors.task, anchors.example] for value in found)  # (A, C) each
        outer = weigh(slice(None), log_g)
        by_other = self.task_columns(s, anchors, s, log_g, outer.slope)  # (T, N, C)
        return WholeTable(log_g, slope, outer, (by_other * w).sum(2))

    def largest(self, others: Others, a: Tensor) -> Tensor:
        k = self._inside(self.margin + others.s - a.unsqueeze(1)).square()  # (A, E)
        return (k.unsqueeze(2) * (self.scale * others.w)).amax(1).log().clamp(min=ZERO)

    def cost(self, anchors: int, others: int) -> int:
        return 64 * (anchors + others)

    def sums(self, q: Tensor, p: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """sum_p w_p k(p - q) and sum_p w_p k'(p - q), (..., Q, C) each, from q (..., Q), p (..., P), w (..., P, C)."""
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
            return self.by_sorting(q, p, w)
        pieces = [self.one_by_one(some, p, w) for some in q.split(max(1, limit // max(1, p.numel())), -1)]
        value, slope = zip(*pieces, strict=True)
        return torch.cat(value, -2), torch.cat(slope, -2)

    def one_by_one(self, q: Tensor, p: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        x = self._inside(self.margin + p.unsqueeze(-2) - q.unsqueeze(-1))  # (..., Q, P)
        return self.scale * (x.square() @ w), 2.0 * self.scale * (x @ w)

    def by_sorting(self, q: Tensor, p: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the points above a threshold of 1, p and p^2, added up from the top."""
        center = self._centers(p, w)  # (..., C, 1)
        p, order = p.sort(-1, descending=True)
        w = w.gather(-2, order.unsqueeze(-1).expand_as(w)).mT  # (..., C, P)
        x = p.unsqueeze(-2) - center  # (..., C, P)
        first = w * x
        moments = torch.cat([w, first, first * x], -2).cumsum(-1)  # along rows: a scan over columns is slow
        moments = torch.nn.functional.pad(moments, (1, 0))
        if self.hinge:
            above = torch.searchsorted(-p, self.margin - q)
        else:
            above = torch.full_like(q, p.shape[-1], dtype=torch.int64)
        picked = moments.gather(-1, above.unsqueeze(-2).expand(*moments.shape[:-1], q.shape[-1]))  # (..., 3 C, Q)
        s0, s1, s2 = picked.mT.chunk(3, -1)  # (..., Q, C) each
        d = self.margin - (q.unsqueeze(-1) - center.mT)  # (..., Q, C)
        slope = s1 + d * s0
        return self.scale * (s2 + d * (s1 + slope)), 2.0 * self.scale * slope

    def _relative(self, value: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """log g and the slope over g."""
        log_g = value.clamp(min=0.0).log().clamp(min=ZERO)  # sorted sums may fall below 0 by rounding
        return log_g, slope / value.masked_fill(value <= 0.0, math.inf)

    def _inside(self, x: Tensor) -> Tensor:
        if self.hinge:
            return x.clamp_(min=0)
        return x

    def _centers(self, p: Tensor, w: Tensor) -> Tensor:
        """What each column's points are measured from, (..., C, 1): sums begin at the top, so that there it is the
        largest point that counts, and what lies far below spoils no digits of it."""
        if not self.hinge:
            return p.mean(-1)[..., None, None].expand(*p.shape[:-1], w.shape[-1], 1)
        top = p.unsqueeze(-1).masked_fill(w == 0.0, -torch.inf).amax(-2)
        return top.masked_fill(top == -torch.inf, 0.0).unsqueeze(-1)


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
            return x @ w[0]
        return _weighted(x, w.index_select(0, self.task))

    def spread(self, x: Tensor, factor: Tensor, total: Tensor) -> None:
        """Add sum_a x_ap factor_a, over the anchors of each task, to the total (T, P, C), in place."""
        if total.shape[0] == 1:
            total[0] += x.T @ factor
            return
        for column in range(factor.shape[1]):
            total[:, :, column].index_add_(0, self.task, x * factor[:, column].unsqueeze(1))


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
        log_g = w.new_empty(a.shape[0], w.shape[-1])
        slope = torch.empty_like(log_g)
        minus_top = -self._most(s, edge, task).unsqueeze(1)  # (A, 1), as powers of 2
        if task is None:
            chunks = self._chunks(edge, s, w, waits)
        else:
            chunks = self._task_chunks(edge, s, w, task)
        for some in chunks:
            shift = minus_top[some.which]
            e = self._powers(some.root, shift)  # (A, P), at most 1
            g = _weighted(e, some.w)  # (A, C)
            if some.outside is not None:
                g += some.outside * shift.exp2()  # k = 1 outside of the hinge
            slope[some.which] = 2.0 * self.scale * _weighted(e.mul_(some.root), some.w) / g
            log_g[some.which] = g.log() - shift / _LOG2E
        return log_g, slope

    def columns(self, s: Tensor, a: Tensor, log_g: Tensor, b: Tensor, *, waits: bool = True) -> Tensor:
        result = b.new_empty(s.shape[0], b.shape[1])
        for some in self._chunks(s, self.margin - a, torch.cat([b, -_LOG2E * log_g], 1), waits):  # roots (Q, A)
            b_in, shift = some.w.chunk(2, 1)
            for column in range(b.shape[1]):
                e = self._powers(some.root, shift[:, column])
                result[some.which, column] = e.mul_(some.root) @ b_in[:, column]
        return 2.0 * self.scale * result

    def task_rows(self, asked: Asked, s: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        # Of all (task, draw) pairs the anchors alone, at the front of a list that has room for the most there can be.
        tasks, draws = asked.mask.shape
        mask = asked.mask.flatten()
        place = torch.where(mask, mask.cumsum(0) - 1, asked.most)
        entry = mask.new_zeros(asked.most + 1, dtype=torch.int64)
        entry = entry.scatter_(0, place, torch.arange(mask.shape[0], device=mask.device))[:-1]  # (M,)
        found = self.rows(asked.a.flatten()[entry], between(s, w), w, entry // draws)
        place = place.clamp(max=asked.most - 1)
        log_g, slope = (value[place].reshape(tasks, draws, -1) for value in found)
        return log_g, slope

    def task_columns(self, q: Tensor, anchors: Anchors, s: Tensor, log_g: Tensor, b: Tensor) -> Tensor:
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

    def task_all(self, anchors: Anchors, s: Tensor, w: Tensor, compared: Compared, weigh: Weigh) -> WholeTable:
        index = compared.index
        others = s.gather(1, index)  # (T, P)
        weight = w.gather(1, index.unsqueeze(2).expand(-1, -1, w.shape[2]))  # (T, P, C)
        columns = torch.zeros_like(weight)
        edge = self.margin - anchors.a
        minus_top = -self._most(others, edge, anchors.task).unsqueeze(1)  # (A, 1)
        log_g: list[Tensor] = []
        slope: list[Tensor] = []
        outer: list[OuterValues] = []
        for some, tasks, size in compared.pieces(_budget(edge)):
            part = _Part(edge[some], minus_top[some], anchors.task[some] - tasks.start)
            mine = Others(others[tasks, :size], weight[tasks, :size])
            power, g = self._task_powers(part, mine)  # (A, P) and (A, C)
            log_g.append(g.log() - part.shift / _LOG2E)
            slope.append(2.0 * self.scale * part.summed(power, mine.w) / g)
            outer.append(weigh(some, log_g[-1]))
            # The same pairs serve both ways: a pair's part in g is what it gets back.
            part.spread(power, outer[-1].slope / g.masked_fill(g == 0.0, math.inf), columns[tasks, :size])
        by_other = 2.0 * self.scale * (columns * weight).sum(2)  # (T, P)
        by_example = torch.zeros_like(s).scatter(1, index, by_other)
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

    def _most(self, s: Tensor, edge: Tensor, task: Tensor | None) -> Tensor:
        """The largest exponent of each anchor (A,), as a power of 2, from the others and margin - s_a: it grows, or
        falls and grows."""
        low, high = s.aminmax(dim=-1)  # () or (T,)
        if task is not None:
            low = low[task]
            high = high[task]
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
        budget = _budget(mine)
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
        for some in _pieces(mine, others.shape[0]):
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
        return 1 << 18
    return 1 << 25


def _pieces(mine: Tensor, others: int) -> Iterator[slice]:
    """``mine`` in parts, each small enough to be set against so many others."""
    size = max(1, _budget(mine) // max(1, others))
    return (slice(at, at + size) for at in range(0, mine.shape[0], size))
