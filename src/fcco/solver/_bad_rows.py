"""Which rows of the data are not finite themselves: one bad example spoils every block that it is compared with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from fcco._support import checks
from fcco.data import Batch
from fcco.solver._gradients import finite_rows


def bad_rows(data: tuple[Any, ...]) -> set[int]:
    """The rows of the data whose x, in a batch, is not finite."""
    batch = data[0] if data else None
    if not isinstance(batch, Batch):
        return set()
    parts = batch.x
    if isinstance(parts, Tensor):
        parts = (parts,)
    if not isinstance(parts, (tuple, list)):
        return set()
    numbers = [part for part in parts if isinstance(part, Tensor) and part.is_floating_point()]
    if not numbers or any(len(part) != len(batch.id) for part in numbers):
        return set()
    found: list[int] = batch.id[~finite_rows(numbers)].tolist()
    return set(found)


def told(rows: Iterable[int]) -> str:
    """The end of an error message; nothing where there are none."""
    known = sorted(rows)
    if not known:
        return ""
    return f": x is not finite in row {checks.some(known)} of the data"
