"""What a step and a diagnosis tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

from torch import Tensor


@final
class Oracle(NamedTuple):
    """Oracle calls so far, counted per sample.

    Args:
        g: values of g.
        j: Jacobians of g: one per sample in each backward pass.
        jvp: Jacobian-vector products, of the -sp methods.
    """

    g: int = 0
    j: int = 0
    jvp: int = 0

    def plus(self, more: Oracle) -> Oracle:
        """The counts after some more calls.

        Args:
            more: what is added.
        """
        return Oracle(self.g + more.g, self.j + more.j, self.jvp + more.jvp)


@final
class Counts(NamedTuple):
    """What was counted up to the end of a step, and whether that one was skipped."""

    step: int
    samples: int
    oracle: Oracle
    skipped: bool


@final
class Report:
    """What one step did. ``value`` and ``tracking_error`` are computed when read, which makes a device wait.

    Of a captured step the counts are those of a run in which every step is taken; where steps may be skipped they are
    read from the device, which then waits.

    Args:
        counts: gives the counts.
        read: gives f, u or g by its name; None where there is none.
    """

    def __init__(self, counts: Callable[[], Counts], read: Callable[[str], Tensor | None]) -> None:
        self._counts = counts
        self._read = read

    @property
    def step(self) -> int:
        """t, how many steps were taken."""
        return self._counts().step

    @property
    def samples(self) -> int:
        """Examples drawn so far."""
        return self._counts().samples

    @property
    def oracle(self) -> Oracle:
        """Oracle calls so far."""
        return self._counts().oracle

    @property
    def skipped(self) -> bool:
        """Whether this step was skipped because something was not finite."""
        return self._counts().skipped

    @property
    def f(self) -> Tensor | None:
        """(B,) f_i at the u that weighed the gradient."""
        return self._read("f")

    @property
    def u(self) -> Tensor | None:
        """(B, dim) the new rows."""
        return self._read("u")

    @property
    def g(self) -> Tensor | None:
        """(B, dim) the fresh probe at w_t."""
        return self._read("g")

    @property
    def value(self) -> float:
        """An estimate of F: the mean of f_i(u_i) over this step's blocks; nan if the step was skipped."""
        f = self.f
        if f is None:
            return float("nan")
        return float(f.mean())

    @property
    def tracking_error(self) -> float:
        """Root mean square of ||u_i - g_i(w_t; xi)|| over this step's blocks; nan if skipped."""
        u = self.u
        g = self.g
        if u is None or g is None:
            return float("nan")
        return float((u - g).square().sum(-1).mean().sqrt())

    def __repr__(self) -> str:
        return f"Report(step={self.step}, samples={self.samples}, skipped={self.skipped})"


def report_of(counts: Counts, **rows: Tensor | None) -> Report:
    """The report of a step that the host has seen: f, u and g by name."""
    return Report(lambda: counts, rows.get)


@final
@dataclass(frozen=True)
class Diagnosis:
    """Exact values from passes over all data.

    Attributes:
        value: F(w).
        gradient_norm: ||grad F(w)||; None if it was not asked for.
        tracking_error: root mean square over visited blocks of ||u_i - g_i(w)||; None before the first visit.
        gradient_error: ||z - grad F(w)||; None before the first step, or if it was not asked for.
    """

    value: float
    gradient_norm: float | None
    tracking_error: float | None
    gradient_error: float | None
