"""PairwiseTasksForm: the same as PairwiseForm for many tasks, all of them at once."""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor

from fcco.data import PointBlocks
from fcco.memory._table import Entries, OutputTable
from fcco.memory.forms._form import BlockShares, Evaluation, Form, Outer, OuterValues, TableObjective, example_weights
from fcco.memory.forms._kernels import Anchors, Asked, Compared, Kernel, Others, Ranked, between, extremes
from fcco.memory.forms._rows import largest_of, with_rows


class _Seen(NamedTuple):
    """The table as the tasks see it.

    Args:
        s: (T, N) all scores, times sigma.
        w: (T, N, C) how much each example counts in each component of g, 0 where it was not seen.
        anchors: of all blocks.
        part: (m,) bool, the blocks whose example was seen and has others to be compared with; None: all.
    """

    s: Ranked
    w: Tensor
    anchors: Anchors
    part: Tensor | None


@final
class PairwiseTasksForm(Form):
    r""":math:`\Phi(s) = \frac1m \sum_a f_a(\log \sum_o w_o k(\sigma (s_o - s_a)))` over the blocks a of many tasks.

    A task has all N examples as its others, those that do not count with weight 0: the tasks are then one matrix, and a
    step takes as many launches for a thousand of them as for two.

    Rows are log g (m, C); of an anchor that has not been compared yet: inf.

    Args: as of :class:`PairwiseForm`.
    """

    def __init__(
        self,
        objective: TableObjective,
        blocks: PointBlocks,
        kernel: Kernel,
        table: OutputTable,
        same_class_only: tuple[bool, ...] = (False,),
    ) -> None:
        device = table.device
        self._kernel = kernel
        self._table = table
        self._sign = -1
        if blocks.positive:
            self._sign = 1
        self._has_own_class = blocks.include_own_class
        self._is_weighted = blocks.data.weight is not None
        self._same_class_only = same_class_only
        used = blocks.tasks.used
        self._column = used.to(device)  # (T,)
        self._task = torch.searchsorted(used, blocks.block_task).to(device)  # (m,) in growing order
        self._example = blocks.block_example.to(device)  # (m,)
        self._blocks = torch.arange(blocks.num_blocks, device=device)
        own, other = _classes(blocks)
        self._own = own.to(device)  # (T, N) bool: who is of the blocks' class
        entering = other
        if blocks.include_own_class:
            entering = own | other
        # In double precision: exponents of thousands keep no digits in single.
        worth = entering.to(device) * example_weights(blocks, device)  # (T, N)
        self._share = worth / worth.sum(1, keepdim=True)
        self._weight = self._components(self._share)  # (T, N, C), once all were seen
        self._class_total = self._by_class(self._share)  # (2, T)
        self._place = torch.full(own.shape, -1, device=device)  # (T, N) the block of each example
        self._place[self._task, self._example] = self._blocks
        self._compared = Compared.of(entering.to(device), self._task)
        # At most so many (task, draw) pairs are anchors: those of the examples that have the most tasks.
        tasks_of_each = own.sum(0).sort(descending=True).values
        self._most = tasks_of_each.cumsum(0).tolist()
        self._outer = Outer(objective)
        self._shares = BlockShares(blocks, device)
        self.objective_params = self._outer.params

    def cost(self) -> int:
        anchors = self._task.bincount(minlength=self._share.shape[0]).tolist()
        return sum(map(self._kernel.cost, anchors, self._compared.count))

    def start_rows(self) -> list[Tensor]:
        return [self._share.new_full((self._task.shape[0], len(self._same_class_only)), torch.inf)]

    def evaluate_all(self, rows: list[Tensor]) -> Evaluation:
        seen = self._seen()
        share = self._shares.of_all(seen.part)

        def weigh(some: slice, log_g: Tensor) -> OuterValues:
            return self._outer.at(self._blocks[some], self._finite(log_g, seen.part, some), share[some])

        found = self._kernel.task_all(seen.anchors, seen.s, seen.w, self._compared, weigh)
        by_anchor = (found.outer.slope * found.slope).sum(1)  # (m,)
        kept = torch.ones_like(self._blocks, dtype=torch.bool)
        if seen.part is not None:
            kept = seen.part
        by_anchor = torch.where(kept, by_anchor, 0.0)
        # An example is the anchor of a task once at most.
        c = found.by_other.index_put((self._task, self._example), -by_anchor, accumulate=True)  # (T, N)
        new_rows = torch.where(kept.unsqueeze(1), found.log_g.to(rows[0].dtype), rows[0])
        outer = found.outer
        return Evaluation(self._columns(self._sign * c), outer.f, outer.param_gradients, [new_rows], seen.part)

    def evaluate(self, ids: Tensor, rows: list[Tensor], old: Entries | None = None) -> Evaluation:
        """c of the examples (K,), whose outputs are fresh; the rows of the others' anchors are the last known."""
        if old is None:
            old = self._table.read(ids)
        seen = self._seen()
        s = seen.s.s.index_select(1, ids)  # (T, K)
        w = seen.w.index_select(1, ids)  # (T, K, C)
        place = self._place.index_select(1, ids)  # (T, K)
        counts = place >= 0
        place = place.clamp(min=0)
        if seen.part is not None:
            counts = counts & seen.part[place]
        kept = counts & old.once
        asked = Asked(s, kept, self._most[min(len(self._most), ids.shape[0]) - 1])
        log_g, slope = self._kernel.task_rows(asked, seen.s, seen.w, self._compared)  # (T, K, C) each
        new_rows = with_rows(rows[0], place.flatten(), log_g.flatten(0, 1), kept.flatten())
        if seen.part is not None and not self._has_own_class:
            new_rows = self._with_first_rows(new_rows, seen, s, w * old.once.unsqueeze(1))
        found, log_g = self._weigh(seen, new_rows, self._own.index_select(1, ids), Others(s, w))
        by_anchor = torch.where(kept, (found.slope[place] * slope).sum(2), 0.0)  # (T, K)
        by_other = self._kernel.task_columns(s, seen.anchors, seen.s, log_g, found.slope)  # (T, K, C)
        c = self._sign * ((by_other * w).sum(2) - by_anchor)
        return Evaluation(self._columns(c), found.f, found.param_gradients, [new_rows], seen.part)

    # ------------------------------------------------------------------ parts

    def _seen(self) -> _Seen:
        s = self._table.values.T
        if s.shape[0] > self._column.shape[0]:
            s = s.index_select(0, self._column)
        s = self._sign * s.to(self._share.dtype).contiguous()  # (T, N)
        anchors = Anchors(s[self._task, self._example], self._task, self._example)
        if self._table.complete:
            return _Seen(Ranked(s), self._weight, anchors, None)
        seen = self._table.seen  # (N,)
        # Those seen of a class stand for all of it.
        there = self._by_class(self._share * seen)  # (2, T)
        own, other = torch.where(there > 0, self._class_total / there, 0.0).unsqueeze(2)  # (T, 1) each
        w = self._components(self._share * seen * torch.where(self._own, own, other))
        comparable = (there > 0).any(0)  # (T,)
        return _Seen(Ranked(s), w, anchors, seen[self._example] & comparable[self._task])

    def _components(self, share: Tensor) -> Tensor:
        """(T, N, C) from what each counts in the mean over both classes (T, N)."""
        parts = []
        for only in self._same_class_only:
            part = share
            if only:
                part = torch.where(self._own, share, 0.0)
            parts.append(part)
        return torch.stack(parts, 2)

    def _by_class(self, share: Tensor) -> Tensor:
        """(2, T) what the blocks' class and the other count together."""
        own = torch.where(self._own, share, 0.0).sum(1)
        other = torch.where(self._own, 0.0, share).sum(1)
        return torch.stack([own, other])

    def _columns(self, c: Tensor) -> Tensor:
        """c (K, columns of the outputs) from that of the tasks (T, K)."""
        values = self._table.values
        result = values.new_zeros(c.shape[1], values.shape[1])
        return result.index_copy(1, self._column, c.T.to(values.dtype))

    def _with_first_rows(self, rows: Tensor, seen: _Seen, s: Tensor, w: Tensor) -> Tensor:
        """Rows of the anchors that were seen before there was anything to compare them with.

        What they can be compared with was all drawn in this step, else they would have been compared before.
        """
        assert seen.part is not None
        total = w.sum(1)  # (T, C)
        w = w / total.clamp(min=torch.finfo(total.dtype).tiny).unsqueeze(1)
        first = self._kernel.rows(seen.anchors.a, between(s, w), w, self._task, waits=False)[0]  # (m, C)
        new = rows.isinf() & seen.part.unsqueeze(1) & (total > 0)[self._task]
        return torch.where(new, first.to(rows.dtype), rows)

    def _weigh(self, seen: _Seen, rows: Tensor, own: Tensor, fresh: Others) -> tuple[OuterValues, Tensor]:
        """f (m,) with its slopes, and the log g (m, C) that they are taken at.

        Args:
            own: (T, K) bool, which of the drawn are of the blocks' class.
            fresh: the drawn.
        """
        same_class = None
        if self._has_own_class:
            same_class = own
        ends = fresh
        if not self._is_weighted:  # the ends of a class stand for all of it
            ends = extremes(fresh.s, fresh.w, same_class, (fresh.w != 0.0).any(2))
        # An anchor's row may be old: it is at least what a fresh example alone contributes.
        least = largest_of(self._kernel, ends, seen.anchors.a, self._task)
        log_g = torch.maximum(rows, least.to(rows.dtype))  # (m, C)
        share = self._shares.of_all(seen.part)
        found = self._outer.at(self._blocks, self._finite(log_g, seen.part, slice(None)), share)
        if seen.part is not None:
            log_g = log_g.masked_fill(~seen.part.unsqueeze(1), torch.inf)  # 1/g of those absent is 0
        return found, log_g

    def _finite(self, log_g: Tensor, part: Tensor | None, some: slice) -> Tensor:
        """log g with 0 for those that take no part: f is taken there too, and counts nothing."""
        if part is None:
            return log_g
        return log_g.masked_fill(~part[some].unsqueeze(1), 0.0)


def _classes(blocks: PointBlocks) -> tuple[Tensor, Tensor]:
    """(T, N) bool twice, of the tasks that have blocks: who is of the blocks' class, and who of the other."""
    positive, negative = blocks.tasks.at(blocks.tasks.used, blocks.arange(blocks.data.num_examples))
    if blocks.positive:
        return positive, negative
    return negative, positive
