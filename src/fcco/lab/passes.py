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

from fcco.sampling.batch import Batch
from fcco.sampling.tasks import BlockLoader


def depends_on_company(model: nn.Module) -> bool:
    """Whether an example's output depends on the other examples of its batch, in training mode."""
    return any(isinstance(part, _BatchNorm) for part in model.modules())


@final
@dataclass(frozen=True)
class _Group:
    """Tasks that are drawn together: T batches of K examples that hold every example these tasks need.

    Args:
        tasks: (B,) those whose g is taken here; a last, incomplete group has company from others.
        id: (T, K) the examples.
        times: (N,) how often each occurs.
    """

    tasks: Tensor
    id: Tensor
    times: Tensor


@final
class ComposedPass:
    """A full pass in batches of B1 tasks with B2 samples each, positives and negatives in the loader's share.

    The tasks are dealt into groups of B1, once. A group's batches hold each example that its tasks need at least
    once; an example that occurs r times weighs 1/r each time, so rows SUM per task to the exact mean. Every task of the
    group looks at every example of the batch, so a pass costs about N B2/(negatives a task) evaluations of the
    network a group, not m n: 4 N for ten tasks, five a step, half of the samples positives.

    Args:
        loader: whose batches are imitated; its data are tensors.
        x: (N, ...) its examples.
        seed: of the dealing.
    """

    def __init__(self, loader: BlockLoader, x: Tensor, seed: int) -> None:
        self._loader, self._x = loader, x
        generator = torch.Generator(loader.device).manual_seed(seed)
        m, size = loader.num_blocks, loader.blocks_per_step
        order = torch.randperm(m, generator=generator, device=loader.device)
        self._groups = []
        for tasks in order.split(size):
            company = order[: size - tasks.shape[0]]  # the last group may need some
            self._groups.append(self._deal(tasks, torch.cat([tasks, company]), generator))

    @property
    def evaluations(self) -> int:
        """Examples that go through the network in one pass."""
        return sum(group.id.numel() for group in self._groups)

    def __call__(self) -> Iterator[tuple[Tensor, Batch]]:
        for group in self._groups:
            for id in group.id:
                weight = self._weight(group, id)
                yield group.tasks, Batch(self._x[id], id, self._loader.labels[id], weight=weight)

    def _weight(self, group: _Group, id: Tensor) -> Tensor:
        tasks = self._loader.tasks
        positive, negative = tasks.at(group.tasks, id)  # (B, K)
        one = torch.ones((), dtype=torch.float64, device=id.device)
        share_positive = (one / tasks.positive.count[group.tasks]).unsqueeze(1)
        share_negative = (one / tasks.negative.count[group.tasks]).unsqueeze(1)
        return (positive * share_positive + negative * share_negative) / group.times[id]

    def _deal(self, tasks: Tensor, drawn: Tensor, generator: torch.Generator) -> _Group:
        """Each example that is a negative of some drawn task goes to one of those; positives go to their own."""
        loader, total = self._loader, self._loader.num_examples
        everything = torch.arange(total, device=loader.device)
        positive, negative = loader.tasks.at(drawn, everything)  # (B, N)
        keys = torch.rand(negative.shape, generator=generator, device=loader.device)
        given = torch.where(negative, keys, -1.0).argmax(0)  # (N,)
        lists = []
        for place in range(drawn.shape[0]):
            mine = (negative[place] & (given == place)).nonzero()[:, 0]
            mine = mine if mine.numel() else negative[place].nonzero()[:, 0]
            lists.append((positive[place].nonzero()[:, 0], loader.positives_per_block))
            lists.append((mine, loader.negatives_per_block))
        batches = max(math.ceil(ids.shape[0] / size) for ids, size in lists)
        id = torch.cat([_cycled(ids, batches, size, generator) for ids, size in lists], 1)
        return _Group(tasks, id, torch.bincount(id.flatten(), minlength=total))


def _cycled(ids: Tensor, batches: int, size: int, generator: torch.Generator) -> Tensor:
    """(batches, size): the examples in a random order, over and over."""
    shuffled = ids[torch.randperm(ids.shape[0], generator=generator, device=ids.device)]
    return shuffled.repeat(math.ceil(batches * size / ids.shape[0]))[: batches * size].view(batches, size)
