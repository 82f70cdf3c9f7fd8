"""The step of the output memory."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fcco._support import checks
from fcco._support.interrupts import uninterrupted
from fcco._support.parallel import sum_over_ranks
from fcco.memory._diagnostics import follow
from fcco.memory._exchange import agreed, exchange
from fcco.memory._memory import Figures, Memory
from fcco.memory._table import Entries
from fcco.objectives._base import OutputObjective
from fcco.sampling.batch import Batch
from fcco.sampling.loader import Loader
from fcco.solver._probe import NonFiniteError
from fcco.solver._report import Report

if TYPE_CHECKING:
    from fcco.solver._solver import Solver


@final
class Pass:
    """One look at the drawn examples; what the solver's own ``Draw`` is to a look at blocks."""

    def __init__(self, batch: Batch, finite: Tensor) -> None:
        self.index, self.data, self.finite = batch.id, (batch,), finite
        self.seen: list[Tensor] = []  # the outputs are looked at before they are used
        self.now: list[Tensor] | None = None  # nobody looks elsewhere

    def refuse(self) -> None:
        """Outputs are not finite: name the examples."""
        bad = self.index[~self.finite].tolist()
        where = f"for example {checks.some(bad)}" if bad else "on another rank"
        raise NonFiniteError(f"the output is not finite {where}", bad)

    def culprits(self) -> list[int]:
        """The finiteness of outputs is checked one by one; no more is known of a gradient."""
        return []

    def settle(self) -> None:
        """There was one pass only: buffers are as it left them."""


def memory_step(solver: Solver, data: tuple[Any, ...]) -> Report:
    """Take one step along sum_k v_k grad s_k; where it fails, everything is as it was."""
    memory, batch = _checked(solver, data)
    t, period, begun = solver.t, memory.period, memory.table is not None
    old: list[Entries] = []
    try:
        with solver._all_or_nothing():
            report = _step(solver, memory, batch, old)
    except BaseException as error:
        if solver.t == t:  # else a Ctrl-C was held back until the step was taken
            memory.undo(old, period, begun)
        if not isinstance(error, NonFiniteError) or solver.nonfinite == "raise":
            raise
    else:
        memory.refresh(solver.t)  # what goes wrong here undoes nothing
        return report
    solver.samples += len(batch)
    solver.skipped += 1
    return Report(solver.t, solver.samples, solver.oracle, True, None, None, None)


def _checked(solver: Solver, data: tuple[Any, ...]) -> tuple[Memory, Batch]:
    if solver.memory is None:
        raise RuntimeError(f"{solver.method.name} needs a fcco.memory.MemoryLoader(solver, loader) to draw from")
    objective = solver.objective
    assert isinstance(objective, OutputObjective)
    batch = objective._batch(data)
    if batch.probability is None or batch.weight is None:
        raise ValueError("batch.probability and batch.weight must be given: the batches of a MemoryLoader have them")
    device = solver.parameters[0].device
    return solver.memory, batch.to(device, non_blocking=device.type == "cuda")  # the step waits later, once


def _step(solver: Solver, memory: Memory, batch: Batch, old: list[Entries]) -> Report:
    t = solver.t + 1
    solver._evaluator.begin()
    with solver._evaluator.no_sync():
        s, work = _outputs(memory, batch)
        fresh = _one_each(s, batch)
        look = Pass(batch, _finite(fresh))
        assert batch.probability is not None
        assert batch.weight is not None
        every = exchange(batch.id, batch.probability, batch.weight, fresh, look.finite.all())
        memory.check_ids(every.on_cpu)
        if not every.finite:
            look.refuse()
        table = memory.begin(tuple(fresh.shape[1:]))
        if not memory.period:
            operations = sum_over_ranks(torch.tensor(3 * work, device=fresh.device))
            memory.choose_period(int(operations))  # the backward pass costs about twice the forward one
        filling = table.missing > 0
        old.append(table.read(every.id))
        table.write(every.id, every.values, t)
        found = memory.coefficients(every.on_cpu, old[0])
        v, cut = memory.weigh(every.id, every.probability, every.weight, found.c)
        pushes = solver.table.world * v[every.mine]  # the solver takes the mean over ranks
        s.backward(pushes.reshape(s.shape).to(s.dtype))
        memory.add_own(found)
    solver._finish_z(solver._first_weights(solver.method.estimator.weights(t)), look)
    figures = _figures(old[0], every.values, cut, filling)
    with uninterrupted():
        solver._move(t, look)
        memory.settle()
        follow(memory, figures)
        solver.samples += len(batch)
        solver.oracle = solver.oracle.plus(g=len(batch), j=len(batch))
        solver.t = t
    return Report(t, solver.samples, solver.oracle, False, found.f, None, None)


def _outputs(memory: Memory, batch: Batch) -> tuple[Tensor, int]:
    """Outputs of the batch, and at the very first step the operations that they took."""
    with contextlib.nullcontext() if memory.period else _Operations() as counter:
        s = memory.objective.outputs(batch.x)
    if isinstance(s, Tensor) and not s.requires_grad:
        raise ValueError("the model must depend on a trainable parameter, got outputs without a graph")
    return s, 0 if counter is None else counter.total


class _Operations(TorchDispatchMode):
    """Counts a network's operations, without the hooks on all modules that torch's own counter needs for its table."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.total += int(count(*args, **(kwargs or {}), out_val=result))
        return result


def _one_each(s: Tensor, batch: Batch) -> Tensor:
    """Outputs without graph: (K,) where they are one score an example, else (K, ...)."""
    if not isinstance(s, Tensor) or s.dim() == 0 or s.shape[0] != len(batch):
        got = tuple(s.shape) if isinstance(s, Tensor) else type(s).__name__
        raise ValueError(f"the model must return one row an example, {len(batch)} of them, got {got}")
    fresh = s.detach()
    return fresh.squeeze(1) if fresh.dim() == 2 and fresh.shape[1] == 1 else fresh


def _finite(fresh: Tensor) -> Tensor:
    """(K,) bool: which examples have a finite output."""
    return torch.isfinite(fresh).reshape(fresh.shape[0], -1).all(1)


@torch.no_grad()
def fill(solver: Solver, memory: Memory, loader: Loader, chunk: int) -> None:
    """The scoring pass: the output of every example at the weights as they are; buffers are left alone."""
    device, saved = solver.parameters[0].device, solver._evaluator.module_state.capture()
    before = None if memory.table is None else memory.table.state_dict()
    # in random order: where batch statistics matter, a batch of one class would not do
    order = torch.randperm(loader.num_examples, generator=torch.Generator().manual_seed(0)).to(loader.device)
    ids = order.split(chunk)
    try:
        for id, x in zip(ids, loader._source.fetch(enumerate(ids), keep=False), strict=True):
            batch = Batch(x, id).to(device)
            fresh = _one_each(memory.objective.outputs(batch.x), batch)
            finite = _finite(fresh)
            if solver.nonfinite == "raise" and not bool(finite.all()):
                bad = batch.id[~finite].tolist()
                raise NonFiniteError(f"the output is not finite for example {checks.some(bad)}", bad)
            memory.begin(tuple(fresh.shape[1:])).write(batch.id[finite], fresh[finite], solver.t)
        if memory.table is not None:  # each rank has random numbers of its own, for dropout and the like
            agreed(memory.table.values)
            agreed(memory.table.written)
            memory.table.recount()
    except BaseException:
        memory.forget(before)
        raise
    finally:
        solver._evaluator.module_state.restore(saved)
    solver.samples += loader.num_examples
    solver.oracle = solver.oracle.plus(g=loader.num_examples)
    memory.refresh(solver.t, due=True)


def _figures(old: Entries, fresh: Tensor, cut: Tensor, filling: bool) -> Figures:
    """What the step saw; ``filling``: some examples had no entry before it."""
    stale, fresh = old.values, fresh.to(old.values.dtype)
    if filling:
        known = old.written >= 0
        fresh, stale = fresh[known], stale[known]
    root = max(1, stale.shape[0]) ** 0.5
    change, spread = fresh - stale, stale - stale.mean(0)
    return Figures(stale.shape[0], change.norm() / root, spread.norm() / root, cut)
