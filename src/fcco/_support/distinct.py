"""Whether numbers are distinct, in half the time of a sort."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor


@final
class Distinct:
    """Whether the examples of a batch are distinct. Copies start without the table.

    Each number's place is written to a table and read back: of two equal numbers the first one's place is gone. What
    the table holds besides is never read, so that it is made once and never cleared.

    Args:
        size: the numbers are in 0..size-1.

    Example:
        >>> distinct = Distinct(10)
        >>> distinct.are(torch.tensor([7, 0, 3])), distinct.are(torch.tensor([7, 0, 7]))
        (True, False)
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._table: Tensor | None = None
        self._place: Tensor | None = None  # 0, 1, ... of the last batch

    def are(self, numbers: Tensor) -> bool:
        """Return whether these (K,) whole numbers are distinct; an accelerator has to wait for it."""
        count = numbers.shape[0]
        numbers = numbers.long()
        if not numbers.is_cpu:
            return int(numbers.unique().numel()) == count
        table = self._table
        place = self._place
        if table is None or place is None or place.shape[0] != count:
            table, place = self._make(count)
        table.index_copy_(0, numbers, place)
        return torch.equal(table.index_select(0, numbers), place)

    def _make(self, count: int) -> tuple[Tensor, Tensor]:
        # What is made in inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            if self._table is None:
                self._table = torch.empty(self._size, dtype=torch.int32)
            self._place = torch.arange(count, dtype=torch.int32)
        return self._table, self._place

    def __deepcopy__(self, memo: dict[int, Any]) -> Distinct:
        return Distinct(self._size)

    def __reduce__(self) -> tuple[Any, ...]:
        return Distinct, (self._size,)
