"""The step from outside: one changed word, batches in pieces, Nesterov's momentum, weights of 2, the seam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fcco
from fcco.data import Points
from fcco.objectives import PartialAUC
from tests.memory.cases import CASES, Case, inputs, labels, model, solver_for, state_of, whole


def gain(case: Case, method: fcco.Method) -> float:
    """What a short run takes off F."""
    optimizer = torch.optim.SGD(case.parameters(), lr=0.03)
    solver = fcco.Solver(case, optimizer, method)
    before = solver.diagnose().value
    for batch in solver.loader(blocks=2, samples=6, seed=0, steps_per_epoch=60):
        solver.step(batch)
    return before - solver.diagnose().value


@pytest.mark.parametrize("name", ["pauc", "ap", "pauc-tasks", "ndcg", "listnet", "cox", "tasks"])
def test_another_method_is_one_changed_word(name: str) -> None:
    for method in (fcco.sox(), fcco.output_memory()):
        assert gain(CASES[name](), method) > 0.0


@pytest.mark.parametrize("chunk", [1, 7, 100])
@pytest.mark.parametrize("name", ["pauc", "two-way", "tasks", "contrastive", "contrastive-each"])
def test_pieces_give_the_step_of_the_whole_batch(name: str, chunk: int) -> None:
    found = []
    for size in (None, chunk):
        case = CASES[name]()
        solver, loader = solver_for(case, fcco.output_memory(refresh=1))
        for batch in loader:
            solver.step(batch, chunk=size)
        found.append([p.detach().clone() for p in solver.parameters])
        found[-1].append(state_of(solver).values)
    for mine, wanted in zip(*found, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-12, atol=1e-12)


def test_pieces_meet_the_same_dropout_twice() -> None:
    """In the second pass as in the first: the gradient belongs to the outputs that are in the table."""
    case = CASES["pauc"]()
    case.model = nn.Sequential(nn.Dropout(0.5), case.model)
    solver, _ = solver_for(case, fcco.output_memory(importance=0.0, cap=None, balance=False), lr=0.0)
    batch = whole(case)
    torch.manual_seed(3)
    solver.step(batch, chunk=9)
    torch.manual_seed(3)
    outputs = torch.cat([case.outputs(part) for part in batch.x.split(9)])
    values = state_of(solver).values
    assert values is not None
    torch.testing.assert_close(values[batch.id], outputs.detach().squeeze(1), rtol=0.0, atol=0.0)
    state = state_of(solver)
    assert state.form is not None
    c = state.form.evaluate_all(state.rows).c[batch.id]
    wanted = torch.autograd.grad((c * outputs.squeeze(1)).sum(), solver.parameters)
    for p, gradient in zip(solver.parameters, wanted, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-10, atol=1e-12)


def test_nesterov_is_that_of_torch() -> None:
    """alpha G + (1 - alpha) z in the place of z: torch's SGD with Nesterov momentum on alpha G, started alike."""
    alpha = 0.3
    found = []
    for plain in (True, False):
        case = CASES["pauc"]()
        method = fcco.output_memory(refresh=2)
        options = {"momentum": 1.0 - alpha, "nesterov": True, "lr": 0.1 * alpha}
        if not plain:
            method = fcco.output_memory(refresh=2, alpha=alpha, nesterov=True)
            options = {"lr": 0.1}
        solver = fcco.Solver(case, torch.optim.SGD(case.parameters(), **options), method, z0=0.0)
        for batch in solver.loader(blocks=4, samples=6, seed=0, steps_per_epoch=12):
            solver.step(batch)
        found.append([p.detach().clone() for p in solver.parameters])
    for mine, wanted in zip(*found, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-9, atol=1e-11)


def test_weight_two_is_two_copies_in_a_step_of_everyone() -> None:
    """And one of weight 0 is not there: the gradients of the network are the same."""
    times = torch.ones(40, dtype=torch.int64)
    times[::3] = 2
    times[[1, 2, 5]] = 0
    rows = torch.arange(40).repeat_interleave(times)
    gradients: list[list[Tensor]] = []
    for data in (Points(inputs(), labels(), weight=times), Points(inputs()[rows], labels()[rows])):
        case = PartialAUC(model(), data, temperature=0.3).double()
        solver, _ = solver_for(case, fcco.output_memory(importance=0.0, cap=None, balance=False), lr=0.0)
        solver.step(whole(case))
        assert solver.z is not None
        gradients.append([z.clone() for z in solver.z])
    for mine, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-10, atol=1e-12)


def test_what_counts_nothing_is_never_drawn() -> None:
    weight = torch.ones(40)
    weight[10:30] = 0.0
    case = PartialAUC(model(), Points(inputs(), labels(), weight=weight), temperature=0.3).double()
    solver, loader = solver_for(case, fcco.output_memory(refresh=1), steps_per_epoch=20)
    for batch in loader:
        assert not bool(((batch.id >= 10) & (batch.id < 30)).any())
        solver.step(batch)
    assert fcco.memory.diagnose(solver).seen == 1.0


def test_the_seam_takes_the_steps_of_step() -> None:
    found = []
    for seam in (False, True):
        solver, loader = solver_for(CASES["ap"](), fcco.output_memory(refresh=2, alpha=0.5))
        for batch in loader:
            if not seam:
                solver.step(batch)
                continue
            with solver.gradient(batch) as pending:
                assert not pending.skipped
                solver.optimizer.step()
        found.append([p.detach().clone() for p in solver.parameters])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_step_before_an_evaluation_of_the_table_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the table is whole it is evaluated once in such a step, not for the draws and then for all."""
    case = CASES["pauc-tasks"]()
    method = fcco.output_memory(refresh=2, importance=0.0, cap=None, balance=False)
    solver, loader = solver_for(case, method, steps_per_epoch=6)
    loader.score()
    form = state_of(solver).form
    assert form is not None
    calls: list[str] = []
    for name in ("evaluate", "evaluate_all"):
        monkeypatch.setattr(form, name, noting(getattr(form, name), name, calls))
    for batch in loader:
        before = state_of(solver).rows
        solver.step(batch)
        assert state_of(solver).rows is not before
        assert state_of(solver).whole is None  # used up
    assert calls == ["evaluate", "evaluate_all"] * 3
    exact = form.evaluate_all(state_of(solver).rows)
    for row, wanted in zip(state_of(solver).rows, exact.rows, strict=True):
        torch.testing.assert_close(row, wanted, rtol=0.0, atol=0.0)


def noting(work: Callable[..., Any], name: str, calls: list[str]) -> Callable[..., Any]:
    """The same function, which leaves its name in a list."""

    def noted(*arguments: Any) -> Any:
        calls.append(name)
        return work(*arguments)

    return noted
