"""What loaders share whose blocks are examples within a group: (task, positive) and (query, item) pairs."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fcco.sampling.batch import Batch
from fcco.sampling.draws import Choice, choose, join
from fcco.sampling.loader import Loader


@final
@dataclass(frozen=True)
class Stratum:
    """A part of what a block's mean runs over.

    Args:
        choice: its members, a list a group.
        size: how many of them are drawn for a group (all of them where it has fewer).
        own: whether the block's own example is one of them.
    """

    choice: Choice
    size: int
    own: bool


class PairLoader(Loader):
    r"""Blocks (group, example), drawn uniformly; for each group met, samples that its blocks share; abstract.

    The mean of block i runs over all members of its group's strata, n of them. Its own example counts 1/n, what it
    is worth there, wherever it belongs to a stratum; of a stratum with c members besides it, the d that were drawn
    count :math:`c/(n d)` each: unbiased whatever the sizes, and exact where everything is drawn.

    Subclasses set ``block_group`` (m,), ``block_example`` (m,) and ``_strata``.
    """

    block_group: Tensor
    _strata: tuple[Stratum, ...]

    @abstractmethod
    def _labels_at(self, id: Tensor) -> Tensor: ...

    def _draw(self, index: Tensor, generator: torch.Generator) -> Batch:
        group, place = self.block_group[index].unique(return_inverse=True)  # (T,), (B,)
        drawn = [self._members(stratum, group, generator) for stratum in self._strata]
        id, anchor, where = join(self.block_example[index], torch.cat([sample for _, sample in drawn]))
        total = sum((stratum.choice.count[group] for stratum in self._strata), torch.zeros_like(group))
        weight = self._ones(index.shape[0], id.shape[0]) * 0.0
        for stratum, (row, _), at in zip(
            self._strata, drawn, where.split([row.shape[0] for row, _ in drawn]), strict=True
        ):
            mask = torch.zeros(group.shape[0], id.shape[0], dtype=torch.bool, device=id.device)
            mask[row, at] = True
            weight += self._spread(stratum, mask[place], anchor, stratum.choice.count[group][place])
        return Batch(None, id, self._labels_at(id), anchor, weight=weight / total[place].unsqueeze(1))

    def _members(self, stratum: Stratum, group: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """What is drawn of a stratum: the place (S,) of the group in ``group``, and the example (S,)."""
        count = stratum.choice.count[group]
        place = choose(count, stratum.size, generator)
        valid = self._arange(stratum.size) < count.unsqueeze(1)
        row = self._arange(group.shape[0]).unsqueeze(1).expand_as(place)[valid]
        return row, stratum.choice.take(group, torch.where(valid, place, 0))[valid]

    def _spread(self, stratum: Stratum, drawn: Tensor, anchor: Tensor, count: Tensor) -> Tensor:
        """How much the drawn members (B, K) count in a SUM over the stratum's ``count`` (B,) members."""
        one, at = self._ones(), anchor.unsqueeze(1)
        if stratum.own:
            drawn, count = drawn.scatter(1, at, False), count - 1
        weight = drawn * (one * count / drawn.sum(1).clamp(min=1)).unsqueeze(1)
        return weight.scatter(1, at, 1.0) if stratum.own else weight
