"""OutputTable: the last output of every example."""

from __future__ import annotations

import itertools
from typing import NamedTuple, final

import torch
from torch import Tensor

_numbers = itertools.count()


class Entries(NamedTuple):
    """What the examples of a step (K,) had in the table: all that undoes a write. An example may be there twice.

    Args:
        id: (K,).
        values: (K, ...); ``written``: (K,).
        once: (K,) bool, one draw per example: the last.
        sizes: how many draws are of the blocks' class and of the other, at most; None: nobody knows.
    """

    id: Tensor
    values: Tensor
    written: Tensor
    once: Tensor
    sizes: tuple[int, ...] | None = None


def last_draws(id: Tensor) -> Tensor:
    """(K,) for each draw the last one that gave the same example.

    Example:
        >>> last_draws(torch.tensor([5, 2, 5, 7]))
        tensor([2, 1, 2, 3])
    """
    # By a sort, not by unique: the shapes depend on no data.
    ordered, draw = id.sort(stable=True)
    return draw[torch.searchsorted(ordered, id, right=True) - 1]


@final
class OutputTable:
    """Outputs (N, ...), and the step at which each was written; -1: never, such an example takes no part.

    Args:
        values: (N, ...); written in place.
        written: (N,) int64; written in place.
        counted: (N,) bool, the examples that can be drawn at all.

    Attributes:
        complete: whether all of those counted were written, as far as the host knows: it learns so where it waits for
            the device anyway (:meth:`recount`). Until then masks say who was seen, and are always right.
        number: of this table, which no other one has had.

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
        self.number = next(_numbers)
        self.complete = False
        self.recount()

    @classmethod
    def empty(cls, size: int, shape: tuple[int, ...], *, like: Tensor, counted: Tensor | None = None) -> OutputTable:
        """A table of ``size`` examples without entries.

        Args:
            shape: of one output, () for a score.
            like: gives dtype and device.
            counted: None: all.
            size: N.
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
        """(K,) bool, of the examples named; no other entry is read.

        Args:
            id: positions (K,).
        """
        return self.written[id] >= 0

    @property
    def missing(self) -> int:
        """How many of those counted were never written; a device waits."""
        return int(((self.written < 0) & self.counted).sum())  # those that can never be drawn are not waited for

    def recount(self) -> None:
        """Learn whether all were written; a device waits."""
        self.complete = self.missing == 0

    def read(self, id: Tensor, last: Tensor | None = None, sizes: tuple[int, ...] | None = None) -> Entries:
        """The entries (K,), to be put back should the step fail.

        Args:
            last: (K,) for each draw the last one that gave the same example; None: each is there once.
            sizes: as of :class:`Entries`.
            id: positions (K,).
        """
        if last is None:
            once = torch.ones_like(id, dtype=torch.bool)
        else:
            once = last == torch.arange(last.shape[0], device=last.device)
        return Entries(id, self.values[id], self.written[id], once, sizes)

    def write(self, id: Tensor, values: Tensor, step: int | Tensor) -> None:
        """Fresh outputs (K, ...) of the examples (K,); where one is there twice, so is its output.

        Args:
            id: positions (K,).
            values: the outputs (K, ...).
            step: the number of the step, kept as the entries' age.
        """
        self.values[id] = values.to(self.values.dtype)  # autocast gives outputs of half precision
        if isinstance(step, Tensor):
            self.written[id] = step.expand(id.shape)
        else:
            self.written.index_fill_(0, id, step)

    def put_back(self, old: Entries) -> None:
        """As it was before a :meth:`write`: for a transaction that fails.

        Args:
            old: what :meth:`read` gave.
        """
        self.values[old.id] = old.values
        self.written[old.id] = old.written

    def keep_where(self, ok: Tensor, old: Entries) -> None:
        """:meth:`put_back`, unless ``ok`` () bool says that the step was taken; no device waits.

        Args:
            ok: () bool, whether the step was taken.
            old: what :meth:`read` gave.
        """
        self.values[old.id] = torch.where(ok, self.values[old.id], old.values)
        self.written[old.id] = torch.where(ok, self.written[old.id], old.written)
