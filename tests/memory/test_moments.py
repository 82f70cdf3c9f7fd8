"""The moments behind multi-task AUC follow what is written, step by step, without losing digits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fcco
from fcco.memory import OutputTable
from fcco.memory.forms import GenericForm, MomentForm, form_of
from tests.memory.cases import CASES, TASKS, WEIGHTED, N, solver_for, state_of, weights, whole


def empty() -> OutputTable:
    return OutputTable.empty(N, (TASKS,), like=torch.zeros(0, dtype=torch.float64))


def forms(name: str, table: OutputTable, weight: torch.Tensor | None = None) -> tuple[MomentForm, GenericForm]:
    case = WEIGHTED[name](weight).double()
    fast = form_of(case, table)
    assert isinstance(fast, MomentForm)
    return fast, GenericForm(case, table)


WEIGHTS: dict[str, Callable[[], torch.Tensor | None]] = {"plain": lambda: None, "weighted": lambda: weights() + 0.5}


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("name", ["tasks", "tasks-means", "tasks-classes"])
def test_many_writes_equal_one_sum(name: str, kind: str) -> None:
    """From an empty table, over entries missing and entries written again, to everything anew."""
    table = empty()
    generator = torch.Generator().manual_seed(0)
    fast, slow = forms(name, table, WEIGHTS[kind]())
    rows = fast.start_rows()
    for step in range(60):
        id = torch.randperm(N, generator=generator)[:5].sort().values
        old = table.read(id)
        table.write(id, torch.randn(5, TASKS, generator=generator, dtype=torch.float64) + 0.1 * step, step)
        found = fast.evaluate(id, rows, old)
        rows = found.rows
        wanted = slow.evaluate_all([])
        torch.testing.assert_close(found.c, wanted.c[id], rtol=1e-10, atol=1e-10)
        f = found.f
        if found.part is not None:
            f = f[found.part]
        torch.testing.assert_close(f, wanted.f, rtol=1e-10, atol=1e-10)
        for mine, theirs in zip(found.param_gradients, wanted.param_gradients, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
        if step == 40:
            rows = fast.evaluate_all(rows).rows


def test_scores_far_from_zero_keep_their_digits() -> None:
    table = empty()
    generator = torch.Generator().manual_seed(0)
    fast, _ = forms("tasks-means", table)
    h = torch.randn(N, TASKS, generator=generator, dtype=torch.float64)
    table.write(torch.arange(N), h, 0)
    near = fast.evaluate_all(fast.start_rows())
    table.values += 1e6
    far = fast.evaluate_all(near.rows)
    torch.testing.assert_close(far.f, near.f, rtol=1e-3, atol=1e-3)  # the square of a mean keeps no more there: outer
    torch.testing.assert_close(far.c, near.c, rtol=1e-6, atol=1e-6)


def test_an_evaluation_leaves_the_given_rows_alone() -> None:
    table = empty()
    id = torch.arange(6)
    fast, _ = forms("tasks", table)
    table.write(torch.arange(N), torch.ones(N, TASKS, dtype=torch.float64), 0)
    rows = fast.evaluate_all(fast.start_rows()).rows
    before = rows[0].clone()
    old = table.read(id)
    table.write(id, torch.zeros(6, TASKS, dtype=torch.float64), 1)
    found = fast.evaluate(id, rows, old)
    assert not torch.equal(found.rows[0], before)
    assert torch.equal(rows[0], before)


def test_a_step_reads_those_drawn_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the size of the table is made."""
    table = empty()
    fast, _ = forms("tasks", table)
    table.write(torch.arange(N), torch.ones(N, TASKS, dtype=torch.float64), 0)
    rows = fast.evaluate_all(fast.start_rows()).rows

    def all_of_it(_: OutputTable) -> torch.Tensor:
        raise AssertionError("all were read")

    monkeypatch.setattr(OutputTable, "seen", property(all_of_it))
    id = torch.arange(3)
    old = table.read(id)
    table.write(id, torch.zeros(3, TASKS, dtype=torch.float64), 1)
    fast.evaluate(id, rows, old)


@pytest.mark.parametrize("warm", [False, True])
def test_a_scoring_pass_that_fails_leaves_the_table_as_it_was(warm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["tasks"]()
    solver, loader = solver_for(case, fcco.output_memory())
    if warm:
        solver.step(whole(case))
    state = state_of(solver)
    outputs = case.outputs
    calls: list[int] = []
    before = solver.state_dict()["state"]["engine"]

    def fails(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(x))
        if len(calls) == 2:
            raise RuntimeError("no more")
        return outputs(x)

    monkeypatch.setattr(case, "outputs", fails)
    with pytest.raises(RuntimeError, match="no more"):
        loader.score(chunk=16)
    after = solver.state_dict()["state"]["engine"]
    assert (before["values"] is None) == (after["values"] is None) == (not warm)
    for name in ("values", "written"):
        assert before[name] is None or torch.equal(before[name], after[name])
    assert state.period == before["period"]
