"""Arguments of schedules, stages and of the adaptive optimizer: the right error, with the name and the value."""

import math

import pytest
import torch
from torch import nn

import fcco
from fcco.methods import schedules, stages
from fcco.methods.stages import Stage

NAN, INF = math.nan, math.inf
MODULE = nn.Linear(2, 2)


V1 = {"m": 10, "b1": 2, "b2": 4, "c": 1.0}
V3 = {"m": 10, "n": 20, "b1": 2, "b2": 4, "c": 1.0}
FREE = {"m": 10, "b1": 2, "horizon": 100}
PL = {"mu": 0.1, "gap": 1.0, "accuracy": 0.1}
MAKERS = {
    "theorem_v1": (schedules.theorem_v1, V1 | {"smoothness": 1.0}),
    "theorem_v2": (schedules.theorem_v2, V1),
    "theorem_v3": (schedules.theorem_v3, V3),
    "constant_free_sox": (schedules.constant_free_sox, FREE),
    "constant_free_v1": (schedules.constant_free_v1, FREE | {"b2": 2}),
    "constant_free_v2": (schedules.constant_free_v2, FREE),
    "constant_free_v3": (schedules.constant_free_v3, FREE | {"n": 20}),
    "stages_v2": (stages.stages_v2, V1 | PL),
    "stages_v3": (stages.stages_v3, V3 | PL),
    "convex_mu": (stages.convex_mu, {"accuracy": 0.1, "distance": 2.0}),
    "theorem_constant": (schedules.theorem_constant, dict.fromkeys(("c_f", "l_f", "c_g", "l_g", "sigma"), 1.0)),
}
COUNT = [(0, ValueError), (-2, ValueError), (2.0, TypeError), (NAN, TypeError), ("2", TypeError), (None, TypeError)]
POSITIVE = [(0.0, ValueError), (-1.0, ValueError), (NAN, ValueError), (INF, ValueError), ("1", TypeError)]
NOT_NEGATIVE = [(-1.0, ValueError), (NAN, ValueError), ("1", TypeError)]
NUMBERS = {
    **dict.fromkeys(("m", "n", "b1", "b2", "horizon"), COUNT),
    **dict.fromkeys(("mu", "accuracy", "distance", "smoothness"), POSITIVE),
    "c": [*POSITIVE, (0.5, ValueError)],
    **dict.fromkeys(("gap", "c_f", "l_f", "c_g", "l_g", "sigma"), NOT_NEGATIVE),
}
MADE = [
    pytest.param(name, argument, value, error, id=f"{name}-{argument}-{value}")
    for name, (_, arguments) in MAKERS.items()
    for argument in arguments
    for value, error in NUMBERS[argument]
]


@pytest.mark.parametrize(("name", "argument", "value", "error"), MADE)
def test_schedule_argument(name, argument, value, error):
    make, arguments = MAKERS[name]
    make(**arguments)
    with pytest.raises(error, match=rf"(^|\s){argument} .*{value}"):
        make(**arguments | {argument: value})


@pytest.mark.parametrize("name", [name for name in MAKERS if "b1" in MAKERS[name][1]])
def test_more_blocks_a_step_than_there_are(name):
    make, arguments = MAKERS[name]
    with pytest.raises(ValueError, match="b1 must be at most m = 10, got 11"):
        make(**arguments | {"b1": 11})


@pytest.mark.parametrize("name", ["theorem_v3", "stages_v3"])
def test_more_samples_than_the_proof_allows(name):
    make, arguments = MAKERS[name]
    with pytest.raises(ValueError, match=r"b2 .*got 11"):
        make(**arguments | {"b2": 11})


def test_learning_rate_schedule():
    optimizer = torch.optim.SGD(MODULE.parameters(), lr=1.0)
    for bad, error in ((-1.0, ValueError), (NAN, ValueError), ("1", TypeError)):
        with pytest.raises(error, match=f"lr .*{bad}"):
            fcco.LRSchedule(optimizer, lambda t, bad=bad: bad)
    with pytest.raises(TypeError, match=r"optimizer|Optimizer"):
        fcco.LRSchedule("sgd", 0.1)


STAGE = [
    ("steps", 0, ValueError),
    ("steps", 2.5, TypeError),
    ("lr", 0.0, ValueError),
    ("lr", NAN, ValueError),
    ("alpha", 0.0, ValueError),
    ("alpha", 1.5, ValueError),
    ("beta", -1.0, ValueError),
    ("beta", "1", TypeError),
]


@pytest.mark.parametrize(("argument", "value", "error"), STAGE)
def test_stage_argument(argument, value, error):
    with pytest.raises(error, match=f"{argument} .*{value}"):
        Stage(**{"steps": 2, "lr": 0.1, "alpha": 0.5, "beta": 0.5} | {argument: value})


ADAPTIVE = [
    ("lr", -0.1, ValueError),
    ("lr", NAN, ValueError),
    ("lr", "0.1", TypeError),
    ("beta", 0.0, ValueError),
    ("beta", 1.1, ValueError),
    ("beta", None, TypeError),
    ("delta", 0.0, ValueError),
    ("delta", -1e-8, ValueError),
    ("delta", INF, ValueError),
    ("amsgrad", "yes", TypeError),
    ("weight_decay", -0.1, ValueError),
    ("weight_decay", None, TypeError),
    ("capturable", 1, TypeError),
]


@pytest.mark.parametrize(("argument", "value", "error"), ADAPTIVE)
def test_adaptive_argument(argument, value, error):
    with pytest.raises(error, match=f"{argument} .*{value}"):
        fcco.Adaptive(MODULE.parameters(), **{argument: value})
    with pytest.raises(error, match=f"{argument} .*{value}"):
        fcco.Adaptive([{"params": list(MODULE.parameters()), argument: value}])
