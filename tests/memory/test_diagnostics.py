"""What the memory says about itself, and the period that it chooses."""

from __future__ import annotations

import itertools

import pytest
import torch

import fcco
from fcco.memory import diagnose
from fcco.memory._period import choose_period
from tests.memory.cases import CASES, Case, solver_for, state_of, whole


def test_diagnosis_of_a_fresh_table() -> None:
    case = CASES["pauc"]()
    solver, _ = solver_for(case, fcco.output_memory(refresh=1), lr=0.0)
    with pytest.raises(RuntimeError, match="empty"):
        diagnose(solver)
    for _ in range(2):
        solver.step(whole(case))
    found = diagnose(solver)
    assert (found.seen, found.age, found.oldest, found.change) == (1.0, 0.0, 0, 0.0)
    assert found.spread > 0.0
    assert found.staleness == 0.0
    assert all(0.0 < share <= 1.0 for share in found.effective_size)


def test_other_methods_have_no_memory_to_diagnose() -> None:
    case = CASES["pauc"]()
    solver = fcco.Solver(case, torch.optim.SGD(case.parameters(), lr=0.1), fcco.sox(alpha=0.5, beta=0.5))
    with pytest.raises(TypeError, match="output_memory"):
        diagnose(solver)


def test_exact_figures_are_those_of_every_method() -> None:
    figures = []
    for method in (fcco.output_memory(), fcco.sox(alpha=0.5, beta=0.5)):
        case = CASES["pauc"]()
        solver = fcco.Solver(case, torch.optim.SGD(case.parameters(), lr=0.1), method)
        found = solver.diagnose()
        figures.append((found.value, found.gradient_norm, found.tracking_error))
    assert figures[0] == figures[1]


def test_scoring_pass_fills_the_table_and_is_charged() -> None:
    case = CASES["ap"]()
    solver, loader = solver_for(case, fcco.output_memory(refresh=3))
    loader.score(chunk=7)
    table = state_of(solver).table
    assert table is not None
    assert (table.missing, solver.samples, solver.oracle.g, solver.oracle.j) == (0, 40, 40, 0)
    wanted = case.outputs(case.data.source.take(torch.arange(40)))
    torch.testing.assert_close(table.values, wanted.detach().squeeze(1))


def test_a_table_that_lags_behind_is_reported() -> None:
    """Outputs that change by more than they differ, step after step; the warning points at the caller."""
    case = CASES["pauc"]()
    solver, _ = solver_for(case, fcco.output_memory(refresh=1), lr=0.0)
    with pytest.warns(UserWarning, match="mean little") as caught:
        _turn_and_step(solver, case, 40)
    assert [item.filename for item in caught] == [__file__]


def _turn_and_step(solver: fcco.Solver, case: Case, steps: int) -> None:
    """Before each step all outputs change sign, and are three times as large or as small."""
    batch = whole(case)
    last = list(case.model.children())[-1]
    for factor in itertools.islice(itertools.cycle((-3.0, -1.0 / 3.0)), steps):
        solver.step(batch)
        with torch.no_grad():
            for p in last.parameters():
                p *= factor


def test_period_is_chosen_without_a_clock() -> None:
    solver, loader = solver_for(CASES["ap"](), fcco.output_memory())
    for batch in loader:
        solver.step(batch)
    assert state_of(solver).period == 1  # 40 examples at 10 per step: nothing else would do
    dear = choose_period(100_000, 10, cost=10**9, work=10**15, max_changed_fraction=1 / 12)
    cheap = choose_period(100_000, 10, cost=10**9, work=1, max_changed_fraction=1 / 12)
    assert (dear, cheap) == (400, 833)
