"""Full passes whose batches are composed as in training, for models with BatchNorm.

In training mode BatchNorm makes g_i(w; xi) depend on the batch's company. A step's batch over-represents the classes of
the tasks drawn (half of a task's samples are its positives), so a pass in plain chunks of the data would normalise
by other statistics, and v3's anchor would track another function than its steps do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fcco.sampling import Batch, BlockLoader
from fcco.sampling.draws import Choice


def depends_on_company(model: nn.Module) -> bool:
    """Whether an example's output depends on the other examples of its batch, in training mode."""
    return any(isinstance(part, _BatchNorm) for part in model.modules())


ROWS = 4  # batches that share one grouping of the tasks: few, so that the company changes, but lists even out


@final
@dataclass(frozen=True)
class _Piece:
    """A batch to be: whose g is taken in it, and what each example weighs.

    Args:
        tasks: (B,) whose g is taken; a last, incomplete group has company from other tasks.
        id: (K,) the examples.
        times: (K,) how often each one comes for these tasks; inf where it is company only.
    """

    tasks: Tensor
    id: Tensor
    times: Tensor


@final
class ComposedPass:
    """A full pass in batches of B1 tasks with B2 samples each, positives and negatives in the loader's share.

    The examples are dealt into parts; for each part the tasks are dealt into groups of B1 anew, and the batches of a
    group hold each example of the part that its tasks need at least once. An example that comes r times weighs 1/r each
    time, so rows SUM per task to the exact mean. Every task of the group looks at every example of the batch, so a pass
    costs not m n evaluations of the network but about 2.2 N m/B1 where half of the samples are positives.

    Dealt once, by the seed: every pass is the same function of the weights.

    Args:
        loader: whose batches are imitated; its data are tensors.
        x: (N, ...) its examples.
        seed: of the dealing.
    """

    def __init__(self, loader: BlockLoader, x: Tensor, seed: int) -> None:
        self._loader, self._x = loader, x
        self._random = torch.Generator(loader.device).manual_seed(seed)
        size, together = loader.blocks_per_step, loader.blocks_per_step * loader.negatives_per_block
        parts = max(1, round(loader.num_examples / (0.9 * ROWS * together)))
        self._pieces: list[_Piece] = []
        for members in self._shuffled(loader.num_examples).chunk(parts):
            order = self._shuffled(loader.num_blocks)
            for tasks in order.split(size):
                company = order[: size - tasks.shape[0]]  # the last group may need some
                self._pieces += self._deal(tasks, torch.cat([tasks, company]), members)

    @property
    def evaluations(self) -> int:
        """Examples that go through the network in one pass."""
        return sum(piece.id.numel() for piece in self._pieces)

    def __call__(self) -> Iterator[tuple[Tensor, Batch]]:
        tasks = self._loader.tasks
        for piece in self._pieces:
            positive, negative = tasks.at(piece.tasks, piece.id)  # (B, K)
            share_positive = (1 / tasks.positive.count[piece.tasks].double()).unsqueeze(1)
            share_negative = (1 / tasks.negative.count[piece.tasks].double()).unsqueeze(1)
            weight = (positive * share_positive + negative * share_negative) / piece.times
            id = piece.id
            yield piece.tasks, Batch(self._x[id], id, self._loader.labels[id], weight=weight)

    def _deal(self, tasks: Tensor, drawn: Tensor, members: Tensor) -> Iterator[_Piece]:
        """Each example of the part goes to one of the tasks drawn, as its positive or its negative.

        A task's positives all stand in its own list besides, so those dealt to it need no second place.
        """
        loader = self._loader
        positive, negative = loader.tasks.at(drawn, members)  # (B, n)
        keys = torch.rand(positive.shape, generator=self._random, device=loader.device)
        given = torch.where(positive | negative, keys, -1.0).argmax(0)  # (n,)
        lists = []
        for place, task in enumerate(drawn):
            mine = members[negative[place] & (given == place)]
            lists.append(self._or_any(members[positive[place]], loader.tasks.positive, task))
            lists.append(self._or_any(mine, loader.tasks.negative, task))
        sizes = [loader.positives_per_block, loader.negatives_per_block] * drawn.shape[0]
        batches = max(math.ceil(ids.shape[0] / size) for ids, size in zip(lists, sizes, strict=True))
        id = torch.cat([self._cycled(ids, batches, size) for ids, size in zip(lists, sizes, strict=True)], 1)
        times = torch.full((loader.num_examples,), math.inf, dtype=torch.float64, device=loader.device)
        times[members] = torch.bincount(id.flatten(), minlength=loader.num_examples)[members].double()
        return (_Piece(tasks, row, times[row]) for row in id)

    def _or_any(self, ids: Tensor, choice: Choice, task: Tensor) -> Tensor:
        """The examples, or where there are none one from the whole data, as company."""
        return ids if ids.numel() else choice.take(task.view(1), torch.zeros(1, 1, dtype=torch.int64).to(task))[0]

    def _cycled(self, ids: Tensor, batches: int, size: int) -> Tensor:
        """(batches, size): the examples in a random order, over and over."""
        shuffled = ids[self._shuffled(ids.shape[0])]
        return shuffled.repeat(math.ceil(batches * size / ids.shape[0]))[: batches * size].view(batches, size)

    def _shuffled(self, size: int) -> Tensor:
        return torch.randperm(size, generator=self._random, device=self._loader.device)
