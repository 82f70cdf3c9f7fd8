"""A loss in one's own loop takes the steps of Solver with soap, to 1e-12."""

import pytest
import torch

import fcco
from tests.losses.cases import LOSSES, Loop, batches, inputs
from tests.objectives.cases import CASES, N

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def solver_of(name, method, lr=0.05, **weights):
    objective = CASES[name].objective(**weights)
    optimizer = torch.optim.SGD(objective.parameters(), lr=lr, momentum=0.5)
    return fcco.Solver(objective, optimizer, method)


def assert_equal_run(loop, solver, ids):
    """The same batches through both: values, weights and u after every step."""
    data = solver.objective.data
    for id in ids:
        report = solver.step(data.batch(id, inputs(loop.name, id)))
        value = loop.step(id)
        torch.testing.assert_close(value, float(report.value), **CLOSE)
        mine = dict(loop.loss.objective.named_parameters())
        mine |= {f"model.{name}": p for name, p in loop.model.named_parameters()}
        for name, p in solver.objective.named_parameters():
            torch.testing.assert_close(mine[name], p, **CLOSE)
        torch.testing.assert_close(loop.loss.u, solver.u(), **CLOSE)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_takes_the_solvers_steps(name):
    assert_equal_run(Loop(name, beta=0.3), solver_of(name, fcco.soap(beta=0.3)), batches(25))


@pytest.mark.parametrize(
    "name", ["AP", "pAUC, two-way", "multi-task AUC", "NDCG", "Cox", "Group DRO, KL", "contrastive"]
)
def test_examples_that_count_differently(name):
    weight = torch.linspace(0.5, 2.0, N).double()
    if name != "contrastive":
        weight[5] = 0.0
    solver = solver_of(name, fcco.soap(beta=0.3), weight=weight)
    assert_equal_run(Loop(name, beta=0.3, weight=weight), solver, batches(20))


def test_a_schedule_for_beta_is_read_at_every_call():
    def beta(t):
        return 1.0 / (1.0 + t)

    assert_equal_run(Loop("pAUC", beta=beta), solver_of("pAUC", fcco.soap(beta=beta)), batches(20))


def test_every_objective_has_its_loss():
    assert set(LOSSES) == set(CASES)
    ready = {name for name in fcco.objectives.__all__ if isinstance(getattr(fcco.objectives, name), type)}
    ready = {name for name in ready if issubclass(getattr(fcco.objectives, name), fcco.Objective)}
    assert ready - {"OutputObjective"} == set(fcco.losses.__all__) - {"Loss"}
