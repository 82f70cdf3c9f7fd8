"""Which examples of a batch are positives, and which negatives, of a task."""

from __future__ import annotations

import torch
from torch import Tensor

from fcco.data import Batch
from fcco.data._batch import serving
from fcco.objectives._base import need


def positives_and_negatives(task: Tensor, batch: Batch, num_tasks: int) -> Tensor:
    """(B, 2, K) bool: the positives and the negatives of each task (B,) among the examples that serve its block.

    ``batch.y`` holds class numbers (K,) for one-vs-rest, negative where missing; or 0/1 targets, a column per task,
    NaN where missing. An example without a label for a task is neither.
    """
    if has_classes(batch, num_tasks):
        y = need(batch.y, "y")
        positive = y == task.unsqueeze(1)  # (B, K)
        negative = (y >= 0) ^ positive
    else:
        targets = target_columns(batch, num_tasks).index_select(1, task).t()  # (B, K)
        positive = targets == 1
        negative = targets == 0
    both = torch.stack([positive, negative], 1)
    if batch.serves is None:
        return both
    return both & serving(batch, task.shape[0]).unsqueeze(1)


def has_classes(batch: Batch, num_tasks: int) -> bool:
    """Whether ``batch.y`` holds one class number per example, for several tasks."""
    y = need(batch.y, "y")
    return y.dim() == 1 and not y.is_floating_point() and num_tasks > 1


def target_columns(batch: Batch, num_tasks: int) -> Tensor:
    """``batch.y`` as targets (K, T)."""
    y = need(batch.y, "y")
    columns = y
    if y.dim() == 1:
        columns = y.unsqueeze(1)
    if columns.shape != (len(batch), num_tasks):
        raise ValueError(f"batch.y must hold a label per task, shape ({len(batch)}, {num_tasks}), got {tuple(y.shape)}")
    return columns
