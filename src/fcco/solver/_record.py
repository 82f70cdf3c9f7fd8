"""The solver's record: what is carried between steps, and what a step's caller chooses and holds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, final

from torch import Tensor

from fcco.solver._report import Counts, Oracle, Report
from fcco.solver._reservoir import Reservoir
from fcco.solver._state import Layout, saved


class NonFinite(StrEnum):
    """What to do if a step meets a number that is not finite."""

    RAISE = "raise"
    SKIP = "skip"


class Keep(StrEnum):
    """Which iterate ``kept()`` returns: the last one, or one drawn uniformly over the run, as in the theory."""

    LAST = "last"
    UNIFORM = "uniform"


@final
@dataclass
class SolverState:
    """Everything that a solver carries between steps, besides the weights and the optimizer's own state.

    Args:
        engine: the engine's part.
        t: the number of steps taken.
        samples: examples drawn; ``skipped``: steps that were skipped.
        g_calls: values of g, counted per sample; ``j_calls``: Jacobians; ``jvp_calls``: Jacobian-vector products.
        z: one tensor per parameter; None: plain estimators keep it in ``p.grad`` only, or before the first step.
        norm: what z in ``p.grad`` was divided by.
        reservoir: the iterate drawn uniformly over the run.
    """

    engine: Any = saved(Layout.NESTED)
    t: int = saved(default=0)
    samples: int = saved(default=0)
    skipped: int = saved(default=0)
    g_calls: int = saved(default=0)
    j_calls: int = saved(default=0)
    jvp_calls: int = saved(default=0)
    z: list[Tensor] | None = saved(Layout.PER_PARAMETER, default=None)
    norm: Tensor | None = saved(default=None)
    reservoir: Reservoir | None = saved(Layout.NESTED, record=Reservoir, default=None)

    def charge(self, samples: int, oracle: Oracle) -> None:
        """Count samples and oracle calls."""
        self.samples += samples
        self.g_calls += oracle.g
        self.j_calls += oracle.j
        self.jvp_calls += oracle.jvp

    def counts(self, *, skipped: bool = False) -> Counts:
        """The counts so far; ``skipped`` says whether the last step was skipped."""
        oracle = Oracle(self.g_calls, self.j_calls, self.jvp_calls)
        return Counts(self.t, self.samples, oracle, skipped)


@final
@dataclass
class Pending:
    """A step whose gradient is in ``p.grad`` and whose weights have not moved yet.

    Attributes:
        skipped: whether something was not finite. Do not step then.
        report: what the step did, as of its end.
    """

    skipped: bool
    report: Report
