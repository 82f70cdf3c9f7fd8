"""The Objective's arguments: the right error, which names the argument and the value."""

import pytest
import torch
from torch import nn

import fcco
from tests.helpers.methods import recipe

MODULE = nn.Linear(2, 2)


OBJECTIVE = {
    "num_blocks: zero": ({"num_blocks": 0}, ValueError, "num_blocks .*0"),
    "num_blocks: negative": ({"num_blocks": -1}, ValueError, "num_blocks .*-1"),
    "num_blocks: a float": ({"num_blocks": 3.0}, TypeError, "num_blocks .*3.0"),
    "num_blocks: a bool": ({"num_blocks": True}, TypeError, "num_blocks .*True"),
    "num_blocks: a string": ({"num_blocks": "3"}, TypeError, "num_blocks .*'3'"),
    "num_blocks: none": ({"num_blocks": None}, TypeError, "num_blocks .*None"),
    "dim: zero": ({"dim": 0}, ValueError, "dim .*0"),
    "dim: a float": ({"dim": 1.5}, TypeError, "dim .*1.5"),
    "log_domain: too many": ({"log_domain": [True, False, True]}, ValueError, r"log_domain .*\[True, False, True\]"),
    "log_domain: not bools": ({"log_domain": [1, 0]}, ValueError, r"log_domain .*\[1, 0\]"),
    "log_domain: a number": ({"log_domain": 1}, (TypeError, ValueError), "log_domain .*1"),
    "log_domain: none": ({"log_domain": None}, (TypeError, ValueError), "log_domain .*None"),
    "log_domain: a string": ({"log_domain": "no"}, ValueError, "log_domain .*'no'"),
    "inner: not a function": ({"inner": 3}, TypeError, "inner .*3"),
    "outer: not a function": ({"outer": None}, TypeError, "outer .*None"),
    "project: not a function": ({"project": 3}, TypeError, "project .*3"),
    "samples: not a function": ({"samples": 3}, TypeError, "samples .*3"),
    "parameters: tensors": ({"parameters": [torch.zeros(2)]}, TypeError, "parameters .*Tensor"),
    "parameters: none": ({"parameters": None}, TypeError, "parameters .*None"),
}


@pytest.mark.parametrize("case", OBJECTIVE)
def test_objective_argument(case):
    changes, error, says = OBJECTIVE[case]
    arguments = {"inner": len, "outer": len, "num_blocks": 3, "dim": 2, "parameters": MODULE} | changes
    with pytest.raises(error, match=says):
        fcco.objective(arguments.pop("inner"), arguments.pop("outer"), **arguments)
    if set(changes) <= {"num_blocks", "dim", "log_domain"}:
        with pytest.raises(error, match=says):
            fcco.Objective(**{"num_blocks": 3, "dim": 2} | changes)


@pytest.mark.parametrize("missing", ["inner", "outer"])
def test_objective_without_its_functions(missing):
    class Half(fcco.Objective):
        def __init__(self):
            super().__init__(num_blocks=2)
            self.w = nn.Parameter(torch.ones(1))

        if missing == "inner":

            def outer(self, index, u):
                return u.sum(1)

        else:

            def inner(self, index, x):
                return x * self.w

    objective = Half()
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), recipe("msvr-v2"))
    with pytest.raises(NotImplementedError, match=f"Half must define {missing}"):
        solver.step([0], torch.ones(1, 1))
    assert solver.t == solver.samples == 0
