"""STORM's correction of z, scaled by zeta: the literal rule, its limits, what it costs."""

import numpy as np
import pytest

import fcco
from tests.helpers import twins
from tests.helpers.methods import TABLE, recipe
from tests.reference.problem import CurvedProblem

pytestmark = pytest.mark.filterwarnings("ignore:the theory of msvr-v.-sp needs a bounded step:UserWarning")
NAMES = ["msvr-v2", "msvr-v2-sp", "storm-v2"]
MOMENTUM_OF = {"msvr-v2": "msvr-v1", "msvr-v2-sp": "msvr-v1-sp", "storm-v2": "storm-v1"}
STEPS = 40


def setting(**options):
    problem = CurvedProblem(0, p=2)
    w1 = np.random.default_rng(100).normal(size=problem.d)
    return problem, w1, twins.draw(problem, STEPS), {"lr": 0.05, "alpha": 0.2} | options


def reference(name, **options):
    problem, w1, batches, options = setting(**options)
    return twins.reference_run(name, problem, w1, batches, options)


def library(name, **options):
    problem, w1, batches, options = setting(**options)
    method = twins.recipe(name, options)
    return twins.library_run(twins.Curved(problem, w1), problem, method, batches, options)


def worst(trace, state):
    """The largest relative difference of the weights over all steps."""
    return max(twins.relative(x, y) for x, y in zip(trace.history, state.history, strict=True))


OPTIONS = {
    "a little": {"zeta": 0.05},
    "half": {"zeta": 0.5},
    "none": {"zeta": 0.0},
    "all": {"zeta": 1.0},
    "schedule": {"zeta": lambda t: 1 / t},
    "schedule of zero": {"zeta": lambda t: 0.0},
    "lag 0": {"zeta": 0.3, "lag": 0},
    "radius": {"zeta": 0.3, "radius": 0.4},
    "normalized": {"zeta": 0.3, "normalize": True, "lr": 0.02},
    "from zero": {"zeta": 0.3, "z0": 0.0},
    "constant gamma": {"zeta": 0.3, "gamma": 0.4},
}


CASES = [(name, case) for name in NAMES for case in OPTIONS if case != "constant gamma" or "gamma" in TABLE[name].rates]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_the_literal_rule(name, case):
    state, trace = reference(name, **OPTIONS[case]), library(name, **OPTIONS[case])
    assert worst(trace, state) <= 1e-12
    assert twins.relative(trace.z, state.z) <= 1e-11
    assert trace.counts == (state.samples, state.g_calls, state.j_calls, state.jvp_calls)


@pytest.mark.parametrize("name", NAMES)
def test_one_is_the_papers_rule_bit_for_bit(name):
    assert recipe(name) == recipe(name, zeta=1.0)
    for alpha in (1e-300, 1e-17, 0.1, 0.3, 0.7, 1.0):
        weights = recipe(name, alpha=alpha).estimator.weights(1)
        assert (weights.z, weights.now, weights.previous) == (1.0 - alpha, 1.0, -(1.0 - alpha))


@pytest.mark.parametrize("name", NAMES)
def test_zero_is_momentum_bit_for_bit_and_costs_as_much(name):
    scaled, momentum = library(name, zeta=0.0), library(MOMENTUM_OF[name])
    assert all(np.array_equal(x, y) for x, y in zip(scaled.history, momentum.history, strict=True))
    assert scaled.counts == momentum.counts


@pytest.mark.parametrize("name", NAMES)
def test_between_the_limits_it_is_another_rule(name):
    half = reference(name, zeta=0.5)
    for other in (0.0, 0.495, 1.0):  # one of them 1 % off
        assert worst(library(name, zeta=other), half) > 1e-6


def test_weights_between_are_linear_in_zeta():
    """z_t = (1 - alpha) z + (alpha + zeta (1 - alpha)) G_t - zeta (1 - alpha) G-_t."""
    weights = fcco.msvr_v2(alpha=0.2, zeta=0.25).estimator.weights(1)
    assert (weights.z, weights.now, weights.previous) == pytest.approx((0.8, 0.4, -0.2))
    assert (weights.reference, weights.full, weights.lookahead) == (None, None, None)


def test_a_schedule_may_leave_its_range_later():
    method = fcco.msvr_v2(zeta=lambda t: 0.5 * t)
    with pytest.raises(ValueError, match=r"zeta at step 3 must be in \[0, 1\], got 1\.5"):
        method.estimator.weights(3)
