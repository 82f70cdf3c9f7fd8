"""LossMemory: the output memory behind a loss, whose outputs come from the user's network."""

from __future__ import annotations

from typing import Any, NoReturn, final

import torch
from torch import Tensor

from fcco._support import checks
from fcco._support.parallel import rank_and_world
from fcco.data import Batch
from fcco.data._reader import Reader
from fcco.losses._sampler import ImportanceBatches
from fcco.memory import MemoryLoader
from fcco.memory._diagnostics import warn_if_stale
from fcco.memory._exchange import gathered
from fcco.memory._forward import one_row_each
from fcco.memory._keeper import Absorbed, TableKeeper, mean_value
from fcco.memory._output_gradients import scaled_gradients
from fcco.memory._state import MemoryState, check_rows, check_sizes
from fcco.memory._table import OutputTable
from fcco.memory.forms import form_of
from fcco.methods import OutputMemory
from fcco.objectives import OutputObjective
from fcco.solver._gradients import finite_rows
from fcco.solver._state import fork
from fcco.solver._transaction import Transaction

WORK = 10**8  # operations per example, of a network that nobody has counted: a small convolutional one
_NUMBERS = ("refreshed", "period")  # the record's whole numbers, saved as tensors


@final
class LossMemory(TableKeeper):
    """Makes a loss of outputs: its gradient is what the table says, and its value F at the table.

    Args:
        objective: of the loss.
        settings: of the memory.

    Attributes:
        t: how many calls wrote into the table.
    """

    def __init__(self, objective: OutputObjective, settings: OutputMemory) -> None:
        self._settings = settings
        # Dtype and device of the table are those of the first outputs.
        self._prepare(objective, torch.empty(0, device=objective.data.device))
        self.state = self._first_state()
        self.t = 0
        self._batches: ImportanceBatches | None = None

    @property
    def settings(self) -> OutputMemory:
        return self._settings

    # ------------------------------------------------------------------ a call

    def value(self, outputs: Tensor, id: Tensor, training: bool) -> Tensor:
        """() the loss of the outputs (K, ...) of the examples (K,), which are on the CPU.

        Args:
            training: write into the table; else it is left as it was.
        """
        self._place(outputs)
        self.catch_up()
        batch = self._batch(id, training).to(outputs.device, non_blocking=True)
        with Transaction() as transaction:
            # What fails, and what is not training, leaves the old record as it was.
            transaction.on_failure(setattr, self, "state", self.state)
            self.state = fork(self.state)
            value = self._weighed(outputs, batch, transaction)
            if not training:
                transaction.roll_back()
                return value
        self.t += 1
        return value

    def _batch(self, id: Tensor, training: bool) -> Batch:
        """The examples with q of each, as it was when they were drawn; without a sampler, as if drawn uniformly."""
        bare = Batch(None, id)
        if not training or self._batches is None:
            return bare
        drawn = self._batches.claim(id)
        if drawn is None:
            raise ValueError(
                "id must be those of a batch of loss.sampler(...), whole and in order: how likely others were is not "
                f"known, got {checks.some(id.tolist())}"
            )
        return drawn

    def _weighed(self, outputs: Tensor, batch: Batch, transaction: Transaction) -> Tensor:
        fresh = self._finite(one_row_each(outputs, len(batch)), batch.id)
        every = gathered(batch, fresh, self.strata, self.t + 1)
        absorbed = self.absorb(self.t + 1, every, WORK * len(batch), transaction)
        v = absorbed.gradient[every.mine].reshape(outputs.shape)  # (K, ...)
        # Gradients are averaged over ranks, of which each has its own outputs alone.
        change = (v * rank_and_world()[1]).to(outputs.dtype) * (outputs - outputs.detach())
        value: Tensor = mean_value(absorbed.found).mean() + change.sum()
        return value + self._of_own_parameters(absorbed)

    def _finite(self, fresh: Tensor, id: Tensor) -> Tensor:
        """Outputs (K, ...), the stored ones where they are not finite: half precision overflows now and then."""
        table = self._table(tuple(fresh.shape[1:]))
        good = finite_rows([fresh]).reshape(-1, *[1] * (fresh.dim() - 1))
        return torch.where(good, fresh.to(table.values.dtype), table.values[id])

    def _of_own_parameters(self, absorbed: Absorbed) -> Tensor | float:
        """0, with the gradients of the objective's own parameters."""
        assert self.state.form is not None
        params = self.state.form.objective_params
        total: Tensor | float = 0.0
        gradients = scaled_gradients(params, absorbed.found, self._objective.num_blocks)
        for p, gradient in zip(params, gradients, strict=True):
            total = total + (gradient * (p - p.detach())).sum()
        return total

    def _place(self, outputs: Tensor) -> None:
        """The table where the outputs are, in their precision, single at least."""
        dtype = torch.promote_types(outputs.dtype, torch.float32)
        if self._like.device == outputs.device and self._like.dtype == dtype:
            return
        self._prepare(self._objective, torch.empty(0, dtype=dtype, device=outputs.device))
        self.state = _moved(self.state, self._like)
        self._read_table()

    # ------------------------------------------------------------------ the whole table

    def catch_up(self) -> None:
        """Evaluate the whole table where it is time to: after the optimizer's step, before the next draw or call."""
        if self.state.table is not None and self.is_due_after(self.t):
            self._refresh(self.t, self.settings.renewal)
            warn_if_stale(self.state, self.t, stacklevel=5)

    def steps_to_refresh(self) -> int:
        return max(1, self.state.refreshed + self.state.period - self.t)

    def score(self, reader: Reader, chunk: int) -> NoReturn:
        raise RuntimeError("a loss has no network to score all data with")

    # ------------------------------------------------------------------ draws

    def sampler(self, blocks: int, samples: int, seed: int, steps_per_epoch: int | None) -> ImportanceBatches:
        """What draws the batches from here on."""
        loader = MemoryLoader(self, self._objective.blocks, blocks, samples, seed=seed, steps_per_epoch=steps_per_epoch)
        self._batches = ImportanceBatches(loader, self.catch_up)
        return self._batches

    # ------------------------------------------------------------------ resuming

    def save_into(self, destination: dict[str, Any], prefix: str) -> None:
        """Everything that a resumed run needs besides the sampler, as tensors."""
        state = self.state
        for name in _NUMBERS:
            destination[f"{prefix}{name}"] = torch.tensor(getattr(state, name))
        for name in ("staleness", "values", "written", "total"):
            value = getattr(state, name)
            if value is not None:
                destination[f"{prefix}{name}"] = value
        for name in ("shares", "rows"):
            for place, value in enumerate(getattr(state, name)):
                destination[f"{prefix}{name}.{place}"] = value

    def load(self, saved: dict[str, Tensor]) -> None:
        """Go on from there (``t`` is for the loss to set); the tensors are copied.

        Args:
            saved: by the names of :meth:`save_into`, without prefix.
        """
        copies = {name: value.detach().clone() for name, value in saved.items()}
        fields: dict[str, Any] = {
            "staleness": copies["staleness"],
            "shares": _listed(copies, "shares"),
            "values": copies.get("values"),
            "written": copies.get("written"),
            "rows": _listed(copies, "rows"),
            "total": copies.get("total"),
            "refreshed": int(copies["refreshed"]),
            "period": int(copies["period"]),
        }
        size = self._objective.data.num_examples
        check_sizes(fields, size, self.strata.sizes)
        values = copies.get("values")
        if values is not None:
            table = OutputTable.empty(size, tuple(values.shape[1:]), like=self._like)
            check_rows(fields, form_of(self._objective, table).start_rows())
            self._prepare(self._objective, torch.empty(0, dtype=values.dtype, device=self._like.device))
        self.state = _moved(MemoryState(**fields), self._like)
        self._read_table()


def _listed(saved: dict[str, Tensor], name: str) -> list[Tensor]:
    """name.0, name.1, ... as a list."""
    found: list[Tensor] = []
    while f"{name}.{len(found)}" in saved:
        found.append(saved[f"{name}.{len(found)}"])
    return found


def _moved(state: MemoryState, like: Tensor) -> MemoryState:
    """The record on another device; what follows from it is made anew."""
    device = like.device
    moved = fork(state)
    moved.staleness = state.staleness.to(like)
    moved.rows = [row.to(device) for row in state.rows]
    for name in ("values", "written", "total"):
        value = getattr(state, name)
        if value is not None:
            setattr(moved, name, value.to(device))
    moved.after_load()
    return moved
