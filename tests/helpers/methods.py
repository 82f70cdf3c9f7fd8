"""The one table of methods that every test reads: what a recipe is given, what a step costs, which kind it is."""

from dataclasses import dataclass

import fcco

# what a recipe is given for each of its rates
VALUES = {"alpha": 0.3, "beta": 0.4, "gamma": 0.5, "theta": 0.5, "period": 4, "step": 0.5}


@dataclass(frozen=True)
class Row:
    """A method.

    Args:
        rates: the arguments of its recipe that are rates, besides ``lag`` and ``nesterov``.
        passes: forward passes, backward passes and Jacobian-vector products per step.
        momentum: takes ``nesterov``.
        finite_sum: needs passes over all data.
        single_point: needs Jacobian-vector products.
        log_domain: for log-domain objectives only.
        memory: for objectives with one output per example only; everything else runs on any objective.
    """

    rates: tuple[str, ...]
    passes: tuple[int, int, int]
    momentum: bool = False
    finite_sum: bool = False
    single_point: bool = False
    log_domain: bool = False
    memory: bool = False


TABLE = {
    "sox": Row(("alpha", "beta"), (1, 1, 0), momentum=True),
    "soap": Row(("beta",), (1, 1, 0)),
    "bsgd": Row((), (1, 1, 0)),
    "bspiderboost": Row(("period",), (2, 2, 0)),
    "storm-v1": Row(("alpha", "beta"), (2, 1, 0), momentum=True),
    "storm-v2": Row(("alpha", "beta"), (2, 2, 0)),
    "msvr-v1": Row(("alpha", "beta", "gamma"), (2, 1, 0), momentum=True),
    "msvr-v2": Row(("alpha", "beta", "gamma"), (2, 2, 0)),
    "msvr-v3": Row(("alpha", "beta", "period", "gamma"), (3, 3, 0), finite_sum=True),
    "msvr-v1-sp": Row(("alpha", "beta", "gamma"), (1, 1, 1), momentum=True, single_point=True),
    "msvr-v2-sp": Row(("alpha", "beta", "gamma"), (2, 2, 1), single_point=True),
    "variant-v1": Row(("alpha", "beta"), (2, 1, 0), momentum=True),
    "variant-v2": Row(("alpha", "beta"), (2, 2, 0)),
    "variant-v3": Row(("alpha", "beta", "period"), (3, 3, 0), finite_sum=True),
    "alexr": Row(("beta", "theta"), (2, 1, 0)),
    "sonx": Row(("beta", "gamma"), (2, 1, 0)),
    "sonex": Row(("alpha", "beta", "gamma"), (2, 1, 0), momentum=True),
    "scent": Row(("step", "alpha"), (1, 1, 0), momentum=True, log_domain=True),
    "output-memory": Row(("alpha",), (1, 1, 0), momentum=True, memory=True),
}

TRACKED = tuple(name for name, row in TABLE.items() if not row.memory)
FINITE_SUM = tuple(name for name, row in TABLE.items() if row.finite_sum)
SINGLE_POINT = tuple(name for name, row in TABLE.items() if row.single_point)
PERIODIC = tuple(name for name, row in TABLE.items() if "period" in row.rates)
MOMENTUM = tuple(name for name, row in TABLE.items() if row.momentum)


def having(rate):
    """The tracked methods whose recipe has that rate."""
    return tuple(name for name in TRACKED if rate in TABLE[name].rates)


def recipe(name, **changes):
    """The named method with the values above, but for the changes."""
    rates = {rate: VALUES[rate] for rate in TABLE[name].rates}
    return fcco.METHODS[name](**rates | changes)
