"""Test examples put aside, by a seed."""

from __future__ import annotations

import torch
from torch import Tensor

from .errors import DataError


def choose_test(y: Tensor, test_fraction: float, seed: int) -> Tensor:
    """Return which rows are test rows, (N,) bool. With classes (N,) the fraction holds in every class.

    A class of one example stays in train. Several labels (N, L) are split regardless of the labels.
    """
    if not 0 < test_fraction < 1:
        raise DataError(f"test_fraction must be in (0, 1), got {test_fraction}")
    generator = torch.Generator().manual_seed(seed)
    mask = torch.zeros(len(y), dtype=torch.bool)
    for rows in _strata(y):
        count = min(round(test_fraction * len(rows)), len(rows) - 1)
        shuffled = rows[torch.randperm(len(rows), generator=generator)]
        mask[shuffled[:count]] = True
    if not bool(mask.any()):
        raise DataError(f"test_fraction {test_fraction} of {len(y)} examples leaves no test example")
    return mask


def _strata(y: Tensor) -> list[Tensor]:
    """Return the rows of each class; with several labels all rows together."""
    if len(y) == 0:
        return []
    if y.dim() == 2:
        return [torch.arange(len(y))]
    return [(y == k).nonzero().flatten() for k in y.unique()]
