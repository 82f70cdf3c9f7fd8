"""OutputTable: the last output of every example."""

from __future__ import annotations

from typing import Any, NamedTuple, final

import torch
from torch import Tensor


class Entries(NamedTuple):
    """What some examples (K,) had in the table."""

    id: Tensor
    values: Tensor
    written: Tensor


@final
class OutputTable:
    """Outputs (N, ...), and the step at which each was written; -1: never, such an example takes no part.

    Args:
        size: N.
        shape: of one output, () for a score.
        like: gives dtype and device.
        wanted: (N,) bool, the examples that can be drawn at all; None: all.
    """

    def __init__(self, size: int, shape: tuple[int, ...], *, like: Tensor, wanted: Tensor | None = None) -> None:
        self.values = torch.zeros(size, *shape, dtype=like.dtype, device=like.device)
        self.written = torch.full((size,), -1, dtype=torch.int64, device=like.device)
        self._wanted = torch.ones_like(self.written, dtype=torch.bool) if wanted is None else wanted
        self.missing = 0  # how many of those wanted were never written
        self.recount()

    @property
    def seen(self) -> Tensor:
        """(N,) bool."""
        return self.written >= 0

    def seen_at(self, id: Tensor) -> Tensor:
        """(K,) bool, of the examples named: nobody else is looked at."""
        return self.written[id] >= 0

    def read(self, id: Tensor) -> Entries:
        """The entries (K,), to be put back should the step fail."""
        return Entries(id, self.values[id], self.written[id])

    def write(self, id: Tensor, values: Tensor, step: int) -> None:
        """Fresh outputs (K, ...) of the examples (K,), each once."""
        if self.missing:
            self.missing -= int(((self.written[id] < 0) & self._wanted[id]).sum())
        self.values[id] = values.to(self.values.dtype)
        self.written.index_fill_(0, id, step)

    def put_back(self, old: Entries) -> None:
        """Undo a :meth:`write`."""
        self.values[old.id], self.written[old.id] = old.values, old.written
        self.recount()

    def recount(self) -> None:
        """Look who is missing, after entries came in another way than by :meth:`write`."""
        self.missing = int(((self.written < 0) & self._wanted).sum())

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values.clone(), "written": self.written.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values.copy_(state["values"])
        self.written.copy_(state["written"])
        self.recount()
