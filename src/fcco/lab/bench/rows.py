"""What is measured: which step, taken in which way, in which setting; and what follows from two of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, final


class Step(StrEnum):
    """What takes a step."""

    PLAIN = "plain SGD"
    PLAIN_CONTIGUOUS = "plain SGD, contiguous weights"
    FORWARD = "forward pass"
    SOX = "SOX"
    V1 = "MSVR-v1"
    V2 = "MSVR-v2"
    V3 = "MSVR-v3"
    V1_SP = "MSVR-v1-SP"
    V2_SP = "MSVR-v2-SP"
    SOAP = "SOAP"
    LIBAUC = "LibAUC SOAP"
    LIBAUC_CONTIGUOUS = "LibAUC SOAP, contiguous weights"
    MEMORY_AP = "memory, AP"
    MEMORY_PAUC = "memory, pAUC"


class Way(StrEnum):
    """How it takes it."""

    EAGER = "eager"
    CAPTURED = "captured"
    FLOOR = "floor"  # a step written by hand, captured whole


@final
@dataclass(frozen=True)
class Name:
    """Which contender a row is about."""

    setting: str
    step: Step
    way: Way = Way.EAGER


@final
@dataclass(frozen=True)
class Launches:
    """What the host asks of the device, per step."""

    kernels: float
    graphs: float
    copies: float
    waits: float


@final
@dataclass
class Row:
    """One contender of one setting.

    Args:
        name: which.
        times: milliseconds per step, a number per round; rounds are shared by all contenders of the setting.
        peak_mb: device memory at the peak of its first steps, beyond what was there before.
        launches: where they were counted.
        failed: why there are no times.
    """

    name: Name
    times: list[float] = field(default_factory=list)
    peak_mb: float | None = None
    launches: Launches | None = None
    failed: str | None = None

    @property
    def ms(self) -> float | None:
        """The median over the rounds."""
        if not self.times:
            return None
        return statistics.median(self.times)

    @property
    def mean_ms(self) -> float | None:
        """The mean, which also sees what happens in few rounds, as a refresh of the memory does."""
        if not self.times:
            return None
        return statistics.fmean(self.times)

    def as_json(self) -> dict[str, Any]:
        launches = None
        if self.launches is not None:
            launches = vars(self.launches)
        return {
            "setting": self.name.setting,
            "step": self.name.step.value,
            "way": self.name.way.value,
            "ms": self.ms,
            "mean_ms": self.mean_ms,
            "times_ms": [round(value, 5) for value in self.times],
            "peak_mb": self.peak_mb,
            "launches": launches,
            "failed": self.failed,
        }


@final
class Results:
    """All rows so far.

    Example:
        >>> plain, sox = Name("a", Step.PLAIN), Name("a", Step.SOX)
        >>> results = Results([Row(plain, [1.0, 2.0, 4.0]), Row(sox, [3.0, 4.0, 8.0])])
        >>> results.ratio(sox, plain), results.difference(sox, plain)
        (2.0, 2.0)
        >>> results.ratio(sox, Name("b", Step.PLAIN)) is None
        True
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows: dict[Name, Row] = {}
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        self.rows[row.name] = row

    def of(self, setting: str) -> list[Row]:
        """The rows of a setting, in the order in which they came."""
        return [row for row in self.rows.values() if row.name.setting == setting]

    def settings(self) -> list[str]:
        """All settings, in the order in which they came."""
        return list(dict.fromkeys(name.setting for name in self.rows))

    def ms(self, name: Name) -> float | None:
        """The median of a contender; None: not measured."""
        row = self.rows.get(name)
        if row is None:
            return None
        return row.ms

    def ratio(self, name: Name, base: Name) -> float | None:
        """The median over rounds of one time over another: what slows a whole round cancels."""
        pairs = self._pairs(name, base)
        if not pairs:
            return None
        return statistics.median(time / other for time, other in pairs)

    def difference(self, name: Name, base: Name) -> float | None:
        """The median over rounds of one time less another, in milliseconds."""
        pairs = self._pairs(name, base)
        if not pairs:
            return None
        return statistics.median(time - other for time, other in pairs)

    def _pairs(self, name: Name, base: Name) -> list[tuple[float, float]]:
        first = self.rows.get(name)
        second = self.rows.get(base)
        if first is None or second is None:
            return []
        # A contender that failed has no rounds at all.
        return list(zip(first.times, second.times, strict=False))
