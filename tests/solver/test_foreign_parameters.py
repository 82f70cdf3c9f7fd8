"""Parameters that the Solver did not list are refused by name, whenever a step first reaches them."""

import pytest
import torch
from torch import nn

import fcco
from fcco.solver import _capture


class Branch(fcco.Objective):
    """A second network that is switched on later."""

    def __init__(self, later):
        super().__init__(num_blocks=3)
        self.w = nn.Parameter(torch.ones(2))
        self.later = [later]  # a list, so that it is no part of the module
        self.switched_on = False

    def inner(self, index, x):
        g = x @ self.w
        if self.switched_on:
            g = g + x @ self.later[0]
        return g.mean(1, keepdim=True)

    def outer(self, index, u):
        return u.square().squeeze(1)


def step(solver):
    return solver.step([0, 2], torch.ones(2, 4, 2))


@pytest.mark.parametrize("capture", [False, True])
@pytest.mark.parametrize("when", ["at first", "by add_param_group"])
def test_reached_later(when, capture, monkeypatch):
    monkeypatch.setattr(_capture, "CAPTURING", {"cpu"})
    later = nn.Parameter(torch.ones(2))
    objective = Branch(later)
    optimizer = torch.optim.SGD([objective.w], lr=0.01)
    if when == "at first":
        optimizer.add_param_group({"params": [later]})
    solver = fcco.Solver(objective, optimizer, fcco.msvr_v2(), capture=capture)
    for _ in range(8):
        step(solver)
    if when != "at first":
        optimizer.add_param_group({"params": [later]})
    objective.switched_on = True
    before = objective.w.detach().clone()
    for _ in range(2):  # a second time, too: no gradient is left behind
        with pytest.raises(ValueError, match=r"does not have, of shapes \(2,\)"):
            step(solver)
        assert later.grad is None
    assert solver.t == 8
    assert torch.equal(objective.w, before)
    objective.switched_on = False
    step(solver)


def test_a_new_layer_of_the_objective():
    """A layer that is added to the objective and to the optimizer later is none that the solver trains."""
    objective = Branch(nn.Parameter(torch.zeros(2)))
    optimizer = torch.optim.SGD([objective.w], lr=0.01)
    solver = fcco.Solver(objective, optimizer, fcco.sox())
    step(solver)
    objective.more = nn.Parameter(torch.ones(2))
    objective.later = [objective.more]
    optimizer.add_param_group({"params": [objective.more]})
    objective.switched_on = True
    with pytest.raises(ValueError, match="before the Solver is made"):
        step(solver)


def test_complex_parameters_are_refused_by_name():
    objective = Branch(nn.Parameter(torch.zeros(2)))
    objective.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(ValueError, match="complex parameters, which fcco does not train: phase"):
        fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), fcco.sox())
