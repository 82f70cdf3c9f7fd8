"""Ranks: which one this process is, what the others have, and the solver's one reduction over them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def rank_and_world() -> tuple[int, int]:
    """This process's rank and the number of ranks; (0, 1) outside torch.distributed."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def gather_objects(mine: Any) -> list[Any]:
    """What every rank has, in the order of ranks (each rank must call this)."""
    _, world = rank_and_world()
    if world == 1:
        return [mine]
    everyone: list[Any] = [None] * world
    dist.all_gather_object(everyone, mine)
    return everyone


def gather_rows(mine: Tensor, total: int) -> Tensor:
    """Rows (total, ...) of all blocks from this rank's own (owned, ...); each rank must call this."""
    rank, world = rank_and_world()
    if world == 1:
        return mine.clone()
    kind = mine.dtype
    if kind == torch.bool:  # not every backend adds up booleans
        mine = mine.to(torch.uint8)
    everyone = mine.new_zeros((total, *mine.shape[1:]))
    everyone[rank::world] = mine  # zero elsewhere, so the sum over ranks fills the rows in
    dist.all_reduce(everyone)
    return everyone.to(kind)


def owned_blocks(num_blocks: int, rank: int, world: int) -> Tensor:
    """The blocks that a rank owns: i with i mod world = rank.

    Example:
        >>> owned_blocks(5, rank=1, world=2)
        tensor([1, 3])
    """
    return torch.arange(rank, num_blocks, world)


@torch.no_grad()
def average_over_ranks(grads: list[Tensor], finite: Tensor) -> Tensor:
    """Average the gradients over ranks, in place, and say whether ``finite`` holds on all of them.

    One all-reduce for each dtype; the flag travels with the first.
    """
    _, world = rank_and_world()
    if world == 1:
        return finite
    if not grads:  # FSDP has averaged all of them
        return sum_over_ranks((~finite).to(torch.int64)) == 0
    # Flattened: many small all-reduces take longer than a large one.
    for place, dtype in enumerate({gradient.dtype: None for gradient in grads}):
        mine = [gradient for gradient in grads if gradient.dtype == dtype]
        flag = (~finite).to(dtype).reshape(1)
        flat = torch.cat([gradient.reshape(-1) for gradient in mine] + [flag])
        dist.all_reduce(flat)
        parts = flat[:-1].div_(world).split([gradient.numel() for gradient in mine])
        for gradient, part in zip(mine, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        if place == 0:
            finite = flat[-1] == 0
    return finite


def sum_over_ranks(values: Tensor) -> Tensor:
    """The sum of a tensor over all ranks."""
    if rank_and_world()[1] > 1:
        dist.all_reduce(values)
    return values


def gather_outputs(outputs: Tensor, id: Tensor) -> tuple[Tensor, Tensor]:
    """What all ranks have, in the order of ranks: outputs (K, ...) and ids (K,); each rank must call this.

    The outputs keep their graph: this rank's part gets its own gradient, times the number of ranks, so that the mean
    over ranks that DDP takes is the gradient of a loss which every rank computes from all outputs.

    Args:
        outputs: (k, ...) of this rank.
        id: (k,) int64, on any device; comes back on the same.
    """
    rank, world = rank_and_world()
    if world == 1:
        return outputs, id
    number = torch.tensor(outputs.shape[0], device=outputs.device)
    numbers = [torch.empty_like(number) for _ in range(world)]
    dist.all_gather(numbers, number)
    sizes = [int(size) for size in numbers]
    ids = _gather_padded(id.to(outputs.device), sizes).to(id.device)
    whole: Tensor = _GatheredOutputs.apply(outputs, sizes, rank)  # type: ignore[no-untyped-call]
    return whole, ids


def _gather_padded(mine: Tensor, sizes: list[int]) -> Tensor:
    """The rows (k, ...) of all ranks, which may have unequal numbers of them."""
    # A gather wants equal shapes.
    padded = mine.new_zeros(max(sizes), *mine.shape[1:])
    padded[: mine.shape[0]] = mine
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


class _GatheredOutputs(torch.autograd.Function):
    """:func:`_gather_padded`, whose derivative needs no communication: all ranks compute the same loss."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, sizes: list[int], rank: int) -> Tensor:
        before = sum(sizes[:rank])
        ctx.mine = slice(before, before + sizes[rank])
        ctx.world = len(sizes)
        return _gather_padded(outputs, sizes)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[ctx.mine] * ctx.world, None, None
