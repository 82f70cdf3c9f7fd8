"""MomentForm: F as a function of the table, for AUC losses that need the moments of the classes alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, final

import torch
from torch import Tensor

from fcco.data import TaskBlocks
from fcco.data._draws import exact_dtype
from fcco.data._labelled import TaskLists
from fcco.memory._table import Entries, OutputTable
from fcco.memory.forms._form import Evaluation, Form, TableObjective, example_weights

CHUNK = 1 << 16  # examples of one piece

#: g (m, dim) from the means (2, m) of positives and negatives, and the mean squares about them (2, m)
ValuesAtMoments = Callable[[Tensor, Tensor], Tensor]


class _Slopes(NamedTuple):
    """Class means (2, m); f of the tasks (m,), and which take part (None: all); what F gains per unit of mean and of
    mean square, (2, m) each; the gradients of the objective's own parameters."""

    mean: Tensor
    f: Tensor
    part: Tensor | None
    by_mean: Tensor
    by_square: Tensor
    param_gradients: list[Tensor]


@final
class MomentForm(Form):
    r""":math:`\Phi(h) = \frac1m \sum_t f_t(g_t)`, where g_t follows from mean and mean square of the task's classes.

    Rows are one tensor (4, 2, m): a centre c, the weight of those seen, the weighted sums of h - c and of its square,
    of positives and negatives. About a centre, because a mean square less the square of a mean would keep no digits
    where h is large. They are brought up to date with what a step writes, so that its cost does not depend on n.

    Args:
        objective: gives f, its ``outer``.
        blocks: the tasks.
        values_at_moments: gives g.
        table: where h comes from, (n, T), or (n,) for one task.
    """

    def __init__(
        self, objective: TableObjective, blocks: TaskBlocks, values_at_moments: ValuesAtMoments, table: OutputTable
    ) -> None:
        device = table.device
        self._objective = objective
        self._values_at_moments = values_at_moments
        self._table = table
        self._task = blocks.block_task.to(device)
        self._num_tasks = blocks.num_tasks
        self._tasks = TaskLists(blocks.tasks.y.to(device), blocks.tasks.positive, blocks.tasks.negative, self._task)
        self._weight = example_weights(blocks, device)
        self._blocks = torch.arange(blocks.num_blocks, device=device)
        self.objective_params = objective.objective_params()

    def cost(self) -> int:
        return 16 * self._table.values.numel()

    def start_rows(self) -> list[Tensor]:
        device = self._table.device
        return [torch.zeros(4, 2, self._blocks.shape[0], dtype=exact_dtype(device), device=device)]

    def evaluate_all(self, rows: list[Tensor]) -> Evaluation:
        all_ids = torch.arange(self._table.size, device=self._table.device)
        sums = self._sum_up(rows[0], all_ids)
        found = self._outer(sums)
        c = torch.cat([self._coefficients(id, sums, found) for id in all_ids.split(CHUNK)])
        return Evaluation(c, found.f, found.param_gradients, [sums], found.part)

    def evaluate(self, ids: Tensor, rows: list[Tensor], old: Entries | None = None) -> Evaluation:
        if old is None:
            sums = self._sum_up(rows[0], torch.arange(self._table.size, device=ids.device))
        else:
            # What was there goes, what was written comes.
            sums = rows[0].clone()
            center = sums[0]
            once = old.once
            sums[1:] += self._sums(center, ids, self._table.values[ids], once)
            sums[1:] -= self._sums(center, ids, old.values, once & (old.written >= 0))
        found = self._outer(sums)
        return Evaluation(self._coefficients(ids, sums, found), found.f, found.param_gradients, [sums], found.part)

    # ------------------------------------------------------------------ parts

    def _scores(self, values: Tensor) -> Tensor:
        """(K, m), exactly."""
        columns = values.reshape(values.shape[0], self._num_tasks)
        return columns[:, self._task].to(exact_dtype(values.device))

    def _labels(self, id: Tensor) -> Tensor:
        """(2, K, m) bool: which of the examples are positives, and which negatives, of each task."""
        return torch.stack(self._tasks.at(self._task, id)).transpose(1, 2)

    def _sums(self, center: Tensor, id: Tensor, values: Tensor, seen: Tensor | None = None) -> Tensor:
        """(3, 2, m): what the examples weigh in each class, the sums of h - c and of its square."""
        there = self._labels(id)  # (2, K, m)
        if seen is not None:
            there = there & seen[:, None]
        weight = there * self._weight[id].unsqueeze(1)  # (2, K, m)
        x = torch.where(there, self._scores(values) - center.unsqueeze(1), 0.0)
        return torch.stack([weight.sum(1), (weight * x).sum(1), (weight * x.square()).sum(1)])

    def _sum_up(self, rows: Tensor, all_ids: Tensor) -> Tensor:
        """All sums anew, about the class means."""
        sums = rows.clone()
        # Twice: the first pass finds the means, the second one sums about them.
        for centred in (False, True):
            if centred:
                sums[0] += torch.where(sums[1] > 0, sums[2] / _or_one(sums[1]), 0.0)
            sums[1:] = 0.0
            for id in all_ids.split(CHUNK):
                sums[1:] += self._sums(sums[0], id, self._table.values[id], self._table.seen_at(id))
        return sums

    def _outer(self, sums: Tensor) -> _Slopes:
        center, weight, first, second = sums
        size = _or_one(weight)
        mean = center + first / size  # (2, m)
        rest = (second / size - (first / size).square()).clamp(min=0.0)  # (2, m) below 0 by rounding only
        part = None
        scale = weight.new_full(weight.shape[1:], 1.0 / weight.shape[1])  # (m,)
        if not self._table.complete:
            part = (weight > 0).all(0)
            scale = part.to(scale.dtype) / part.sum().clamp(min=1)
        with torch.enable_grad():
            leaf_mean = mean.detach().requires_grad_()
            leaf_rest = rest.detach().requires_grad_()
            g = self._values_at_moments(leaf_mean, leaf_rest)  # (m, dim)
            f = self._objective.outer(self._blocks, g)
            wanted = [leaf_mean, leaf_rest, *self.objective_params]
            by_mean, by_square, *gradients = torch.autograd.grad(f, wanted, scale.to(f.dtype), materialize_grads=True)
        return _Slopes(mean, f.detach(), part, by_mean, by_square, gradients)

    def _coefficients(self, id: Tensor, sums: Tensor, found: _Slopes) -> Tensor:
        """c of the examples: d(mean)/dh = w/W, d(mean square)/dh = 2 w (h - mean)/W."""
        values = self._table.values[id]
        size = _or_one(sums[1])
        by_mean = (found.by_mean / size).unsqueeze(1)  # (2, 1, m)
        by_square = (found.by_square / size).unsqueeze(1)
        c = by_mean + 2.0 * by_square * (self._scores(values) - found.mean.unsqueeze(1))  # (2, K, m)
        there = self._labels(id) & self._table.seen_at(id).unsqueeze(1)
        c = torch.where(there, c, 0.0).sum(0) * self._weight[id].unsqueeze(1)  # (K, m)
        columns = c.new_zeros(id.shape[0], self._num_tasks).index_copy(1, self._task, c)
        return columns.reshape_as(values).to(values.dtype)


def _or_one(weight: Tensor) -> Tensor:
    """The weights (2, m), 1 where a class is empty (rounding may leave a trace of those that were replaced)."""
    return torch.where(weight > 0, weight, 1.0)


def moment_form(
    objective: TableObjective, blocks: TaskBlocks, values_at_moments: ValuesAtMoments, table: OutputTable
) -> MomentForm | None:
    """The form, where the outputs are a score per task; arguments as of the class.

    Args:
        objective: what the table is for.
        blocks: its tasks.
        values_at_moments: g from each class's mean and mean square.
        table: the outputs.
    """
    fits = table.shape == (blocks.num_tasks,) or (blocks.num_tasks == 1 and table.shape == ())
    if not fits:
        return None
    return MomentForm(objective, blocks, values_at_moments, table)
