"""ExampleLoader: every example is a block, and a sample of the others: contrastive losses, NCA."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Unpack, final

import torch
from torch import Tensor

from fcco.sampling import labels as check
from fcco.sampling.batch import Batch
from fcco.sampling.loader import Loader, Options


@final
class ExampleLoader(Loader):
    """Blocks are all N examples: B of them a step, everyone else in the batch is a sample.

    ``index`` holds positions in the data set and equals ``batch.id[batch.anchor]``. The mean in g_i runs over the N - 1
    others: an objective leaves the block's own example out, told by ``batch.id``. ``batch.weight`` is None with one
    rank (the plain mean over the others present is unbiased). With several, a rank draws as many examples of other
    ranks' blocks as it draws of its own, and ``weight`` (K,) lets both stand for all they were drawn from.

    ``full_pass`` sets chunks of blocks against chunks of samples: ``weight`` (B, K) is 1/(N - 1), 0 for the block's own
    example and for those that are there as other blocks' own. Its cost is of the order of N * N / chunk examples.

    Args:
        dataset: see :class:`fcco.sampling.Loader`; two views or modalities: a tuple of tensors, or ``inputs=2``.
        blocks_per_step: B over all ranks, at least 2 a rank.
        labels: (N, ...) what ``batch.y`` holds; None: nothing.
        options: see :class:`fcco.sampling.Options`.

    Example:
        >>> loader = ExampleLoader((torch.randn(9, 4), torch.randn(9, 2)), blocks_per_step=3, seed=0)
        >>> index, batch = next(iter(loader))
        >>> bool((index == batch.id).all()), [part.shape for part in batch.x]
        (True, [torch.Size([3, 4]), torch.Size([3, 2])])
    """

    def __init__(self, dataset: Any, blocks_per_step: int, *, labels: Any = None, **options: Unpack[Options]) -> None:
        super().__init__(dataset, options)
        self.labels = check.optional("labels", labels, self.num_examples, self.device)
        if self.num_examples < 2:
            raise ValueError(f"dataset must hold at least two examples, got {self.num_examples}")
        self._start(self.num_examples, blocks_per_step, blocks_per_step)
        self._share.refuse_alone()
        self.block_example = self._arange(self.num_examples)

    def _labels_at(self, id: Tensor) -> Tensor | None:
        return None if self.labels is None else self.labels[id]

    def _draw(self, index: Tensor, generator: torch.Generator) -> Batch:
        foreign = self._share.draw_foreign(self._share.foreign_size, generator)
        id, anchor = torch.cat([index, foreign]), self._arange(index.shape[0])
        if not foreign.numel():
            return Batch(None, id, self._labels_at(id), anchor)
        own, other = self._share.worth(foreign.shape[0])
        weight = torch.cat([self._ones(index.shape[0]) * own, self._ones(foreign.shape[0]) * other])
        return Batch(None, id, self._labels_at(id), anchor, weight=weight / (self.num_examples - 1))

    def _chunks(self, blocks: Tensor, size: int) -> Iterator[tuple[Tensor, Batch]]:
        def weigh(index: Tensor, samples: Tensor) -> Tensor:
            return (samples != index.unsqueeze(1)) * (self._ones() / (self.num_examples - 1))

        return self._cross(blocks, self.block_example, size, weigh)
