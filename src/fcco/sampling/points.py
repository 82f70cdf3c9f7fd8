"""Loaders whose blocks are the examples of one class: average precision, partial AUC, the p-norm push."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Unpack, final

import torch
from torch import Tensor

from fcco._support import checks
from fcco.sampling import labels as check
from fcco.sampling.batch import Average, Batch
from fcco.sampling.blocks import draw_blocks
from fcco.sampling.draws import Lists, refuse_few
from fcco.sampling.loader import Loader, Options
from fcco.sampling.pairs import PairLoader, Stratum
from fcco.sampling.tasks import Tasks, positives_of


@final
class PointLoader(Loader):
    r"""Blocks are the examples of one class (the positives): B1 of them a step and B2 of the other, shared by all.

    ``batch.anchor`` (B,) says where each block's own example stands, ``batch.y`` (K,) holds the labels. Of N labelled
    examples :math:`n_+` are of the blocks' class and :math:`n_-` of the other. What counts how much:

    - ``Average.ALL``: ``weight`` (B, K): the block's own example 1/N, each other block's
      :math:`(n_+ - 1)/(N (B_1 - 1))`, each of the other class :math:`n_-/(N B_2)`. Unbiased for the mean over all data:
      a block's own example is in every batch with it, so it must not stand for others. K = B1 + B2.
    - ``Average.OPPOSITE``: ``weight`` (K,): 1/B2 for the other class, 0 for the blocks' own; ``serves`` is -1 (all
      blocks) for the other class. K = B1 + B2.

    With several ranks, each draws B2 of the other class, and with ``Average.ALL`` as many examples of the blocks that
    other ranks own as it draws of its own, weighted accordingly: still the mean over all data.

    ``full_pass`` sets chunks of blocks against chunks of the examples that the mean runs over, ``weight`` (B, K) 1/N or
    :math:`1/n_-`; each batch holds the blocks' own examples too.

    Args:
        dataset: see :class:`fcco.sampling.Loader`.
        labels: (N,) 0/1, NaN where missing (never drawn then).
        blocks_per_step: B1, over all ranks; at least 2 a rank with ``Average.ALL``.
        samples_per_step: B2, drawn without replacement.
        average: what the mean runs over.
        block_label: the class whose examples are the blocks: 1, or 0 (p-norm push).
        options: see :class:`fcco.sampling.Options`.

    Attributes:
        block_example: (m,) the example of each block: those of the class, in their order.

    Example:
        >>> labels = torch.tensor([1, 0, 0, 1, 0, 1])
        >>> loader = PointLoader(torch.randn(6, 4), labels, 2, 2, average=Average.OPPOSITE, seed=0)
        >>> index, batch = next(iter(loader))
        >>> loader.num_blocks, batch.y, batch.anchor, batch.weight
        (3, tensor([1, 1, 0, 0]), tensor([0, 1]), tensor([0.0000, 0.0000, 0.5000, 0.5000], dtype=torch.float64))
    """

    def __init__(
        self,
        dataset: Any,
        labels: Any,
        blocks_per_step: int,
        samples_per_step: int,
        *,
        average: Average,
        block_label: int = 1,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(dataset, options)
        self.average, self.block_label = _average(average), _label(block_label)
        self.samples_per_step = checks.positive_int("samples_per_step", samples_per_step)
        self.labels = check.of_examples("labels", labels, self.num_examples, self.device)
        if self.labels.dim() != 1:
            raise ValueError(f"labels must have shape (N,), got {tuple(self.labels.shape)}; see MultiLabelPointLoader")
        matrix = check.targets("labels", self.labels)
        own, other = Lists.where(matrix == block_label), Lists.where(matrix == 1 - block_label)
        _refuse_class(own, block_label, 1)
        _refuse_class(other, 1 - block_label, samples_per_step)
        self.block_example, self._other = own.flat, other.flat
        self._start(own.flat.shape[0], blocks_per_step, blocks_per_step + samples_per_step)
        size = self._share.size
        self._weight = torch.cat([self._ones(size) * 0.0, self._ones(samples_per_step) / samples_per_step])
        if average is Average.ALL:
            self._share.refuse_alone()
            self._weight = self._weigh_all(size, self._share.foreign_size)

    def _labels_at(self, id: Tensor) -> Tensor:
        return self.labels[id]

    def _draw(self, index: Tensor, generator: torch.Generator) -> Batch:
        other = self._other[draw_blocks(self._other.shape[0], self.samples_per_step, generator)]
        anchor = self._arange(index.shape[0])
        if self.average is Average.OPPOSITE:
            id = torch.cat([self.block_example[index], other])
            serves = torch.cat([anchor, torch.full_like(other, -1)])
            return Batch(None, id, self._labels_at(id), anchor, serves, self._weight)
        foreign = self._share.draw_foreign(self._share.foreign_size, generator)
        id = torch.cat([self.block_example[index], self.block_example[foreign], other])
        return Batch(None, id, self._labels_at(id), anchor, weight=self._weight)

    def _weigh_all(self, size: int, foreign: int) -> Tensor:
        """(B, K) for the mean over all labelled data, of K = own blocks, foreign ones, the other class."""
        total = self.num_blocks + self._other.shape[0]
        own_share, foreign_share = self._share.worth(foreign)
        row = torch.cat(
            [
                self._ones(size) * (own_share / total),
                self._ones(foreign) * (foreign_share / total),
                self._ones(self.samples_per_step) * (self._other.shape[0] / (total * self.samples_per_step)),
            ]
        )
        weight = row.repeat(size, 1)
        weight.fill_diagonal_(1.0 / total)
        return weight

    def _chunks(self, blocks: Tensor, size: int) -> Iterator[tuple[Tensor, Batch]]:
        samples = self._other
        if self.average is Average.ALL:
            samples = torch.cat([self.block_example, self._other]).sort().values
        each = 1.0 / samples.shape[0]
        return self._cross(blocks, samples, size, lambda b, s: self._ones(b.shape[0], s.shape[0]) * each)


@final
class MultiLabelPointLoader(PairLoader):
    r"""Blocks are (task, positive) pairs, for several labels an example or one-vs-rest: B1 pairs a step.

    For each task that the drawn pairs have among them, B2 samples are drawn from its labelled examples, shared by its
    pairs; an example drawn more than once stands in the batch once. ``batch.weight`` (B, K) holds what an example
    counts for a pair, 0 where it was not drawn for the pair's task: with ``Average.ALL`` the own example 1/n and the
    d drawn of a class with c others :math:`c/(n d)` each (n labelled examples of the task); with ``Average.OPPOSITE``
    1/B2 for the examples of the opposite class.

    Args:
        dataset: see :class:`fcco.sampling.Loader`.
        labels: 0/1 targets (N, T), NaN where missing; or integers (N,): the tasks are the classes, one-vs-rest.
        blocks_per_step: B1 pairs, over all ranks.
        samples_per_task: B2, drawn without replacement.
        average: what the mean in g_i runs over.
        block_label: the label of the blocks' examples: 1, or 0 (p-norm push).
        block_fraction: with ``Average.ALL``, the share of the blocks' class among a task's samples, at least two of
            them and one of the other class; half by default. A task that has fewer of them gives all that it has.
        options: see :class:`fcco.sampling.Options`.

    Attributes:
        block_task: (m,) the task of each block; blocks are in the order of tasks, then of examples.
        block_example: (m,) its example.

    Example:
        >>> labels = torch.tensor([[1.0, 0], [0, 1], [1, 1], [0, 0]])
        >>> loader = MultiLabelPointLoader(torch.randn(4, 3), labels, 2, 1, average=Average.OPPOSITE, seed=0)
        >>> loader.block_task, loader.block_example
        (tensor([0, 0, 1, 1]), tensor([0, 2, 1, 2]))
    """

    def __init__(
        self,
        dataset: Any,
        labels: Any,
        blocks_per_step: int,
        samples_per_task: int,
        *,
        average: Average,
        block_label: int = 1,
        block_fraction: float = 0.5,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(dataset, options)
        self.average, self.block_label = _average(average), _label(block_label)
        self.labels = check.of_examples("labels", labels, self.num_examples, self.device)
        self.tasks = tasks = Tasks.of(self.labels)
        self.samples_per_task = checks.positive_int("samples_per_task", samples_per_task)
        own, other = (tasks.positive, tasks.negative) if block_label == 1 else (tasks.negative, tasks.positive)
        names = ("positives", "negatives") if block_label == 1 else ("negatives", "positives")
        self._own, self._other, kind = own, other, "class" if tasks.y.dim() == 1 else "task"
        strata = [Stratum(other, samples_per_task, own=False)]
        if average is Average.ALL:
            of_own = positives_of(samples_per_task, block_fraction, "samples_per_task", least=2)
            strata = [Stratum(own, of_own, own=True), Stratum(other, samples_per_task - of_own, own=False)]
        self._strata = tuple(strata)
        refuse_few(own, 1, kind, names[0])
        refuse_few(other, strata[-1].size, kind, names[1])
        pairs = own if isinstance(own, Lists) else Lists.where(~_one_hot(tasks))
        self.block_task, self.block_example = pairs.group, pairs.flat
        self.block_group = self.block_task
        seen = min(tasks.number, blocks_per_step)
        self._start(self.block_task.shape[0], blocks_per_step, blocks_per_step + seen * samples_per_task)

    def _labels_at(self, id: Tensor) -> Tensor:
        return self.labels[id]

    def _chunks(self, blocks: Tensor, size: int) -> Iterator[tuple[Tensor, Batch]]:
        own, other, one = self._own.count, self._other.count, self._ones()

        def weigh(index: Tensor, samples: Tensor) -> Tensor:
            task = self.block_task[index]
            positive, negative = self.tasks.at(task, samples)
            if self.average is Average.ALL:
                return (positive | negative) * (one / (own + other)[task]).unsqueeze(1)
            opposite = negative if self.block_label == 1 else positive
            return opposite * (one / other[task]).unsqueeze(1)

        return self._cross(blocks, self._arange(self.num_examples), size, weigh)


def _average(average: Any) -> Average:
    if not isinstance(average, Average):
        raise TypeError(f"average must be Average.ALL or Average.OPPOSITE, got {average!r}")
    return average


def _label(block_label: Any) -> int:
    if block_label not in (0, 1):
        raise ValueError(f"block_label must be 0 or 1, got {block_label!r}")
    return int(block_label)


def _refuse_class(members: Lists, label: int, asked: int) -> None:
    count, what = int(members.count[0]), "positives" if label == 1 else "negatives"
    if count == 0:
        raise ValueError(f"class {label} has no examples: labels must show {what}")
    if count < asked:
        raise ValueError(
            f"class {label} has {count} examples, fewer than the {asked} {what} asked for without replacement"
        )


def _one_hot(tasks: Tasks) -> Tensor:
    """(N, m) bool from class labels."""
    return tasks.y.unsqueeze(1) == torch.arange(tasks.number, device=tasks.y.device)
