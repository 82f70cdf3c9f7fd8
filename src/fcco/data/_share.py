"""Which blocks: B1 of m, uniformly, without replacement, afresh each step; each rank draws only its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from fcco._support import checks
from fcco._support.parallel import gather_objects, owned_blocks, rank_and_world
from fcco.data._draws import choose_one


@final
@dataclass(frozen=True)
class Share:
    """A rank's share: of m blocks it owns those with i mod world = rank, and draws ``size`` of them per step.

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

    @property
    def foreign(self) -> int:
        """How many blocks other ranks own."""
        return self.num_blocks - self.owned

    def blocks(self, device: torch.device) -> Tensor:
        """All blocks that the rank owns (owned,)."""
        return owned_blocks(self.num_blocks, self.rank, self.world).to(device)

    def draw(self, generator: torch.Generator, more: int = 0) -> Tensor:
        """A step's blocks (size + more,), of the rank's own."""
        return choose_one(self.owned, self.size + more, generator) * self.world + self.rank

    def draw_foreign(self, size: int, generator: torch.Generator) -> Tensor:
        """``size`` blocks that other ranks own: uniform, without replacement."""
        place = choose_one(self.foreign, size, generator)  # among the foreign ones, counted in their order
        if size == 0:
            return place
        around = self.world - 1  # foreign blocks per turn of the ranks
        residue = place % around
        return torch.div(place, around, rounding_mode="floor") * self.world + residue + (residue >= self.rank)


def share_of(num_blocks: int, blocks: int) -> Share:
    """This rank's share of B1 blocks per step; refused where the ranks cannot share them evenly."""
    num_blocks = checks.positive_int("num_blocks", num_blocks)
    blocks = checks.positive_int("blocks", blocks)
    if blocks > num_blocks:
        raise ValueError(f"blocks must be at most {num_blocks}, the number of blocks, got {blocks}")
    rank, world = rank_and_world()
    if blocks % world:
        raise ValueError(f"blocks must be a multiple of the {world} ranks, got {blocks}")
    return Share(num_blocks, rank, world, blocks // world)


def owned_here(num_blocks: int, device: torch.device) -> Tensor:
    """All blocks that this rank owns, in growing order."""
    rank, world = rank_and_world()
    return owned_blocks(num_blocks, rank, world).to(device)


def is_owned_here(index: Tensor) -> Tensor:
    """(B,) bool: which of the blocks (B,) are this rank's."""
    rank, world = rank_and_world()
    return index % world == rank


def rank_seed(seed: int, rank: int) -> int:
    """The seed of a rank's own generator."""
    return (checks.whole("seed", seed) * 1_000_003 + rank) % 2**63


@final
class BlockSampler:
    """An endless stream of blocks: each ``next`` draws (B1,) blocks of this rank.

    Blocks are drawn afresh each step: reshuffling by epochs would make B_t depend on u_{t-1}.

    Args:
        num_blocks: m over all ranks.
        blocks: B1 over all ranks; it must divide evenly among them.
        seed: of the sampler's own generator (each rank derives its own).

    Example:
        >>> sampler = BlockSampler(num_blocks=6, blocks=2, seed=0)
        >>> next(sampler).shape
        torch.Size([2])
    """

    def __init__(self, num_blocks: int, blocks: int, seed: int = 0) -> None:
        self._share = share_of(num_blocks, blocks)
        self.num_blocks = num_blocks
        self.blocks = blocks
        self._generator = torch.Generator().manual_seed(rank_seed(seed, self._share.rank))

    def __iter__(self) -> Iterator[Tensor]:
        return self

    def __next__(self) -> Tensor:
        return self._share.draw(self._generator)

    def state_dict(self) -> dict[str, Any]:
        """The generators' states over all ranks (each rank must call this)."""
        return {"kind": self._kind(), "random": gather_objects(self._generator.get_state())}

    def _kind(self) -> dict[str, int]:
        return {"num_blocks": self.num_blocks, "blocks": self.blocks}

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Refuse the state of a sampler with other sizes.

        Args:
            state: what ``state_dict`` gave.
        """
        if "random" not in state:
            raise ValueError("the state is not one of a BlockSampler: it lacks random")
        checks.same_kind("BlockSampler", state.get("kind"), self._kind())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; on more ranks than were saved, the new ones start from their own seeds.

        Args:
            state: what ``state_dict`` gave.
        """
        self.check_state_dict(state)
        if self._share.rank < len(state["random"]):
            self._generator.set_state(state["random"][self._share.rank])
