"""The moments behind multi-task AUC follow what is written, step by step, without losing digits."""

from __future__ import annotations

import pytest
import torch

import fcco
from fcco.memory._generic import GenericPhi
from fcco.memory._moments import MomentPhi, moment_phi
from fcco.memory._table import OutputTable
from tests.memory.cases import CASES, TASKS, N, solver_for, whole


def empty() -> OutputTable:
    return OutputTable(N, (TASKS,), like=torch.zeros(0, dtype=torch.float64))


def phi(name: str, table: OutputTable) -> tuple[MomentPhi, GenericPhi]:
    case = CASES[name]()
    fast = moment_phi(case.objective, case.loader, table)
    assert fast is not None
    return fast, GenericPhi(case.objective, case.loader, table)


@pytest.mark.parametrize("name", ["tasks", "tasks-means", "tasks-classes"])
def test_many_writes_equal_one_sum(name: str) -> None:
    """From an empty table, over entries missing and entries written again, to everything anew."""
    table, generator = empty(), torch.Generator().manual_seed(0)
    fast, slow = phi(name, table)
    for step in range(60):
        id = torch.randperm(N, generator=generator)[:5].sort().values
        old = table.read(id)
        table.write(id, torch.randn(5, TASKS, generator=generator, dtype=torch.float64) + 0.1 * step, step)
        found, wanted = fast.at(id, old), slow.everything()
        torch.testing.assert_close(found.c, wanted.c[id], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found.f, wanted.f, rtol=1e-10, atol=1e-10)
        for mine, theirs in zip(found.own, wanted.own, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
        if step == 40:
            fast.everything()


def test_scores_far_from_zero_keep_their_digits() -> None:
    table, generator = empty(), torch.Generator().manual_seed(0)
    fast, _ = phi("tasks-means", table)
    h = torch.randn(N, TASKS, generator=generator, dtype=torch.float64)
    table.write(torch.arange(N), h, 0)
    near = fast.everything()
    table.values += 1e6
    far = fast.everything()
    torch.testing.assert_close(far.f, near.f, rtol=1e-3, atol=1e-3)  # the square of a mean keeps no more there: outer
    torch.testing.assert_close(far.c, near.c, rtol=1e-6, atol=1e-6)


def test_undo_leaves_the_sums_alone() -> None:
    table, id = empty(), torch.arange(6)
    fast, _ = phi("tasks", table)
    table.write(torch.arange(N), torch.ones(N, TASKS, dtype=torch.float64), 0)
    fast.everything()
    before, old = fast.rows[0].clone(), table.read(id)
    table.write(id, torch.zeros(6, TASKS, dtype=torch.float64), 1)
    fast.at(id, old)
    assert not torch.equal(fast.rows[0], before)
    fast.undo()
    assert torch.equal(fast.rows[0], before)


def test_looking_at_the_value_leaves_the_sums_alone() -> None:
    solver, loader = solver_for(CASES["tasks"](), fcco.output_memory(refresh=100))
    for index, batch in loader:
        solver.step(index, batch)
    memory = loader.memory
    assert isinstance(memory.phi, MomentPhi)
    before = memory.phi.rows[0].clone()
    assert memory.value() > 0.0
    assert torch.equal(memory.phi.rows[0], before)


def test_a_step_looks_at_those_drawn_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the size of the table is made."""
    table = empty()
    fast, _ = phi("tasks", table)
    table.write(torch.arange(N), torch.ones(N, TASKS, dtype=torch.float64), 0)
    fast.everything()

    def everyone(_: OutputTable) -> torch.Tensor:
        raise AssertionError("all were looked at")

    monkeypatch.setattr(OutputTable, "seen", property(everyone))
    id = torch.arange(3)
    old = table.read(id)
    table.write(id, torch.zeros(3, TASKS, dtype=torch.float64), 1)
    fast.at(id, old)


@pytest.mark.parametrize("warm", [False, True])
def test_a_scoring_pass_that_fails_leaves_the_table_as_it_was(warm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["tasks"]()
    solver, loader = solver_for(case, fcco.output_memory())
    if warm:
        solver.step(None, whole(loader.memory))
    memory, outputs, calls = loader.memory, case.objective.outputs, list[int]()
    before = memory.state_dict()["table"]

    def fails(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(x))
        if len(calls) == 2:
            raise RuntimeError("no more")
        return outputs(x)

    monkeypatch.setattr(case.objective, "outputs", fails)
    with pytest.raises(RuntimeError, match="no more"):
        loader.score(chunk=16)
    after = memory.state_dict()["table"]
    assert (before is None) == (after is None) == (not warm)
    assert all(torch.equal(before[name], after[name]) for name in before or ())
