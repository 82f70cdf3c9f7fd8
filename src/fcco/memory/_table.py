"""OutputTable: the last output of every example."""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor


class Entries(NamedTuple):
    """What some examples (K,) had in the table, and how full it was: all that undoes a write."""

    id: Tensor
    values: Tensor
    written: Tensor
    missing: int
    filling: bool


@final
class OutputTable:
    """Outputs (N, ...), and the step at which each was written; -1: never, such an example takes no part.

    Args:
        values: (N, ...); written in place.
        written: (N,) int64; written in place.
        counted: (N,) bool, the examples that can be drawn at all.

    Attributes:
        missing: how many of those counted were never written.
        filling: whether some were missing before the last write too, as far as the host knows.

    Example:
        >>> table = OutputTable.empty(3, (), like=torch.zeros(0))
        >>> table.write(torch.tensor([2, 0]), torch.tensor([0.5, 0.1]), step=1)
        >>> table.missing, table.seen
        (1, tensor([ True, False,  True]))
    """

    def __init__(self, values: Tensor, written: Tensor, counted: Tensor) -> None:
        self.values = values
        self.written = written
        self.counted = counted
        self.missing = int(((written < 0) & counted).sum())  # those that can never be drawn are not waited for
        self.filling = True

    @classmethod
    def empty(cls, size: int, shape: tuple[int, ...], *, like: Tensor, counted: Tensor | None = None) -> OutputTable:
        """A table of ``size`` examples without entries.

        Args:
            shape: of one output, () for a score.
            like: gives dtype and device.
            counted: None: all.
        """
        values = torch.zeros(size, *shape, dtype=like.dtype, device=like.device)
        written = torch.full((size,), -1, dtype=torch.int64, device=like.device)
        if counted is None:
            counted = torch.ones_like(written, dtype=torch.bool)
        return cls(values, written, counted)

    def copy(self) -> OutputTable:
        """A table of its own with the same entries."""
        return OutputTable(self.values.clone(), self.written.clone(), self.counted)

    @property
    def size(self) -> int:
        """N."""
        return int(self.values.shape[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one output."""
        return tuple(self.values.shape[1:])

    @property
    def device(self) -> torch.device:
        """Where the outputs are."""
        return self.values.device

    @property
    def seen(self) -> Tensor:
        """(N,) bool."""
        return self.written >= 0

    def seen_at(self, id: Tensor) -> Tensor:
        """(K,) bool, of the examples named; no other entry is read."""
        return self.written[id] >= 0

    def read(self, id: Tensor) -> Entries:
        """The entries (K,), to be put back should the step fail."""
        return Entries(id, self.values[id], self.written[id], self.missing, self.filling)

    def write(self, id: Tensor, values: Tensor, step: int) -> None:
        """Fresh outputs (K, ...) of the examples (K,), each once."""
        self.filling = self.missing > 0
        if self.filling:  # counting makes a device wait
            new = (self.written[id] < 0) & self.counted[id]
            self.missing -= int(new.sum())
        self.values[id] = values.to(self.values.dtype)  # autocast gives outputs of half precision
        self.written.index_fill_(0, id, step)

    def put_back(self, old: Entries) -> None:
        """As it was before a :meth:`write`: for a transaction that fails."""
        self.values[old.id] = old.values
        self.written[old.id] = old.written
        self.missing = old.missing
        self.filling = old.filling
