"""What the memory says about itself, and the period that it chooses."""

from __future__ import annotations

import itertools

import pytest
import torch

import fcco
from tests.memory.cases import CASES, solver_for, whole


def test_diagnosis_of_a_fresh_table() -> None:
    solver, loader = solver_for(CASES["pauc"](), fcco.output_memory(refresh=1), lr=0.0)
    with pytest.raises(RuntimeError, match="empty"):
        loader.diagnose()
    for _ in range(2):
        solver.step(None, whole(loader.memory))
    found = loader.diagnose()
    assert (found.seen, found.age, found.oldest, found.change) == (1.0, 0.0, 0, 0.0)
    assert found.spread > 0.0
    assert found.staleness == 0.0
    assert all(0.0 < share <= 1.0 for share in found.effective_size)


def test_scoring_pass_fills_the_table_and_is_charged() -> None:
    solver, loader = solver_for(CASES["ap"](), fcco.output_memory(refresh=3))
    loader.score(chunk=7)
    assert loader.memory.table is not None
    assert (loader.memory.table.missing, solver.samples, solver.oracle.g) == (0, 40, 40)
    wanted = loader.memory.objective.outputs(
        loader.loader._source.fetch([(0, torch.arange(40))], keep=False).__next__()
    )
    torch.testing.assert_close(loader.memory.table.values, wanted.detach().squeeze(1))


def test_a_table_that_lags_behind_is_reported() -> None:
    """Outputs that change by more than they differ, step after step."""
    solver, loader = solver_for(CASES["pauc"](), fcco.output_memory(refresh=1), lr=0.0)
    with pytest.warns(UserWarning, match="mean little"):
        _turn_and_step(solver, loader, 40)


def _turn_and_step(solver: fcco.Solver, loader: fcco.memory.MemoryLoader, steps: int) -> None:
    """Before each step all outputs change sign, and are three times as large or as small."""
    batch, last = whole(loader.memory), list(loader.memory.objective.model.children())[-1]
    for factor in itertools.islice(itertools.cycle((-3.0, -1.0 / 3.0)), steps):
        solver.step(None, batch)
        with torch.no_grad():
            for p in last.parameters():
                p *= factor


def test_period_is_chosen_without_a_clock() -> None:
    solver, loader = solver_for(CASES["ap"](), fcco.output_memory())
    for index, batch in loader:
        solver.step(index, batch)
    memory = loader.memory
    assert memory.period == 1  # 40 examples at 10 a step: nothing else would do
    memory.loader.num_examples = 100_000
    memory.choose_period(10**15)
    dear = memory.period
    memory.choose_period(1)
    assert (dear, memory.period) == (400, 833)
