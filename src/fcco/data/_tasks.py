"""Tasks, and TaskBlocks: a block is a task, its samples are positives and negatives of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from fcco._support import checks
from fcco.data._batch import Batch
from fcco.data._blocks import Blocks, kept
from fcco.data._draws import Pool, spread
from fcco.data._labelled import Labelled, TaskLists, positives_of
from fcco.data._points import Points
from fcco.data._share import Share, is_owned_here


@final
class Tasks(Labelled):
    """Examples with one label per task. Blocks are tasks (:class:`fcco.objectives.MultiTaskAUC`).

    Args:
        x: see :class:`Structure`.
        y: (N, T), one column of two values per task, the larger one positive, NaN if missing; or (N,): two values, one
            task; three or more integers or strings: classes, one task per class (one-vs-rest).
        weight: (N,) how much each example counts. None: equally.
        positive: the value of y that is positive. Needed for strings, except those like "yes" and "no".
        classes: the classes in the order of the model's columns. None: integers that start at 0 are their own column
            numbers, others are numbered in sorted order.
        inputs: the number of leading parts of a data set's items that make up x.

    Example:
        >>> data = Tasks(torch.randn(4, 3), torch.tensor([[1, -1], [0, 1], [1, 1], [0, -1]]))
        >>> data.num_tasks, data.y[:, 1]
        (2, tensor([0., 1., 1., 0.]))
    """

    def __init__(
        self, x: Any, y: Any, *, weight: Any = None, positive: Any = None, classes: Any = None, inputs: int = 1
    ) -> None:
        super().__init__(x, y, weight, positive, classes, inputs)

    def as_points(self) -> Points:
        """The same examples and labels as :class:`Points`; nothing is copied."""
        points = Points.__new__(Points)
        points.__dict__.update(self.__dict__)
        return points


@final
class TaskBlocks(Blocks):
    """Blocks are tasks: for each, ``samples`` of its examples, positives and negatives in a given share.

    The paper's protocol. A task's samples are drawn from its positives and from its negatives, independently of the
    other tasks' samples: K = B1 * B2, ``serves`` (K,) is the place of the task that an example was drawn for.
    ``weight`` (K,) adds up to 1 over a task's positives, and to 1 over its negatives.

    ``chunks`` holds each example once, for all blocks asked for, ``weight`` (B, K).

    Args:
        data: the examples.
        positive_fraction: the share of positives among a task's samples, rounded, but at least one of each.

    Attributes:
        tasks: the lists of positives and negatives, and ``at(task, id)``.
        labels: y of the data.
        block_task: (m,) the task (column of the outputs) of each block; those without positives or negatives are left
            out.
        num_tasks: T, how many columns the outputs have.
    """

    least_samples: ClassVar[int] = 2

    def __init__(self, data: Tasks, *, positive_fraction: float = 0.5) -> None:
        super().__init__(data)
        self.tasks = TaskLists.of(data)
        self.labels = data.y
        self.block_task = self.tasks.used
        self.num_tasks = self.tasks.number
        self.num_blocks = int(self.block_task.shape[0])
        self.positive_fraction = checks.fraction("positive_fraction", positive_fraction)
        self.positives = Pool(self.tasks.positive, data.weight, self.tasks.used)
        self.negatives = Pool(self.tasks.negative, data.weight, self.tasks.used)
        self._equal_weights: dict[tuple[int, ...], Tensor] = {}  # (B, samples) by sizes: no draw changes them

    def positives_at(self, index: Tensor, id: Tensor) -> Tensor:
        return self.tasks.at(self.block_task[index], id)[0]

    def sizes(self, samples: int) -> tuple[int, int]:
        """How many positives and negatives a task gets: no more than the largest task has.

        Args:
            samples: B2.
        """
        positives = positives_of(samples, self.positive_fraction)
        return min(positives, self.positives.longest), min(samples - positives, self.negatives.longest)

    def batch_size_of(self, share: Share, samples: int) -> int:
        return share.size * sum(self.sizes(samples))

    def draw(self, index: Tensor, samples: int, share: Share, generator: torch.Generator) -> Batch:
        task = self.block_task[index]
        sizes = self.sizes(samples)
        if self._all_count_equally(sizes):
            id, weight = self._draw_equal(task, sizes, generator)
        else:
            id, weight = self._draw_unequal(task, sizes, generator)
        serves = self.arange(index.shape[0]).unsqueeze(1).expand_as(id).flatten()
        flat = id.flatten()
        return Batch(None, flat, index, self.labels_at(flat), serves=serves, weight=weight.flatten())

    def _all_count_equally(self, sizes: tuple[int, int]) -> bool:
        """Whether every example drawn counts the same: no weights, and no task with fewer than are drawn."""
        positives, negatives = sizes
        has_enough = positives <= self.positives.shortest and negatives <= self.negatives.shortest
        return has_enough and self.data.weight is None

    def _draw_equal(self, task: Tensor, sizes: tuple[int, int], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Ids (B, samples) and weights (B, samples) that are known before the draw."""
        positives = self.positives.draw_full(task, sizes[0], generator)
        negatives = self.negatives.draw_full(task, sizes[1], generator)
        blocks = task.shape[0]
        key = (blocks, *sizes)
        if key not in self._equal_weights:
            weight_by_class = [self.zeros(blocks, size) + 1.0 / size for size in sizes]
            self._equal_weights[key] = torch.cat(weight_by_class, 1)
        return torch.cat([positives, negatives], 1), self._equal_weights[key]

    def _draw_unequal(self, task: Tensor, sizes: tuple[int, int], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Ids (B, samples) and their weights (B, samples)."""
        ids: list[Tensor] = []
        weights: list[Tensor] = []
        for pool, size in zip((self.positives, self.negatives), sizes, strict=True):
            id, is_drawn = pool.draw(task, size, generator)  # (B, size) each
            weight = spread(is_drawn, pool.count[task], pool.total[task], self.weight_at(id))
            ids.append(id)
            weights.append(weight)
        return torch.cat(ids, 1), torch.cat(weights, 1)

    def chunks(self, blocks: Tensor, size: int) -> Iterator[Batch]:
        task = self.block_task[blocks]
        for id in self.arange(self.data.num_examples).split(size):
            is_positive, is_negative = self.tasks.at(task, id)  # (B, K) each
            example_weight = self.worth(id)
            weight = is_positive * (example_weight / self.positives.total[task].unsqueeze(1))
            weight += is_negative * (example_weight / self.negatives.total[task].unsqueeze(1))
            present = (weight != 0).any(1)  # a chunk may hold no labelled example of a task
            if bool(present.any()):
                yield Batch(None, id, blocks[present], self.labels_at(id), weight=weight[present])

    def complete(self, batch: Batch, *, all_ranks: bool = False) -> Batch:
        id = batch.id.to(self.device)
        index = self.arange(self.num_blocks)
        if not all_ranks:
            index = index[is_owned_here(index)]
        is_positive, is_negative = self.tasks.at(self.block_task[index], id)  # (B, K) each
        has_both = is_positive.any(1) & is_negative.any(1)
        index, is_positive, is_negative = kept(has_both, index, is_positive, is_negative)
        task = self.block_task[index]
        example_weight = self.weight_at(id)
        of_positives = spread(is_positive, self.positives.count[task], self.positives.total[task], example_weight)
        of_negatives = spread(is_negative, self.negatives.count[task], self.negatives.total[task], example_weight)
        return self.completed(batch, index, None, None, of_positives + of_negatives)
