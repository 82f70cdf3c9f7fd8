"""How far the table can be trusted."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch

if TYPE_CHECKING:
    from fcco.memory._memory import Figures, Memory

#: fresh outputs further from the stored ones than the stored ones are from each other: weights of old against new
MEANINGLESS = 2.0
FEW = 8  # examples with an entry say too little
MOST = 5.0 * MEANINGLESS  # what one step can add to the mean: outputs that start out equal have no spread at all


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
        capped: the share of the last step's pushes that were capped.
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
        return self.change / self.spread if self.spread > 0.0 else float("inf") if self.change > 0.0 else 0.0


def diagnose(memory: Memory, step: int) -> MemoryDiagnosis:
    """Look at the memory after ``step``; a device waits for this."""
    table, figures = memory.table, memory.figures
    if table is None:
        raise RuntimeError("the memory is empty: take a step first")
    nothing = float("nan")  # of the last step, after a state was loaded
    age = (step - table.written[table.seen]).double()
    return MemoryDiagnosis(
        seen=1.0 - table.missing / sum(chances.members.shape[0] for chances in memory.chances),
        age=float(age.mean()),
        oldest=int(age.max()),
        change=nothing if figures is None else float(figures.change),
        spread=nothing if figures is None else float(figures.spread),
        effective_size=tuple(chances.effective_size(memory.settings.importance) for chances in memory.chances),
        capped=nothing if figures is None else float(figures.cut),
        period=memory.period,
    )


def follow(memory: Memory, figures: Figures) -> None:
    """Take a step's figures into the running mean of change / spread; no device waits."""
    memory.figures = figures
    if figures.known >= FEW:
        ratio = (figures.change / figures.spread).nan_to_num(0.0).clamp(max=MOST)
        memory.lag = torch.lerp(memory.lag, ratio, 0.02)


def warn_if_stale(memory: Memory, step: int) -> None:
    """Say once that the table lags so far behind that its weights mean nothing."""
    if memory.warned or not float(memory.lag) > MEANINGLESS:
        return
    memory.warned = True
    warnings.warn(
        f"step {step}: fresh outputs differ from the stored ones {float(memory.lag):.1f} times as much as those differ "
        "from each other; the weights mean little: lower the learning rate, or raise the examples a step",
        stacklevel=2,
    )
