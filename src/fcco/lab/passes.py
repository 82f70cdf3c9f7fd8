"""Full passes whose batches are composed as in training, for models with BatchNorm.

In training mode BatchNorm makes g_i(w; xi) depend on the batch composition. A step's batch over-represents the classes
of the tasks drawn (half of a task's samples are its positives), so a pass in plain chunks of the data would normalise
by other statistics, and v3's reference would track another function than its steps do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fcco.data import Batch, TaskBlocks
from fcco.data._draws import Pool

FullPass = Callable[[], Iterable[Batch]]


def depends_on_batch(model: nn.Module) -> bool:
    """Return whether an example's output depends on the other examples of its batch, in training mode."""
    return any(isinstance(part, _BatchNorm) for part in model.modules())


ROWS = 4  # batches that share one grouping of the tasks: few, so that compositions vary, but lists even out


@final
@dataclass(frozen=True)
class _Piece:
    """A batch to be: whose g is taken in it, and what each example weighs.

    Args:
        index: (B,) the blocks whose g is taken; a last, incomplete group is filled up with other tasks.
        id: (K,) the examples.
        times: (K,) how often each one comes for these blocks; inf where it only fills up the batch.
    """

    index: Tensor
    id: Tensor
    times: Tensor


@final
class ComposedPass:
    """A full pass in batches of B1 tasks with B2 samples each, positives and negatives in the loader's share.

    The examples are dealt into parts; for each part the tasks are dealt into groups of B1 anew, and the batches of a
    group hold each example of the part that its tasks need at least once. An example that comes r times weighs 1/r each
    time, so rows SUM per task to the exact mean. Every task of the group reads every example of the batch, so a pass
    costs not m n evaluations of the network but about 2.2 N m/B1 where half of the samples are positives.

    Dealt once, by the seed: every pass is the same function of the weights.

    Args:
        structure: the tasks, ``objective.blocks``; the data are tensors.
        blocks: B1 of the steps that are imitated.
        samples: B2 of those steps.
        seed: of the dealing.
    """

    def __init__(self, structure: TaskBlocks, *, blocks: int, samples: int, seed: int) -> None:
        self._structure = structure
        self._num_examples = structure.data.num_examples
        self._positives, self._negatives = structure.sizes(samples)
        self._random = torch.Generator(structure.device).manual_seed(seed)
        parts = max(1, round(self._num_examples / (0.9 * ROWS * blocks * self._negatives)))
        self._pieces: list[_Piece] = []
        for members in self._shuffled(self._num_examples).chunk(parts):
            order = self._shuffled(structure.num_blocks)
            for index in order.split(blocks):
                filling = order[: blocks - index.shape[0]]  # the last group may need some
                self._pieces += self._deal(index, torch.cat([index, filling]), members)

    @property
    def evaluations(self) -> int:
        """Examples that go through the network in one pass."""
        return sum(piece.id.numel() for piece in self._pieces)

    def __call__(self) -> Iterator[Batch]:
        structure = self._structure
        for piece in self._pieces:
            task = structure.block_task[piece.index]
            positive, negative = structure.tasks.at(task, piece.id)  # (B, K)
            worth = structure.worth(piece.id) / piece.times
            weight = positive * (worth / structure.positives.total[task].unsqueeze(1))
            weight += negative * (worth / structure.negatives.total[task].unsqueeze(1))
            x = structure.data.source.take(piece.id)
            yield Batch(x, piece.id, piece.index, structure.labels_at(piece.id), weight=weight)

    def _deal(self, index: Tensor, drawn: Tensor, members: Tensor) -> Iterator[_Piece]:
        """Deal each example of the part to one of the blocks drawn, as its positive or its negative.

        A task's positives all stand in its own list besides, so those dealt to it need no second place.
        """
        structure = self._structure
        task = structure.block_task[drawn]
        positive, negative = structure.tasks.at(task, members)  # (B, n)
        keys = torch.rand(positive.shape, generator=self._random, device=structure.device)
        given = torch.where(positive | negative, keys, -1.0).argmax(0)  # (n,)
        lists: list[Tensor] = []
        for place in range(drawn.shape[0]):
            mine = members[negative[place] & (given == place)]
            lists.append(self._or_first(members[positive[place]], structure.positives, task[place]))
            lists.append(self._or_first(mine, structure.negatives, task[place]))
        sizes = [self._positives, self._negatives] * drawn.shape[0]
        batches = max(math.ceil(ids.shape[0] / size) for ids, size in zip(lists, sizes, strict=True))
        id = torch.cat([self._cycled(ids, batches, size) for ids, size in zip(lists, sizes, strict=True)], 1)
        times = torch.full((self._num_examples,), math.inf, dtype=torch.float64, device=structure.device)
        times[members] = torch.bincount(id.flatten(), minlength=self._num_examples)[members].double()
        return (_Piece(index, row, times[row]) for row in id)

    def _or_first(self, ids: Tensor, pool: Pool, task: Tensor) -> Tensor:
        """Return the examples; where there are none, the task's first one in the whole data fills up the batch."""
        if ids.numel():
            return ids
        return pool.choice.take(task.view(1), torch.zeros(1, 1, dtype=torch.int64, device=task.device))[0]

    def _cycled(self, ids: Tensor, batches: int, size: int) -> Tensor:
        """Return the examples in a random order, over and over: (batches, size)."""
        shuffled = ids[self._shuffled(ids.shape[0])]
        return shuffled.repeat(math.ceil(batches * size / ids.shape[0]))[: batches * size].view(batches, size)

    def _shuffled(self, size: int) -> Tensor:
        return torch.randperm(size, generator=self._random, device=self._structure.device)
