"""PairwiseForm: F as a function of the table, for objectives that compare examples of one class with others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fcco.data import PointBlocks
from fcco.memory._table import Entries, OutputTable
from fcco.memory.forms._form import (
    BlockShares,
    Evaluation,
    Form,
    Outer,
    OuterValues,
    TableObjective,
    add_to,
    joined,
    sent,
)
from fcco.memory.forms._kernels import Kernel, Others, extremes
from fcco.memory.forms._views import View, views_of

_PAIRS = 1 << 22  # of one piece, where a step's others are set against all anchors one by one


@final
@dataclass(frozen=True)
class _Present:
    """Those of a view that were seen.

    Args:
        anchors: places among the view's anchors (a slice: all); ``others``: among its others.
        a: their scores, times sigma; ``s``: the others'.
        w: (P, C) the others' weights: those seen of a class stand for all of it.
    """

    anchors: Tensor | slice
    others: Tensor | slice
    a: Tensor
    s: Tensor
    w: Tensor

    @property
    def comparable(self) -> bool:
        """Whether there are anchors, and others to compare them with."""
        return self.a.numel() > 0 and self.s.numel() > 0


#: f and the derivatives of a view, from its rows (renewed in place) and its column of c (added to)
EvaluateView = Callable[[View, _Present, Tensor, Tensor], OuterValues]


@final
class PairwiseForm(Form):
    r""":math:`\Phi(s) = \frac1m \sum_a f_a(\log \sum_o w_o k(\sigma (s_o - s_a)))`, task by task.

    Rows are log g (A, C), a tensor per task; of an anchor that has not been compared yet: inf.

    Args:
        objective: gives f, its ``outer``.
        blocks: which examples are compared; sigma is -1 where the blocks are the negatives.
        kernel: k.
        table: where s comes from.
        same_class_only: for each component of g, whether it runs over the anchors' class alone.
    """

    def __init__(
        self,
        objective: TableObjective,
        blocks: PointBlocks,
        kernel: Kernel,
        table: OutputTable,
        same_class_only: tuple[bool, ...] = (False,),
    ) -> None:
        self._kernel = kernel
        self._table = table
        self._sign = -1
        if blocks.positive:
            self._sign = 1
        self._has_own_class = blocks.include_own_class
        self._is_weighted = blocks.data.weight is not None
        self._components = len(same_class_only)
        self._views = views_of(blocks, table.device, same_class_only)
        self._outer = Outer(objective)
        self._shares = BlockShares(blocks, table.device)
        self.objective_params = self._outer.params

    def cost(self) -> int:
        return sum(self._kernel.cost(view.anchors.shape[0], view.others.shape[0]) for view in self._views)

    def start_rows(self) -> list[Tensor]:
        return [view.share.new_full((view.anchors.shape[0], self._components), torch.inf) for view in self._views]

    def evaluate_all(self, rows: list[Tensor]) -> Evaluation:
        return self._each_view(torch.zeros_like(self._table.values), rows, self._evaluate_whole)

    def evaluate(self, ids: Tensor, rows: list[Tensor], old: Entries | None = None) -> Evaluation:
        """c of the examples (K,), whose outputs are fresh; the rows of the others' anchors are the last known.

        Who of them is what is found on the CPU: where ``ids`` are there, no device waits.
        """
        c = self._table.values.new_zeros(ids.shape[0], *self._table.shape)
        return self._each_view(c, rows, functools.partial(self._evaluate_some, ids))

    def _each_view(self, c: Tensor, rows: list[Tensor], evaluate: EvaluateView) -> Evaluation:
        """The views one after another, each adding to its column of c; one without pairs keeps its rows."""
        values: list[Tensor] = []
        gradients = [torch.zeros_like(p) for p in self.objective_params]
        new_rows: list[Tensor] = []
        for view, old_rows in zip(self._views, rows, strict=True):
            there = self._present(view)
            if not there.comparable:
                new_rows.append(old_rows)
                continue
            new_rows.append(old_rows.clone())
            found = evaluate(view, there, new_rows[-1], self._column(c, view))
            values.append(found.f)
            add_to(gradients, found.param_gradients)
        return Evaluation(c, joined(values, c), gradients, new_rows)

    def _evaluate_whole(self, view: View, there: _Present, rows: Tensor, column: Tensor) -> OuterValues:
        """All pairs anew; c of every example is added to ``column`` (N,)."""
        log_g, slope = self._kernel.rows(there.a, there.s, there.w)  # (A, C) each
        found = self._weigh(view, there, log_g)
        by_anchor = (found.slope * slope).sum(1).to(column.dtype)  # (A,)
        column.index_add_(0, view.anchors[there.anchors], by_anchor, alpha=-self._sign)
        by_other = (self._kernel.columns(there.s, there.a, log_g, found.slope) * there.w).sum(1)
        column.index_add_(0, view.others[there.others], by_other.to(column.dtype), alpha=self._sign)
        rows[there.anchors] = log_g.to(rows.dtype)
        return found

    def _evaluate_some(self, ids: Tensor, view: View, there: _Present, rows: Tensor, column: Tensor) -> OuterValues:
        """The pairs of the examples ids (K,); their c is added to ``column`` (K,), their rows are renewed in place."""
        mine, anchor = self._drawn(view.anchor_at, ids)  # (B,) each: which of ids, and where among the anchors
        theirs, other = self._drawn(view.other_at, ids)  # (Q,) each: which of ids, and where among the others
        slope = None
        if mine.numel():
            at = _among(there.anchors, anchor)
            log_g, slope = self._kernel.rows(there.a[at], there.s, there.w)
            rows[anchor] = log_g.to(rows.dtype)
        if self._table.filling:
            self._fill_first_rows(rows, there)
        log_g = rows[there.anchors].to(there.w.dtype)  # (A, C)
        if theirs.numel():
            fresh = _among(there.others, other)
            s_fresh = there.s[fresh]
            w_fresh = there.w[fresh]
            # An anchor's row may be old: it is at least what a fresh example alone contributes.
            least = self._largest(view, other, Others(s_fresh, w_fresh), there.a)
            log_g = torch.maximum(log_g, least.to(log_g.dtype))
        found = self._weigh(view, there, log_g)
        if slope is not None:
            by_anchor = (found.slope[at] * slope).sum(1)
            column.index_add_(0, mine, by_anchor.to(column.dtype), alpha=-self._sign)
        if theirs.numel():
            by_other = (self._kernel.columns(s_fresh, there.a, log_g, found.slope) * w_fresh).sum(1)
            column.index_add_(0, theirs, by_other.to(column.dtype), alpha=self._sign)
        return found

    # ------------------------------------------------------------------ parts

    def _drawn(self, places: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Which of the examples (K,) have a place in a list, and these places; found on the CPU, (B,) on the device."""
        place = places[ids.cpu()]
        there = (place >= 0).nonzero()[:, 0]
        return sent(there, self._table.device), sent(place[there], self._table.device)

    def _fill_first_rows(self, rows: Tensor, there: _Present) -> None:
        """Rows of the anchors that were seen before there was anything to compare them with, in place."""
        new = rows[there.anchors].isinf().any(1).nonzero()[:, 0]
        if not new.numel():
            return
        places = new
        if isinstance(there.anchors, Tensor):
            places = there.anchors[new]
        rows[places] = self._kernel.rows(there.a[new], there.s, there.w)[0].to(rows.dtype)

    def _largest(self, view: View, places: Tensor, others: Others, a: Tensor) -> Tensor:
        """log of the most that one of the others, at the places (Q,), contributes to each anchor (A, C)."""
        if self._is_weighted:  # the ends of a class do not stand for all of it
            size = max(1, _PAIRS // max(1, others.s.shape[0]))
            return torch.cat([self._kernel.largest(others, some) for some in a.split(size)])
        same_class = None
        if self._has_own_class:
            same_class = view.same_class[places]
        return self._kernel.largest(extremes(others.s, others.w, same_class), a)

    def _scores(self, view: View, examples: Tensor) -> Tensor:
        """sigma s of the examples, in the view's column."""
        return self._sign * self._column(self._table.values, view)[examples].to(view.share.dtype)

    def _column(self, c: Tensor, view: View) -> Tensor:
        if c.dim() == 1:
            return c
        return c[:, view.column]

    def _present(self, view: View) -> _Present:
        if not self._table.missing:
            everyone = slice(None)
            a = self._scores(view, view.anchors)
            return _Present(everyone, everyone, a, self._scores(view, view.others), view.share)
        seen = self._table.seen
        anchors = seen[view.anchors].nonzero()[:, 0]
        others = seen[view.others].nonzero()[:, 0]
        a = self._scores(view, view.anchors[anchors])
        s = self._scores(view, view.others[others])
        return _Present(anchors, others, a, s, view.weights(others))

    def _weigh(self, view: View, there: _Present, log_g: Tensor) -> OuterValues:
        """f (A,), what F gains per unit of log g (A, C), and the gradients of the objective's own parameters."""
        blocks = view.blocks[there.anchors]
        share = self._shares.at(blocks, complete=not self._table.missing)
        return self._outer.at(blocks, log_g, share)


def _among(some: Tensor | slice, places: Tensor) -> Tensor:
    """Where the places stand in ``some`` of them (a slice: all), in growing order."""
    if isinstance(some, slice):
        return places
    return torch.searchsorted(some, places)


def pairwise_form(
    objective: TableObjective,
    blocks: PointBlocks,
    kernel: Kernel | None,
    table: OutputTable,
    same_class_only: tuple[bool, ...] = (False,),
) -> PairwiseForm | None:
    """The form, where the loss has a kernel and the outputs a score per task; arguments as of the class."""
    shape: tuple[int, ...] = ()
    if blocks.num_tasks > 1:
        shape = (blocks.num_tasks,)
    if kernel is None or table.shape != shape:
        return None
    return PairwiseForm(objective, blocks, kernel, table, same_class_only)
