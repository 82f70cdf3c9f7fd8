"""Points, and PointBlocks: a block is an example of one class, compared with those of the other, or with all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor

from fcco._support import checks
from fcco.data._batch import Batch
from fcco.data._blocks import SlotBlocks, kept
from fcco.data._draws import Lists, Pool, choose_one, spread
from fcco.data._labelled import Labelled, TaskLists, positives_of
from fcco.data._share import Share


@final
class Points(Labelled):
    """Examples with one label or several. Blocks are the examples of a class, or (task, example) pairs.

    For :class:`fcco.objectives.PartialAUC`, ``AveragePrecision`` and ``PNormPush``.

    Args:
        x: see :class:`Structure`.
        y: (N,): two values, the larger positive, NaN where missing; three or more integers or strings: classes, one
            task per class (one-vs-rest); or (N, T), a column of two values per task.
        weight: (N,) how much each example counts. None: equally.
        positive: the value of y that is positive. Needed for strings, except those like "yes" and "no".
        classes: the classes in the order of the model's columns. None: integers that start at 0 are their own column
            numbers, others are numbered in sorted order.
        inputs: the number of leading parts of a data set's items that make up x.

    Example:
        >>> data = Points(torch.randn(4, 3), ["ham", "spam", "ham", None], positive="spam")
        >>> data.y
        tensor([0., 1., 0., nan])
    """

    def __init__(
        self, x: Any, y: Any, *, weight: Any = None, positive: Any = None, classes: Any = None, inputs: int = 1
    ) -> None:
        super().__init__(x, y, weight, positive, classes, inputs)


@final
class PointBlocks(SlotBlocks):
    r"""Blocks are the positives (or the negatives), for several tasks the (task, example) pairs.

    One task: B1 blocks and ``samples`` = B2 of the other class, shared by all. The mean runs over the other class
    (``weight`` (K,), 0 for the blocks' own), K = B1 + B2; or, with ``include_own_class``, over all labelled examples
    (``weight`` (B, K)): a block's own example counts what it is worth, since it is in every batch with it, and the
    other blocks of the batch stand for their class. With several ranks that class is represented by as many examples
    of other ranks' blocks, too.

    Several tasks: for each of the min(T, B1) tasks that a batch can meet, B2 samples, shared by its blocks:
    K = B1 + min(T, B1) * B2. With ``include_own_class`` a share of them is of the blocks' class.

    ``chunks`` sets chunks of blocks against chunks of the examples that the mean runs over.

    Args:
        data: the examples.
        positive: whether the blocks are the positives (else the negatives).
        include_own_class: whether the mean runs over all labelled examples (else over the other class).
        block_fraction: with several tasks and ``include_own_class``, the share of the blocks' class among the samples,
            at least two of them and one of the other class.

    Attributes:
        tasks: the lists of positives and negatives, and ``at(task, id)``.
        labels: y of the data.
        num_tasks: T, how many columns the outputs have; ``tasks.used`` are those that have blocks.
        block_task: (m,) the task of each block; blocks are in the order of tasks, then of examples.
        block_example: (m,) its example.
        block_size: (m,) how many blocks its task has.
        block_weight: (m,) with mean 1 in each task, or None.
    """

    def __init__(
        self, data: Points, *, positive: bool = True, include_own_class: bool, block_fraction: float = 0.5
    ) -> None:
        super().__init__(data)
        self.tasks = TaskLists.of(data)
        self.labels = data.y
        self.positive = checks.flag("positive", positive)
        self.include_own_class = checks.flag("include_own_class", include_own_class)
        self.block_fraction = checks.fraction("block_fraction", block_fraction)
        self.num_tasks = self.tasks.number
        positives = Pool(self.tasks.positive, data.weight, self.tasks.used)
        negatives = Pool(self.tasks.negative, data.weight, self.tasks.used)
        if positive:
            self.same_class = positives  # the blocks' class
            self.other_class = negatives
        else:
            self.same_class = negatives
            self.other_class = positives
        self.total = self.other_class.total  # (T,) what the weights add up to that a mean runs over
        if include_own_class:
            self.total = self.same_class.total + self.other_class.total
        pairs = self._pairs()
        used = torch.isin(pairs.group, self.tasks.used)
        self.block_task = pairs.group[used]
        self.block_stratum = self.block_task
        self.block_example = pairs.flat[used]
        self.num_blocks = int(self.block_task.shape[0])
        self.block_size = self.same_class.count[self.block_task]
        self.block_weight = None
        if data.weight is not None:
            mean_weight = self.same_class.total / self.same_class.count  # (T,)
            self.block_weight = data.weight[self.block_example] / mean_weight[self.block_task]
        self.used = int(self.tasks.used.shape[0])

    def _pairs(self) -> Lists:
        """The examples of the blocks' class, a list per task."""
        choice = self.same_class.choice
        if isinstance(choice, Lists):
            return choice
        # One-vs-rest, where the rest of each class is stored nowhere: y (N,) are class numbers, -1 where missing.
        y = self.tasks.y.unsqueeze(1)  # (N, 1)
        is_of_another_class = (y != self.arange(self.num_tasks)) & (y >= 0)  # (N, T)
        return Lists.where(is_of_another_class)

    def strata(self) -> tuple[Tensor, ...]:
        """With one task the blocks' class and the other."""
        if self.used > 1:
            return super().strata()
        all_ids = self.arange(self.data.num_examples)
        is_same_class, is_other_class = self._classes_at(self.tasks.used, all_ids)  # (1, N) each
        return is_same_class[0].nonzero()[:, 0], is_other_class[0].nonzero()[:, 0]

    def positives_at(self, index: Tensor, id: Tensor) -> Tensor:
        return self.tasks.at(self.block_task[index], id)[0]

    # ------------------------------------------------------------------ sizes

    def check(self, share: Share, samples: int) -> None:
        super().check(share, samples)
        if not self.include_own_class:
            return
        if self.used == 1 and share.size == 1 and share.owned > 1:
            raise ValueError(f"blocks must be at least {2 * share.world} (2 per rank) here, got {share.world}")
        if self.used > 1 and samples < 3:
            raise ValueError(f"samples must be at least 3 for a mean over both classes of several tasks, got {samples}")

    def batch_size_of(self, share: Share, samples: int) -> int:
        if self.used == 1:
            return share.size + self._foreign(share) + min(samples, self.other_class.longest)
        slots = min(self.used, share.size)
        return share.size + slots * sum(self._slot_sizes(samples))

    def _foreign(self, share: Share) -> int:
        """How many examples of other ranks' blocks a batch has."""
        if not self.include_own_class:
            return 0
        return min(share.size, share.foreign)

    def _slot_sizes(self, samples: int) -> tuple[int, int]:
        """How many samples a task gets of the blocks' class and of the other."""
        of_same_class = 0
        if self.include_own_class:
            of_same_class = positives_of(samples, self.block_fraction, least=2)
        of_other_class = samples - of_same_class
        return min(of_same_class, self.same_class.longest), min(of_other_class, self.other_class.longest)

    # ------------------------------------------------------------------ drawing

    def draw(self, index: Tensor, samples: int, share: Share, generator: torch.Generator) -> Batch:
        if self.used > 1:
            return self._draw_slots(index, samples, generator)
        size = min(samples, self.other_class.longest)
        place = choose_one(self.other_class.longest, size, generator)
        sample_id = self.other_class.choice.take(self.tasks.used, place.unsqueeze(0))[0]  # (size,)
        foreign_blocks = share.draw_foreign(self._foreign(share), generator)
        id = torch.cat([self.block_example[index], self.block_example[foreign_blocks], sample_id])  # (K,)
        if self.include_own_class:
            weight = self._weigh_all(index, foreign_blocks, id, share)
        else:
            scale = self.other_class.longest / (size * self.total[self.tasks.used])  # (1,)
            weight = self.worth(id) * scale  # (K,)
            weight[: index.shape[0]] = 0.0  # the blocks' own class is not in the mean
        block_pos = self.arange(index.shape[0])  # the blocks' own examples come first
        return Batch(None, id, index, self.labels_at(id), block_pos, weight=weight)

    def _weigh_all(self, index: Tensor, foreign_blocks: Tensor, id: Tensor, share: Share) -> Tensor:
        """(B, K) for the mean over all labelled examples; of one task: w_k / W times how many examples k stands for."""
        blocks = index.shape[0]
        foreign = foreign_blocks.shape[0]
        first_sample = blocks + foreign  # in id, after the blocks' own examples and those of other ranks' blocks
        samples = id.shape[0] - first_sample
        single_weight = self.worth(id) / self.total[self.tasks.used]  # (K,) of an example that stands for itself
        stands_for = self.zeros(id.shape[0])
        if blocks > 1:
            stands_for[:blocks] = (share.owned - 1) / (blocks - 1)
        if foreign:
            stands_for[blocks:first_sample] = share.foreign / foreign
        stands_for[first_sample:] = self.other_class.longest / samples
        weight = (single_weight * stands_for).repeat(blocks, 1)
        # A block's own example is in every batch with it, so it counts once and stands for nobody else.
        weight.diagonal().copy_(single_weight[:blocks])
        return weight

    def _draw_slots(self, index: Tensor, samples: int, generator: torch.Generator) -> Batch:
        blocks = index.shape[0]
        task = self.block_task[index]  # (B,)
        tasks_met, block_slot = self.slots(task, min(self.used, blocks))  # (slots,) and (B,)
        own_example = self.block_example[index]
        own_weight = self.zeros(blocks, blocks)  # (B, B) what the blocks' own examples count for each other
        if self.include_own_class:
            own_weight = torch.diag(self.worth(own_example) / self.total[task])
        ids = [own_example]
        weights = [own_weight]
        for pool, size in zip((self.same_class, self.other_class), self._slot_sizes(samples), strict=True):
            if size == 0:
                continue
            slot_id, is_drawn = pool.draw(tasks_met, size, generator)  # (slots, size) each
            sample_id = slot_id[block_slot]  # (B, size), those of the block's task
            member = is_drawn[block_slot]
            count = pool.count[task]  # (B,) how many the members stand for
            if pool is self.same_class:  # the own example is counted already
                member = member & (sample_id != own_example.unsqueeze(1))
                count = count - 1
            weight = spread(member, count, self.total[task], self.weight_at(sample_id))
            ids.append(slot_id.flatten())
            weights.append(self.into_slots(weight, block_slot, tasks_met.shape[0]))
        id = torch.cat(ids)  # (K,)
        weight = torch.cat(weights, 1)  # (B, K)
        return Batch(None, id, index, self.labels_at(id), self.arange(blocks), weight=weight)

    # ------------------------------------------------------------------ passes and other people's batches

    def chunks(self, blocks: Tensor, size: int) -> Iterator[Batch]:
        def weigh(index: Tensor, samples: Tensor) -> Tensor:
            task = self.block_task[index]
            is_same_class, is_other_class = self._classes_at(task, samples)  # (B, S) each
            is_in_mean = is_other_class
            if self.include_own_class:
                is_in_mean = is_same_class | is_other_class
            return is_in_mean * (self.worth(samples) / self.total[task].unsqueeze(1))

        return self.cross(blocks, self.compared(), size, weigh)

    def compared(self) -> Tensor:
        """The examples that some block's mean may run over, in growing order."""
        all_ids = self.arange(self.data.num_examples)
        if self.used == 1 and not self.include_own_class:
            _, is_other_class = self._classes_at(self.tasks.used, all_ids)  # (1, N)
            return all_ids[is_other_class[0]]
        if self.tasks.y.dim() == 1:
            return all_ids[self.tasks.y >= 0]
        has_no_label = self.tasks.y[:, self.tasks.used].isnan().all(1)
        return all_ids[~has_no_label]

    def complete(self, batch: Batch, *, all_ranks: bool = False) -> Batch:
        id = batch.id.to(self.device)
        index, position = self.present_blocks(id, all_ranks)
        is_same_class, is_other_class = self._classes_at(self.block_task[index], id)  # (B, K) each
        is_another_example = id != self.block_example[index].unsqueeze(1)
        same_class_others = is_same_class & is_another_example
        has_enough = is_other_class.any(1)  # (B,)
        if self.include_own_class:
            is_alone = self.block_size[index] == 1
            has_enough &= same_class_others.any(1) | is_alone
        index, position, same_class_others, is_other_class = kept(
            has_enough, index, position, same_class_others, is_other_class
        )
        task = self.block_task[index]
        total = self.total[task]
        example_weight = self.weight_at(id)
        weight = spread(is_other_class, self.other_class.count[task], total, example_weight)
        if self.include_own_class:
            weight = weight + spread(same_class_others, self.same_class.count[task] - 1, total, example_weight)
            weight = self.with_own_weight(weight, index, position, total)
        return self.completed(batch, index, position, None, weight)

    def _classes_at(self, task: Tensor, id: Tensor) -> tuple[Tensor, Tensor]:
        """(B, K) bool twice: which examples are of the blocks' class, and which of the other, of the tasks (B,)."""
        positive, negative = self.tasks.at(task, id)
        if self.positive:
            return positive, negative
        return negative, positive
