"""The Solver's arguments: the right error, which names the argument and the value."""

import random

import numpy as np
import pytest
import torch
from torch import nn

import fcco
from tests.helpers.failing import INF, NAN
from tests.helpers.methods import recipe
from tests.helpers.same import assert_same
from tests.helpers.trials import BLOCKS, Noisy

pytestmark = pytest.mark.usefixtures("one_thread")


NOISY = Noisy()
SHAPES = [torch.zeros_like(p) for p in NOISY.parameters()]


def nan_in(tensors):
    return [tensors[0].clone().fill_(NAN), *tensors[1:]]


class NeedsClosure(torch.optim.Optimizer):
    """A step that cannot be taken from p.grad alone."""

    def __init__(self, params):
        super().__init__(params, {})

    def step(self, closure):
        closure()


def bound(optimizer, **options):
    """Solver arguments: an optimizer over Noisy's parameters."""
    objective = Noisy()
    return {"objective": objective, "optimizer": optimizer(objective.parameters(), **options)}


SOLVER = {
    "objective: a module": (lambda: {"objective": nn.Linear(2, 2)}, TypeError, "objective .*Linear"),
    "objective: a function": (
        lambda: {"objective": len, "optimizer": torch.optim.SGD(NOISY.parameters())},
        TypeError,
        "objective .*builtin",
    ),
    "objective: nothing to train": (
        lambda: {"objective": Noisy().requires_grad_(False), "optimizer": torch.optim.SGD(NOISY.parameters())},
        ValueError,
        "objective .*nothing to train",
    ),
    "objective: scent without log": (lambda: {"method": recipe("scent")}, ValueError, "scent .*Noisy"),
    "optimizer: a list": (lambda: {"optimizer": [1]}, TypeError, "optimizer .*list"),
    "optimizer: a string": (lambda: {"optimizer": "adam"}, TypeError, "optimizer .*str"),
    "optimizer: LBFGS": (lambda: bound(torch.optim.LBFGS), ValueError, "optimizer .*LBFGS"),
    "optimizer: needs a closure": (lambda: bound(NeedsClosure), ValueError, "optimizer .*NeedsClosure"),
    "optimizer: another model's": (
        lambda: {"optimizer": torch.optim.SGD(NOISY.parameters())},
        ValueError,
        "optimizer must have all parameters of the objective, but lacks .*shift",
    ),
    "method: a name": (lambda: {"method": "msvr-v2"}, TypeError, "method .*str"),
    "method: a recipe not called": (lambda: {"method": fcco.msvr_v2}, TypeError, "method .*function"),
    "method: none": (lambda: {"method": None}, TypeError, "method .*NoneType"),
    "radius: zero": (lambda: {"radius": 0.0}, ValueError, "radius .*0"),
    "radius: negative": (lambda: {"radius": -1.0}, ValueError, "radius .*-1"),
    "radius: nan": (lambda: {"radius": NAN}, ValueError, "radius .*nan"),
    "radius: inf": (lambda: {"radius": INF}, ValueError, "radius .*inf"),
    "radius: a string": (lambda: {"radius": "1"}, TypeError, "radius .*'1'"),
    "radius: a bool": (lambda: {"radius": True}, TypeError, "radius .*True"),
    "u0: wrong shape": (lambda: {"u0": torch.zeros(BLOCKS, 3)}, ValueError, r"u0 .*\(6, 2\).*\(6, 3\)"),
    "u0: one row": (lambda: {"u0": torch.zeros(2)}, ValueError, r"u0 .*\(6, 2\).*\(2,\)"),
    "u0: nan": (lambda: {"u0": NAN}, ValueError, "u0 .*nan"),
    "u0: nan in a row": (lambda: {"u0": torch.eye(6)[:, :2] / torch.eye(6)[:, :2]}, ValueError, "u0 .*row"),
    "u0: a list": (lambda: {"u0": [[0.0, 0.0]] * 6}, TypeError, "u0 .*list"),
    "u0: a bool": (lambda: {"u0": True}, TypeError, "u0 .*True"),
    "u0: complex": (lambda: {"u0": torch.ones(BLOCKS, 2) + 1j}, TypeError, "u0 .*complex64"),
    "u0: a string": (lambda: {"u0": "zeros"}, TypeError, "u0 .*'zeros'"),
    "z0: wrong shapes": (lambda: {"z0": SHAPES[::-1]}, ValueError, r"z0 .*got \["),
    "z0: too few": (lambda: {"z0": SHAPES[:-1]}, ValueError, "z0 .*got"),
    "z0: one tensor": (lambda: {"z0": torch.zeros(3)}, (TypeError, ValueError), "z0 .*got"),
    "z0: nan": (lambda: {"z0": NAN}, ValueError, "z0 .*nan"),
    "z0: nan in a tensor": (lambda: {"z0": nan_in(SHAPES)}, ValueError, "z0 .*finite"),
    "z0: numbers": (lambda: {"z0": [0.0] * len(SHAPES)}, TypeError, r"z0 .*\[0.0, 0.0"),
    "z0: complex": (lambda: {"z0": [z + 1j for z in SHAPES]}, TypeError, "z0 .*complex64"),
    "z0: a string": (lambda: {"z0": "zeros"}, TypeError, "z0 .*'zeros'"),
    "z0: a bool": (lambda: {"z0": True}, TypeError, "z0 .*True"),
    "nonfinite: unknown": (lambda: {"nonfinite": "ignore"}, ValueError, "nonfinite .*raise, skip.*'ignore'"),
    "nonfinite: none": (lambda: {"nonfinite": None}, ValueError, "nonfinite .*None"),
    "keep: unknown": (lambda: {"keep": "best"}, ValueError, "keep .*last, uniform.*'best'"),
    "keep: a number": (lambda: {"keep": 3}, ValueError, "keep .*3"),
    "normalize: a string": (lambda: {"normalize": "no"}, TypeError, "normalize .*'no'"),
    "seed: a float": (lambda: {"seed": 1.5, "keep": "uniform"}, TypeError, "seed .*1.5"),
    "seed: a string": (lambda: {"seed": "a"}, TypeError, "seed .*'a'"),
    "full_pass: missing": (lambda: {"method": recipe("msvr-v3")}, ValueError, "full_pass .*msvr-v3"),
    "full_pass: missing, variant": (
        lambda: {"method": recipe("variant-v3")},
        ValueError,
        "full_pass .*variant-v3",
    ),
    "full_pass: a list": (
        lambda: {"method": recipe("msvr-v3"), "full_pass": [1]},
        TypeError,
        r"full_pass .*\[1\]",
    ),
    "full_pass: an iterator": (
        lambda: {"method": recipe("msvr-v3"), "full_pass": iter([])},
        TypeError,
        "full_pass .*iterator",
    ),
}


@pytest.mark.parametrize("case", SOLVER)
def test_solver_argument(case):
    make, error, says = SOLVER[case]
    options = make()
    randomness = (torch.get_rng_state(), random.getstate(), tuple(np.random.get_state()))
    if not isinstance(options.get("objective"), (fcco.Objective, type(None))) and "optimizer" not in options:
        options["optimizer"] = torch.optim.SGD(options["objective"].parameters())
    with pytest.raises(error, match=says):
        fcco.Solver(
            options.pop("objective", NOISY),
            options.pop("optimizer", None) or torch.optim.SGD(NOISY.parameters()),
            options.pop("method", recipe("msvr-v2")),
            **options,
        ) if case != "optimizer: another model's" else fcco.Solver(Noisy(), options["optimizer"], recipe("sox"))
    if case != "optimizer: another model's":
        assert_same(randomness, (torch.get_rng_state(), random.getstate(), tuple(np.random.get_state())))


def test_optimizer_that_lacks_one_parameter():
    objective = Noisy()
    optimizer = torch.optim.SGD(objective.model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"optimizer must have all parameters of the objective, but lacks .*shift$"):
        fcco.Solver(objective, optimizer, recipe("sox"))


def test_single_point_without_radius_warns_and_does_not_refuse():
    with pytest.warns(UserWarning, match="radius"):
        fcco.Solver(NOISY, torch.optim.SGD(NOISY.parameters(), lr=0.1), recipe("msvr-v1-sp"))


def test_numbers_beyond_64_bits_are_refused_by_name():
    """torch would say so in the middle of a step: int too big to convert."""
    for big in (10**30, -(10**30), 10**400):
        with pytest.raises(ValueError, match=r"^radius must be a float or below 2\^63, got -?10+$"):
            fcco.Solver(NOISY, torch.optim.SGD(NOISY.parameters()), recipe("sox"), radius=big)
    fcco.Solver(NOISY, torch.optim.SGD(NOISY.parameters()), recipe("sox"), radius=1e30, keep="uniform", seed=10**30)
