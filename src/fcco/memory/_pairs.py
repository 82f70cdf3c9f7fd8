"""PairPhi: F as a function of the table, for objectives that compare examples of one class with others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from fcco.memory._kernels import Exponential, Kernel, Polynomial, exponential_of, extremes
from fcco.memory._phi import STRETCH, Coefficients, add, joined, own_variables, sent
from fcco.memory._table import Entries, OutputTable
from fcco.objectives._average_precision import AnchoredObjective, AveragePrecision
from fcco.objectives._partial_auc import PartialAUC
from fcco.objectives._pnorm_push import PNormPush
from fcco.objectives._surrogates import Square, SquaredHinge
from fcco.sampling.batch import Average
from fcco.sampling.draws import exact_dtype
from fcco.sampling.loader import Loader
from fcco.sampling.points import MultiLabelPointLoader, PointLoader
from fcco.sampling.tasks import Tasks


@final
@dataclass(frozen=True)
class View:
    """One task: its anchors are compared with its others.

    Args:
        column: of the outputs.
        blocks: (A,) the anchors' blocks.
        anchors: (A,) their examples.
        others: (P,) the examples that the means run over.
        share: (P, C) how much each counts in each component of g, once all were seen.
        own: (P,) bool, which of the others are of the anchors' class.
    """

    column: int
    blocks: Tensor
    anchors: Tensor
    others: Tensor
    share: Tensor
    own: Tensor


@final
class PairPhi:
    r""":math:`\Phi(s) = \frac1m \sum_a f_a(\log \sum_o w_o k(\sigma (s_o - s_a)))`, task by task.

    Args:
        objective: gives f, its ``outer``.
        views: the tasks.
        kernel: k.
        sign: sigma, -1 where the anchors are the negatives.
        table: where s comes from.
    """

    stretch = STRETCH

    def __init__(
        self, objective: AnchoredObjective, views: list[View], kernel: Kernel, sign: int, table: OutputTable
    ) -> None:
        self._objective, self._views, self._kernel, self._sign, self._table = objective, views, kernel, sign, table
        self.own = own_variables(objective)
        self._mixed = any(bool(view.own.any()) for view in views)  # others of the anchors' class, too
        size = table.values.shape[0]
        self._anchor_at = [_places(view.anchors, size) for view in views]
        self._other_at = [_places(view.others, size) for view in views]
        # log g; of an anchor that has not been compared with anyone yet: inf
        shapes = [(view.anchors.shape[0], objective.dim) for view in views]
        self.rows = [view.share.new_full(shape, torch.inf) for view, shape in zip(views, shapes, strict=True)]
        self._complete = False  # no row is inf any more
        self._replaced: list[tuple[Tensor, Tensor, Tensor]] = []  # rows, places, what the last look replaced there

    def pairs(self) -> int:
        """What one evaluation of the whole table costs, in pairs."""
        if isinstance(self._kernel, Polynomial):
            return sum(64 * (view.anchors.shape[0] + view.others.shape[0]) for view in self._views)
        return sum(view.anchors.shape[0] * view.others.shape[0] for view in self._views)

    def everything(self) -> Coefficients:
        """c of every example, all rows anew."""
        c = torch.zeros_like(self._table.values)
        values, gradients = [], [torch.zeros_like(p) for p in self.own]
        for view, rows in zip(self._views, self.rows, strict=True):
            seen, present, w = self._present(view)
            a, o = self._scores(view, view.anchors[seen]), self._scores(view, view.others[present])
            if not a.numel() or not o.numel():
                continue
            log_g, slope = self._kernel.rows(a, o, w)
            rows[seen] = log_g.to(rows.dtype)
            f, b, own = self._outer(view, seen, log_g)
            column = self._column(c, view)
            column.index_add_(0, view.anchors[seen], (b * slope).sum(1).to(c.dtype), alpha=-self._sign)
            pushes = (self._kernel.columns(o, a, log_g, b) * w).sum(1)
            column.index_add_(0, view.others[present], pushes.to(c.dtype), alpha=self._sign)
            values.append(f)
            add(gradients, own)
        return Coefficients(c, joined(values, c), gradients)

    def at(self, id: Tensor, old: Entries | None = None) -> Coefficients:
        """c of the examples (K,), whose outputs are fresh; the rows of the others' anchors come from the cache.

        Who of them is what is looked up on the CPU: where ``id`` is there, no device waits.
        """
        c = self._table.values.new_zeros(id.shape[0], *self._table.values.shape[1:])
        self._replaced.clear()
        values, gradients = [], [torch.zeros_like(p) for p in self.own]
        for number, view in enumerate(self._views):
            rows = self.rows[number]
            seen, present, w = self._present(view)
            a, o = self._scores(view, view.anchors[seen]), self._scores(view, view.others[present])
            if not a.numel() or not o.numel():
                continue
            column = self._column(c, view)
            mine, anchor = self._drawn(self._anchor_at[number], id)
            theirs, other = self._drawn(self._other_at[number], id)
            slope = None
            if mine.numel():
                at = _among(seen, anchor)
                log_g, slope = self._kernel.rows(a[at], o, w)
                self._replaced.append((rows, anchor, rows[anchor]))
                rows[anchor] = log_g.to(rows.dtype)
            if not self._complete:
                self._first_rows(rows, seen, a, o, w)
            log_g = rows[seen].to(w.dtype)
            if theirs.numel():
                fresh = _among(present, other)
                o_fresh, w_fresh = o[fresh], w[fresh]
                ends = extremes(o_fresh, w_fresh, view.own[other] if self._mixed else None)
                log_g = torch.maximum(log_g, self._kernel.alone(ends, a).to(log_g.dtype))
            f, b, own = self._outer(view, seen, log_g)
            if slope is not None:
                column.index_add_(0, mine, (b[at] * slope).sum(1).to(c.dtype), alpha=-self._sign)
            if theirs.numel():
                pushes = (self._kernel.columns(o_fresh, a, log_g, b) * w_fresh).sum(1)
                column.index_add_(0, theirs, pushes.to(c.dtype), alpha=self._sign)
            values.append(f)
            add(gradients, own)
        self._complete = not self._table.missing
        return Coefficients(c, joined(values, c), gradients)

    def undo(self) -> None:
        for rows, places, old in reversed(self._replaced):
            rows[places] = old
        self._complete = False
        self._replaced.clear()

    def settle(self) -> None:
        self._replaced.clear()

    # ------------------------------------------------------------------ parts

    def _drawn(self, places: Tensor, id: Tensor) -> tuple[Tensor, Tensor]:
        """Which of the examples (K,) have a place in a list, and these places; found on the CPU, (B,) on the device."""
        place, device = places[id.cpu()], self._table.values.device
        there = (place >= 0).nonzero()[:, 0]
        return sent(there, device), sent(place[there], device)

    def _first_rows(self, rows: Tensor, seen: Tensor | slice, a: Tensor, o: Tensor, w: Tensor) -> None:
        """Rows of the anchors that were seen before there was anyone to compare them with."""
        new = rows[seen].isinf().any(1).nonzero()[:, 0]
        if new.numel():
            places = new if isinstance(seen, slice) else seen[new]
            self._replaced.append((rows, places, rows[places]))
            rows[places] = self._kernel.rows(a[new], o, w)[0].to(rows.dtype)

    def _scores(self, view: View, examples: Tensor) -> Tensor:
        """sigma s of the examples, in the view's column."""
        s = self._column(self._table.values, view)[examples].to(view.share.dtype)
        return s if self._sign == 1 else -s

    def _column(self, c: Tensor, view: View) -> Tensor:
        return c if c.dim() == 1 else c[:, view.column]

    def _present(self, view: View) -> tuple[Tensor | slice, Tensor | slice, Tensor]:
        """Places of the anchors seen and of the others seen, and the latters' weights."""
        if not self._table.missing:
            return slice(None), slice(None), view.share
        seen = self._table.seen
        present = seen[view.others].nonzero()[:, 0]
        return seen[view.anchors].nonzero()[:, 0], present, self._weights(view, present)

    def _weights(self, view: View, present: Tensor) -> Tensor:
        """Weights of the others at the places: those seen of a class stand for all of it."""
        total = torch.stack([(~view.own).sum(), view.own.sum()])
        own = view.own[present]
        there = torch.stack([(~own).sum(), own.sum()])
        factor = total.to(view.share.dtype) / there.clamp(min=1)
        return view.share[present] * factor[own.long()].unsqueeze(1)

    def _outer(self, view: View, seen: Tensor | slice, log_g: Tensor) -> tuple[Tensor, Tensor, Sequence[Tensor | None]]:
        """f (A,), (1/m) df/d(log g) (A, C), and the gradients of the objective's own variables."""
        u, blocks = log_g, view.blocks[seen]
        scale = view.anchors.shape[0] / (log_g.shape[0] * self._objective.num_blocks)
        if not self.own and (known := self._objective.slope(blocks, u)) is not None:
            f, slope = known
            return f, (scale * slope).to(log_g.dtype), []
        leaf = u.detach().requires_grad_()
        with torch.enable_grad():
            f = self._objective.outer(blocks, leaf)
            slope, *own = torch.autograd.grad(f, [leaf, *self.own], torch.full_like(f, scale), allow_unused=True)
        assert slope is not None
        return f.detach(), slope.to(log_g.dtype), own


def _places(examples: Tensor, size: int) -> Tensor:
    """(N,) on the CPU: where each example stands in a list, -1: it does not."""
    place = torch.full((size,), -1)
    place[examples.cpu()] = torch.arange(examples.shape[0])
    return place


def _among(some: Tensor | slice, places: Tensor) -> Tensor:
    """Where the places stand in ``some`` of them (a slice: all), in growing order."""
    return places if isinstance(some, slice) else torch.searchsorted(some, places)


READY = (PartialAUC, PNormPush, AveragePrecision)


def kernel_of(objective: nn.Module) -> Kernel | None:
    """The kernel of a ready objective, None where it has none of the two kinds."""
    loss = getattr(objective, "loss", None)
    if not isinstance(loss, SquaredHinge | Square):
        return None
    if isinstance(objective, PartialAUC):
        return exponential_of(loss, objective.temperature)
    return Polynomial(loss.margin, loss.scale, isinstance(loss, SquaredHinge))


def pair_phi(objective: nn.Module, loader: Loader, table: OutputTable) -> PairPhi | None:
    """The fast form, where there is one for this objective and this loader."""
    kernel = kernel_of(objective) if type(objective) in READY else None  # a subclass may have values of its own
    if kernel is None or not isinstance(objective, AnchoredObjective):
        return None
    if not isinstance(loader, PointLoader | MultiLabelPointLoader) or loader.average is not objective.average:
        return None
    tasks = 1 if isinstance(loader, PointLoader) else loader.tasks.number
    width = () if tasks == 1 else (tasks,)
    fits = loader.block_label == (objective.anchors == "positive") and objective.num_tasks == tasks
    if not fits or tuple(table.values.shape[1:]) != width:
        return None
    if isinstance(loader, MultiLabelPointLoader):
        own = torch.zeros_like(loader.block_task) if objective.block_task is None else objective.block_task
        if not torch.equal(own.cpu(), loader.block_task.cpu()):
            return None
    device = table.values.device
    exact = exact_dtype(device)  # exponents of thousands keep no digits in single precision
    views = []
    for task, (own, other) in enumerate(_classes(loader)):
        everyone = loader.average is Average.ALL
        others = torch.cat([own, other]) if everyone else other
        is_own = torch.zeros(others.shape[0], dtype=torch.bool)
        if everyone:
            is_own[: own.shape[0]] = True
        share = torch.ones(others.shape[0], 1, dtype=exact) / others.shape[0]
        if objective.dim == 2:
            share = torch.cat([share * is_own.unsqueeze(1), share], 1)
        blocks = torch.arange(own.shape[0])
        if isinstance(loader, MultiLabelPointLoader):
            blocks = (loader.block_task == task).nonzero()[:, 0]
        parts = [part.to(device) for part in (blocks, own, others, share, is_own)]
        views.append(View(task, *parts))
    return PairPhi(objective, views, kernel, -1 if isinstance(objective, PNormPush) else 1, table)


def _classes(loader: PointLoader | MultiLabelPointLoader) -> list[tuple[Tensor, Tensor]]:
    """The examples of the blocks' class and of the other, for each task."""
    if isinstance(loader, PointLoader):
        return [(loader.block_example, loader._other)]
    tasks: Tasks = loader.tasks
    lists = []
    everyone = torch.arange(loader.num_examples, device=loader.device)
    for task in range(tasks.number):
        positive, negative = (mask[0] for mask in tasks.at(torch.tensor([task], device=loader.device), everyone))
        own, other = (positive, negative) if loader.block_label == 1 else (negative, positive)
        lists.append((own.nonzero()[:, 0], other.nonzero()[:, 0]))
    return lists


__all__ = ["Exponential", "PairPhi", "View", "kernel_of", "pair_phi"]
