"""MemoryState: what the output memory carries between steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

from torch import Tensor

from fcco.memory._table import OutputTable
from fcco.memory.forms import Evaluation, Form
from fcco.solver._state import derived, saved


class Figures(NamedTuple):
    """What the last step saw; () tensors, no device waits for them.

    Args:
        known: how many of the drawn examples had an entry.
        change: root mean square of fresh - stored output over these.
        spread: root mean square of their stored outputs about the mean.
        capped: the share of the output gradients that were capped.
    """

    known: Tensor
    change: Tensor
    spread: Tensor
    capped: Tensor


@final
@dataclass
class MemoryState:
    """The record of the output memory. Entries of the table are written in place, everything else is replaced.

    Args:
        staleness: () running mean of the distance of fresh from stored outputs, over the spread of the stored ones.
        shares: for each stratum h (n,), on the CPU, of which the next draws are made; (0,): not known yet.
        values: (N, ...) the table's outputs; None: before the first step.
        written: (N,) when each was written, -1: never.
        rows: what the form remembers.
        total: what the upward output gradients add up to in the whole table, a number per column.
        refreshed: the step of the last evaluation of the whole table.
        period: steps between two of them; 0: to be chosen at the first step.
        table: ``values`` and ``written`` as a table.
        form: F as a function of it.
        clock: () the number of the last step, on the device: what ``written`` gets; None: not there yet.
        whole: of the whole table, as the last step has left it; None: that step evaluated its draws alone.
        figures: of the last step; None: before it.
        warned: that the table is stale; once is enough.
    """

    staleness: Tensor = saved()
    shares: list[Tensor] = saved(host_only=True)
    values: Tensor | None = saved(host_only=True, default=None)  # the table writes these two in place
    written: Tensor | None = saved(host_only=True, default=None)
    rows: list[Tensor] = saved(default_factory=list)
    total: Tensor | None = saved(default=None)
    refreshed: int = saved(default=0)
    period: int = saved(default=0)
    table: OutputTable | None = derived(default=None)
    form: Form | None = derived(default=None)
    clock: Tensor | None = derived(default=None)
    whole: Evaluation | None = derived(default=None)
    figures: Figures | None = derived(default=None)
    warned: bool = derived(default=False)

    def after_load(self) -> None:
        """Take what a saved state holds to where it belongs."""
        self.shares = [share.cpu() for share in self.shares]
        # The engine makes these anew: they hold the objective and the old tensors.
        self.table = None
        self.form = None
        self.clock = None
        self.whole = None
        self.figures = None
        self.warned = False

    def take_over(self, table: OutputTable, form: Form, rows: list[Tensor]) -> None:
        """Another table in the place of this one.

        Args:
            table: the outputs.
            form: F as a function of them.
            rows: what the form remembers.
        """
        self.values = table.values
        self.written = table.written
        self.rows = rows
        self.table = table
        self.form = form
        self.whole = None


def check_sizes(state: dict[str, Any], examples: int, strata: list[int]) -> None:
    """Refuse a saved record of other data.

    Args:
        examples: N.
        strata: how many examples each has.
    """
    if len(state["shares"]) != len(strata):
        raise ValueError(f"the state has {len(state['shares'])} strata, but this memory has {len(strata)}")
    for share, size in zip(state["shares"], strata, strict=True):
        if share.shape[0] not in (0, size):
            raise ValueError(f"the state has a stratum of {share.shape[0]} examples, but the data have one of {size}")
    if state["values"] is None:
        return
    if state["values"].shape[0] != examples or state["written"].shape != (examples,):
        raise ValueError(f"the state is of {state['values'].shape[0]} examples, but the data have {examples}")


def check_rows(state: dict[str, Any], rows: list[Tensor]) -> None:
    """Refuse a saved record whose rows are not shaped as those of this objective's form."""
    wanted = [tuple(row.shape) for row in rows]
    found = [tuple(row.shape) for row in state["rows"]]
    if wanted != found:
        raise ValueError(f"the state is of another objective: its rows have shapes {found}, not {wanted}")
