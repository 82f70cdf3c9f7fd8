"""Autocast around a step: half-precision copies of the weights of one point never serve another."""

import contextlib

import pytest
import torch
from torch import nn

import fcco
from tests.helpers.methods import TABLE, TRACKED, recipe
from tests.helpers.same import assert_same
from tests.helpers.trials import needs

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # forward mode is missing under autocast for some operations: then double backward serves
    pytest.mark.filterwarnings("ignore:forward-mode differentiation is not available:UserWarning"),
]
M, D = 5, 8


class Net(fcco.Objective):
    def __init__(self, log_domain):
        super().__init__(num_blocks=M, dim=1, log_domain=log_domain)
        self.net = nn.Sequential(nn.Linear(D, 16), nn.Tanh(), nn.Linear(16, 1))

    def inner(self, index, x):
        return self.net(x).float().mean(1)

    def outer(self, index, u):
        return (1 + u.square()).sqrt().squeeze(1)


def full_pass():
    yield torch.arange(M), torch.randn(M, 6, D, generator=torch.Generator().manual_seed(9))


def run(name, cache, around):
    """Six steps under autocast, which is entered per step or once around all of them."""

    def half():
        return torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cache)

    torch.manual_seed(0)
    objective = Net(TABLE[name].log_domain)
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.5)
    solver = fcco.Solver(objective, optimizer, recipe(name), **needs(name, full_pass))
    differences = []
    with half() if around == "run" else contextlib.nullcontext():
        for t in range(6):
            generator = torch.Generator().manual_seed(t)
            index = torch.randperm(M, generator=generator)[:2]
            with half() if around == "step" else contextlib.nullcontext():
                report = solver.step(index, torch.randn(2, 4, D, generator=generator))
            differences.append(report.u - report.g)
    return [p.detach() for p in solver.parameters], solver.u(), differences


@pytest.mark.parametrize("around", ["step", "run"])
@pytest.mark.parametrize("name", TRACKED)
def test_the_cache_changes_nothing(name, around):
    assert_same(run(name, False, around), run(name, True, around))


@pytest.mark.parametrize("name", ["sox", "output-memory"])
def test_a_diagnosis_after_a_step_is_of_the_new_weights(name):
    """Within one autocast, whose copies of the weights before the step are still there."""

    def figures(cache):
        torch.manual_seed(0)
        x = torch.randn(40, D)
        data = fcco.data.Points(x, (x[:, 0] > 0.5).long())
        objective = fcco.objectives.PartialAUC(nn.Sequential(nn.Linear(D, 16), nn.Tanh(), nn.Linear(16, 1)), data)
        solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.5), recipe(name))
        found = []
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cache):
            for batch in solver.loader(4, 8, steps_per_epoch=4):
                solver.step(batch)
                outputs = objective.model(x[:3]).detach()  # of the user's own
                found += [outputs, solver.diagnose().value]
                with torch.no_grad():
                    objective.model[0].weight.mul_(0.9)
                found.append(solver.diagnose().value)
        return found

    assert_same(figures(False), figures(True))


def test_the_correction_is_taken_between_two_points():
    """Where the copies of one point served the other, g - g- would be zero and MSVR a moving average."""
    found = run("msvr-v2", True, "step")
    exact = run("msvr-v2", True, "nowhere")
    correction = [a - b for a, b in zip(found[2], run("storm-v2", True, "step")[2], strict=True)]
    assert max(float(part.abs().max()) for part in correction) > 1e-3
    torch.testing.assert_close(found[1], exact[1], rtol=0.1, atol=0.05)
