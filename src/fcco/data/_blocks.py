"""Blocks: what an objective makes of the data: which blocks there are, what is drawn for them, what that counts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from fcco._support import checks
from fcco.data._batch import Batch
from fcco.data._draws import Lists, exact_dtype
from fcco.data._share import Share, is_owned_here, share_of
from fcco.data._structure import Structure


class Blocks(ABC):
    r"""m blocks over N examples; abstract.

    Weights are those of weighted means: block i's mean is :math:`\frac1{W_i} \sum_{k \in S_i} w_k v_k`, w the
    weights of the data and :math:`W_i` their sum over the block's set. What is drawn stands for all that it was drawn
    from: the estimate is unbiased whatever the sizes, and exact where everything is drawn.

    Attributes:
        data: what they are made of.
        num_blocks: m.
        device: where the draws happen.
        block_weight: (m,) float64 with mean 1, each block's share of F; None: all equal.
        block_example: (m,) the example that each block is; None: blocks are not examples.
        block_stratum: (m,) blocks of the same number stand for each other where some are missing; None: all do.
    """

    #: the fewest samples that a draw makes sense with
    least_samples: ClassVar[int] = 1

    data: Structure
    num_blocks: int
    block_weight: Tensor | None = None
    block_example: Tensor | None = None
    block_stratum: Tensor | None = None

    def __init__(self, data: Structure) -> None:
        self.data = data
        self.device = data.device

    @abstractmethod
    def draw(self, index: Tensor, samples: int, share: Share, generator: torch.Generator) -> Batch:
        """The samples for the blocks (B,), without x: same shapes whatever is drawn.

        Args:
            index: (B,) blocks of this rank.
            samples: B2.
            share: which blocks are this rank's.
            generator: on the data's device.
        """

    @abstractmethod
    def chunks(self, blocks: Tensor, size: int) -> Iterator[Batch]:
        """A pass over all data for the blocks (b,), without x; rows of weights add up to the exact mean.

        Args:
            blocks: (b,) in growing order.
            size: examples per batch, at most (twice that where blocks are examples).
        """

    @abstractmethod
    def complete(self, batch: Batch, *, all_ranks: bool = False) -> Batch:
        """A batch of ``data.batch()`` with its blocks: index, block_pos, serves and weight from the ids present.

        The examples present are taken for a uniform draw from their class (query, group, risk set). The blocks
        are this rank's, those whose own example is present and for which there is something to compare with; there
        may be none.

        Args:
            batch: the ids.
            all_ranks: take the blocks of every rank: the batch holds what all of them have.
        """

    @abstractmethod
    def batch_size_of(self, share: Share, samples: int) -> int:
        """K of a rank's batch.

        Args:
            share: B1, as this rank has its part of it.
            samples: B2.
        """

    def batch_size(self, blocks: int, samples: int) -> int:
        """K, how many examples a batch of this rank has for B1 ``blocks`` (over all ranks) and B2 ``samples``.

        Args:
            blocks: B1, over all ranks.
            samples: B2.
        """
        return self.batch_size_of(share_of(self.num_blocks, blocks), samples)

    def labels_at(self, id: Tensor) -> Tensor | None:
        """What ``batch.y`` is for the examples (K,).

        Args:
            id: positions (K,).
        """
        return self.data.labels_at(id)

    # ------------------------------------------------------------------ what the output memory asks

    def strata(self) -> tuple[Tensor, ...]:
        """The examples that count, by kind (n,) each: the output memory draws a fixed number of every kind."""
        return (self.alive().nonzero()[:, 0],)

    def positives_at(self, index: Tensor, id: Tensor) -> Tensor | None:
        """(B, K) bool: which examples are positives of the blocks' tasks; None: there are no two classes.

        Args:
            index: blocks (B,).
            id: positions (K,).
        """
        return None

    def touched(self, id: Tensor) -> Tensor | None:
        """The blocks whose means the examples (K,) enter; None: all of them, or as good as all.

        Args:
            id: positions (K,).
        """
        return None

    def check(self, share: Share, samples: int) -> None:
        """Refuse sizes that no draw makes sense with.

        Args:
            share: B1, as this rank has its part of it.
            samples: B2.
        """
        if checks.whole("samples", samples) < self.least_samples:
            raise ValueError(
                f"samples must be at least {self.least_samples} for {type(self.data).__name__}, got {samples}"
            )

    # ------------------------------------------------------------------ for subclasses

    def arange(self, size: int) -> Tensor:
        """0..size-1 on the device.

        Args:
            size: how many.
        """
        return torch.arange(size, device=self.device)

    def zeros(self, *shape: int) -> Tensor:
        """Zeros to be weights.

        Args:
            shape: of the weights.
        """
        return torch.zeros(shape, dtype=exact_dtype(self.device), device=self.device)

    def weight_at(self, id: Tensor) -> Tensor | None:
        """The data's weights of the examples; None: all 1.

        Args:
            id: positions, of any shape.
        """
        if self.data.weight is None:
            return None
        return self.data.weight[id]

    def worth(self, id: Tensor) -> Tensor:
        """The data's weights of the examples, 1 where there are none.

        Args:
            id: positions, of any shape.
        """
        weight = self.weight_at(id)
        if weight is None:
            return torch.ones(id.shape, dtype=exact_dtype(self.device), device=self.device)
        return weight

    def alive(self) -> Tensor:
        """(N,) bool: which examples have weight."""
        if self.data.weight is None:
            return torch.ones(self.data.num_examples, dtype=torch.bool, device=self.device)
        return self.data.weight > 0

    def completed(
        self, batch: Batch, index: Tensor, block_pos: Tensor | None, serves: Tensor | None, weight: Tensor
    ) -> Batch:
        """The batch with what was found, on its own device.

        Args:
            batch: as it came.
            index: its blocks (B,).
            block_pos: (B,) where each block's own example stands; None: blocks are no examples.
            serves: (B, K) bool, which example serves which block; None: all serve all.
            weight: how much each example counts.
        """
        found = replace(batch, x=None, index=index, block_pos=block_pos, serves=serves, weight=weight)
        return replace(found.to(batch.id.device), x=batch.x)


def kept(mask: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
    """The rows of each tensor (B, ...) that the mask (B,) marks."""
    return tuple(tensor[mask] for tensor in rows)


class ExampleBlocksBase(Blocks):
    """Blocks that are examples: the block's own example against others; abstract."""

    block_example: Tensor

    def mean_one(self) -> Tensor | None:
        """(m,) the weights of the blocks' own examples, scaled to mean 1."""
        weight = self.weight_at(self.block_example)  # (m,)
        if weight is None:
            return None
        return weight / weight.mean()

    def present_blocks(self, id: Tensor, all_ranks: bool) -> tuple[Tensor, Tensor]:
        """The blocks (the rank's, or all) whose own example is among ``id`` (K,), and where it stands: (B,) twice."""
        # An example that is there twice is one block still: its first place counts.
        known, inverse = id.unique(return_inverse=True)
        first = torch.full_like(known, id.shape[0]).scatter_reduce_(0, inverse, self.arange(id.shape[0]), "amin")
        of_example = self._blocks_of_examples()
        count = of_example.count[known]  # of several tasks an example may be several blocks
        row = self.arange(known.shape[0]).repeat_interleave(count)
        offset = self.arange(row.shape[0]) - (count.cumsum(0) - count)[row]
        index = of_example.flat[of_example.start[known][row] + offset]
        index, order = index.sort()
        position = first[row][order]
        if all_ranks:
            return index, position
        mine = is_owned_here(index)
        return index[mine], position[mine]

    def with_own_weight(self, weight: Tensor, index: Tensor, position: Tensor, total: Tensor) -> Tensor:
        """Weights (B, K) in which each block's own example counts w / W: it is there for certain, and stands for none.

        Args:
            weight: (B, K) of the others.
            index: (B,) the blocks.
            position: (B,) where each block's own example stands.
            total: (B,) W, what the weights of each block's mean add up to.
        """
        own_weight = self.worth(self.block_example[index]) / total  # (B,)
        return weight.scatter(1, position.unsqueeze(1), own_weight.unsqueeze(1))

    def _blocks_of_examples(self) -> Lists:
        """For each example the blocks that it is."""
        if not hasattr(self, "_found"):  # people's own batches alone need it
            self._found = Lists.by_label(self.block_example, self.data.num_examples)
        return self._found

    def cross(
        self, blocks: Tensor, samples: Tensor, size: int, weigh: Callable[[Tensor, Tensor], Tensor]
    ) -> Iterator[Batch]:
        """A full pass: chunks of blocks against chunks of samples.

        Args:
            weigh: how much samples (S,) count for blocks (B,): (B, S), rows of which add up to 1 over all samples.
        """
        for some in samples.split(size):
            for index in blocks.split(size):
                weight = weigh(index, some)
                present = (weight != 0).any(1)  # else a row of log g would be -inf
                if bool(present.any()):
                    yield self._joined(index[present], some, weight[present])

    def _joined(self, index: Tensor, samples: Tensor, weight: Tensor) -> Batch:
        """The blocks' own examples and the samples (S,), each once, with weights (B, S) of the samples."""
        own = self.block_example[index]
        # A pass is no step: its shapes may vary, and an example that is scored once costs half.
        id, place = torch.cat([own, samples]).unique(return_inverse=True)
        block_pos, at = place.split([own.shape[0], samples.shape[0]])
        spread_out = weight.new_zeros(index.shape[0], id.shape[0]).index_add_(1, at, weight)  # (B, K)
        return Batch(None, id, index, self.labels_at(id), block_pos, weight=spread_out)


class SlotBlocks(ExampleBlocksBase):
    """Blocks (group, example) where a batch has several groups: samples of each group met, shared by its blocks."""

    def slots(self, group: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """The groups met (number,), each once, and which of them each block (B,) has.

        Shapes depend on nothing that is drawn: where fewer groups are met, the places left repeat one of them, and no
        block refers to them.

        Args:
            group: (B,) the group of each block.
            number: how many there can be at most.
        """
        ordered, order = group.sort(stable=True)  # (B,)
        fresh = torch.ones_like(ordered)  # 1 where a group is met for the first time
        fresh[1:] = (ordered[1:] != ordered[:-1]).to(fresh.dtype)
        slot_of_ordered = fresh.cumsum(0) - 1  # (B,)
        met = ordered[:1].repeat(number).scatter_(0, slot_of_ordered, ordered)
        slot = torch.empty_like(slot_of_ordered).scatter_(0, order, slot_of_ordered)
        return met, slot

    def into_slots(self, weight: Tensor, slot: Tensor, number: int) -> Tensor:
        """(B, number * size) from weights (B, size) for the block's own slot (B,): 0 in the other slots."""
        blocks, size = weight.shape
        wide = weight.new_zeros(blocks, number, size)  # a block sees its own slot alone
        wide[self.arange(blocks), slot] = weight
        return wide.flatten(1)
