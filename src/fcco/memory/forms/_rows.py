"""Rows of pairwise forms: log g of the anchors, as far as it is known."""

from __future__ import annotations

import torch
from torch import Tensor

from fcco.memory.forms._kernels import Kernel, Others

_PAIRS = 1 << 22  # of one piece, where a step's others are set against all anchors one by one


def with_rows(rows: Tensor, place: Tensor, fresh: Tensor, kept: Tensor) -> Tensor:
    """New rows (A, C), with fresh ones (B, C) at the places (B,) that are ``kept`` (B,); none is kept twice."""
    # What is not kept goes into a row beyond the last: a choice of some would have a shape that depends on data.
    longer = torch.cat([rows, rows[:1]])
    longer[torch.where(kept, place, rows.shape[0])] = fresh.to(rows.dtype)
    return longer[:-1]


def largest_of(kernel: Kernel, others: Others, a: Tensor, task: Tensor | None = None) -> Tensor:
    """log of the most that one of the others contributes to each anchor (A, C), in pieces.

    Args:
        others: (E,), or (T, E) where each task has its own.
        task: (A,), then.
    """
    size = max(1, _PAIRS // max(1, others.s.shape[-1]))
    if task is None:
        return torch.cat([kernel.largest(others, some) for some in a.split(size)])
    parts = []
    for some, number in zip(a.split(size), task.split(size), strict=True):
        mine = Others(others.s.index_select(0, number), others.w.index_select(0, number))
        parts.append(kernel.largest(mine, some))
    return torch.cat(parts)
