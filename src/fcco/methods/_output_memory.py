"""The settings of the output memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from fcco._support import checks


@final
@dataclass(frozen=True)
class OutputMemory:
    """What the output memory does with its table.

    Args:
        importance: p in [0, 1], the share of the draws that are made by importance.
        cap: no draw has an output gradient of more than this many times the mean of its stratum; None: no cap.
        balance: rescale the output gradients so that they add up to zero wherever F is invariant to a common shift;
            where that is the whole table, both signs to what they add up to in it.
        refresh: steps between two evaluations of the whole table; None: chosen so that they stay cheap.
        renewal: in (0, 1]: how much of the draws' probabilities each of them renews; 1: all of them.
    """

    importance: float = 0.5
    cap: float | None = 3.0
    balance: bool = True
    refresh: int | None = None
    renewal: float = 0.2

    def __post_init__(self) -> None:
        checks.fraction("importance", self.importance)
        if self.cap is not None and checks.positive("cap", self.cap) < 1.0:
            raise ValueError(f"cap must be >= 1 or None, got {self.cap}")
        checks.flag("balance", self.balance)
        if self.refresh is not None:
            checks.positive_int("refresh", self.refresh)
        if checks.fraction("renewal", self.renewal) == 0.0:
            raise ValueError("renewal must be > 0: with 0 the probabilities would never change")
