"""Resumed equals uninterrupted, bit for bit; a failed step leaves no trace; what does not fit is refused."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import fcco
from fcco.data import Points
from fcco.memory import MemoryLoader
from fcco.objectives import PartialAUC
from tests.helpers.same import assert_same
from tests.memory.cases import CASES, inputs, labels, model, solver_for, state_of, whole


def run(solver: fcco.Solver, loader: MemoryLoader, steps: int) -> None:
    done = 0
    while done < steps:
        for batch in loader:
            solver.step(batch)
            done += 1
            if done == steps:
                return


def weights(solver: fcco.Solver) -> list[Tensor]:
    return [p.detach().clone() for p in solver.parameters]


def table_and_rows(solver: fcco.Solver) -> list[Tensor]:
    """Copies of what the memory knows."""
    state = state_of(solver)
    assert state.values is not None
    assert state.written is not None
    return [state.values.clone(), state.written.clone(), *(rows.clone() for rows in state.rows)]


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("name", ["pauc", "two-way", "ap", "ap-tasks", "ndcg", "tasks", "contrastive-learned"])
def test_resume_is_exact(name: str, nesterov: bool, tmp_path: Path) -> None:
    method = fcco.output_memory(refresh=3, alpha=0.5, nesterov=nesterov)
    solver, loader = solver_for(CASES[name](), method)
    run(solver, loader, 5)
    fcco.save(tmp_path / "state", solver=solver, loader=loader)
    run(solver, loader, 8)
    wanted = weights(solver)
    draws = loader.state_dict()
    solver, loader = solver_for(CASES[name](), method)
    fcco.load(tmp_path / "state", solver=solver, loader=loader)
    run(solver, loader, 8)
    assert all(torch.equal(a, b) for a, b in zip(weights(solver), wanted, strict=True))
    assert torch.equal(loader.state_dict()["random"], draws["random"])


def test_every_saved_field_of_the_record_is_in_the_state() -> None:
    solver, loader = solver_for(CASES["pauc"](), fcco.output_memory(refresh=2))
    run(solver, loader, 3)
    state = state_of(solver)
    saved = {item.name for item in dataclasses.fields(state) if item.metadata["layout"] is not None}
    assert set(solver.state_dict()["state"]["engine"]) == saved


def test_a_failed_step_leaves_no_trace() -> None:
    case = CASES["pauc"]()
    solver, loader = solver_for(case, fcco.output_memory(refresh=2))
    run(solver, loader, 3)
    before = [*weights(solver), *table_and_rows(solver)]
    batch = whole(case)
    batch.x[3] = torch.nan
    with pytest.raises(fcco.NonFiniteError):
        solver.step(batch)
    after = [*weights(solver), *table_and_rows(solver)]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert solver.t == 3


def test_a_gradient_that_is_not_finite_leaves_no_trace_either() -> None:
    case = CASES["ap"]()
    solver, loader = solver_for(case, fcco.output_memory(refresh=2))
    run(solver, loader, 3)
    before = table_and_rows(solver)
    solver.parameters[0].register_hook(lambda gradient: gradient * torch.nan)
    with pytest.raises(fcco.NonFiniteError):
        solver.step(whole(case))
    assert all(torch.equal(a, b) for a, b in zip(table_and_rows(solver), before, strict=True))
    assert solver.t == 3


def test_a_step_that_is_skipped_leaves_no_trace_and_is_counted() -> None:
    case = CASES["pauc"]()
    optimizer = torch.optim.SGD(case.parameters(), lr=0.1)
    solver = fcco.Solver(case, optimizer, fcco.output_memory(refresh=2), nonfinite="skip")
    loader = solver.loader(blocks=4, samples=6)
    assert isinstance(loader, MemoryLoader)
    run(solver, loader, 3)
    before = table_and_rows(solver)
    batch = whole(case)
    batch.x[3] = torch.nan
    samples = solver.samples
    assert solver.step(batch).skipped
    assert all(torch.equal(a, b) for a, b in zip(table_and_rows(solver), before, strict=True))
    assert (solver.t, solver.skipped, solver.samples) == (3, 1, samples + len(batch))


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("name", ["pauc", "ap", "ndcg", "tasks", "contrastive-learned"])
def test_an_optimizer_that_raises_leaves_no_trace(name: str, steps: int) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    states = []
    for fails in (True, False):
        case = CASES[name]()
        solver, loader = solver_for(case, fcco.output_memory(alpha=0.5))
        run(solver, loader, steps)
        if fails:
            handle = solver.optimizer.register_step_pre_hook(refuse)
            before = weights(solver)
            with pytest.raises(MemoryError):
                solver.step(whole(case))
            handle.remove()
            assert solver.t == steps
            assert_same(weights(solver), before)
            assert (state_of(solver).period > 0) == (steps > 0)  # it is chosen at the first step that is taken
        run(solver, loader, 4)
        states.append(solver.state_dict())
    assert_same(*states)


@pytest.mark.parametrize("steps", [0, 3])
def test_an_interrupt_during_the_optimizer_waits_until_the_step_is_taken(steps: int) -> None:
    states = []
    for interrupted in (True, False):
        case = CASES["pauc"]()
        solver, loader = solver_for(case, fcco.output_memory(refresh=100))
        run(solver, loader, steps)
        if interrupted:
            solver.optimizer.register_step_pre_hook(lambda *_: signal.raise_signal(signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                solver.step(whole(case))
        else:
            solver.step(whole(case))
        assert solver.t == steps + 1
        states.append(solver.state_dict())
    assert_same(*states)


def test_the_seam_drops_what_the_block_could_not_take() -> None:
    case = CASES["pauc"]()
    solver, loader = solver_for(case, fcco.output_memory(refresh=2))
    run(solver, loader, 3)
    before = table_and_rows(solver)
    changed = False
    try:
        with solver.gradient(whole(case)):
            changed = not torch.equal(table_and_rows(solver)[0], before[0])
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert changed
    assert all(torch.equal(a, b) for a, b in zip(table_and_rows(solver), before, strict=True))


def test_a_step_that_fails_at_the_table_puts_back_nothing_of_an_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["pauc"]()
    solver, loader = solver_for(case, fcco.output_memory(refresh=1))  # rows are renewed after every step
    run(solver, loader, 5)
    before = table_and_rows(solver)

    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(state_of(solver).table, "write", full)
    with pytest.raises(MemoryError):
        solver.step(whole(case))
    assert all(torch.equal(a, b) for a, b in zip(table_and_rows(solver), before, strict=True))


class Items(Dataset[Tensor]):
    def __len__(self) -> int:
        return len(inputs())

    def __getitem__(self, place: int) -> Tensor:
        return inputs()[place]


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(workers: int) -> None:
    assert all(torch.equal(a, b) for a, b in zip(_trained(workers), _trained(0), strict=True))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_many_workers_are_fed() -> None:
    assert len(_trained(3)) == 2


def _trained(workers: int) -> list[Tensor]:
    torch.manual_seed(0)
    objective = PartialAUC(nn.Linear(5, 1).double(), Points(Items(), labels()), temperature=0.5)
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.1)
    solver = fcco.Solver(objective, optimizer, fcco.output_memory(refresh=2))
    loader = solver.loader(blocks=3, samples=5, num_workers=workers)
    assert isinstance(loader, MemoryLoader)
    run(solver, loader, 12)
    return weights(solver)


def test_a_new_iteration_ends_the_old_one() -> None:
    _, loader = solver_for(CASES["pauc"](), fcco.output_memory())
    first = iter(loader)
    next(first)
    next(iter(loader))
    with pytest.raises(RuntimeError, match="another iteration"):
        next(first)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="cap"):
        fcco.output_memory(cap=0.5)
    with pytest.raises(ValueError, match="renewal must be > 0"):
        fcco.output_memory(renewal=0.0)
    case = CASES["pauc"]()
    solver, loader = solver_for(case, fcco.output_memory())
    options: dict[str, Any] = {"blocks": 4, "samples": 6}
    for wrong in ({"blocks": 0}, {"samples": 0}, {"samples": 1.5}, {"steps_per_epoch": 0}, {"num_workers": 1}):
        with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
            solver.loader(**options | wrong)
    with pytest.raises(ValueError, match="chunk"):
        loader.score(chunk=0)
    with pytest.raises(TypeError, match="takes one batch"):
        solver.step(torch.tensor([1, 2]), inputs())
    with pytest.raises(ValueError, match="probability"):
        solver.step(next(iter(case.loader(blocks=2, samples=3))))
    with pytest.raises(ValueError, match="lacks"):
        loader.load_state_dict({})
    state = solver.state_dict()
    del state["state"]["engine"]["shares"]
    with pytest.raises(ValueError, match="lacks shares"):
        solver.load_state_dict(state)
    y = labels().double()
    y[(y == 0).nonzero()[:5, 0]] = torch.nan  # as many positives, fewer negatives
    fewer = PartialAUC(model(), Points(inputs(), y), temperature=0.3).double()
    other, other_loader = solver_for(fewer, fcco.output_memory())
    with pytest.raises(ValueError, match="strata"):
        other_loader.load_state_dict(loader.state_dict())
    run(solver, loader, 2)
    state = solver.state_dict()
    with pytest.raises(ValueError, match="the state is of other data"):
        other.load_state_dict(state)
    del state["of"]["data"]  # as in states from before they said so
    with pytest.raises(ValueError, match="a stratum of"):
        other.load_state_dict(state)
