"""Which blocks: B1 of m, uniformly, without replacement, afresh each step; each rank draws its own only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from fcco._support import checks
from fcco._support.parallel import gather_objects, owned_blocks, rank_and_world


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
@dataclass(frozen=True)
class Share:
    """A rank's share: of m blocks it owns those with i mod world = rank, and draws ``size`` of them a step.

    Example:
        >>> share = Share(num_blocks=7, rank=1, world=3, size=2)
        >>> share.owned, share.blocks(torch.device("cpu"))
        (2, tensor([1, 4]))
    """

    num_blocks: int
    rank: int
    world: int
    size: int

    @property
    def owned(self) -> int:
        """How many blocks the rank owns."""
        return len(range(self.rank, self.num_blocks, self.world))

    def blocks(self, device: torch.device) -> Tensor:
        """All blocks that the rank owns (owned,)."""
        return owned_blocks(self.num_blocks, self.rank, self.world).to(device)

    def draw(self, generator: torch.Generator) -> Tensor:
        """A step's blocks (size,), of the rank's own."""
        return draw_blocks(self.owned, self.size, generator) * self.world + self.rank

    @property
    def foreign_size(self) -> int:
        """How many foreign examples a step takes as samples: as many as it has of its own, none with one rank."""
        return min(self.size, self.num_blocks - self.owned)

    def worth(self, foreign: int) -> tuple[float, float]:
        """How many examples each other own one of a step stands for, and each of the ``foreign`` ones.

        Seen from one block of a step, where blocks are examples: owned - 1 others are the rank's, of which size - 1
        were drawn with it.
        """
        own = (self.owned - 1) / (self.size - 1) if self.size > 1 else 0.0
        return own, (self.num_blocks - self.owned) / foreign if foreign else 0.0

    def refuse_alone(self) -> None:
        """Raise where a block would be drawn without any other of the rank that could stand for the rest."""
        if self.size == 1 and self.owned > 1:
            raise ValueError(f"blocks_per_step must be at least {2 * self.world} (2 a rank), got {self.world}")

    def draw_foreign(self, size: int, generator: torch.Generator) -> Tensor:
        """``size`` blocks that other ranks own: uniform, without replacement."""
        if size == 0:
            return torch.empty(0, dtype=torch.int64, device=generator.device)
        place = draw_blocks(self.num_blocks - self.owned, size, generator)
        around = self.world - 1  # foreign blocks a turn of the ranks
        residue = place % around
        return place // around * self.world + residue + (residue >= self.rank)


def share_of(num_blocks: int, blocks_per_step: int) -> Share:
    """This rank's share of B1 blocks a step; refused where the ranks cannot share them evenly."""
    checks.positive_int("num_blocks", num_blocks)
    checks.positive_int("blocks_per_step", blocks_per_step)
    if blocks_per_step > num_blocks:
        raise ValueError(f"blocks_per_step must be at most {num_blocks} blocks, got {blocks_per_step}")
    rank, world = rank_and_world()
    if blocks_per_step % world:
        raise ValueError(f"blocks_per_step must be a multiple of the {world} ranks, got {blocks_per_step}")
    share = Share(num_blocks, rank, world, blocks_per_step // world)
    if share.size > share.owned:
        raise ValueError(f"rank {rank} owns {share.owned} blocks, fewer than its share of a step")
    return share


def rank_seed(seed: int, rank: int) -> int:
    """The seed of a rank's own generator."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be an int, got {seed!r} of type {type(seed).__name__}")
    return (seed * 1_000_003 + rank) % 2**63


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
        self._share = share_of(num_blocks, blocks_per_step)
        self.num_blocks, self.blocks_per_step = num_blocks, blocks_per_step
        self._generator = torch.Generator().manual_seed(rank_seed(seed, self._share.rank))

    def __iter__(self) -> Iterator[Tensor]:
        return self

    def __next__(self) -> Tensor:
        return self._share.draw(self._generator)

    def state_dict(self) -> dict[str, Any]:
        """The generators' states over all ranks (each rank must call this)."""
        return {"random": gather_objects(self._generator.get_state())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; on more ranks than were saved, the new ones start from their own seeds."""
        if self._share.rank < len(state["random"]):
            self._generator.set_state(state["random"][self._share.rank])
