"""Draws made for several steps ahead are those made one by one, and a state in between goes on with them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fcco
from fcco.data import Batch
from fcco.memory import MemoryLoader
from tests.memory.cases import CASES, solver_for

STEPS = 24
NAMES = ["pauc", "ap-tasks", "tasks"]


def by_hand(case: fcco.objectives.OutputObjective, ids: Tensor, probability: Tensor, weight: Tensor) -> Batch:
    return Batch(case.data.source.take(ids), ids, weight=weight, probability=probability)


def made(name: str) -> tuple[fcco.Solver, MemoryLoader]:
    return solver_for(CASES[name](), fcco.output_memory(refresh=5), lr=0.01, steps_per_epoch=7)


def one_by_one(name: str) -> list[Tensor]:
    """The ids of all steps, and the weights after them."""
    solver, loader = made(name)
    ids: list[Tensor] = []
    while len(ids) < STEPS:
        for batch in loader:
            solver.step(batch)
            ids.append(batch.id)
            if len(ids) == STEPS:
                break
    return [torch.stack(ids), *(p.detach() for p in solver.parameters)]


@pytest.mark.parametrize("most", [1, 3, 100])
@pytest.mark.parametrize("name", NAMES)
def test_a_plan_is_what_iterating_gives(name: str, most: int) -> None:
    solver, loader = made(name)
    assert isinstance(solver.objective, fcco.objectives.OutputObjective)
    ids: list[Tensor] = []
    lengths = []
    while len(ids) < STEPS:
        plan = loader.plan(min(most, STEPS - len(ids)))
        lengths.append(len(plan.id))
        for row in zip(*plan[:3], strict=True):
            solver.step(by_hand(solver.objective, *row))
            ids.append(row[0])
        loader.advance(len(plan.id))
    found = [torch.stack(ids), *(p.detach() for p in solver.parameters)]
    assert all(torch.equal(mine, wanted) for mine, wanted in zip(found, one_by_one(name), strict=True))
    assert plan.strata is None or sum(plan.strata) == plan.id.shape[1] == loader.batch_size
    # Refreshed after steps 5, 10, ...; an epoch has 7.
    assert max(lengths) == min(most, 5)
    if most == 100:
        assert lengths[:5] == [5, 2, 3, 4, 1]


@pytest.mark.parametrize("taken", [1, 2, 4])
def test_a_state_in_the_middle_of_a_plan_goes_on_with_it(taken: int) -> None:
    name = "pauc"
    wanted = one_by_one(name)
    solver, loader = made(name)
    assert isinstance(solver.objective, fcco.objectives.OutputObjective)
    plan = loader.plan(5)
    for row in zip(*(part[:taken] for part in plan[:3]), strict=True):
        solver.step(by_hand(solver.objective, *row))
    loader.advance(taken)
    states = solver.state_dict(), loader.state_dict(), [p.detach().clone() for p in solver.parameters]
    solver, loader = made(name)
    solver.load_state_dict(states[0])
    loader.load_state_dict(states[1])
    with torch.no_grad():
        for p, value in zip(solver.parameters, states[2], strict=True):
            p.copy_(value)
    ids: list[Tensor] = []
    while len(ids) < STEPS - taken:
        for batch in loader:  # iterating goes on where a plan has ended
            solver.step(batch)
            ids.append(batch.id)
            if len(ids) == STEPS - taken:
                break
    assert torch.equal(torch.stack(ids), wanted[0][taken:])
    assert all(torch.equal(p, value) for p, value in zip(solver.parameters, wanted[1:], strict=True))


def test_a_plan_hands_nothing_out() -> None:
    _, loader = made("pauc")
    first = loader.plan(1)
    assert torch.equal(loader.plan(1).id, first.id)
    assert torch.equal(next(iter(loader)).id, first.id[0])


def test_an_iteration_ends_where_a_plan_is_taken() -> None:
    _, loader = made("pauc")
    batches = iter(loader)
    next(batches)
    loader.plan(1)
    loader.advance(1)
    with pytest.raises(RuntimeError, match="another iteration"):
        next(batches)


def test_more_than_was_planned_is_refused() -> None:
    _, loader = made("pauc")
    loader.plan(1)
    for steps in (0, 2):
        with pytest.raises(ValueError, match="steps"):
            loader.advance(steps)
    with pytest.raises(ValueError, match="most"):
        loader.plan(0)
