"""MultiTaskAUC: the paper's objective, one AUC loss per task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fcco._support import checks
from fcco._support.fused import fused
from fcco._support.remembered import Remembered, Slot
from fcco.data import Batch, TaskBlocks, Tasks
from fcco.objectives._base import OutputObjective, check_data, checked_weight, fingerprint, need
from fcco.objectives._class_moments import (
    Classes,
    ClassesByExample,
    ClassMoments,
    ClassPattern,
    MomentsByExample,
    by_class,
    equal_shares,
)
from fcco.objectives._labelled import has_classes, positives_and_negatives
from fcco.objectives._precision import at_least_float32, like_parameters
from fcco.objectives._surrogates import Square, SquaredHinge, Surrogate, loss_or_default

if TYPE_CHECKING:
    from fcco.memory._table import OutputTable
    from fcco.memory.forms import Form


class MultiTaskAUC(OutputObjective):
    r"""AUC maximisation averaged over m tasks, in the decomposed form of the paper (with its sign corrected).

    .. math::
        F(w, a, b) = \frac1m \sum_i E_+[(h_i(x) - a_i)^2] + E_-[(h_i(x) - b_i)^2]
                     + \ell(E_-[h_i(x)] - E_+[h_i(x)])

    Block i is task i. :math:`g_i = (E_+(h_i-a_i)^2,\, E_-(h_i-b_i)^2,\, E_-h_i - E_+h_i)` and
    :math:`f_i(u) = u_1 + u_2 + \ell(u_3)`. With ``trained_centers=False`` a_i and b_i are the exact class means:
    :math:`g_i = (E_+h_i^2,\, E_-h_i^2,\, E_+h_i,\, E_-h_i)` and
    :math:`f_i(u) = u_1 - u_3^2 + u_2 - u_4^2 + \ell(u_4 - u_3)`. The data's weights enter these means.

    Args:
        model: (K, ...) -> (K, T) scores, one column per task; for a single task also (K,).
        data: the examples and their labels. A task has only its labelled examples. A task without positives or
            without negatives is not a block, but keeps its column.
        loss: l: ``SquaredHinge(margin, scale=0.5)`` (the paper's, the default with margin 1), or ``Square(margin)``,
            with which F equals the pairwise square loss.
        trained_centers: whether a and b are trained variables; otherwise they are the exact class means.
        block_weight: (T,) how much each task counts. None: equally.
        positive_fraction: share of positives among the samples that a loader draws for a task. It does not change F.

    Example:
        >>> from fcco.data import Tasks
        >>> data = Tasks(torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 2, 2]))
        >>> objective = MultiTaskAUC(nn.Linear(4, 3), data)
        >>> batch = next(iter(objective.loader(blocks=2, samples=4)))
        >>> objective(batch.index, batch).shape
        torch.Size([2, 3])

    Reference: Jiang et al., NeurIPS 2022; Yuan et al., ICCV 2021 (the min-max margin loss).
    """

    blocks: TaskBlocks
    block_task: Tensor
    task_weight: Tensor | None

    def __init__(
        self,
        model: nn.Module,
        data: Tasks,
        *,
        loss: SquaredHinge | Square | None = None,
        trained_centers: bool = True,
        block_weight: Tensor | None = None,
        positive_fraction: float = 0.5,
    ) -> None:
        check_data("MultiTaskAUC", data, Tasks)
        checks.flag("trained_centers", trained_centers)
        blocks = TaskBlocks(data, positive_fraction=positive_fraction)
        dim = 4
        if trained_centers:
            dim = 3
        super().__init__(model, blocks, dim=dim)
        self.num_tasks = blocks.num_tasks
        default = SquaredHinge(margin=1.0, scale=0.5)
        self.loss: Surrogate = loss_or_default("loss", loss, default, SquaredHinge, Square)
        self.shift_invariant = not trained_centers
        # One per column, so that a task left out of the data does not renumber a saved state.
        self.a: nn.Parameter | None = None
        self.b: nn.Parameter | None = None
        if trained_centers:
            self.a = nn.Parameter(like_parameters(model, torch.zeros(self.num_tasks)))
            self.b = nn.Parameter(like_parameters(model, torch.zeros(self.num_tasks)))
        self._classes: Remembered[Classes | ClassesByExample] = Remembered()
        self._pattern: Slot[ClassPattern] = Slot()  # of the last batch, where it may come again
        self.register_table("block_task", blocks.block_task)
        weight = checked_weight("block_weight", block_weight, self.num_tasks)
        if weight is not None:
            weight = like_parameters(model, weight)
        self.register_table("task_weight", weight)

    def constants(self) -> dict[str, Any]:
        return {
            "loss": repr(self.loss),
            "trained_centers": self.a is not None,
            "block_weight": fingerprint(self.task_weight),
        }

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        h = at_least_float32(self._scores(outputs))  # (K, T)
        # The same at every probe of a step.
        source = (index, batch.y, batch.weight, batch.serves, self.block_task, h.dtype)
        classes = self._classes.get(source, lambda: self._classes_of(index, batch, h.dtype))
        # Moments, from which outer makes variances: a mean of squares around a mean would be biased.
        if isinstance(classes, ClassesByExample):
            return fused(MomentsByExample, h, self.a, self.b, classes)
        return fused(ClassMoments, h, self.a, self.b, classes)

    def _classes_of(self, index: Tensor, batch: Batch, dtype: torch.dtype) -> Classes | ClassesByExample:
        """Who is a positive and who a negative of the blocks' tasks, and how much each counts."""
        task = self.block_task.index_select(0, index)
        if self._may_repeat(batch):
            return self._classes_by_pattern(task, index, batch, dtype)
        return self._new_classes(task, index, batch, dtype)

    def _may_repeat(self, batch: Batch) -> bool:
        """Whether the batch is like those of a loader, on the CPU: an accelerator would have to wait for the answer."""
        if batch.serves is None or batch.weight is None or not batch.serves.is_cpu:
            return False
        # What is made in inference mode cannot serve a pass with a graph.
        if batch.weight.dim() != 1 or torch.is_inference_mode_enabled():
            return False
        return has_classes(batch, self.num_tasks)

    def _classes_by_pattern(
        self, task: Tensor, index: Tensor, batch: Batch, dtype: torch.dtype
    ) -> Classes | ClassesByExample:
        """The same for a batch that may be like the last one."""
        serves = need(batch.serves, "serves")
        weight = need(batch.weight, "weight")
        y = need(batch.y, "y")
        pattern = self._pattern.last
        if pattern is not None:
            known = pattern.at(task, serves, weight, y, dtype)
            if known is not None:
                return known
        classes = self._new_classes(task, index, batch, dtype)
        centers = None
        if self.a is not None and self.a.dtype == dtype:
            centers = self.num_tasks
        pattern = ClassPattern.of(task, serves, weight, y, classes, centers=centers)
        self._pattern.last = pattern
        if pattern is None:
            return classes
        return pattern.classes

    def _new_classes(self, task: Tensor, index: Tensor, batch: Batch, dtype: torch.dtype) -> Classes:
        entering = positives_and_negatives(task, batch, self.num_tasks)  # (B, 2, K)
        if batch.weight is None:
            return Classes.of(task, entering, equal_shares(entering, dtype, index))
        return Classes.of(task, entering, entering * by_class(batch.weight).to(dtype))

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        if self.a is None:
            variances = u[:, 0] - u[:, 2].square() + u[:, 1] - u[:, 3].square()
            f = variances + self.loss(u[:, 3] - u[:, 2])
        else:
            f = u[:, 0] + u[:, 1] + self.loss(u[:, 2])
        if self.task_weight is None:
            return f
        return f * self.task_weight[self.block_task[index]]

    def outer_and_slope(self, index: Tensor, u: Tensor) -> tuple[Tensor, Tensor] | None:
        loss = self.loss
        if self.a is None or not isinstance(loss, SquaredHinge | Square):
            return None
        squares, more, x = u.unbind(1)  # (B,) each
        inside = loss.inside(x)
        f = torch.addcmul(squares + more, inside, inside, value=loss.scale)
        slope = torch.ones_like(u)  # (B, 3)
        torch.mul(inside, 2.0 * loss.scale, out=slope.select(1, 2))
        if self.task_weight is None:
            return f, slope
        weight = self.task_weight[self.block_task[index]]
        return f * weight, slope * weight.unsqueeze(1)

    def table_form(self, table: OutputTable) -> Form | None:
        from fcco.memory.forms import moment_form

        return moment_form(self, self.blocks, self._values_at_moments, table)

    def _values_at_moments(self, mean: Tensor, rest: Tensor) -> Tensor:
        """g (m, dim) from the means (2, m) of positives and negatives, and the mean squares about them (2, m)."""
        if self.a is None or self.b is None:
            squares = rest + mean.square()
            return torch.stack([*squares, *mean], 1)
        a = self.a[self.block_task]
        b = self.b[self.block_task]
        around_a = rest[0] + (mean[0] - a).square()
        around_b = rest[1] + (mean[1] - b).square()
        return torch.stack([around_a, around_b, mean[1] - mean[0]], 1)

    def _scores(self, outputs: Tensor) -> Tensor:
        scores = outputs
        if outputs.dim() == 1:
            scores = outputs.unsqueeze(1)
        if scores.dim() != 2 or scores.shape[1] != self.num_tasks:
            raise ValueError(
                f"the model must return one score per task, shape (K, {self.num_tasks}), got {tuple(outputs.shape)}"
            )
        return scores
