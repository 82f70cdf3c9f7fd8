"""The library against the literal transcription in tests/reference: same batches, same numbers, float64.

Every run is compared at every step. The mutation tests at the end show that the comparison is sharp: with any
one coefficient of a tracker or an estimator 1 % off, it fails.
"""

import dataclasses
import functools

import numpy as np
import pytest
import torch

import fcco
from tests.helpers import twins
from tests.helpers.methods import PERIODIC, TRACKED, having
from tests.reference.methods import FINITE_SUM, METHODS, VARIANT, Adaptive
from tests.reference.problem import CurvedProblem, LogProblem

W, REST = 1e-12, 1e-11  # what may differ: the weights; u and z
NOT_V3 = [name for name in METHODS if METHODS[name][0] not in FINITE_SUM]
LR = 0.05
assert set(METHODS) == set(TRACKED)  # every method has its transcription
pytestmark = pytest.mark.filterwarnings("ignore:the theory of msvr-v.-sp needs a bounded step:UserWarning")
STEPS = 25  # of everything but the grid: three periods of v3


def start(problem, seed):
    return np.random.default_rng(100 + seed).normal(size=problem.d)


def setting(name, p, seed, steps, **options):
    """A problem, its start, its batches, the options: what both sides are handed."""
    problem = LogProblem(seed, p=p) if name == "scent" else CurvedProblem(seed, p=p)  # scent: log domain only
    period = {"period": 25 if steps > 100 else 8} if name in PERIODIC else {}
    options = {"lr": LR, "safeguard": name == "scent", **period, **options}
    large_every = options["period"] if name == "bspiderboost" else None
    batches = twins.draw(problem, steps, B1=options.pop("B1", 3), seed=seed, large_every=large_every)
    return problem, start(problem, seed), batches, options


def twin(problem, w1):
    """The same problem as the library takes it."""
    return {CurvedProblem: twins.Curved, LogProblem: twins.Logarithmic}[type(problem)](problem, w1)


def gaps(trace, state):
    """Relative differences: of the weights (the worst step), of u, of z."""
    w = max(twins.relative(x, y) for x, y in zip(trace.history, state.history, strict=True))
    met = state.touched  # rows of blocks not met yet have no value
    u = np.where(trace.log, np.log(np.where(trace.log, state.u, 1.0)), state.u)
    return w, twins.relative(trace.u[met], u[met]), twins.relative(trace.z, state.z)


def assert_equal(trace, state):
    w, u, z = gaps(trace, state)
    assert w <= W
    assert u <= REST
    assert z <= REST
    assert trace.counts == (state.samples, state.g_calls, state.j_calls, state.jvp_calls)


def check(name, p=3, seed=0, steps=STEPS, **options):
    """Both sides of one case; returns the reference's state."""
    problem, w1, batches, options = setting(name, p, seed, steps, **options)
    state = twins.reference_run(name, problem, w1, batches, options)
    method = twins.recipe(name, options)
    trace = twins.library_run(twin(problem, w1), problem, method, batches, options)
    assert np.linalg.norm(state.w - w1) > 0.1
    assert_equal(trace, state)
    return state


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("p", [1, 3])
@pytest.mark.parametrize("name", METHODS)
def test_two_hundred_steps(name, p, seed):
    check(name, p, seed, steps=200)


@pytest.mark.parametrize("name", NOT_V3)
def test_the_other_lag(name):
    check(name, lag=1 - METHODS[name][2])


@pytest.mark.parametrize("given", ["u0", "z0", "both"])
@pytest.mark.parametrize("name", METHODS)
def test_given_starts(name, given):
    u0 = 0.7 if name == "scent" else 0.0  # log u has no value at zero
    starts = {"u0": {"u0": u0}, "z0": {"z0": 0.0}, "both": {"u0": u0, "z0": 0.0}}
    check(name, **starts[given])


def test_given_rows():
    """Rows and gradients that are not all the same number."""
    problem, w1, batches, options = setting("msvr-v2", 3, 1, STEPS)
    random = np.random.default_rng(3)
    u0, z0 = random.normal(size=(problem.m, 3)), random.normal(size=problem.d)
    state = twins.reference_run("msvr-v2", problem, w1, batches, {**options, "u0": u0, "z0": z0})
    given = {**options, "u0": torch.tensor(u0), "z0": [torch.tensor(z0)]}
    method = twins.recipe("msvr-v2", options)
    assert_equal(twins.library_run(twin(problem, w1), problem, method, batches, given), state)


@pytest.mark.parametrize("name", METHODS)
def test_schedules(name):
    schedules = {
        "lr": lambda t: 0.2 * (t + 4) ** -0.5,
        "beta": lambda t: 0.2 + 0.5 * (t + 1) ** -0.5,
        "step": lambda t: 0.3 + 0.5 / t,
        "alpha": lambda t: 0.1 + 0.6 / (t + 1),
    }
    check(name, **schedules)


@pytest.mark.parametrize("name", having("beta"))
def test_beta_that_reaches_one_now_and_then(name):
    """gamma is 0 there, and the Variant forgets every row that was not drawn."""
    check(name, beta=lambda t: 1.0 if t % 7 == 0 else 0.3)


@pytest.mark.parametrize("gamma", [0.0, 0.4, lambda t: 0.5 + 1 / t], ids=["zero", "constant", "schedule"])
@pytest.mark.parametrize("name", having("gamma"))
def test_gamma_of_the_users_own(name, gamma):
    check(name, gamma=gamma)


@pytest.mark.parametrize("theta", [0.0, 1.0])
def test_theta_at_its_ends(theta):
    check("alexr", theta=theta)


def test_scent_with_momentum():
    check("scent", alpha=0.2)


@pytest.mark.parametrize("name", METHODS)
def test_as_many_blocks_as_the_batch_has(name):
    """m / B1 is the batch's own."""
    check(name, B1=lambda t: 1 + t % 5)


@pytest.mark.parametrize("name", METHODS)
def test_radius(name):
    state = check(name, radius=0.4)
    assert np.linalg.norm(state.z) <= 0.4 * (1 + 1e-15)


@pytest.mark.parametrize("name", METHODS)
def test_normalized_steps(name):
    state = check(name, normalize=True, lr=0.02)
    assert np.linalg.norm(state.w - state.w_prev) == pytest.approx(0.02, rel=1e-12)


@pytest.mark.parametrize("radius", [None, 0.4])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("name", ["sox", "msvr-v1", "msvr-v2", "msvr-v3"])
def test_adaptive_steps(name, amsgrad, radius):
    check(name, adaptive=Adaptive(beta=0.2, delta=0.5, amsgrad=amsgrad), radius=radius, lr=0.05)


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("name", ["msvr-v1", "msvr-v2", "msvr-v3"])
def test_adaptive_steps_with_a_quadratic_term_and_a_schedule(name, amsgrad):
    """b' follows a schedule; mu w is added outside the projection, and scaled as z is."""
    rule = Adaptive(beta=lambda t: 0.1 + 0.8 / t, delta=0.5, amsgrad=amsgrad)
    check(name, adaptive=rule, radius=0.4, lr=0.05, mu=0.3)


def test_quadratic_term_outside_the_projection():
    """F + (mu/2)||w||^2: weight decay of a stock optimizer adds exactly mu w."""
    check("msvr-v2", mu=0.3, radius=0.4)


@pytest.mark.parametrize("name", ["sox", "msvr-v1", "msvr-v2", "msvr-v1-sp", "msvr-v2-sp", "msvr-v3", "sonx"])
def test_projected_rows(name):
    """u is kept in a box that it would leave. It starts inside: first touch could start it outside."""
    problem, w1, batches, options = setting(name, 3, 0, STEPS, u0=0.0)
    free = twins.reference_run(name, problem, w1, batches, options)
    boxed = {**options, "project": lambda u: np.clip(u, -0.25, 0.25)}
    state = twins.reference_run(name, problem, w1, batches, boxed)
    assert np.abs(free.u).max() > 0.25 >= np.abs(state.u).max()
    objective = twins.Bounded(problem, w1, (-0.25, 0.25))
    assert_equal(twins.library_run(objective, problem, twins.recipe(name, options), batches, options), state)


# ---- log domain -----------------------------------------------------------------------------------------

LOG_CASES = {"one": (1, True), "three": (3, True), "mixed": (3, [True, False, True])}


def log_setting(name, case, steps):
    """The same for the log domain, where a step is bounded: 1/u is not."""
    p, log = LOG_CASES[case]
    _, _, batches, options = setting(name, p, 1, steps, lr=0.15, radius=1.0, safeguard=True)
    problem = LogProblem(1, p=p, log=log)
    return problem, start(problem, 1), batches, options


# SCENT's rate needs u > 0 in every component, so it has no mixed case.
LOG_GRID = [(name, case) for name in METHODS for case in LOG_CASES if (name, case) != ("scent", "mixed")]


@pytest.mark.parametrize(("name", "case"), LOG_GRID)
def test_log_domain(name, case):
    problem, w1, batches, options = log_setting(name, case, steps=40)
    state = twins.reference_run(name, problem, w1, batches, options)
    trace = twins.library_run(twin(problem, w1), problem, twins.recipe(name, options), batches, options)
    assert_equal(trace, state)
    if case == "three" and METHODS[name][2] == 1:
        assert state.guarded > 0


# ---- stages ---------------------------------------------------------------------------------------------

STAGES = [
    fcco.Stage(steps=12, lr=0.08, alpha=0.4, beta=0.5),
    fcco.Stage(steps=14, lr=0.04, alpha=0.2, beta=0.3),
]
STAGED = ["sox", "msvr-v1", "msvr-v2", "msvr-v3", "msvr-v2-sp", "variant-v2", "variant-v3"]


@pytest.mark.parametrize("adaptive", [None, Adaptive(beta=0.3, delta=0.5, amsgrad=True)], ids=["sgd", "adaptive"])
@pytest.mark.parametrize("name", STAGED)
def test_stages_go_on_from_the_whole_state(name, adaptive):
    """The period of v3 (5) is not a divisor of the first stage: its reference is renewed at the boundary."""
    problem, w1, batches, options = setting(name, 3, 0, 26, period=5, mu=0.1, adaptive=adaptive)
    state, done = None, 0
    for stage in STAGES:
        rates = {**options, "lr": stage.lr, "alpha": stage.alpha, "beta": stage.beta}
        more = {"state": state, "new_stage": True} if state else {}
        state = twins.reference_run(name, problem, w1, batches[done : done + stage.steps], {**rates, **more})
        done += stage.steps
    method, options = twins.recipe(name, options), {**options, "stages": STAGES}
    assert_equal(twins.library_run(twin(problem, w1), problem, method, batches, options), state)


# ---- how sharp is the comparison? -----------------------------------------------------------------------

TRACKER_COEFFICIENTS = {
    "none": ("now",),
    "moving average": ("u", "now"),
    "scent": ("u", "now"),
    "storm": ("u", "now", "previous"),
    "msvr": ("u", "now", "previous"),
    "msvr-sp": ("u", "now", "jvp"),
    "msvr finite sum": ("u", "now", "previous", "reference", "full"),
    "variant": ("u", "now", "previous"),
    "variant finite sum": ("u", "now", "previous", "reference", "full"),
    "alexr": ("u", "now", "previous"),
}
ESTIMATOR_COEFFICIENTS = {
    "plain": ("now",),
    "momentum": ("z", "now"),
    "storm": ("z", "now", "previous"),
    "sarah": ("z", "now", "previous"),
    "anchored storm": ("z", "now", "previous", "reference", "full"),
}
COEFFICIENTS = [
    (name, part, coefficient)
    for name, (tracker, estimator, _) in METHODS.items()
    for part, names in (
        ("tracker", TRACKER_COEFFICIENTS[tracker]),
        ("estimator", ESTIMATOR_COEFFICIENTS[estimator]),
    )
    for coefficient in names
]
COEFFICIENTS += [(name, "tracker", "decay") for name in METHODS if METHODS[name][0] in VARIANT]
SHORT = 18


@functools.cache
def short_reference(name):
    problem, w1, batches, options = setting(name, 1, 0, SHORT)
    return twins.reference_run(name, problem, w1, batches, options)


def nudged(method, part, coefficient):
    """The method with that coefficient 1 % off."""
    function = {"tracker": "coefficients", "estimator": "weights"}[part]
    if coefficient == "decay":  # of the rows not drawn: a function of its own
        function, coefficient = "decay", None
    return dataclasses.replace(method, **{part: twins.Nudged(getattr(method, part), function, coefficient)})


@pytest.mark.parametrize(("name", "part", "coefficient"), COEFFICIENTS)
def test_one_percent_off_is_noticed(name, part, coefficient):
    problem, w1, batches, options = setting(name, 1, 0, SHORT)
    method = nudged(twins.recipe(name, options), part, coefficient)
    trace = twins.library_run(twin(problem, w1), problem, method, batches, options)
    w, _, _ = gaps(trace, short_reference(name))
    assert w > 1e-6


@pytest.mark.parametrize("name", ["msvr-v1", "msvr-v2", "msvr-v3", "variant-v2"])
def test_one_percent_off_the_floor_is_noticed(name):
    """The log domain's safeguard, in a run that needs it."""
    problem, w1, batches, options = log_setting(name, "three", 40)
    state = twins.reference_run(name, problem, w1, batches, options)
    method = nudged(twins.recipe(name, options), "tracker", "beta")
    w, _, _ = gaps(twins.library_run(twin(problem, w1), problem, method, batches, options), state)
    assert w > 1e-6


@pytest.mark.parametrize("name", METHODS)
def test_nothing_off_is_equal(name):
    """The same steps, unchanged: what the mutation tests are measured against."""
    problem, w1, batches, options = setting(name, 1, 0, SHORT)
    trace = twins.library_run(twin(problem, w1), problem, twins.recipe(name, options), batches, options)
    assert_equal(trace, short_reference(name))
