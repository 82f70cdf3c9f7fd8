"""What captured steps count on the device, and what they leave for reports until the host looks."""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor

LOOK = 32  # steps between two looks of the host, at most


class Reading(NamedTuple):
    """What the host sees when it looks: which of the attempts were taken, and the first one that ended the run."""

    taken: list[bool]
    stopped_at: int | None


@final
class Clock:
    """Counts attempts on the device: which were taken, and whether the run has stopped.

    Args:
        device: where.
        skips: whether an attempt that is not finite is passed over; else the first one stops the run: what comes after
            it does nothing until the host has looked.
    """

    def __init__(self, device: torch.device, *, skips: bool) -> None:
        self._skips = skips
        self._attempts = torch.zeros((), dtype=torch.int64, device=device)
        self._stopped_at = torch.full((), -1, dtype=torch.int64, device=device)
        self._taken = torch.zeros(LOOK, dtype=torch.bool, device=device)
        self._steps = torch.zeros((), dtype=torch.int64, device=device)  # taken so far

    @property
    def slot(self) -> Tensor:
        """(1,) the number of the attempt, from 0."""
        return self._attempts.reshape(1)

    def step(self) -> Tensor:
        """() t, the number of the step that is attempted."""
        return self._steps + 1

    def rows_since(self) -> Tensor:
        """(1,) how many steps were taken since the host looked."""
        return self._taken.sum().reshape(1)

    def is_running(self) -> Tensor:
        """() bool, whether no attempt has stopped the run."""
        return self._stopped_at < 0

    def tick(self, ok: Tensor, running: Tensor, invalid: Tensor | None) -> Tensor:
        """Count an attempt; () bool, whether it stops the run.

        Args:
            ok: () bool, whether it is taken.
            running: () bool, whether no attempt before has stopped the run; where it has, none is taken.
            invalid: () bool, whether some index names no block, which stops every run; None: all are known to.
        """
        if self._skips:
            stops = torch.zeros_like(ok)
        else:
            stops = running ^ ok  # running and not taken, since what is taken is running
        if invalid is not None:
            stops = stops | (invalid & running)
        self._taken.index_copy_(0, self.slot, ok.reshape(1))
        torch.where(stops, self._attempts, self._stopped_at, out=self._stopped_at)
        self._attempts += 1
        self._steps += ok
        return stops

    def read(self, attempts: int) -> Reading:
        """What became of the attempts; the host waits for the device."""
        # In one piece, so that it waits once.
        stopped_at, *marks = torch.cat([self._stopped_at.reshape(1), self._taken.long()]).tolist()
        taken = [bool(mark) for mark in marks]
        if stopped_at < 0:
            return Reading(taken[:attempts], None)
        return Reading(taken[:stopped_at], stopped_at)

    def reset(self, steps: int) -> None:
        """Begin anew, with so many steps taken."""
        self._attempts.zero_()
        self._stopped_at.fill_(-1)
        self._taken.zero_()
        self._steps.fill_(steps)


@final
class Ring:
    """What reports read of the last attempts: a row per attempt, overwritten after the host has looked.

    Args:
        rows: the tensors of one attempt, each (...); None where there is none.
    """

    def __init__(self, rows: dict[str, Tensor | None]) -> None:
        self._tensors: dict[str, Tensor] = {}
        for name, row in rows.items():
            if row is not None:
                self._tensors[name] = row.new_zeros(LOOK, *row.shape)
        self._readers: list[Rows] = []  # since the host has looked

    def store(self, slot: Tensor, rows: dict[str, Tensor | None]) -> None:
        """Write the rows of an attempt, on the device."""
        for name, tensor in self._tensors.items():
            row = rows[name]
            assert row is not None
            tensor.index_copy_(0, slot, row.unsqueeze(0))

    def reader(self, slot: int) -> Rows:
        """What a report reads of an attempt."""
        rows = Rows(self._tensors, slot)
        self._readers.append(rows)
        return rows

    def retire(self) -> None:
        """The host has looked and rows will be overwritten: what was handed out reads from a copy."""
        copied = {name: tensor.clone() for name, tensor in self._tensors.items()}
        for rows in self._readers:
            rows.tensors = copied
        self._readers = []


@final
class Rows:
    """The rows of one attempt.

    Args:
        tensors: (attempts, ...) each, by name.
        slot: the number of the attempt.
    """

    def __init__(self, tensors: dict[str, Tensor], slot: int) -> None:
        self.tensors = tensors
        self._slot = slot

    def get(self, name: str) -> Tensor | None:
        """The tensor of that name; None where there is none."""
        tensor = self.tensors.get(name)
        if tensor is None:
            return None
        return tensor[self._slot]
