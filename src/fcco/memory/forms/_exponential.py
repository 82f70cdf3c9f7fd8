"""Exponential inside the hinge: chunks of pairs.

Of a pair of anchor a and other o,

    root_ao = margin + s_o - s_a           (at least 0 where it is a hinge)
    k       = exp(scale root^2)            = 2^(scale log2(e) root^2)
    k'      = 2 scale root k

and to keep k finite it is taken as a power of 2 less its largest exponent: power_ao = k / 2^top_a, at most 1. In what
follows shift_a = -top_a, so that power = 2^(scale log2(e) root^2 + shift).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
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
from fcco.memory.forms._task_part import TaskPart, joined_values

BUDGET = 1 << 16  # pairs of one piece on the CPU, for many tasks: as many as stay in its cache
_LOG2E = math.log2(math.e)
_LOWEST = -80.0 * _LOG2E  # exponents of 2: on the CPU numbers that underflow take fifty times as long


class _Chunk(NamedTuple):
    """Some of the rows, with the others inside their hinge.

    Args:
        which: of the rows.
        root: (A, P) the roots of exponent / scale.
        w: (P, C) of the others inside, or (A, P, C) where each row has its own.
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

    def rows(
        self, a: Tensor, s: Tensor, w: Tensor, task: Tensor | None = None, *, waits: bool = True
    ) -> tuple[Tensor, Tensor]:
        edge = self.margin - a  # (A,)
        shift = -self._largest_exponent(edge, s, task).unsqueeze(1)  # (A, 1)
        if task is None and has_kernel(s):
            g, root_sums = self._pair_sums(edge, s, w, shift.squeeze(1))  # (A, C) each
            return self._log_and_slope(g, root_sums, shift)
        log_g = w.new_empty(a.shape[0], w.shape[-1])
        slope = torch.empty_like(log_g)
        if task is None:
            chunks = self._chunks(edge, s, w, waits)
        else:
            chunks = self._task_chunks(edge, s, w, task)
        for chunk in chunks:
            chunk_shift = shift[chunk.which]
            power_times_root, g = self._powers_and_g(chunk.root, chunk_shift, chunk.w, sums_of_rows)
            root_sums = sums_of_rows(power_times_root, chunk.w)
            if chunk.outside is not None:
                g += chunk.outside * chunk_shift.exp2()  # k = 1 outside of the hinge, and k' = 0
            log_g[chunk.which], slope[chunk.which] = self._log_and_slope(g, root_sums, chunk_shift)
        return log_g, slope

    def columns(self, s: Tensor, a: Tensor, log_g: Tensor, b: Tensor, *, waits: bool = True) -> Tensor:
        # sum_a b_a k' / g_a = 2 scale sum_a b_a root 2^(scale log2(e) root^2 - log2 g_a): 1/g is an exponent's shift.
        edge = self.margin - a  # (A,)
        shift = -_LOG2E * log_g  # (A, C)
        if has_kernel(s):
            _, root_sums = self._pair_sums(s, edge, b, shift)
            return 2.0 * self.scale * root_sums
        root_sums = b.new_empty(s.shape[0], b.shape[1])  # (Q, C)
        # Anchors that a chunk leaves out take their shifts with them, so that both go in as weights.
        for chunk in self._chunks(s, edge, torch.cat([b, shift], 1), waits):  # roots (Q, A)
            chunk_b, chunk_shift = chunk.w.chunk(2, 1)
            for column in range(b.shape[1]):
                power_times_root = self._power_times_root(chunk.root, chunk_shift[:, column])
                root_sums[chunk.which, column] = power_times_root @ chunk_b[:, column]
        return 2.0 * self.scale * root_sums

    def task_rows(self, asked: Asked, s: Ranked, w: Tensor, compared: Compared) -> tuple[Tensor, Tensor]:
        others = compared.at(s.s, w)
        if 2 * asked.most > asked.mask.numel():  # little would be saved
            return self._dense_rows(asked.a, others, compared)
        # Of all (task, draw) pairs the anchors alone, at the front of a list that has room for the most there can be.
        tasks, draws = asked.mask.shape
        is_anchor = asked.mask.flatten()  # (T K,)
        place = torch.where(is_anchor, is_anchor.cumsum(0) - 1, asked.most)  # the rest: one past the list's end
        pair = torch.arange(is_anchor.shape[0], device=is_anchor.device)
        listed = is_anchor.new_zeros(asked.most + 1, dtype=torch.int64).scatter_(0, place, pair)
        listed = listed[:-1]  # (M,)
        log_g, slope = self.rows(asked.a.flatten()[listed], others.s, others.w, listed // draws)  # (M, C) each
        place = place.clamp(max=asked.most - 1)
        return log_g[place].reshape(tasks, draws, -1), slope[place].reshape(tasks, draws, -1)

    def _dense_rows(self, a: Tensor, others: Others, compared: Compared) -> tuple[Tensor, Tensor]:
        """log g and relative slopes (T, K, C) of all draws (T, K) in all tasks."""
        edge = self.margin - a  # (T, K)
        lowest, highest = others.s.aminmax(dim=1, keepdim=True)  # (T, 1) each
        shift = -self._exponent_at_ends(edge, lowest, highest).unsqueeze(2)  # (T, K, 1)
        log_g = []
        slope = []
        for tasks in _pieces(edge, edge.shape[1] * others.s.shape[1]):
            size = max(compared.count[tasks])  # of the others of these tasks
            w = others.w[tasks, :size]
            root = self._root(edge[tasks].unsqueeze(2) + others.s[tasks, :size].unsqueeze(1))  # (T, K, P)
            power_times_root, g = self._powers_and_g(root, shift[tasks], w, weighted_sums)
            root_sums = weighted_sums(power_times_root, w)
            piece_log_g, piece_slope = self._log_and_slope(g, root_sums, shift[tasks])  # (T, K, C) each
            log_g.append(piece_log_g)
            slope.append(piece_slope)
        return torch.cat(log_g), torch.cat(slope)

    def task_columns(self, q: Tensor, anchors: Anchors, s: Ranked, log_g: Tensor, b: Tensor) -> Tensor:
        # As in columns: 2 scale sum_a b_a root 2^(scale log2(e) root^2 - log2 g_a), over the anchors of each task.
        edge = self.margin - anchors.a  # (A,)
        shift = -_LOG2E * log_g  # (A, C)
        root_sums = [torch.zeros_like(q) for _ in range(b.shape[1])]  # (T, K) for each component
        for some in _pieces(edge, q.shape[1]):
            task = anchors.task[some]
            root = self._root(q.index_select(0, task).add_(edge[some].unsqueeze(1)))  # (A, K)
            for column, sums in enumerate(root_sums):
                power_times_root = self._power_times_root(root, shift[some, column].unsqueeze(1))
                power_times_root *= b[some, column].unsqueeze(1)
                sums.index_add_(0, task, power_times_root)
        return 2.0 * self.scale * torch.stack(root_sums, -1)

    def task_all(self, anchors: Anchors, s: Ranked, w: Tensor, compared: Compared, weigh: Weigh) -> WholeTable:
        others = compared.at(s.s, w)  # (T, P) and (T, P, C)
        edge = self.margin - anchors.a  # (A,)
        shift = -self._largest_exponent(edge, others.s, anchors.task).unsqueeze(1)  # (A, 1)
        root_sums_of_others = w.new_zeros(w.shape[2], *others.s.shape)  # (C, T, P)
        log_g: list[Tensor] = []
        slope: list[Tensor] = []
        outer: list[OuterValues] = []
        for some, tasks, size in compared.pieces(2 * _budget(edge)):
            part = TaskPart(edge[some], shift[some], anchors.task[some] - tasks.start)
            part_w = others.w[tasks, :size]
            power_times_root, g = self._powers_of_part(part, others.s[tasks, :size], part_w)  # (A, P) and (A, C)
            root_sums = part.summed(power_times_root, part_w)
            part_log_g, part_slope = self._log_and_slope(g, root_sums, part.shift)  # (A, C) each
            part_outer = weigh(some, part_log_g)
            # The same pairs serve both ways: a pair's part in g is what it gets back, f' k' / g.
            factor = part_outer.slope / g.masked_fill(g == 0.0, math.inf)
            part.add_to_others(power_times_root, factor, root_sums_of_others[:, tasks, :size])
            log_g.append(part_log_g)
            slope.append(part_slope)
            outer.append(part_outer)
        by_other = 2.0 * self.scale * (root_sums_of_others.permute(1, 2, 0) * others.w).sum(2)  # (T, P)
        by_example = torch.zeros_like(s.s).scatter(1, compared.index, by_other)  # (T, N)
        return WholeTable(torch.cat(log_g), torch.cat(slope), joined_values(outer), by_example)

    def _powers_of_part(self, part: TaskPart, s: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Powers times roots (A, P) and g (A, C) of some anchors; the roots are gone before the next sum is made."""
        root = self._root(part.by_anchor(s) + part.edge.unsqueeze(1))  # (A, P)
        return self._powers_and_g(root, part.shift, w, part.summed)

    def largest(self, others: Others, a: Tensor) -> Tensor:
        # log(w k) = log w + scale root^2, -inf where a class is empty
        root = self._root(self.margin + others.s - a.unsqueeze(1)).unsqueeze(2)  # (A, E, 1)
        log_contribution = torch.addcmul(others.w.log(), root, root, value=self.scale)  # (A, E, C)
        return log_contribution.amax(1).clamp(min=ZERO)

    def cost(self, anchors: int, others: int) -> int:
        return anchors * others

    # ------------------------------------------------------------------ pairs

    def _root(self, x: Tensor) -> Tensor:
        """The root of exponent / scale from margin + s_o - s_a, in place."""
        if self.hinge:
            return x.clamp_(min=0)
        return x

    def _power(self, root: Tensor, shift: Tensor) -> Tensor:
        """2^(scale log2(e) root^2 + shift) = exp(scale root^2) 2^shift, not below e^-80."""
        # A power of 2 takes half as long as one of e.
        exponent = torch.addcmul(shift, root, root, value=self.scale * _LOG2E)
        return exponent.clamp_(min=_LOWEST).exp2_()

    def _power_times_root(self, root: Tensor, shift: Tensor) -> Tensor:
        """k' / (2 scale) times 2^shift."""
        power = self._power(root, shift)
        return power.mul_(root)

    def _powers_and_g(
        self, root: Tensor, shift: Tensor, w: Tensor, summed: Callable[[Tensor, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """power root (..., P) of all pairs, and sum_o w_o power = g 2^shift (..., C).

        Args:
            root: (..., P).
            shift: (..., 1).
            w: of the others.
            summed: the sum over the others of x (..., P) times w.
        """
        power = self._power(root, shift)
        g = summed(power, w)
        power_times_root = power.mul_(root)  # in place: of all tensors these are the largest
        return power_times_root, g

    def _log_and_slope(self, g: Tensor, root_sums: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """log g and sum_o w_o k' / g = 2 scale sum_o w_o power root / sum_o w_o power; g and sums less the shift."""
        slope = 2.0 * self.scale * root_sums / g
        return g.log() - shift / _LOG2E, slope

    def _pair_sums(self, edge: Tensor, others: Tensor, w: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """sum_p w_p power_ap and sum_p w_p power_ap root_ap (A, C), of all pairs root = edge_a + s_p, by one kernel."""
        factor = self.scale * _LOG2E
        return pair_sums(edge, others, w, shift, factor=factor, lowest=_LOWEST, hinge=self.hinge)

    def _largest_exponent(self, edge: Tensor, s: Tensor, task: Tensor | None) -> Tensor:
        """The largest exponent of each anchor (A,), as a power of 2, over the others s (P,) or of its task (T, P)."""
        lowest, highest = s.aminmax(dim=-1)  # () or (T,)
        if task is not None:
            lowest = lowest[task]
            highest = highest[task]
        return self._exponent_at_ends(edge, lowest, highest)

    def _exponent_at_ends(self, edge: Tensor, lowest: Tensor, highest: Tensor) -> Tensor:
        """scale log2(e) root^2 at the lowest or highest of the others: it grows with s_o, or falls and grows."""
        largest_square = self._root(edge + highest).square()
        if not self.hinge:
            largest_square = torch.maximum(largest_square, (edge + lowest).square())
        return self.scale * _LOG2E * largest_square

    # ------------------------------------------------------------------ chunks of pairs

    def _chunks(self, rows: Tensor, others: Tensor, w: Tensor, waits: bool) -> Iterator[_Chunk]:
        """Chunks of the rows against the others inside their hinge: a pair's root is the sum of its two numbers.

        Args:
            rows: (A,) margin - s_a of the anchors, or s_o of the others.
            others: (P,) the other of the two.
            w: (P, C) of the latter.
            waits: whether the host may look at the scores.
        """
        budget = 2 * _budget(rows)  # here pieces are made of fewer tensors
        outside = None
        if self.hinge and waits:
            if rows.shape[0] > FEW and rows.shape[0] * others.shape[0] > 2 * budget:
                yield from self._sorted_chunks(rows, others, w, budget)
                return
            if rows.device.type == "cpu":  # elsewhere a device would wait for their number
                inside = others > -rows.amax()
                outside = w[~inside].sum(0)
                others = others[inside]
                w = w[inside]
        for some in _pieces(rows, others.shape[0] // 2):
            yield _Chunk(some, self._root(rows[some].unsqueeze(1) + others), w, outside)

    def _task_chunks(self, edge: Tensor, s: Tensor, w: Tensor, task: Tensor) -> Iterator[_Chunk]:
        """The same for anchors (A,) of tasks (A,), each of which has others (T, P) and weights (T, P, C) of its own."""
        for some in _pieces(edge, s.shape[1]):
            some_tasks = task[some]
            root = self._root(s.index_select(0, some_tasks).add_(edge[some].unsqueeze(1)))
            yield _Chunk(some, root, w.index_select(0, some_tasks), None)

    def _sorted_chunks(self, rows: Tensor, others: Tensor, w: Tensor, budget: int) -> Iterator[_Chunk]:
        """The same by size: rows that have few others inside are set against few."""
        falling_rows = rows.argsort(descending=True)  # the highest have the most inside
        others, order = others.sort()
        w = w[order]
        weight_below = torch.cat([w.new_zeros(1, w.shape[1]), w.cumsum(0)])  # (P + 1, C)
        at = 0
        while at < rows.shape[0]:
            edge_of_hinge = -rows[falling_rows[at]].reshape(1)  # of the highest row of this chunk
            first = int(torch.searchsorted(others, edge_of_hinge))
            size = max(1, budget // max(1, others.shape[0] - first))
            some = falling_rows[at : at + size]
            root = self._root(rows[some].unsqueeze(1) + others[first:])
            yield _Chunk(some, root, w[first:], weight_below[first])
            at += some.shape[0]


def _budget(rows: Tensor) -> int:
    """How many pairs a piece may have: on the CPU as many as stay in its cache."""
    if rows.device.type == "cpu":
        return BUDGET
    return 1 << 25


def _pieces(rows: Tensor, others: int) -> Iterator[slice]:
    """The rows in parts, each small enough to be set against so many others."""
    size = max(1, _budget(rows) // max(1, others))
    return (slice(at, at + size) for at in range(0, rows.shape[0], size))
