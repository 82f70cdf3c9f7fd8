"""TableKeeper: what the output memory does with fresh outputs, wherever they come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from fcco._support.interrupts import uninterrupted
from fcco._support.parallel import sum_over_ranks
from fcco.data._reader import Reader
from fcco.memory._diagnostics import figures_of, followed
from fcco.memory._exchange import Fresh, broadcast_from_rank0
from fcco.memory._output_gradients import Weigher
from fcco.memory._period import choose_period
from fcco.memory._sampler import gradient_sizes, renewed
from fcco.memory._state import MemoryState
from fcco.memory._strata import Strata
from fcco.memory._table import Entries, OutputTable, last_draws
from fcco.memory.forms import Evaluation, form_of
from fcco.methods import OutputMemory
from fcco.objectives import OutputObjective
from fcco.solver._transaction import Transaction


class Absorbed(NamedTuple):
    """What a step made of fresh outputs.

    Args:
        old: what the examples had in the table before.
        found: F at the table, with c of each draw (K, ...).
        gradient: (K, ...) the output gradient of every draw.
    """

    old: Entries
    found: Evaluation
    gradient: Tensor


class _Written(NamedTuple):
    """What the examples of a step had in the table, the outputs (K, ...) that took its place, and for each draw the
    last one that gave the same example (K,)."""

    old: Entries
    values: Tensor
    last: Tensor


class TableKeeper(ABC):
    r"""Keeps the table, and weighs draws by exact coefficients c_k = dPhi/ds_k, F(w) = Phi(s_1(w), ..., s_n(w)).

    Abstract: the Solver's engine gets the outputs from its network, a loss from the user's.

    Attributes:
        state: the record; the Solver replaces it by a fork in every step.
        strata: what draws are made from.
    """

    state: MemoryState
    strata: Strata
    _objective: OutputObjective
    _like: Tensor  # gives dtype and device of the table
    _weigher: Weigher

    @property
    @abstractmethod
    def settings(self) -> OutputMemory:
        """What is done with the table."""

    @abstractmethod
    def steps_to_refresh(self) -> int:
        """After how many more steps the whole table is evaluated."""

    @abstractmethod
    def score(self, reader: Reader, chunk: int) -> None:
        """Fill the table by a pass over all data."""

    def _prepare(self, objective: OutputObjective, like: Tensor) -> None:
        """Everything but the state.

        Args:
            like: gives dtype and device of the table.
        """
        self._objective = objective
        self._like = like
        self.strata = Strata(objective.blocks, like.device)
        self._weigher = Weigher(
            self.settings,
            self.strata,
            # Of a query with a few items mostly one side is drawn, and has nothing to be set off against.
            balances=objective.shift_invariant and not objective.shift_per_query,
            by_length=objective.features,
        )

    def _first_state(self) -> MemoryState:
        nothing = torch.empty(0, dtype=torch.float64)
        state = MemoryState(staleness=self._like.new_zeros(()), shares=[nothing] * len(self.strata))
        state.period = self.settings.refresh or 0  # 0: chosen at the first step, from what it costs
        return state

    # ------------------------------------------------------------------ a step

    def absorb(self, t: int, every: Fresh, work: int, transaction: Transaction) -> Absorbed:
        """Write the fresh outputs of step t into the table, and weigh the draws by it.

        Every rank does the same with the same numbers.

        Args:
            every: what all ranks drew and saw.
            work: the network's operations for this rank's part, asked for at the first step alone.
            transaction: what undoes the writing.
        """
        takes_whole = self._takes_whole(t)
        written = self._write(t, every, work, transaction)
        if takes_whole:
            found = self._evaluate_whole(written)
        else:
            found = self._evaluate(written)
        return Absorbed(written.old, found, self._weigh(every, written, found.c))

    def _write(self, t: int, every: Fresh, work: int, transaction: Transaction) -> _Written:
        """Write the fresh outputs into the table; of an example that was drawn twice the last one stays."""
        state = self.state
        table = self._table(tuple(every.values.shape[1:]))
        assert state.form is not None
        if not state.period:
            # Counted, not timed, so that every rank and every repetition chooses the same period.
            operations = int(sum_over_ranks(torch.tensor(work, device=table.device)))
            draws = int(every.id.shape[0])
            fraction = state.form.max_changed_fraction
            state.period = choose_period(table.size, draws, state.form.cost(), operations, fraction)
        # Of an example that was drawn twice the last output stays, and all of its draws get that one.
        last = last_draws(every.id)  # (K,)
        values = every.values[last]  # (K, ...)
        old = table.read(every.id, last, every.sizes)
        # Counted on the device: a captured step would else write its own number for ever.
        clock = self._clock_at(t - 1) + 1
        state.clock = clock
        # The table is too large to be copied: it is written in place, and the old entries are kept to undo that.
        transaction.on_failure(table.put_back, old)
        table.write(every.id, values, clock)
        return _Written(old, values, last)

    def _takes_whole(self, t: int) -> bool:
        """Whether step t evaluates the whole table: where that is due after it anyway, once is enough.

        On the CPU alone: a captured step has fixed shapes, and evaluates its draws.
        """
        table = self.state.table
        if table is None or table.device.type != "cpu":
            return False
        if not self.state.period or not self.is_due_after(t):  # before the first step there is no period yet
            return False
        # The evaluation after the step is at the weights after it, which move the objective's own parameters.
        if self.state.form is None or self.state.form.objective_params:
            return False
        table.recount()  # what the host knew before depends on where a run was resumed
        return table.complete

    @torch.no_grad()
    def _evaluate(self, written: _Written) -> Evaluation:
        """c of each draw's example at the table."""
        state = self.state
        assert state.form is not None
        found = state.form.evaluate(written.old.id, state.rows, written.old)
        state.rows = found.rows  # of the fork: a step that fails leaves the old ones
        return found._replace(c=found.c[written.last])

    @torch.no_grad()
    def _evaluate_whole(self, written: _Written) -> Evaluation:
        """The same, from an evaluation of the whole table, which is kept for what comes after the step."""
        state = self.state
        assert state.form is not None
        whole = state.form.evaluate_all(state.rows)
        state.rows = whole.rows
        state.whole = whole
        return whole._replace(c=whole.c[written.old.id])

    @torch.no_grad()
    def _weigh(self, every: Fresh, written: _Written, c: Tensor) -> Tensor:
        """The output gradient (K, ...) of every draw, and what the step says of the table."""
        state = self.state
        assert state.table is not None
        found = self._weigher.weigh(state.table, every.id, every.probability, every.weight, c, state.total)
        state.figures = figures_of(written.old, written.values, found.share)
        state.staleness = followed(state.staleness, state.figures)
        return found.v

    # ------------------------------------------------------------------ the whole table

    def is_due_after(self, t: int) -> bool:
        """Whether the whole table is to be evaluated after step t."""
        return t - self.state.refreshed >= self.state.period

    @torch.no_grad()
    def _refresh(self, t: int, renewal: float) -> None:
        """Evaluate the whole table after step t, and renew the probabilities by so much."""
        state = self.state
        assert state.form is not None
        assert state.table is not None
        state.table.recount()  # here a device waits anyway
        found = state.whole  # of this very table, where the step has evaluated all of it
        if found is None:
            found = state.form.evaluate_all(state.rows)
        seen = None
        if not state.table.complete:
            seen = state.table.seen
        # Replaced all at once below: a Ctrl-C in between leaves the old ones.
        shares = []
        for share, members in zip(state.shares, self.strata.members, strict=True):
            size = broadcast_from_rank0(gradient_sizes(found.c, members, seen))  # (n,)
            shares.append(renewed(share, size, renewal))
        with uninterrupted():
            state.rows = found.rows
            state.whole = None
            state.total = found.c.clamp(min=0).sum(0)  # () or a number per column
            state.shares = shares
            state.refreshed = t

    # ------------------------------------------------------------------ the table

    def _table(self, shape: tuple[int, ...]) -> OutputTable:
        """The table, made when the shape of an output is known."""
        table = self.state.table
        if table is None:
            size = self._objective.data.num_examples
            table = OutputTable.empty(size, shape, like=self._like, counted=self.strata.counted)
            self._take_over(table)
        if table.shape != shape:
            raise ValueError(f"outputs must keep the shape {table.shape}, got {shape}")
        return table

    def _take_over(self, table: OutputTable) -> None:
        form = form_of(self._objective, table)
        self.state.take_over(table, form, form.start_rows())

    def _clock_at(self, t: int) -> Tensor:
        """() the number of the last step, t, on the table's device; the one that counts there, where there is one."""
        if self.state.clock is not None:
            return self.state.clock
        assert self.state.table is not None
        return torch.full((), t, device=self.state.table.device)

    def _read_table(self) -> None:
        """The table and its form from the values of a state that was loaded."""
        state = self.state
        if self.settings.refresh is not None:
            state.period = self.settings.refresh
        if state.values is None or state.written is None:
            return
        state.values = state.values.to(self._like.dtype)  # a state of another precision may be loaded
        table = OutputTable(state.values, state.written, self.strata.counted)
        state.take_over(table, form_of(self._objective, table), state.rows)


def mean_value(found: Evaluation) -> Tensor:
    """f of the blocks, scaled so that their mean is that of those that took part."""
    if found.part is None:
        return found.f
    share = found.part.to(found.f.dtype).mean()  # ()
    return torch.where(found.part, found.f, 0.0) / share
