"""How far the table can be trusted."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fcco.memory._sampler import effective_size
from fcco.memory._state import Figures, MemoryState
from fcco.memory._table import Entries
from fcco.solver import Solver

#: fresh outputs further from the stored ones than the stored ones are from each other: weights of old against new
MEANINGLESS = 2.0
FEW = 8  # examples with an entry say too little
MOST = 5.0 * MEANINGLESS  # what one step can add to the mean: outputs that start out equal have no spread at all
RATE = 0.02  # at which the running mean forgets


@final
@dataclass(frozen=True)
class MemoryDiagnosis:
    """The state of an output memory.

    Attributes:
        seen: the share of the examples that have an entry.
        age: the mean number of steps since the entries were written.
        oldest: the largest such number.
        change: root mean square of fresh - stored output, over the last step's examples.
        spread: root mean square of the stored outputs of those examples about their mean.
        effective_size: for each stratum, 1 / (n sum q^2): the share of its members that the draws spread over.
        capped: the share of the last step's output gradients that were capped.
        period: steps between two evaluations of the whole table.
    """

    seen: float
    age: float
    oldest: int
    change: float
    spread: float
    effective_size: tuple[float, ...]
    capped: float
    period: int

    @property
    def staleness(self) -> float:
        """change / spread: well below 1 the table ranks the examples as the network does."""
        if self.spread > 0.0:
            return self.change / self.spread
        if self.change > 0.0:
            return math.inf
        return 0.0


def diagnose(solver: Solver) -> MemoryDiagnosis:
    """Report the age and staleness of the table, the spread of the draws and the share of capped output gradients.

    ``solver.diagnose()`` gives F itself and its gradient, as with every method.

    Args:
        solver: a solver with :func:`fcco.output_memory`, after a step or a scoring pass.

    Raises:
        RuntimeError: if the table is empty.
    """
    state = memory_of(solver)
    table = state.table
    settings = solver.method.memory
    assert settings is not None
    if table is None:
        raise RuntimeError("the memory is empty: take a step first")
    members = table.counted.sum()  # examples that count nothing are not waited for
    age = (solver.t - table.written[table.seen]).double()
    change = math.nan  # of the last step, which a state that was loaded does not tell
    spread = math.nan
    capped = math.nan
    if state.figures is not None:
        change = float(state.figures.change)
        spread = float(state.figures.spread)
        capped = float(state.figures.capped)
    return MemoryDiagnosis(
        seen=1.0 - table.missing / int(members),
        age=float(age.mean()),
        oldest=int(age.max()),
        change=change,
        spread=spread,
        effective_size=tuple(effective_size(share, settings.importance) for share in state.shares),
        capped=capped,
        period=state.period,
    )


def memory_of(solver: Solver) -> MemoryState:
    """The record of a solver's output memory."""
    state = solver.state.engine
    if not isinstance(state, MemoryState):
        raise TypeError(f"solver must use fcco.output_memory, got {solver.method.name}")
    return state


def figures_of(old: Entries, fresh: Tensor, capped: Tensor) -> Figures:
    """What a step saw: fresh outputs (K, ...) against the entries that they replaced, each example once."""
    stored = old.values
    fresh = fresh.to(stored.dtype)
    there = old.once & (old.written >= 0)  # (K,) those that had an entry
    mask = there.reshape(-1, *[1] * (stored.dim() - 1))
    known = there.sum()  # ()
    number = known.clamp(min=1).to(stored.dtype)
    mean = torch.where(mask, stored, 0.0).sum(0) / number
    change = torch.where(mask, fresh - stored, 0.0).norm() / number.sqrt()  # ()
    spread = torch.where(mask, stored - mean, 0.0).norm() / number.sqrt()  # ()
    return Figures(known, change, spread, capped)


def followed(staleness: Tensor, figures: Figures) -> Tensor:
    """The running mean of change / spread, with a step's figures in it; no device waits."""
    ratio = (figures.change / figures.spread).nan_to_num(0.0).clamp(max=MOST)  # 0/0 of outputs that have not moved
    return torch.where(figures.known < FEW, staleness, torch.lerp(staleness, ratio, RATE))


def warn_if_stale(state: MemoryState, step: int, stacklevel: int) -> None:
    """Say once that the table lags so far behind that its weights mean nothing."""
    if state.warned or not float(state.staleness) > MEANINGLESS:
        return
    state.warned = True
    warnings.warn(
        f"step {step}: fresh outputs differ from the stored ones {float(state.staleness):.1f} times as "
        "much as the stored ones "
        "differ from each other, so the weights mean little; lower the learning rate, or draw more examples per step",
        stacklevel=stacklevel + 1,
    )
