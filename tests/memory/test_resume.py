"""Resumed equals uninterrupted, bit for bit; a failed step leaves no trace; what does not fit is refused."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from fcco.sampling import Average, PointLoader
from tests.trials import assert_same
from torch import Tensor, nn
from torch.utils.data import Dataset

import fcco
from fcco.memory import MemoryLoader
from fcco.objectives._partial_auc import PartialAUC
from tests.memory.cases import CASES, inputs, labels, model, solver_for, whole


def run(solver: fcco.Solver, loader: MemoryLoader, steps: int) -> None:
    done = 0
    while done < steps:
        for index, batch in loader:
            solver.step(index, batch)
            done += 1
            if done == steps:
                return


def weights(solver: fcco.Solver) -> list[Tensor]:
    return [p.detach().clone() for p in solver.parameters]


@pytest.mark.parametrize("name", ["pauc", "two-way", "ap", "ap-tasks", "ndcg", "tasks", "contrastive-learned"])
def test_resume_is_exact(name: str, tmp_path: Path) -> None:
    method = fcco.output_memory(refresh=3, alpha=0.5)
    solver, loader = solver_for(CASES[name](), method)
    run(solver, loader, 5)
    fcco.save(tmp_path / "state", solver, loader)
    run(solver, loader, 8)
    wanted, draws = weights(solver), loader.state_dict()
    solver, loader = solver_for(CASES[name](), method)
    fcco.load(tmp_path / "state", solver, loader)
    run(solver, loader, 8)
    assert all(torch.equal(a, b) for a, b in zip(weights(solver), wanted, strict=True))
    assert torch.equal(loader.state_dict()["random"], draws["random"])


def test_a_failed_step_leaves_no_trace() -> None:
    solver, loader = solver_for(CASES["pauc"](), fcco.output_memory(refresh=2))
    run(solver, loader, 3)
    memory = loader.memory
    assert memory.table is not None
    before = [*weights(solver), memory.table.values.clone(), memory.table.written.clone(), *memory.phi.rows]  # type: ignore[union-attr]
    before = [tensor.clone() for tensor in before]
    batch = whole(memory)
    batch.x[3] = torch.nan
    with pytest.raises(fcco.NonFiniteError):
        solver.step(None, batch)
    after = [*weights(solver), memory.table.values, memory.table.written, *memory.phi.rows]  # type: ignore[union-attr]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert solver.t == 3


def test_a_gradient_that_is_not_finite_leaves_no_trace_either() -> None:
    solver, loader = solver_for(CASES["ap"](), fcco.output_memory(refresh=2))
    run(solver, loader, 3)
    memory = loader.memory
    assert memory.table is not None
    state = [memory.table.values, memory.table.written, *memory.phi.rows]  # type: ignore[union-attr]
    before = [tensor.clone() for tensor in state]
    solver.parameters[0].register_hook(lambda gradient: gradient * torch.nan)
    with pytest.raises(fcco.NonFiniteError):
        solver.step(None, whole(memory))
    assert all(torch.equal(a, b) for a, b in zip(state, before, strict=True))
    assert solver.t == 3


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("name", ["pauc", "ap", "ndcg", "tasks", "contrastive-learned"])
def test_an_optimizer_that_raises_leaves_no_trace(name: str, steps: int) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    trials = [solver_for(CASES[name](), fcco.output_memory(alpha=0.5)) for _ in range(2)]
    states = []
    for place, (solver, loader) in enumerate(trials):
        run(solver, loader, steps)
        if place == 0:
            handle, before = solver.optimizer.register_step_pre_hook(refuse), weights(solver)
            with pytest.raises(MemoryError):
                solver.step(None, whole(loader.memory))
            handle.remove()
            assert solver.t == steps
            assert_same(weights(solver), before)
            assert (loader.memory.period > 0) == (steps > 0)  # it is chosen at the first step that is taken
        run(solver, loader, 4)
        states.append(solver.state_dict())
    assert_same(*states)


@pytest.mark.parametrize("steps", [0, 3])
def test_an_interrupt_during_the_optimizer_waits_until_the_step_is_taken(steps: int) -> None:
    trials = [solver_for(CASES["pauc"](), fcco.output_memory(refresh=100)) for _ in range(2)]
    for place, (solver, loader) in enumerate(trials):
        run(solver, loader, steps)
        if place == 0:
            solver.optimizer.register_step_pre_hook(lambda *_: signal.raise_signal(signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                solver.step(None, whole(loader.memory))
        else:
            solver.step(None, whole(loader.memory))
        assert solver.t == steps + 1
    assert_same(*(solver.state_dict() for solver, _ in trials))


def test_a_step_that_fails_at_the_table_puts_back_nothing_of_an_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    solver, loader = solver_for(CASES["pauc"](), fcco.output_memory(refresh=1))  # rows are renewed after every step
    run(solver, loader, 5)
    memory = loader.memory
    assert memory.phi is not None
    before = [rows.clone() for rows in memory.phi.rows]  # type: ignore[attr-defined]

    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(memory.table, "write", full)
    with pytest.raises(MemoryError):
        solver.step(None, whole(memory))
    assert all(torch.equal(a, b) for a, b in zip(memory.phi.rows, before, strict=True))  # type: ignore[attr-defined]


class Items(Dataset[Tensor]):
    def __len__(self) -> int:
        return len(inputs())

    def __getitem__(self, place: int) -> Tensor:
        return inputs()[place]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_workers_change_nothing(workers: int) -> None:
    found = _trained(workers)
    wanted = _trained(0)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def _trained(workers: int) -> list[Tensor]:
    torch.manual_seed(0)
    base = PointLoader(Items(), labels(), 3, 5, average=Average.OPPOSITE, seed=0, num_workers=workers)
    objective = PartialAUC(nn.Linear(5, 1).double(), base.num_blocks, temperature=0.5)
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.1)
    solver = fcco.Solver(objective, optimizer, fcco.output_memory(refresh=2))
    run(solver, MemoryLoader(solver, base, ahead=4), 12)
    return weights(solver)


def test_what_does_not_fit_is_refused() -> None:
    case = CASES["pauc"]()
    optimizer = torch.optim.SGD(case.objective.parameters(), lr=0.1)
    solver = fcco.Solver(case.objective, optimizer, fcco.output_memory())
    with pytest.raises(RuntimeError, match="MemoryLoader"):
        solver.step(None, fcco.Batch(inputs(), torch.arange(len(inputs()))))
    with pytest.raises(TypeError, match="output_memory"):
        MemoryLoader(fcco.Solver(case.objective, optimizer, fcco.bsgd()), case.loader)
    with pytest.raises(ValueError, match="cap"):
        fcco.output_memory(cap=0.5)
    with pytest.raises(ValueError, match="renewal must be > 0"):
        fcco.output_memory(renewal=0.0)
    with pytest.raises(TypeError, match="loader must be"):
        MemoryLoader(solver, inputs())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="draws must be"):
        MemoryLoader(solver, case.loader, draws=0)
    loader = MemoryLoader(solver, case.loader)
    with pytest.raises(ValueError, match="probability"):
        solver.step(None, fcco.Batch(inputs(), torch.arange(len(inputs()))))
    plain = fcco.Solver(case.objective, optimizer, fcco.output_memory())
    with pytest.raises(ValueError, match="MemoryLoader"):
        plain.load_state_dict(solver.state_dict())
    with pytest.raises(ValueError, match="lacks"):
        loader.load_state_dict({})
    with pytest.raises(ValueError, match="lacks shares"):
        loader.memory.check({name: value for name, value in loader.memory.state_dict().items() if name != "shares"})
    y = labels().double()
    y[(y == 0).nonzero()[:5, 0]] = torch.nan  # as many positives, fewer negatives
    fewer = PointLoader(inputs(), y, 4, 6, average=Average.OPPOSITE, seed=0)
    objective = PartialAUC(model(), fewer.num_blocks, temperature=0.3).double()
    other = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), fcco.output_memory())
    with pytest.raises(ValueError, match="this loader is"):
        MemoryLoader(other, fewer).load_state_dict(loader.state_dict())
