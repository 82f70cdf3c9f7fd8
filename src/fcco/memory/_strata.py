"""Strata: the kinds of examples of which a fixed number is drawn per step."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from fcco.data import Blocks
from fcco.memory._table import OutputTable


@final
class Strata:
    """The two classes where the data have one label, else all examples together.

    Args:
        blocks: of the objective.
        device: where the table is.

    Attributes:
        members: a tensor (n,) of example ids per stratum, on the table's device; ``on_cpu``: there.
        mask: (S, N) bool, which examples are in which.
        counted: (N,) bool, which are in any.
    """

    def __init__(self, blocks: Blocks, device: torch.device) -> None:
        found = blocks.strata()
        self.members = [ids.to(device) for ids in found]
        self.on_cpu = [ids.cpu() for ids in found]
        self.mask = torch.zeros(len(found), blocks.data.num_examples, dtype=torch.bool, device=device)
        for mask, ids in zip(self.mask, self.members, strict=True):
            mask[ids] = True
        self.counted = self.mask.any(0)  # (N,)
        self._chance = 1.0 / self.mask.sum(1).double()  # (S,) of each member, in a uniform draw

    def __len__(self) -> int:
        return len(self.members)

    @property
    def sizes(self) -> list[int]:
        """How many examples each has."""
        return [int(ids.shape[0]) for ids in self.on_cpu]

    def count(self, id: Tensor) -> tuple[int, ...] | None:
        """How many of the examples (K,) are of each stratum, a device waits; None: there is one."""
        if len(self) == 1:
            return None
        return tuple(self.mask[:, id].sum(1).tolist())

    def shares_seen(self, table: OutputTable) -> Tensor:
        """(S,) the share of each stratum that has an entry in the table."""
        return torch.stack([table.seen_at(ids).double().mean() for ids in self.members])

    def uniform(self, id: Tensor) -> tuple[Tensor, Tensor]:
        """q (K,) and 1/B (K,) of examples from the user's own loader: taken for uniform draws from their strata.

        Those in no stratum count nothing.
        """
        inside = self.mask[:, id].double()  # (S, K)
        drawn = inside.sum(1).clamp(min=1.0)  # (S,)
        outside = ~self.counted[id]  # (K,)
        probability = (self._chance @ inside).masked_fill(outside, 1.0)
        return probability, (1.0 / drawn) @ inside
