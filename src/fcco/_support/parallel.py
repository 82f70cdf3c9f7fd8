"""Ranks: which one this process is, what the others have, and the solver's one reduction over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_TURNS = 4  # steps that the flags of a reduction tell apart: ranks drift by one or two, not by four


class RankError(RuntimeError):
    """Another rank has failed, or is at another step: every rank raises, and names it."""


def rank_and_world() -> tuple[int, int]:
    """Return this process's rank and the number of ranks; (0, 1) outside torch.distributed."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def gather_objects(mine: Any) -> list[Any]:
    """Return what every rank has, in the order of ranks (each rank must call this)."""
    _, world = rank_and_world()
    if world == 1:
        return [mine]
    objects: list[Any] = [None] * world
    dist.all_gather_object(objects, mine)
    return objects


def broadcast_object(mine: Any, source: int) -> Any:
    """Return what the rank ``source`` has (each rank must call this)."""
    held = [mine]
    dist.broadcast_object_list(held, source)
    return held[0]


def gather_rows(mine: Tensor, total: int) -> Tensor:
    """Return rows (total, ...) of all blocks from this rank's own (owned, ...); each rank must call this."""
    rank, world = rank_and_world()
    if world == 1:
        return mine.clone()
    kind = mine.dtype
    if kind == torch.bool:  # not every backend adds up booleans
        mine = mine.to(torch.uint8)
    rows = mine.new_zeros((total, *mine.shape[1:]))
    rows[rank::world] = mine  # zero elsewhere, so the sum over ranks fills the rows in
    dist.all_reduce(rows)
    return rows.to(kind)


def owned_blocks(num_blocks: int, rank: int, world: int) -> Tensor:
    """Return the blocks that a rank owns: i with i mod world = rank.

    Example:
        >>> owned_blocks(5, rank=1, world=2)
        tensor([1, 3])
    """
    return torch.arange(rank, num_blocks, world)


# ---------------------------------------------------------------------- failures that every rank hears of


def first_line(error: BaseException) -> str:
    """Return an error's first line; its kind where it says nothing."""
    lines = str(error).splitlines()
    if not lines:
        return type(error).__name__
    return lines[0]


def raise_everywhere(failed: Exception | None, doing: str, kind: type[Exception] = RankError) -> None:
    """Raise where any rank has failed: there its own error, on the others one that names the rank.

    Each rank must call this, those that have not failed too.

    Args:
        failed: what went wrong on this rank; None: nothing.
        doing: what it was about, as the end of "rank 1 failed ...".
        kind: of the error on the others.
    """
    message = None
    if failed is not None:
        message = f"{type(failed).__name__}: {first_line(failed)}"
    messages = gather_objects(message)
    if failed is not None:
        raise failed
    for rank, other in enumerate(messages):
        if other is not None:
            raise kind(f"rank {rank} failed {doing}: {other}")


@contextmanager
def together(doing: str, kind: type[Exception] = RankError) -> Iterator[None]:
    """Let each rank work by itself within the block; at its end every rank raises where one of them has.

    Arguments as of :func:`raise_everywhere`.
    """
    failed: Exception | None = None
    try:
        yield
    except Exception as error:
        failed = error
    raise_everywhere(failed, doing, kind)


def step_flags(step: int, *, finite: bool | Tensor, failed: bool, like: Tensor) -> Tensor:
    """Return what a rank tells the others along with its gradients: (2 + 4,), added up over ranks.

    These are whether it is not finite, whether it failed, and which of four turns the step is in: a number apart for
    each turn, so that sums of any precision tell whether all ranks are in the same one.
    """
    flags = like.new_zeros(2 + _TURNS)
    if isinstance(finite, Tensor):
        flags[0] = ~finite
    else:
        flags[0] = not finite
    flags[1] = failed
    flags[2 + step % _TURNS] = 1
    return flags


def check_step_flags(flags: list[float], step: int, failed: Exception | None) -> None:
    """Raise on every rank where one has failed, or where they are not at the same step.

    Args:
        flags: the sums of :func:`step_flags` over ranks.
        step: of this rank.
        failed: what went wrong on this rank; None: nothing.
    """
    if flags[1]:
        raise_everywhere(failed, f"in step {step}")
    turns = [turn for turn in flags[2:] if turn]
    if len(turns) == 1:
        return
    steps = gather_objects(step)
    listed = ", ".join(f"rank {rank} takes step {other}" for rank, other in enumerate(steps))
    raise RankError(
        f"the ranks are not at the same step ({listed}): one of them failed after its gradient was "
        "exchanged, perhaps in the "
        "optimizer's step; load a checkpoint on every rank"
    )


# ---------------------------------------------------------------------- reductions


@torch.no_grad()
def average_over_ranks(grads: list[Tensor], finite: Tensor, step: int = 0, failed: Exception | None = None) -> Tensor:
    """Average the gradients over ranks, in place, and say whether ``finite`` holds on all of them.

    One all-reduce for each dtype; the flags travel with the first.

    Args:
        grads: of this rank.
        finite: () bool, whether this rank saw nothing else.
        step: of this rank: all must be at the same.
        failed: what went wrong on this rank, which has no gradients to give; None: nothing.

    Raises:
        RankError: where another rank has failed, or is at another step.
    """
    _, world = rank_and_world()
    if world == 1:
        return finite
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for gradient in grads:
        by_dtype.setdefault(gradient.dtype, []).append(gradient)
    summed: Tensor | None = None
    for mine in by_dtype.values():
        flags = step_flags(step, finite=finite, failed=failed is not None, like=mine[0])
        sums = _average_flat(mine, flags, world)
        if summed is None:
            summed = sums
    if summed is None:  # no gradients: FSDP has averaged all of them
        summed = step_flags(step, finite=finite, failed=failed is not None, like=finite.to(torch.float32))
        dist.all_reduce(summed)
    check_step_flags(summed.tolist(), step, failed)
    return summed[0] == 0


def _average_flat(gradients: list[Tensor], flags: Tensor, world: int) -> Tensor:
    """Average gradients of one dtype over ranks, in place, and return the sums of the flags; one all-reduce for all."""
    # Flattened: many small all-reduces take longer than a large one.
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients] + [flags])
    dist.all_reduce(flat)
    end = flat.numel() - flags.numel()
    sizes = [gradient.numel() for gradient in gradients]
    parts = flat[:end].div_(world).split(sizes)
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
    return flat[end:]


def sum_over_ranks(values: Tensor) -> Tensor:
    """Add up a tensor over all ranks, in place, and return it."""
    if rank_and_world()[1] > 1:
        dist.all_reduce(values)
    return values


def gather_outputs(outputs: Tensor, id: Tensor) -> tuple[Tensor, Tensor]:
    """Return what all ranks have, in the order of ranks: outputs (K, ...) and ids (K,); each rank must call this.

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
    """Return the rows (k, ...) of all ranks, which may have unequal numbers of them."""
    # A gather wants equal shapes.
    padded = mine.new_zeros(max(sizes), *mine.shape[1:])
    padded[: mine.shape[0]] = mine
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    rows = [part[:size] for part, size in zip(parts, sizes, strict=True)]
    return torch.cat(rows)


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
