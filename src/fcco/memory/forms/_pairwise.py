"""PairwiseForm: F as a function of the table, for objectives that compare examples of one class with others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from fcco.data import PointBlocks
from fcco.memory._table import Entries, OutputTable
from fcco.memory.forms._form import BlockShares, Evaluation, Form, Outer, OuterValues, TableObjective
from fcco.memory.forms._kernels import Kernel, Others, between, extremes
from fcco.memory.forms._pairwise_tasks import PairwiseTasksForm
from fcco.memory.forms._rows import largest_of, with_rows
from fcco.memory.forms._views import view_of


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


@final
@dataclass(frozen=True)
class _All:
    """All of a view, with masks in the place of those that were not seen.

    Args:
        a: (A,) the anchors' scores, times sigma; ``s``: (P,) the others'.
        w: (P, C) the others' weights, 0 where not seen.
        part: (A,) bool, the anchors that were seen and have others to be compared with; None: all.
    """

    a: Tensor
    s: Tensor
    w: Tensor
    part: Tensor | None


class _Drawn(NamedTuple):
    """Draws that are anchors (or others): which draw, its place among them, and whether it is one at all; (B,) each."""

    draw: Tensor
    place: Tensor
    valid: Tensor


@final
class PairwiseForm(Form):
    r""":math:`\Phi(s) = \frac1m \sum_a f_a(\log \sum_o w_o k(\sigma (s_o - s_a)))`, for one task.

    Rows are log g (A, C); of an anchor that has not been compared yet: inf.

    Args:
        objective: gives f, its ``outer``.
        blocks: which examples are compared; sigma is -1 where the blocks are the negatives.
        kernel: k.
        table: where s comes from.
        same_class_only: for each component of g, whether it runs over the anchors' class alone.

    Attributes:
        selects: whether a step looks at the scores to leave out pairs outside of a hinge: on the CPU, where nobody
            waits for that, and where large tables take long.
    """

    def __init__(
        self,
        objective: TableObjective,
        blocks: PointBlocks,
        kernel: Kernel,
        table: OutputTable,
        same_class_only: tuple[bool, ...] = (False,),
    ) -> None:
        self.selects = table.device.type == "cpu"
        self._kernel = kernel
        self._table = table
        self._sign = -1
        if blocks.positive:
            self._sign = 1
        self._has_own_class = blocks.include_own_class
        self._is_weighted = blocks.data.weight is not None
        self._view = view_of(blocks, table.device, same_class_only)
        self._outer = Outer(objective)
        self._shares = BlockShares(blocks, table.device)
        self.objective_params = self._outer.params

    def cost(self) -> int:
        return self._kernel.cost(self._view.anchors.shape[0], self._view.others.shape[0])

    def start_rows(self) -> list[Tensor]:
        view = self._view
        return [view.share.new_full((view.anchors.shape[0], view.share.shape[1]), torch.inf)]

    def evaluate_all(self, rows: list[Tensor]) -> Evaluation:
        c = torch.zeros_like(self._table.values)
        there = self._present()
        if not there.comparable:
            gradients = [torch.zeros_like(p) for p in self.objective_params]
            return Evaluation(c, c.new_zeros(0), gradients, rows)
        view = self._view
        column = self._column(c)
        log_g, slope = self._kernel.rows(there.a, there.s, there.w)  # (A, C) each
        blocks = view.blocks[there.anchors]
        found = self._outer.at(blocks, log_g, self._shares.at(blocks, complete=self._table.complete))
        by_anchor = (found.slope * slope).sum(1).to(column.dtype)  # (A,)
        column.index_add_(0, view.anchors[there.anchors], by_anchor, alpha=-self._sign)
        by_other = (self._kernel.columns(there.s, there.a, log_g, found.slope) * there.w).sum(1)
        column.index_add_(0, view.others[there.others], by_other.to(column.dtype), alpha=self._sign)
        new_rows = rows[0].clone()
        new_rows[there.anchors] = log_g.to(new_rows.dtype)
        return Evaluation(c, found.f, found.param_gradients, [new_rows])

    def evaluate(self, ids: Tensor, rows: list[Tensor], old: Entries | None = None) -> Evaluation:
        """c of the examples (K,), whose outputs are fresh; the rows of the others' anchors are the last known."""
        if old is None:
            old = self._table.read(ids)
        view = self._view
        c = self._table.values.new_zeros(ids.shape[0], *self._table.shape)
        column = self._column(c)
        there = self._all()
        own_size, other_size = self._sizes(old)
        mine = self._drawn(view.anchor_at, ids, own_size)
        theirs = self._drawn(view.other_at, ids, other_size)
        fresh = Others(there.s[theirs.place], there.w[theirs.place] * theirs.valid.unsqueeze(1))
        counts = mine.valid
        if there.part is not None:
            counts = counts & there.part[mine.place]
        log_g, slope = self._kernel.rows(there.a[mine.place], there.s, there.w, waits=self.selects)  # (B, C) each
        kept = counts & old.once[mine.draw]
        new_rows = with_rows(rows[0], mine.place, log_g, kept)
        if there.part is not None and not self._has_own_class:
            new_rows = self._with_first_rows(new_rows, there, fresh, old.once[theirs.draw])
        found, log_g = self._weigh(there, new_rows, theirs, fresh)
        by_anchor = torch.where(counts, (found.slope[mine.place] * slope).sum(1), 0.0)
        column.index_add_(0, mine.draw, by_anchor.to(column.dtype), alpha=-self._sign)
        by_other = (self._kernel.columns(fresh.s, there.a, log_g, found.slope, waits=self.selects) * fresh.w).sum(1)
        column.index_add_(0, theirs.draw, by_other.to(column.dtype), alpha=self._sign)
        return Evaluation(c, found.f, found.param_gradients, [new_rows], there.part)

    # ------------------------------------------------------------------ parts

    def _sizes(self, old: Entries) -> tuple[int, int]:
        """How many draws are anchors, and how many are others, at most."""
        draws = int(old.id.shape[0])
        own = draws
        other = draws
        if old.sizes is not None:
            own, other = old.sizes
        if self._has_own_class:
            other = draws
        return max(1, own), max(1, other)

    def _drawn(self, places: Tensor, ids: Tensor, size: int) -> _Drawn:
        """The draws that have a place in a list, ``size`` of them at most; others fill up."""
        place = places[ids]  # (K,)
        draw = torch.arange(ids.shape[0], device=ids.device)
        if size < ids.shape[0]:
            draw = (place < 0).int().argsort(stable=True)[:size]  # those that have one come first
            place = place[draw]
        return _Drawn(draw, place.clamp(min=0), place >= 0)

    def _with_first_rows(self, rows: Tensor, there: _All, fresh: Others, once: Tensor) -> Tensor:
        """Rows of the anchors that were seen before there was anything to compare them with.

        What they can be compared with was all drawn in this step, else they would have been compared before.
        """
        assert there.part is not None
        weight = fresh.w * once.unsqueeze(1)
        total = weight.sum(0)  # (C,)
        weight = weight / total.clamp(min=torch.finfo(total.dtype).tiny)
        first = self._kernel.rows(there.a, between(fresh.s, weight), weight, waits=False)[0]  # (A, C)
        new = rows.isinf() & there.part.unsqueeze(1) & (total > 0)
        return torch.where(new, first.to(rows.dtype), rows)

    def _weigh(self, there: _All, rows: Tensor, theirs: _Drawn, fresh: Others) -> tuple[OuterValues, Tensor]:
        """f (A,) with its slopes, and the log g (A, C) that they are taken at."""
        same_class = None
        if self._has_own_class:
            same_class = self._view.same_class[theirs.place]
        ends = fresh
        if not self._is_weighted:  # the ends of a class stand for all of it
            ends = extremes(fresh.s, fresh.w, same_class, theirs.valid)
        # An anchor's row may be old: it is at least what a fresh example alone contributes.
        log_g = torch.maximum(rows, largest_of(self._kernel, ends, there.a).to(rows.dtype))  # (A, C)
        share = self._shares.of_all(there.part)
        if there.part is None:
            return self._outer.at(self._view.blocks, log_g, share), log_g
        absent = ~there.part.unsqueeze(1)
        found = self._outer.at(self._view.blocks, log_g.masked_fill(absent, 0.0), share)
        return found, log_g.masked_fill(absent, torch.inf)  # 1/g of those absent is 0

    def _scores(self, examples: Tensor) -> Tensor:
        """sigma s of the examples, in the view's column."""
        return self._sign * self._column(self._table.values)[examples].to(self._view.share.dtype)

    def _column(self, c: Tensor) -> Tensor:
        if c.dim() == 1:
            return c
        return c[:, self._view.column]

    def _all(self) -> _All:
        view = self._view
        a = self._scores(view.anchors)
        s = self._scores(view.others)
        if self._table.complete:
            return _All(a, s, view.share, None)
        seen = self._table.seen
        w = view.masked_weights(seen[view.others])
        comparable = (w > 0).any()
        return _All(a, between(s, w), w, seen[view.anchors] & comparable)

    def _present(self) -> _Present:
        view = self._view
        if self._table.complete:
            all_places = slice(None)
            return _Present(all_places, all_places, self._scores(view.anchors), self._scores(view.others), view.share)
        seen = self._table.seen
        anchors = seen[view.anchors].nonzero()[:, 0]
        others = seen[view.others].nonzero()[:, 0]
        a = self._scores(view.anchors[anchors])
        s = self._scores(view.others[others])
        return _Present(anchors, others, a, s, view.weights(others))


def pairwise_form(
    objective: TableObjective,
    blocks: PointBlocks,
    kernel: Kernel | None,
    table: OutputTable,
    same_class_only: tuple[bool, ...] = (False,),
) -> PairwiseForm | PairwiseTasksForm | None:
    """The form, where the loss has a kernel and the outputs a score per task; arguments as of the class.

    Args:
        objective: what the table is for.
        blocks: its positives.
        kernel: fast sums of the pair loss; None: there are none.
        table: the outputs.
        same_class_only: for each component of g, whether it runs over the block's own class.
    """
    shape: tuple[int, ...] = ()
    if blocks.num_tasks > 1:
        shape = (blocks.num_tasks,)
    if kernel is None or table.shape != shape:
        return None
    if blocks.used > 1:
        return PairwiseTasksForm(objective, blocks, kernel, table, same_class_only)
    return PairwiseForm(objective, blocks, kernel, table, same_class_only)
