"""MemoryEngine: the engine that weighs a batch by a table of the last output of every example."""

from __future__ import annotations

import functools
import warnings
from typing import Any, Unpack, final

import torch
from torch import Tensor

from fcco._support.interrupts import uninterrupted
from fcco._support.parallel import rank_and_world
from fcco.data import Batch
from fcco.data._epochs import LoaderOptions
from fcco.data._reader import Reader
from fcco.memory._diagnostics import warn_if_stale
from fcco.memory._exchange import gathered, join_exchange, output_error
from fcco.memory._forward import NetworkPass, Operations
from fcco.memory._keeper import TableKeeper, mean_value
from fcco.memory._loader import MemoryLoader
from fcco.memory._output_gradients import add_param_gradients
from fcco.memory._scoring import scored_table
from fcco.memory._state import MemoryState, check_rows, check_sizes
from fcco.memory._table import Entries, OutputTable
from fcco.memory.forms import form_of
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


@final
class MemoryEngine(TableKeeper, Engine):
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
            raise ValueError(f"u0 must be None for {parts.method.name}, which keeps outputs instead of rows u")
        Engine.__init__(self, parts)
        self._counters = parts.counters
        self._raises = parts.raises
        like = torch.empty(0, dtype=working_dtype(objective.model), device=parts.evaluator.device)
        self._prepare(objective, like)
        self.state = self._first_state()

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
            absorbed = self.absorb(request.t, every, work, transaction)
            # The solver takes the mean over ranks.
            network.backward(weights.now * rank_and_world()[1] * absorbed.gradient[every.mine])
            assert self.state.form is not None
            params = self.state.form.objective_params
            add_param_gradients(params, absorbed.found, weights.now, self._objective.num_blocks)
        samples = len(batch)
        return Probed(
            samples=samples,
            oracle=Oracle(g=samples, j=samples),
            seen=[fresh],
            finite=lambda: finite_rows([fresh]).all(),
            blame=lambda: self._blame(batch, fresh),
            commit=functools.partial(self._commit, absorbed.old),
            f=mean_value(absorbed.found),
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
                "batch.probability and batch.weight must be given: batches of solver.loader(...) have them, and "
                "batches "
                "of data.batch(ids, x) do not need them"
            )
        self._objective.check_origin(batch)
        device = self._like.device
        return batch.to(device, non_blocking=device.type == "cuda")  # the step waits later, once

    def _outputs(self, network: NetworkPass) -> tuple[Tensor, int]:
        """Outputs of the batch, and at the very first step the operations that they take."""
        if self.state.period:
            return network.outputs(), 0
        with Operations() as counter:
            outputs = network.outputs()
        return outputs, 3 * counter.total  # the backward pass costs about twice the forward one

    # ------------------------------------------------------------------ captured steps

    def obstacle(self) -> str | None:
        form = self.state.form
        if form is None or form.capturable:
            return None
        return form.why_not

    def is_due(self, t: int) -> bool:
        return self.state.table is None or self._takes_whole(t)  # the first step makes it

    def written_in_place(self) -> list[Tensor]:
        table = self.state.table
        if table is None:
            return []
        return [table.values, table.written]

    def begin_capture(self, t: int) -> None:
        self.state.clock = self._clock_at(t)

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

    def score(self, reader: Reader, chunk: int) -> None:
        """The scoring pass: the output of every example at the weights as they are.

        Args:
            reader: goes through the data.
            chunk: examples at once.
        """
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

    def loader(self, blocks: int, samples: int, **options: Unpack[LoaderOptions]) -> MemoryLoader:
        if self._objective.features:
            warnings.warn(
                "the output memory does not pay for features: contrastive losses end far lower with fcco.sox, since "
                "what is drawn flees from where the others were (docs/memory.md)",
                stacklevel=3,
            )
        objective = self._objective
        return MemoryLoader(self, objective.blocks, blocks, samples, dtype=objective.input_dtype(), **options)

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
        self._read_table()


register_engine(memory=True, factory=MemoryEngine)
