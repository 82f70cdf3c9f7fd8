"""Schedules that leave their range in the middle of a run."""

import re

import pytest

from tests.helpers.failing import INF, NAN, check_failed_step
from tests.helpers.methods import FINITE_SUM, VALUES

pytestmark = pytest.mark.usefixtures("one_thread")


SCHEDULED = [
    ("sox", "alpha", 1.5, ValueError),
    ("sox", "beta", 0.0, ValueError),
    ("soap", "beta", NAN, ValueError),
    ("storm-v2", "alpha", "0.1", TypeError),
    ("msvr-v1", "gamma", -2.0, ValueError),
    ("msvr-v2", "beta", 2.0, ValueError),
    ("msvr-v2", "gamma", INF, ValueError),
    ("msvr-v3", "alpha", -0.5, ValueError),
    ("msvr-v3", "beta", None, TypeError),
    ("msvr-v1-sp", "gamma", NAN, ValueError),
    ("variant-v2", "beta", 1.25, ValueError),
    ("variant-v3", "alpha", NAN, ValueError),
    ("alexr", "theta", 1.01, ValueError),
    ("sonx", "gamma", "auto", TypeError),
    ("sonex", "alpha", 0.0, ValueError),
    ("scent", "step", 0.0, ValueError),
    ("scent", "alpha", -1.0, ValueError),
]


@pytest.mark.parametrize(("name", "argument", "value", "error"), SCHEDULED)
def test_schedule_that_leaves_its_range(name, argument, value, error):
    t = 5 if name in FINITE_SUM else 3  # v3 renews its reference at step 5
    good, now = VALUES[argument], {"bad": False}

    def schedule(step):
        return value if now["bad"] and step == t else good

    def spoil(trial):
        now["bad"] = True
        try:
            trial.solver.step(*trial.batch(t))
        finally:
            now["bad"] = False

    says = rf"{argument} at step {t} .*{re.escape(str(value))}"
    check_failed_step(name, spoil, error, says, t=t, changes={argument: schedule})


def test_schedule_that_raises_an_error_of_its_own():
    now = {"bad": False}

    def beta(t):
        if now["bad"]:
            raise ZeroDivisionError("mine")
        return 0.4

    def spoil(trial):
        now["bad"] = True
        try:
            trial.solver.step(*trial.batch(3))
        finally:
            now["bad"] = False

    check_failed_step("variant-v2", spoil, ZeroDivisionError, "mine", changes={"beta": beta})
