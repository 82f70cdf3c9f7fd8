"""full_pass: one pass over all data for this rank's blocks, with weights that give the exact means."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from fcco._support import checks
from fcco.data._batch import Batch, map_tensors
from fcco.data._blocks import Blocks
from fcco.data._reader import Reader, Request
from fcco.data._share import owned_here


@final
@dataclass(frozen=True)
class Plan:
    """A batch drawn but not fetched: its examples stand in ``batch.id``.

    Args:
        batch: without x.
        seed: for the data set's own randomness.
        after: the generator's state once this was drawn; None: nothing was drawn.
    """

    batch: Batch
    seed: int
    after: Tensor | None = None


def fetched(
    plans: Iterator[Plan], reader: Reader, *, dtype: torch.dtype | None, keep: bool, origin: str | None = None
) -> Iterator[tuple[Plan, Batch]]:
    """The batches with their x, floating point x in ``dtype``, and their origin; the reader's workers run ahead."""
    ahead: deque[Plan] = deque()  # drawn, but still with the workers

    def requests() -> Iterator[Request]:
        for plan in plans:
            ahead.append(plan)
            yield plan.seed, plan.batch.id

    for x in reader.fetch(requests(), keep=keep):
        plan = ahead.popleft()
        yield plan, replace(plan.batch, x=cast(x, dtype), origin=origin)


def cast(x: Any, dtype: torch.dtype | None) -> Any:
    """x with its floating point tensors in ``dtype``; None: as they are."""
    if dtype is None:
        return x

    def one(part: Tensor) -> Tensor:
        if part.is_floating_point() or part.dtype == torch.bool:
            return part.to(dtype)
        return part

    return map_tensors(x, one)


def full_pass(
    blocks: Blocks,
    chunk: int = 1024,
    *,
    dtype: torch.dtype | None = None,
    seed: int = 0,
    reader: Reader | None = None,
) -> Iterator[Batch]:
    """One pass over all data for this rank's blocks; rows of a block SUM to its exact mean over the batches.

    It draws nothing: the same batches each time.

    Args:
        blocks: whose data.
        chunk: examples per batch, at most (twice that where blocks are examples).
        dtype: of floating point x; None: as it is.
        seed: for the randomness of a data set's own.
        reader: fetches x; None: without workers.

    Example:
        >>> from fcco.data import GroupBlocks, Groups
        >>> data = Groups(torch.randn(3, 2), [0, 1, 1], [0, 0, 1])
        >>> [batch.weight for batch in full_pass(GroupBlocks(data))]
        [tensor([0.5000, 0.5000, 1.0000], dtype=torch.float64)]
    """
    size = checks.positive_int("chunk", chunk)
    mine = owned_here(blocks.num_blocks, blocks.device)
    plans = (Plan(batch, seed + number) for number, batch in enumerate(blocks.chunks(mine, size)))
    if reader is None:
        reader = blocks.data.source.reader()
    return (batch for _, batch in fetched(plans, reader, dtype=dtype, keep=False, origin=blocks.data.origin()))
