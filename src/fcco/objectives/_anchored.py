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
from fcco.objectives._precision import at_least_float32, like_parameters
from fcco.objectives._soft_maximum import soft_maximum


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
        v: (T,) trained thresholds, where :meth:`register_threshold` made them; ``task_size``: (T,) beside them.
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
        self.register_scale(self._scale())
        self.v: nn.Parameter | None = None

    def pairs(self, index: Tensor, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """h_j - h_i (B, K) over blocks i and examples j; which j are positives, which negatives of i's task.

        The last two are (B, K), or (1, K) where they are the same for every block.
        """
        outputs = at_least_float32(outputs)
        positive, negative = self.labelled(index, batch)
        own = own_position(batch, index, self.block_example[index])  # (B,)
        if self.block_task is None:
            h = scores(outputs, batch)  # (K,)
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
            positive, negative = positives_and_negatives(self.block_task[index], batch, self.num_tasks).unbind(1)
            return positive, negative
        if batch.serves is not None:
            positive, negative = positives_and_negatives(torch.zeros_like(index), batch, 1).unbind(1)
            return positive, negative
        row = target_columns(batch, 1).T  # one row will do where all blocks see the same
        return row == 1, row == 0

    def register_threshold(self, start: float) -> None:
        """A trained variable v per task, and :attr:`task_size`: what :meth:`smoothed_maximum` needs."""
        self.v = nn.Parameter(like_parameters(self.model, torch.full((self.num_tasks,), float(start))))
        self.register_table("task_size", like_parameters(self.model, self._effective_size()))

    def smoothed_maximum(self, index: Tensor, f: Tensor, temperature: float) -> Tensor:
        """A value per block (B,) whose mean over each task is, at the best v, the smoothed maximum of f (B,)."""
        assert self.v is not None
        v: Tensor = self.v
        size = self.task_size
        if self.block_task is not None:  # (B,) from (T,); with one task (1,) will do
            task = self.block_task[index]
            v = v[task]
            size = size[task]
        return self.weighted(index, soft_maximum(f, v.to(f.dtype), temperature, size))

    def _effective_size(self) -> Tensor:
        """(T,) the largest 1/p_i of each task, p_i a block's share of its task: the number of blocks, without weights.

        At the best v of a weighted mean, :math:`\\sum_i p_i e^{t_i} = 1`, so no exponential exceeds it.
        """
        weight, total = self._task_weights()
        # The lightest block of a task has the smallest share, and with it the largest 1/p_i.
        least = torch.full_like(total, torch.inf).scatter_reduce(0, self.blocks.block_task, weight, "amin")
        return torch.where(total > 0, total / least, 1.0)

    def _task_weights(self) -> tuple[Tensor, Tensor]:
        """What the blocks weigh (m,), and the sum over each task (T,), 0 where a task has no blocks."""
        blocks = self.blocks
        weight = blocks.block_weight
        if weight is None:
            weight = torch.ones(blocks.num_blocks, dtype=torch.float64, device=blocks.device)
        return weight, weight.new_zeros(blocks.num_tasks).index_add(0, blocks.block_task, weight)

    def _scale(self) -> Tensor | None:
        if self.blocks.block_weight is None and self.num_tasks == 1:
            return None
        weight, total = self._task_weights()
        share = weight / total[self.blocks.block_task]  # (m,), adds up to 1 in each task
        tasks_with_blocks = int((total > 0).sum())
        return share * (self.num_blocks / tasks_with_blocks)


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
    if block_pos.is_cpu and not torch.equal(batch.id.index_select(0, block_pos), item):
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
