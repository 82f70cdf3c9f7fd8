"""What a step and a diagnosis tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor


@final
@dataclass(frozen=True)
class Oracle:
    """Oracle calls so far, counted per sample: values of g, Jacobians of g, Jacobian-vector products."""

    g: int = 0
    j: int = 0
    jvp: int = 0

    def plus(self, more: Oracle) -> Oracle:
        """The counts after some more calls."""
        return Oracle(self.g + more.g, self.j + more.j, self.jvp + more.jvp)


@final
@dataclass(frozen=True)
class Report:
    """What one step did. ``value`` and ``tracking_error`` are computed when read (a device then waits).

    Attributes:
        step: t, how many steps were taken.
        samples: examples drawn so far.
        oracle: oracle calls so far.
        skipped: whether this step was skipped because something in it was not finite.
    """

    step: int
    samples: int
    oracle: Oracle
    skipped: bool
    f: Tensor | None  # (B,) f_i at the u that weighed the gradient
    u: Tensor | None  # (B, dim) the new rows
    g: Tensor | None  # (B, dim) the fresh probe at w_t

    @property
    def value(self) -> float:
        """An estimate of F: the mean of f_i(u_i) over this step's blocks; nan where the step was skipped."""
        return float("nan") if self.f is None else float(self.f.mean())

    @property
    def tracking_error(self) -> float:
        """Root mean square of ||u_i - g_i(w_t; xi)|| over this step's blocks; nan where skipped."""
        if self.u is None or self.g is None:
            return float("nan")
        return float((self.u - self.g).square().sum(-1).mean().sqrt())


@final
@dataclass(frozen=True)
class Diagnosis:
    """Exact figures from a pass over all data.

    Attributes:
        value: F(w).
        gradient_norm: ||grad F(w)||; None where it was not asked for.
        tracking_error: root mean square over visited blocks of ||u_i - g_i(w)||; None before the first visit.
        gradient_error: ||z - grad F(w)||; None before the first step, or where it was not asked for.
    """

    value: float
    gradient_norm: float | None
    tracking_error: float | None
    gradient_error: float | None
