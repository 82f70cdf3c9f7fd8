"""What objectives share whose blocks are examples that are compared with other examples."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from fcco._support import checks
from fcco.data import Batch, PointBlocks, Points
from fcco.objectives._base import OutputObjective, check_data, need, scores
from fcco.objectives._labelled import positives_and_negatives, target_columns
from fcco.objectives._means import check_not_empty
from fcco.objectives._precision import at_least_float32


class AnchoredObjective(OutputObjective):
    r"""Blocks that are points of one class, (task, example) pairs: the block's own example against those in the batch.

    Tasks count equally, and within a task blocks count as their examples weigh:
    :math:`F = \frac1T \sum_t \frac1{W_t} \sum_{i \in t} w_i f_i(g_i)`, :math:`W_t = \sum_{i \in t} w_i`.

    Args:
        model: (K, ...) -> (K,) or (K, 1) scores; (K, T), a column per task, where the data have several.
        data: the points and their labels. A task has only its labelled examples.
        dim: p.

    Attributes:
        num_tasks: T, how many columns the outputs have.
        block_task: (m,) the task of each block; None: one task.
        block_example: (m,) its example.
        block_scale: (m,) :math:`\frac mT w_i / W_t` (T of the tasks that have blocks); None: 1 everywhere.
    """

    block_task: Tensor | None
    block_example: Tensor
    task_size: Tensor
    blocks: PointBlocks
    shift_invariant = True
    #: whether the blocks' own examples are positives (else negatives)
    positive: ClassVar[bool] = True
    #: whether the mean in g runs over all labelled examples, not over the other class alone
    include_own_class: ClassVar[bool] = False

    def __init__(self, model: nn.Module, data: Points, *, dim: int = 1) -> None:
        check_data(type(self).__name__, data, Points)
        blocks = PointBlocks(data, positive=self.positive, include_own_class=self.include_own_class)
        super().__init__(model, blocks, dim=dim, log_domain=True)
        self.num_tasks = blocks.num_tasks
        # One task needs no map from blocks to columns, and its batches the faster rows of labels.
        block_task = None
        if self.num_tasks > 1:
            block_task = blocks.block_task
        self.register_table("block_task", block_task)
        self.register_table("block_example", blocks.block_example)
        self.register_scale(self._scale(blocks))

    def pairs(self, index: Tensor, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """h_j - h_i (B, K) over blocks i and examples j; which j are positives, which negatives of i's task.

        The last two are (B, K), or (1, K) where they are the same for every block.
        """
        outputs = at_least_float32(outputs)
        positive, negative = self.labelled(index, batch)
        own = own_position(batch, index, self.block_example[index])
        if self.block_task is None:
            h = scores(outputs, batch)
            minus = -h.index_select(0, own)  # negated here, so that the backward pass negates B numbers, not B K
            return h + minus.unsqueeze(1), positive, negative
        if outputs.shape != (len(batch), self.num_tasks):
            raise ValueError(
                f"the model must return one score per task, shape ({len(batch)}, {self.num_tasks}), got "
                f"{tuple(outputs.shape)}"
            )
        by_block = outputs.T[self.block_task[index]]  # (B, K), the column of each block's task
        return by_block - by_block.gather(1, own.unsqueeze(1)), positive, negative

    def labelled(self, index: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Which examples are positives and which negatives of the blocks' tasks: (B, K), or (1, K) for all blocks."""
        if self.block_task is not None:
            return positives_and_negatives(self.block_task[index], batch, self.num_tasks)
        if batch.serves is not None:
            return positives_and_negatives(torch.zeros_like(index), batch, 1)
        row = target_columns(batch, 1).T  # one row will do where all blocks see the same
        return row == 1, row == 0

    def per_block(self, index: Tensor, value: Tensor) -> Tensor:
        """Values (T,) of the tasks as values of the blocks: (B,), or (1,) with one task."""
        if self.block_task is None:
            return value
        return value[self.block_task[index]]

    def _scale(self, blocks: PointBlocks) -> Tensor | None:
        weight = blocks.block_weight
        if weight is None and self.num_tasks == 1:
            return None
        if weight is None:
            weight = torch.ones(self.num_blocks, dtype=torch.float64, device=blocks.device)
        total = by_task(weight, blocks)  # (T,), 0 where a task has no blocks
        share = weight / total[blocks.block_task]  # (m,), adds up to 1 in each task
        tasks_with_blocks = int((total > 0).sum())
        return share * (self.num_blocks / tasks_with_blocks)


def by_task(value: Tensor, blocks: PointBlocks) -> Tensor:
    """(T,) the sums of values (m,) over the blocks of each task."""
    return value.new_zeros(blocks.num_tasks).index_add(0, blocks.block_task, value)


def own_position(batch: Batch, index: Tensor, item: Tensor) -> Tensor:
    """Where each block's own example stands in the batch: ``batch.block_pos`` (B,), checked against ``item``.

    Args:
        batch: the batch.
        index: (B,) the blocks, for the error message.
        item: (B,) the position in the data of each block's own example.
    """
    block_pos = need(batch.block_pos, "block_pos")
    if block_pos.shape != index.shape:
        raise ValueError(f"batch.block_pos must have shape {tuple(index.shape)}, got {tuple(block_pos.shape)}")
    # On an accelerator reading the answer would make it wait.
    if block_pos.device.type == "cpu" and not torch.equal(batch.id[block_pos], item):
        wrong = index[batch.id[block_pos] != item].tolist()
        raise ValueError(f"batch.block_pos must point at each block's own example, not so for {checks.some(wrong)}")
    return block_pos


def with_own(batch: Batch, index: Tensor, among: Tensor, own: Tensor, size: Tensor, what: str) -> tuple[Tensor, Tensor]:
    """Who enters a mean over a set that holds the block's own example, and how much each counts.

    The own example is in every batch by design, so it counts 1/size, what it is worth in the whole set, and
    the others that are present share the rest: unbiased however few they are, the plain mean over a whole set.
    Where the batch carries weights these are taken as they are.

    Args:
        batch: the batch.
        index: (B,) the blocks.
        among: (B, K) bool, which examples belong to the block's set.
        own: (B,) from :func:`own_position`.
        size: (B,) how many examples the whole set has, in the dtype wanted.
        what: what the others are, for the error message.

    Returns:
        (B, K) bool and the weights, (K,) or (B, K).
    """
    if batch.weight is not None:
        return among, batch.weight
    # Told by id: an example that stands in the batch twice is still no other.
    others = among & (batch.id != batch.id[own].unsqueeze(1))
    count = others.sum(1)
    # A set of one has no others to miss.
    check_not_empty(torch.where(size == 1, 1, count), index, what)
    share = (size - 1) / (size * count.clamp(min=1))
    place = own.unsqueeze(1)
    weight = (others * share.unsqueeze(1)).scatter_(1, place, size.reciprocal().unsqueeze(1))
    return others.scatter_(1, place, True), weight
