"""Hyper-parameters of the recipes: the right error, which names the argument and the value."""

import inspect
import math
import re

import pytest
import torch

import fcco
from tests.helpers.methods import FINITE_SUM, recipe

NAN, INF = math.nan, math.inf


TENSOR = torch.tensor(0.5)
BAD = {  # argument: (value, error, what the message says beside the name)
    "alpha": [
        (0.0, ValueError, "got 0.0"),
        (-0.1, ValueError, "got -0.1"),
        (1.5, ValueError, "got 1.5"),
        (NAN, ValueError, "got nan"),
        (INF, ValueError, "got inf"),
        ("0.1", TypeError, "'0.1'"),
        (True, TypeError, "True"),
        (TENSOR, TypeError, "Tensor"),
    ],
    "gamma": [
        (-1.0, ValueError, "got -1.0"),
        (NAN, ValueError, "got nan"),
        (INF, ValueError, "got inf"),
        ("auto", TypeError, "'auto'"),
        (True, TypeError, "True"),
    ],
    "theta": [
        (-0.1, ValueError, "got -0.1"),
        (1.1, ValueError, "got 1.1"),
        (NAN, ValueError, "got nan"),
        (None, TypeError, "None"),
    ],
    "period": [
        (0, ValueError, "got 0"),
        (-3, ValueError, "got -3"),
        (2.5, TypeError, "2.5"),
        (NAN, TypeError, "nan"),
        ("4", TypeError, "'4'"),
        (None, TypeError, "None"),
        (True, TypeError, "True"),
    ],
    "lag": [
        (2, ValueError, "got 2"),
        (-1, ValueError, "got -1"),
        (0.5, ValueError, "got 0.5"),
        (NAN, ValueError, "got nan"),
        ("1", ValueError, "'1'"),
        (None, ValueError, "None"),
        (True, ValueError, "True"),
        (torch.ones(2), ValueError, "tensor"),
    ],
    "step": [
        (0.0, ValueError, "got 0.0"),
        (-1.0, ValueError, "got -1.0"),
        (NAN, ValueError, "got nan"),
        (INF, ValueError, "got inf"),
        (None, TypeError, "None"),
    ],
}
BAD |= {
    "zeta": [
        (-0.1, ValueError, "got -0.1"),
        (1.1, ValueError, "got 1.1"),
        (NAN, ValueError, "got nan"),
        (None, TypeError, "None"),
        (True, TypeError, "True"),
    ],
    "nesterov": [
        ("yes", TypeError, "'yes'"),
        (1, TypeError, "1"),
        (None, TypeError, "None"),
    ],
    "importance": [(-0.1, ValueError, "got -0.1"), (1.5, ValueError, "got 1.5"), ("a", TypeError, "'a'")],
    "cap": [(0.5, ValueError, "got 0.5"), (NAN, ValueError, "got nan"), ("a", TypeError, "'a'")],
    "balance": [("yes", TypeError, "'yes'")],
    "refresh": [(0, ValueError, "got 0"), (2.5, TypeError, "2.5")],
    "renewal": [(0.0, ValueError, ""), (1.5, ValueError, "got 1.5")],
}
BAD["beta"] = [*BAD["alpha"], (None, TypeError, "None")]
HYPER = [
    pytest.param(name, argument, value, error, says, id=f"{name}-{argument}-{value}")
    for name, function in fcco.METHODS.items()
    for argument in inspect.signature(function).parameters
    for value, error, says in BAD[argument]
    if not (argument == "period" and value is None and name in FINITE_SUM)  # once per epoch
]


@pytest.mark.parametrize(("name", "argument", "value", "error", "says"), HYPER)
def test_hyper_parameter(name, argument, value, error, says):
    with pytest.raises(error, match=rf"(?s){argument} .*{re.escape(says)}"):
        recipe(name, **{argument: value})


@pytest.mark.parametrize("name", FINITE_SUM)
def test_lag_zero_is_refused_by_name_where_there_is_a_reference(name):
    with pytest.raises(ValueError, match=rf"lag must be 1 for {name}.*lag 0"):
        recipe(name, lag=0)


@pytest.mark.parametrize(("argument", "value"), [("alpha", 0.0), ("beta", NAN), ("gamma", -1.0)])
def test_schedule_that_starts_out_of_range(argument, value):
    with pytest.raises(ValueError, match=rf"{argument} at step 1 .*{value}"):
        recipe("msvr-v2", **{argument: lambda t: value})
