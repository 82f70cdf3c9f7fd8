"""Examples, and ExampleBlocks: every example is a block, compared with all others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from fcco.data._batch import Batch
from fcco.data._blocks import ExampleBlocksBase, kept
from fcco.data._draws import choose_one, spread
from fcco.data._labels import values_of
from fcco.data._share import Share
from fcco.data._structure import Structure


@final
class Examples(Structure):
    """Examples, each compared with all others (:class:`fcco.objectives.GlobalContrastive`, NCA).

    Args:
        x: see :class:`Structure`; two views or modalities: a tuple of tensors, or ``inputs=2`` with a data set.
        y: (N, ...) the class of each, where the objective needs it; None: nothing.
        weight: (N,) how much each example counts. None: equally. An example is never compared with itself, however
            much it weighs (so here weight 2 is not quite two copies: those would be compared with each other).
        inputs: the number of leading parts of a data set's items that make up x.

    Attributes:
        y: (N, ...) or None; strings become class numbers.

    Example:
        >>> Examples((torch.randn(9, 4), torch.randn(9, 2)))
        Examples(9 examples on cpu)
    """

    per_example: ClassVar[tuple[str, ...]] = ("weight", "y")

    def __init__(self, x: Any, y: Any = None, *, weight: Any = None, inputs: int = 1) -> None:
        super().__init__(x, weight, inputs)
        self.y: Tensor | None = None
        if y is not None:
            self.y = values_of("y", y, self.num_examples, self.device).y

    def labels_at(self, id: Tensor) -> Tensor | None:
        if self.y is None:
            return None
        return self.y[id]

    def _split_units(self) -> tuple[Tensor, Tensor]:
        unit = torch.arange(self.num_examples, device=self.device)
        if self.y is None or self.y.dim() != 1 or self.y.is_floating_point():
            return unit, torch.zeros_like(unit)
        return unit, self.y.to(torch.int64)


@final
class ExampleBlocks(ExampleBlocksBase):
    """Blocks are all N examples, ``index`` holds positions: B1 of them and ``samples`` more, all compared.

    The mean of a block runs over the N - 1 others. K = B1 + B2; B2 may be 0: the other blocks of the batch are samples
    too. ``weight`` (B, K) is 0 for the block's own example. With several ranks a rank's further examples are those of
    other ranks' blocks, B2 more of them than it has blocks, and both kinds stand for all that they were drawn from.

    ``chunks`` sets chunks of blocks against chunks of samples; its cost is of the order of N * N / size examples.

    Attributes:
        block_example: (m,) 0..N-1.
        total: (m,) float64, what the weights of the others add up to.
        data: whose blocks these are.
    """

    least_samples: ClassVar[int] = 0

    def __init__(self, data: Examples) -> None:
        super().__init__(data)
        self.num_blocks = data.num_examples
        if int(self.alive().sum()) < 2:
            raise ValueError(f"x must hold at least two examples (of weight > 0), got {int(self.alive().sum())}")
        self.block_example = self.arange(self.num_blocks)
        worth = self.worth(self.block_example)
        self.total = worth.sum() - worth  # a block's own example is not in its mean
        self.block_weight = self.mean_one()

    def check(self, share: Share, samples: int) -> None:
        super().check(share, samples)
        further, _ = self._further(share, samples)
        if share.size + further == 1 and share.owned > 1:
            raise ValueError(
                f"blocks must be at least {2 * share.world} (2 per rank) if samples is 0, got {share.world}"
            )

    def batch_size_of(self, share: Share, samples: int) -> int:
        return share.size + sum(self._further(share, samples))

    def _further(self, share: Share, samples: int) -> tuple[int, int]:
        """How many samples besides the blocks are of this rank's examples, and of others'."""
        # With several ranks the blocks' own others are this rank's alone, so the rest must come from the others.
        if share.world == 1:
            return min(samples, share.owned - share.size), 0
        return 0, min(share.size + samples, share.foreign)

    def draw(self, index: Tensor, samples: int, share: Share, generator: torch.Generator) -> Batch:
        blocks = index.shape[0]
        near, far = self._further(share, samples)
        further = self._others_of(index, near, generator)
        foreign = share.draw_foreign(far, generator)
        id = torch.cat([index, further, foreign])  # (K,)
        scale = self.zeros(id.shape[0])  # how many others each stands for
        if blocks + near > 1:
            scale[: blocks + near] = (share.owned - 1) / (blocks + near - 1)
        if far:
            scale[blocks + near :] = share.foreign / far
        weight = (self.worth(id) * scale) / self.total[index].unsqueeze(1)  # (B, K)
        block_pos = self.arange(blocks)
        weight.diagonal().zero_()
        return Batch(None, id, index, self.labels_at(id), block_pos, weight=weight)

    def _others_of(self, index: Tensor, size: int, generator: torch.Generator) -> Tensor:
        """``size`` examples (of one rank) that are not among ``index`` (B,): uniform, without replacement."""
        place = choose_one(self.num_blocks - index.shape[0], size, generator)
        gaps = index.sort().values - self.arange(index.shape[0])  # how many of the others are below each of them
        return place + torch.searchsorted(gaps, place, right=True)

    def chunks(self, blocks: Tensor, size: int) -> Iterator[Batch]:
        def weigh(index: Tensor, samples: Tensor) -> Tensor:
            return (samples != index.unsqueeze(1)) * (self.worth(samples) / self.total[index].unsqueeze(1))

        return self.cross(blocks, self.block_example, size, weigh)

    def complete(self, batch: Batch, *, all_ranks: bool = False) -> Batch:
        id = batch.id.to(self.device)
        index, position = self.present_blocks(id, all_ranks)
        member = id != index.unsqueeze(1)  # (B, K)
        enough = member.any(1)
        index, position, member = kept(enough, index, position, member)
        count = torch.full_like(index, self.num_blocks - 1)
        weight = spread(member, count, self.total[index], self.weight_at(id))
        return self.completed(batch, index, position, None, weight)
