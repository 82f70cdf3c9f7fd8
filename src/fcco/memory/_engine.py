"""MemoryEngine: the engine that weighs a batch by a table of the last output of every example."""

from __future__ import annotations

import functools
import warnings
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from fcco._support.interrupts import uninterrupted
from fcco._support.parallel import rank_and_world, sum_over_ranks
from fcco.data import Batch
from fcco.data._reader import Reader
from fcco.memory._diagnostics import figures_of, followed, warn_if_stale
from fcco.memory._exchange import Fresh, broadcast_from_rank0, gathered, join_exchange, output_error
from fcco.memory._forward import NetworkPass, Operations
from fcco.memory._loader import MemoryLoader
from fcco.memory._output_gradients import Weigher, add_param_gradients
from fcco.memory._period import choose_period
from fcco.memory._sampler import gradient_sizes, renewed
from fcco.memory._scoring import scored_table
from fcco.memory._state import MemoryState, check_rows, check_sizes
from fcco.memory._strata import Strata
from fcco.memory._table import Entries, OutputTable, last_draws
from fcco.memory.forms import Evaluation, form_of
from fcco.methods import OutputMemory
from fcco.methods.estimators import Weights
from fcco.objectives import OutputObjective
from fcco.objectives._precision import working_dtype
from fcco.solver._blocks import BlockTable
from fcco.solver._diagnose import exact_figures
from fcco.solver._engine import Engine, Parts, Probed, Request, register_engine
from fcco.solver._full_pass import FullPass
from fcco.solver._gradients import NonFiniteError, finite_rows
from fcco.solver._report import Diagnosis, Oracle
from fcco.solver._transaction import Transaction


class _Written(NamedTuple):
    """What the examples of a step had in the table, the outputs (K, ...) that took its place, and for each draw the
    last one that gave the same example (K,)."""

    old: Entries
    values: Tensor
    last: Tensor


@final
class MemoryEngine(Engine):
    r"""Weighs a batch by exact coefficients c_k = dPhi/ds_k, F(w) = Phi(s_1(w), ..., s_n(w)), taken at the table.

    ::

        s_k = outputs of the drawn examples at w_t, written into the table
        c_k = dPhi/ds_k at the table
        v_k = c_k / (q_k B), capped and balanced
        G   = sum_k v_k grad s_k(w_t)
    """

    state: MemoryState

    def __init__(self, parts: Parts) -> None:
        objective = parts.objective
        assert isinstance(objective, OutputObjective)  # the table of refused pairs has seen to it
        if parts.u0 is not None:
            raise ValueError(f"u0 must be None for {parts.method.name}: it keeps outputs, not rows u")
        super().__init__(parts)
        self._objective = objective
        self._counters = parts.counters
        self._raises = parts.raises
        self._like = torch.empty(0, dtype=working_dtype(objective.model), device=parts.evaluator.device)
        self.strata = Strata(objective.blocks, self._like.device)
        self._weigher = Weigher(
            self.settings,
            self.strata,
            # Of a query with a few items mostly one side is drawn, and has nothing to be set off against.
            balances=objective.shift_invariant and not objective.shift_per_query,
            by_length=objective.features,
        )
        nothing = torch.empty(0, dtype=torch.float64)
        self.state = MemoryState(staleness=self._like.new_zeros(()), shares=[nothing] * len(self.strata))
        self.state.period = self.settings.refresh or 0  # 0: chosen at the first step, from what it costs

    @property
    def settings(self) -> OutputMemory:
        """Of the method."""
        settings = self.method.memory
        assert settings is not None
        return settings

    # ------------------------------------------------------------------ the step

    def probe(self, request: Request, weights: Weights, transaction: Transaction) -> Probed:
        batch = self._read(request)
        self._evaluator.begin()
        with self._evaluator.no_sync():
            network = NetworkPass(self._evaluator, self._objective, batch, request.chunk)
            fresh, work = self._outputs(network)
            # Every rank learns what all of them drew and saw.
            every = gathered(batch, fresh, self.strata, request.t)
            self._evaluator.meeting.then(self._evaluator.join_average)
            # From here on every rank does the same with the same numbers.
            written = self._write(request.t, every, work, transaction)
            found = self._evaluate(written)
            gradient = self._weigh(every, written, found.c)  # (K, ...), of all ranks' draws
            # The solver takes the mean over ranks.
            network.backward(weights.now * rank_and_world()[1] * gradient[every.mine])
            assert self.state.form is not None
            params = self.state.form.objective_params
            add_param_gradients(params, found, weights.now, self._objective.num_blocks)
        samples = len(batch)
        return Probed(
            samples=samples,
            oracle=Oracle(g=samples, j=samples),
            seen=[fresh],
            finite=lambda: finite_rows([fresh]).all(),
            blame=lambda: self._blame(batch, fresh),
            commit=functools.partial(self._commit, written.old),
            f=_mean_kept(found),
        )

    def join(self, error: Exception) -> None:
        join_exchange(self._evaluator.meeting.step, error, self._like.device)

    def _blame(self, batch: Batch, fresh: Tensor) -> NonFiniteError:
        gradient = NonFiniteError("the gradient is not finite, though all outputs are", [])
        return output_error(batch.id, fresh) or gradient

    def _commit(self, old: Entries, ok: Tensor | None) -> None:
        """The entries are in the table, and the transaction knows the old ones: a captured step has them put back."""
        if ok is None:
            return
        assert self.state.table is not None
        self.state.table.keep_where(ok, old)

    def samples(self, request: Request) -> int:
        return len(self._read(request))

    def _read(self, request: Request) -> Batch:
        batch = request.data[0]
        if not isinstance(batch, Batch) or len(request.data) != 1:
            got = ", ".join(type(item).__name__ for item in request.data)
            raise TypeError(f"{self.method.name} takes one batch of solver.loader(...), got {got}")
        is_drawn = batch.probability is not None and batch.weight is not None
        if not is_drawn and batch.index is not None:
            raise ValueError(
                "batch.probability and batch.weight must be given: those of solver.loader(...) have them, and batches "
                "of data.batch(ids, x) do without"
            )
        device = self._like.device
        return batch.to(device, non_blocking=device.type == "cuda")  # the step waits later, once

    def _outputs(self, network: NetworkPass) -> tuple[Tensor, int]:
        """Outputs of the batch, and at the very first step the operations that they take."""
        if self.state.period:
            return network.outputs(), 0
        with Operations() as counter:
            outputs = network.outputs()
        return outputs, 3 * counter.total  # the backward pass costs about twice the forward one

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

    @torch.no_grad()
    def _evaluate(self, written: _Written) -> Evaluation:
        """c of each draw's example at the table."""
        state = self.state
        assert state.form is not None
        found = state.form.evaluate(written.old.id, state.rows, written.old)
        state.rows = found.rows  # of the fork: a step that fails leaves the old ones
        return found._replace(c=found.c[written.last])

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

    @torch.no_grad()
    def _weigh(self, every: Fresh, written: _Written, c: Tensor) -> Tensor:
        """The output gradient (K, ...) of every draw, and what the step says of the table."""
        state = self.state
        assert state.table is not None
        found = self._weigher.weigh(state.table, every.id, every.probability, every.weight, c, state.total)
        state.figures = figures_of(written.old, written.values, found.share)
        state.staleness = followed(state.staleness, state.figures)
        return found.v

    # ------------------------------------------------------------------ captured steps

    def obstacle(self) -> str | None:
        form = self.state.form
        if form is None or form.capturable:
            return None
        return form.why_not

    def is_due(self, t: int) -> bool:
        return self.state.table is None  # the first step makes it

    def is_due_after(self, t: int) -> bool:
        return t - self.state.refreshed >= self.state.period

    def written_in_place(self) -> list[Tensor]:
        table = self.state.table
        if table is None:
            return []
        return [table.values, table.written]

    def begin_capture(self, t: int) -> None:
        self.state.clock = self._clock_at(t)

    def _clock_at(self, t: int) -> Tensor:
        """() the number of the last step, t, on the table's device; the one that counts there, where there is one."""
        if self.state.clock is not None:
            return self.state.clock
        assert self.state.table is not None
        return torch.full((), t, device=self.state.table.device)

    def fingerprint(self) -> Any:
        table = self.state.table
        if table is None:
            return None
        # Not its id: a table made later may get the same one, and graphs know the addresses of this one.
        return table.number, table.complete

    # ------------------------------------------------------------------ the whole table

    def after_step(self, t: int, stacklevel: int) -> None:
        """Evaluate the whole table and renew the probabilities, where it is time to."""
        if self.is_due_after(t):
            self._refresh(t, self.settings.renewal)
            warn_if_stale(self.state, t, stacklevel + 1)

    def steps_to_refresh(self) -> int:
        """After how many more steps the whole table is evaluated; the first step chooses how often."""
        left = self.state.refreshed + self.state.period - self._counters.t
        return max(1, left)

    @torch.no_grad()
    def _refresh(self, t: int, renewal: float) -> None:
        state = self.state
        assert state.form is not None
        assert state.table is not None
        state.table.recount()  # here a device waits anyway
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
            state.total = found.c.clamp(min=0).sum(0)  # () or a number per column
            state.shares = shares
            state.refreshed = t

    def score(self, reader: Reader, chunk: int) -> None:
        """The scoring pass: the output of every example at the weights as they are."""
        t = self._counters.t
        table = scored_table(self._evaluator, self._objective, self._table_copy, reader, chunk, t, self._raises)
        with uninterrupted():  # values, rows and form belong together
            self._take_over(table)
        size = self._objective.data.num_examples
        self._counters.charge(size, Oracle(g=size))
        self._refresh(t, renewal=1.0)  # every output is fresh: nothing is worth remembering

    def _table_copy(self, shape: tuple[int, ...]) -> OutputTable:
        """A table to write into: the one that there is stays as it is."""
        if self.state.table is not None:
            return self.state.table.copy()
        size = self._objective.data.num_examples
        return OutputTable.empty(size, shape, like=self._like, counted=self.strata.counted)

    # ------------------------------------------------------------------ loaders and figures

    def loader(
        self,
        blocks: int,
        samples: int,
        *,
        seed: int,
        steps_per_epoch: int | None,
        num_workers: int,
        pin_memory: bool,
    ) -> MemoryLoader:
        if self._objective.features:
            warnings.warn(
                "the output memory does not pay for features: contrastive losses end far lower with fcco.sox, since "
                "what is drawn flees from where the others were (docs/memory.md)",
                stacklevel=3,
            )
        return MemoryLoader(
            self,
            self._objective.blocks,
            blocks,
            samples,
            seed=seed,
            steps_per_epoch=steps_per_epoch,
            num_workers=num_workers,
            pin_memory=pin_memory,
            dtype=self._objective.input_dtype(),
        )

    def diagnose(self, full_pass: FullPass | None, z: list[Tensor] | None, gradient: bool) -> Diagnosis:
        chosen = full_pass
        if chosen is None:
            chosen = self._full_pass
        assert chosen is not None  # ready objectives have one
        evaluator = self._evaluator
        # No rows u: a table without visits gives the geometry, and no tracking error.
        like = torch.empty(0, dtype=evaluator.dtype, device=evaluator.device)
        objective = self._objective
        rows = BlockTable.empty(
            objective.num_blocks, objective.dim, like=like, log_domain=evaluator.log_domain, decays=False
        )
        return exact_figures(evaluator, rows, chosen, z, gradient)

    def rows(self) -> Tensor:
        raise RuntimeError(f"{self.method.name} keeps outputs, not rows u")

    # ------------------------------------------------------------------ resuming

    def check_state(self, state: dict[str, Any]) -> None:
        size = self._objective.data.num_examples
        check_sizes(state, size, self.strata.sizes)
        if state["values"] is None:
            return
        shape = tuple(state["values"].shape[1:])
        # An empty table of the saved shape: a form says what rows it keeps without outputs.
        form = form_of(self._objective, OutputTable.empty(size, shape, like=self._like))
        check_rows(state, form.start_rows())

    def after_load(self) -> None:
        state = self.state
        if self.settings.refresh is not None:
            state.period = self.settings.refresh
        if state.values is None or state.written is None:
            return
        state.values = state.values.to(self._like.dtype)  # a state of another precision may be loaded
        table = OutputTable(state.values, state.written, self.strata.counted)
        state.take_over(table, form_of(self._objective, table), state.rows)


def _mean_kept(found: Evaluation) -> Tensor:
    """f of the blocks, scaled so that their mean is that of those that took part."""
    if found.part is None:
        return found.f
    share = found.part.to(found.f.dtype).mean()  # ()
    return torch.where(found.part, found.f, 0.0) / share


register_engine(memory=True, factory=MemoryEngine)
