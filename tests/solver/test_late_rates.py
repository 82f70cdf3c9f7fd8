"""A learning rate that becomes wrong after the optimizer was made; and a Solver that somebody wants to pickle."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

import fcco


def made():
    torch.manual_seed(0)
    x = torch.randn(12, 3)
    objective = fcco.objectives.PartialAUC(nn.Linear(3, 1), fcco.data.Points(x, [1, 0, 0] * 4))
    solver = fcco.Solver(objective, torch.optim.Adam(objective.parameters(), lr=0.1), fcco.sox(alpha=0.1, beta=0.1))
    batches = iter(solver.loader(blocks=2, samples=4, steps_per_epoch=9))
    solver.step(next(batches))
    return solver, batches


@pytest.mark.parametrize("lr", [-0.1, math.nan, math.inf])
def test_a_learning_rate_that_has_become_wrong_is_refused_and_changes_nothing(lr):
    solver, batches = made()
    weights = [p.clone() for p in solver.parameters]
    solver.optimizer.param_groups[0]["lr"] = lr
    with pytest.raises(ValueError, match=f"lr of the optimizer's parameter group 0 must be finite and >= 0, got {lr}"):
        solver.step(next(batches))
    assert solver.t == 1
    assert all(torch.equal(p, old) for p, old in zip(solver.parameters, weights, strict=True))
    solver.optimizer.param_groups[0]["lr"] = 0.1
    solver.step(next(batches))


def test_a_captured_step_refuses_it_too():
    solver, batches = made()
    captured = fcco.Solver(solver.objective, solver.optimizer, solver.method, capture="auto")
    captured.step(next(batches))
    solver.optimizer.param_groups[0]["lr"] = -1.0
    with pytest.raises(ValueError, match="lr of the optimizer's"):
        captured.step(next(batches))


def test_pickling_a_solver_says_what_to_do_instead():
    solver, _ = made()
    with pytest.raises(TypeError, match=r"a Solver cannot be pickled: use fcco\.save"):
        pickle.dumps(solver)


def test_a_copy_is_still_a_solver_of_its_own():
    solver, batches = made()
    twin = copy.deepcopy(solver)
    batch = next(batches)
    solver.step(batch)
    assert (solver.t, twin.t) == (2, 1)
    twin.step(batch)
    for mine, other in zip(solver.parameters, twin.parameters, strict=True):
        assert mine is not other
        assert torch.equal(mine, other)
