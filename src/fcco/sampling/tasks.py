"""BlockLoader: a block is a task; and Tasks, which examples are positives and negatives of which task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Unpack, final

import torch
from torch import Tensor

from fcco._support import checks
from fcco.sampling import labels as check
from fcco.sampling.batch import Batch
from fcco.sampling.draws import Choice, Lists, Rest, choose, refuse_few
from fcco.sampling.loader import Loader, Options


@final
@dataclass(frozen=True)
class Tasks:
    """Binary tasks over N examples, each with its positives and its negatives.

    Args:
        y: class labels (N,) int64, one task a class (one-vs-rest); or 0/1 targets (N, m) with NaN where missing.
        positive: m lists of examples.
        negative: m lists of examples.
    """

    y: Tensor
    positive: Lists
    negative: Choice

    @classmethod
    def of_classes(cls, y: Tensor, num_tasks: int | None) -> Tasks:
        """One-vs-rest from class labels (N,) in 0..num_tasks-1 (None: their largest plus one)."""
        y, total = check.numbers("labels", y, num_tasks, "class")
        lists = Lists.by_label(y, total)
        return cls(y, lists, Rest(lists))

    @classmethod
    def of_targets(cls, y: Tensor, num_tasks: int | None = None) -> Tasks:
        """Tasks from 0/1 targets (N, m), NaN where missing; (N,) is one task."""
        matrix = check.targets("labels", y)
        if num_tasks not in (None, matrix.shape[1]):
            raise ValueError(f"labels must have num_tasks = {num_tasks} columns, got {matrix.shape[1]}")
        return cls(matrix, Lists.where(matrix == 1), Lists.where(matrix == 0))

    @classmethod
    def of(cls, y: Tensor, num_tasks: int | None = None) -> Tasks:
        """From integers (N,) by class, from all else as targets."""
        if y.dim() == 1 and not y.is_floating_point() and y.dtype != torch.bool:
            return cls.of_classes(y, num_tasks)
        return cls.of_targets(y, num_tasks)

    @property
    def number(self) -> int:
        """m, how many tasks there are."""
        return int(self.positive.count.shape[0])

    def at(self, task: Tensor, id: Tensor) -> tuple[Tensor, Tensor]:
        """(B, K) bool twice: which examples (K,) are positives, and which negatives, of the tasks (B,)."""
        if self.y.dim() == 1:
            positive = self.y[id] == task.unsqueeze(1)
            return positive, ~positive
        y = self.y[id][:, task].T
        return y == 1, y == 0


def positives_of(size: int, fraction: float, name: str, least: int = 1) -> int:
    """How many of ``size`` samples are positives: a fraction, but at least ``least``, and not all of them.

    Args:
        name: what the argument ``size`` is called.
    """
    checks.fraction("the fraction of positives", fraction)
    if checks.positive_int(name, size) <= least:
        raise ValueError(f"{name} must be at least {least + 1}, got {size}")
    return min(max(round(size * fraction), least), size - 1)


@final
class BlockLoader(Loader):
    """Blocks are tasks: B1 tasks a step, and for each of them B2 samples, positives and negatives in a given share.

    The paper's protocol. A task's samples are drawn from its positives and from its negatives, uniformly and (by
    default) without replacement, independently of the other tasks' samples: K = B1 * B2, ``batch.serves`` (K,) is the
    place of the task that an example was drawn for, ``batch.y`` its label, ``batch.weight`` None: means over the
    positives and over the negatives present are unbiased for those over all of them.

    ``full_pass`` yields each example once, for all tasks of the rank; its weight (B, K) is 1 over the number of the
    task's positives where it is one, of its negatives where it is one, and 0 where the label is missing.

    Args:
        dataset: see :class:`fcco.sampling.Loader`.
        labels: (N,) integers: the tasks are the classes, one-vs-rest; or 0/1 targets (N, m), NaN where missing
            ((N,) floating point or bool: one task).
        blocks_per_step: B1, over all ranks.
        samples_per_block: B2 >= 2.
        positive_fraction: the share of positives among a task's samples, rounded, but at least one of each; half of
            them by default.
        replacement: draw with replacement; a class may then have fewer samples than asked for.
        num_tasks: m; None: as many as the labels show.
        options: see :class:`fcco.sampling.Options`.

    Example:
        >>> labels = torch.tensor([0, 0, 1, 1, 2, 2])
        >>> loader = BlockLoader(torch.randn(6, 4), labels, blocks_per_step=2, samples_per_block=3, seed=0)
        >>> index, batch = next(iter(loader))
        >>> index.shape, batch.x.shape, batch.serves
        (torch.Size([2]), torch.Size([6, 4]), tensor([0, 0, 0, 1, 1, 1]))

    Reference: Jiang et al., NeurIPS 2022.
    """

    def __init__(
        self,
        dataset: Any,
        labels: Any,
        blocks_per_step: int,
        samples_per_block: int,
        *,
        positive_fraction: float = 0.5,
        replacement: bool = False,
        num_tasks: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(dataset, options)
        y = check.of_examples("labels", labels, self.num_examples, self.device)
        # One task: as floating point, since integers (K,) would be class labels to an objective.
        self.labels = y.to(torch.get_default_dtype()) if y.dim() == 1 and y.dtype == torch.bool else y
        self.tasks = Tasks.of(self.labels, num_tasks)
        self.samples_per_block, self.replacement = samples_per_block, replacement
        self.positives_per_block = positives_of(samples_per_block, positive_fraction, "samples_per_block")
        self.negatives_per_block = samples_per_block - self.positives_per_block
        kind = "class" if self.tasks.y.dim() == 1 else "task"
        refuse_few(self.tasks.positive, self.positives_per_block, kind, "positives", replacement=replacement)
        refuse_few(self.tasks.negative, self.negatives_per_block, kind, "negatives", replacement=replacement)
        self._start(self.tasks.number, blocks_per_step, blocks_per_step * samples_per_block)

    def _labels_at(self, id: Tensor) -> Tensor:
        return self.labels[id]

    def _draw(self, index: Tensor, generator: torch.Generator) -> Batch:
        drawn = []
        for choice, size in (
            (self.tasks.positive, self.positives_per_block),
            (self.tasks.negative, self.negatives_per_block),
        ):
            place = choose(choice.count[index], size, generator, replacement=self.replacement)
            drawn.append(choice.take(index, place))
        id = torch.cat(drawn, 1).flatten()  # (B1 * B2,)
        serves = self._arange(index.shape[0]).repeat_interleave(self.samples_per_block)
        return Batch(None, id, self._labels_at(id), serves=serves)

    def _chunks(self, blocks: Tensor, size: int) -> Iterator[tuple[Tensor, Batch]]:
        one = self._ones()
        share_positive = (one / self.tasks.positive.count[blocks]).unsqueeze(1)
        share_negative = (one / self.tasks.negative.count[blocks]).unsqueeze(1)
        for id in self._arange(self.num_examples).split(size):
            positive, negative = self.tasks.at(blocks, id)
            weight = positive * share_positive + negative * share_negative
            yield blocks, Batch(None, id, self._labels_at(id), weight=weight)
