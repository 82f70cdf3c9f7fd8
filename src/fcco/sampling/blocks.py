"""Which blocks: B1 of m, uniformly, without replacement, afresh each step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor

from fcco import _checks
from fcco.blocks import rank_and_world


def draw_blocks(num_blocks: int, size: int, generator: torch.Generator) -> Tensor:
    """A uniform subset of {0..m-1} (size,), at a cost free of m where it is small against m.

    Example:
        >>> len(draw_blocks(10**7, 5, torch.Generator().manual_seed(0)).unique())
        5
    """
    if 4 * size > num_blocks:
        return torch.randperm(num_blocks, generator=generator, device=generator.device)[:size]
    drawn = torch.empty(0, dtype=torch.int64, device=generator.device)
    while drawn.numel() < size:  # never more than are missing, so that no order can favour a block
        missing = (size - drawn.numel(),)
        more = torch.randint(num_blocks, missing, generator=generator, device=generator.device)
        drawn = torch.cat([drawn, more]).unique()
    return drawn


@final
class BlockSampler:
    """Draws blocks for ever: each ``next`` gives (B1,) blocks of this rank.

    Blocks are drawn afresh each step: reshuffling by epochs would make B_t depend on u_{t-1}.

    Args:
        num_blocks: m over all ranks.
        blocks_per_step: B1 over all ranks; it must divide evenly among them.
        seed: of the sampler's own generator (each rank derives its own).

    Example:
        >>> sampler = BlockSampler(num_blocks=6, blocks_per_step=2, seed=0)
        >>> next(sampler).shape
        torch.Size([2])
    """

    def __init__(self, num_blocks: int, blocks_per_step: int, seed: int = 0) -> None:
        self.num_blocks = _checks.positive_int("num_blocks", num_blocks)
        self.blocks_per_step = _checks.positive_int("blocks_per_step", blocks_per_step)
        if blocks_per_step > num_blocks:
            raise ValueError(f"blocks_per_step must be at most {num_blocks} blocks, got {blocks_per_step}")
        self._rank, self._world = rank_and_world()
        if blocks_per_step % self._world:
            raise ValueError(
                f"blocks_per_step must be a multiple of the {self._world} ranks, got {blocks_per_step}"
            )
        self._owned = len(range(self._rank, num_blocks, self._world))
        if blocks_per_step // self._world > self._owned:
            raise ValueError(f"rank {self._rank} owns {self._owned} blocks, fewer than its share of a step")
        self._generator = torch.Generator().manual_seed(seed * 1_000_003 + self._rank)

    def __iter__(self) -> Iterator[Tensor]:
        return self

    def __next__(self) -> Tensor:
        local = draw_blocks(self._owned, self.blocks_per_step // self._world, self._generator)
        return local * self._world + self._rank

    def state_dict(self) -> dict[str, Any]:
        """The generator's state."""
        return {"random": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._generator.set_state(state["random"])
