"""MomentPhi: F as a function of the table, for AUC losses that need the moments of the classes alone."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from fcco.memory._phi import STRETCH, Coefficients, own_variables, sent
from fcco.memory._table import Entries, OutputTable
from fcco.objectives._base import OutputObjective
from fcco.objectives._multitask_auc import MultiTaskAUC
from fcco.sampling.draws import exact_dtype
from fcco.sampling.loader import Loader
from fcco.sampling.tasks import BlockLoader, Tasks

CHUNK = 1 << 16  # examples of one piece


@final
class MomentPhi:
    r""":math:`\Phi(h) = \frac1m \sum_t f_t(g_t)`, where g_t follows from mean and mean square of the task's classes.

    The sums behind them are brought up to date with what a step writes, so that its cost does not depend on n.

    Args:
        objective: gives f, its ``outer``, and the centres, if they are trained.
        tasks: whose positives and negatives are who.
        table: where h comes from, (n, m), or (n,) for one task.
    """

    stretch = STRETCH

    def __init__(self, objective: MultiTaskAUC, tasks: Tasks, table: OutputTable) -> None:
        device = table.values.device
        self._objective, self._tasks, self._table = objective, replace(tasks, y=tasks.y.to(device)), table
        self.own = own_variables(objective)
        self._blocks = torch.arange(objective.num_blocks, device=device)
        # (4, 2, m): a centre c, the number of those seen, the sums of h - c and of its square; positives and negatives.
        # About a centre, because a mean square less the square of a mean would keep no digits where h is large.
        shape = (4, 2, objective.num_blocks)
        self.rows = [torch.zeros(shape, dtype=exact_dtype(device), device=device)]
        self._before: Tensor | None = None  # the sums before the last look

    def pairs(self) -> int:
        return 16 * self._table.values.numel()

    def everything(self) -> Coefficients:
        everyone = torch.arange(self._table.values.shape[0], device=self._table.values.device)
        self._sum_up(everyone)
        g, f, slope, own = self._outer()
        return Coefficients(torch.cat([self._push(id, g, slope) for id in everyone.split(CHUNK)]), f, own)

    def at(self, id: Tensor, old: Entries | None = None) -> Coefficients:
        id = sent(id, self._table.values.device)
        self._before = self.rows[0].clone()
        if old is None:
            self._sum_up(torch.arange(self._table.values.shape[0], device=id.device))
        else:
            self.rows[0][1:] += self._sums(id, self._table.values[id]) - self._sums(id, old.values, old.written >= 0)
        g, f, slope, own = self._outer()
        return Coefficients(self._push(id, g, slope), f, own)

    def undo(self) -> None:
        if self._before is not None:
            self.rows[0].copy_(self._before)
        self.settle()

    def settle(self) -> None:
        self._before = None

    # ------------------------------------------------------------------ parts

    def _classes(self, id: Tensor) -> Tensor:
        """(2, K, m) bool: who is a positive, and who a negative, of which task."""
        return torch.stack(self._tasks.at(self._blocks, id)).transpose(1, 2)

    def _scores(self, values: Tensor) -> Tensor:
        """(K, m), exactly."""
        return values.reshape(values.shape[0], self._blocks.shape[0]).to(self.rows[0].dtype)

    def _sums(self, id: Tensor, values: Tensor, seen: Tensor | None = None) -> Tensor:
        """(3, 2, m): how many of the examples there are in each class, the sums of h - c and of its square."""
        there = self._classes(id) if seen is None else self._classes(id) & seen[:, None]
        x = self._scores(values) - self.rows[0][0].unsqueeze(1)  # (2, K, m)
        x = torch.where(there, x, 0.0)
        return torch.stack([there.sum(1).to(x.dtype), x.sum(1), x.square().sum(1)])

    def _sum_up(self, everyone: Tensor) -> None:
        """All sums anew, about the class means."""
        rows = self.rows[0]
        for centred in (False, True):
            if centred:
                rows[0] += torch.where(rows[1] > 0, rows[2] / rows[1].clamp(min=1.0), 0.0)
            rows[1:] = 0.0
            for id in everyone.split(CHUNK):
                rows[1:] += self._sums(id, self._table.values[id], self._table.seen_at(id))

    def _outer(self) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """Class means (2, m); f of the tasks that take part; their slope (2, 2, m); the centres' gradients.

        The slope is that of F by the mean of h and by the mean square of h about the class mean.
        """
        centre, count, first, second = self.rows[0]
        size = count.clamp(min=1.0)
        met = (count > 0).all(0) if self._table.missing else slice(None)  # else a device would wait
        mean, rest = centre + first / size, (second / size - (first / size).square()).clamp(min=0.0)
        with torch.enable_grad():
            leaf = torch.stack([mean, rest]).requires_grad_()
            f = self._objective.outer(self._blocks[met], self._values(leaf)[met])
            wanted = [leaf, *self.own]
            slope, *own = torch.autograd.grad(f.sum() / max(1, f.shape[0]), wanted, materialize_grads=True)
        return mean, f.detach(), slope, own

    def _values(self, moments: Tensor) -> Tensor:
        """g (m, dim) from the means and the mean squares about them, (2, 2, m)."""
        (positive, negative), (square, other_square) = moments
        a, b = self._objective.a, self._objective.b
        if a is None or b is None:
            squares = [square + positive.square(), other_square + negative.square()]
            return torch.stack([*squares, positive, negative], 1)
        parts = [square + (positive - a).square(), other_square + (negative - b).square(), negative - positive]
        return torch.stack(parts, 1)

    def _push(self, id: Tensor, mean: Tensor, slope: Tensor) -> Tensor:
        """c of the examples: d(mean)/dh = 1/n, d(mean square)/dh = 2 (h - mean)/n."""
        values = self._table.values[id]
        by_mean, by_square = (slope / self.rows[0][1].clamp(min=1.0)).unsqueeze(2)  # (2, 1, m) each
        c = by_mean + 2.0 * by_square * (self._scores(values) - mean.unsqueeze(1))  # (2, K, m)
        there = self._classes(id) & self._table.seen_at(id).unsqueeze(1)
        return torch.where(there, c, 0.0).sum(0).reshape_as(values).to(values.dtype)


def moment_phi(objective: OutputObjective, loader: Loader, table: OutputTable) -> MomentPhi | None:
    """The fast form, where there is one for this objective and this loader."""
    if type(objective) is not MultiTaskAUC or not isinstance(loader, BlockLoader):
        return None  # a subclass may have values of its own
    m = objective.num_blocks
    if loader.tasks.number != m or table.values.shape[1:] not in [(m,)] + [()] * (m == 1):
        return None
    return MomentPhi(objective, loader.tasks, table)
