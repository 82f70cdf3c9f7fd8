"""Bad input: the right error, which names the argument and the value, and nothing changed by it.

A step that fails leaves weights, u, z, earlier weights, buffers, optimizer state, counters and random state bit for
bit as they were, and the next good step is the same as if the bad one had never been asked for.
"""

import functools
import inspect
import math
import random
import re
import signal

import numpy as np
import pytest
import torch
from torch import nn

import fcco
from fcco.methods import schedules, stages
from fcco.methods.stages import Stage
from fcco.solver import StageWise
from tests.trials import (
    BLOCKS,
    FINITE_SUM,
    VALUES,
    Noisy,
    Trial,
    assert_same,
    data,
    full_pass,
    recipe,
    snapshot,
    without_counts,
)

NAN, INF = math.nan, math.inf


pytestmark = pytest.mark.usefixtures("one_thread")


# ---------------------------------------------------------------------- hyper-parameters of the recipes

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
BAD["beta"] = [*BAD["alpha"], (None, TypeError, "None")]
HYPER = [
    pytest.param(name, argument, value, error, says, id=f"{name}-{argument}-{value}")
    for name, function in fcco.METHODS.items()
    for argument in inspect.signature(function).parameters
    for value, error, says in BAD[argument]
]


@pytest.mark.parametrize(("name", "argument", "value", "error", "says"), HYPER)
def test_hyper_parameter(name, argument, value, error, says):
    with pytest.raises(error, match=rf"(?s){argument} .*{re.escape(says)}"):
        recipe(name, **{argument: value})


@pytest.mark.parametrize("name", FINITE_SUM)
def test_lag_zero_is_refused_by_name_where_there_is_an_anchor(name):
    with pytest.raises(ValueError, match=rf"lag must be 1 for {name}.*lag 0"):
        recipe(name, lag=0)


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
    t = 5 if name in FINITE_SUM else 3  # v3 renews its anchor at step 5
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


@pytest.mark.parametrize(("argument", "value"), [("alpha", 0.0), ("beta", NAN), ("gamma", -1.0)])
def test_schedule_that_starts_out_of_range(argument, value):
    with pytest.raises(ValueError, match=rf"{argument} at step 1 .*{value}"):
        recipe("msvr-v2", **{argument: lambda t: value})


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


# ---------------------------------------------------------------------- steps


def check_failed_step(name, spoil, error, says, *, t=3, after=1, **options):
    """`spoil(trial)` instead of step t must raise; then everything is as before, and stays equal to a clean run."""
    trial = Trial(name, **options).run(1, t - 1)
    before = trial.snapshot()
    with pytest.raises(error, match=says) as caught:
        spoil(trial)
    trial.objective.disarm()
    assert_same(before, trial.snapshot())
    went_on = trial.run(t, t + after).snapshot()
    options = {key: value for key, value in options.items() if key != "changes"}  # these are the usual values again
    assert_same(without_method(went_on), without_method(clean(name, t + after, **options)))
    return caught.value


@functools.cache
def clean(name, last, **options):
    """The end of a run that nothing ever happened to."""
    return Trial(name, **options).run(1, last).snapshot()


def without_method(state):
    """A schedule prints differently from its value."""
    return {key: value for key, value in state.items() if key != "method"}


INDEX = {
    "float": (lambda i: i.float(), TypeError, "index .*float32"),
    "bool": (lambda i: i > 2, TypeError, "index .*bool"),
    "list of bools": (lambda i: [True, False, True], TypeError, "index .*bool"),
    "list of floats": (lambda i: [0.0, 1.0, NAN], TypeError, "index .*float"),
    "complex": (lambda i: i.to(torch.complex64), TypeError, "index .*complex"),
    "two dimensions": (lambda i: i[None], ValueError, r"index .*\(1, 3\)"),
    "no dimension": (lambda i: i[0], ValueError, r"index .*\(\)"),
    "a number": (lambda i: 3, ValueError, r"index .*\(\)"),
    "empty": (lambda i: i[:0], ValueError, "index .*empty"),
    "empty list": (lambda i: [], ValueError, "index .*empty"),
    "negative": (lambda i: i.new_tensor([0, -2, 3]), ValueError, "index .*block -2"),
    "too large": (lambda i: i.new_tensor([0, 1, BLOCKS]), ValueError, f"index .*block {BLOCKS}"),
    "huge": (lambda i: [2**70, 1, 2], (TypeError, ValueError), f"index .*{2**70}"),
    "twice": (lambda i: i.new_tensor([4, 1, 4]), ValueError, "index .*block 4 more than once"),
    "string": (lambda i: "ab", TypeError, "index .*'ab'"),
    "list of strings": (lambda i: ["a", "b"], TypeError, r"index .*'a'"),
    "ragged": (lambda i: [[1], [2, 3]], TypeError, r"index .*\[2, 3\]"),
    "none": (lambda i: None, TypeError, "index .*None"),
    "set": (lambda i: {1, 2}, TypeError, r"index .*\{1, 2\}"),
}


@pytest.mark.parametrize("case", INDEX)
def test_index(case):
    change, error, says = INDEX[case]

    def spoil(trial):
        index, *rest = trial.batch(1)
        trial.solver.step(change(index), *rest)

    check_failed_step("msvr-v3", spoil, error, says, t=1)  # the anchor is due


def nan_row(place, value=NAN):
    """g with one row that is not finite."""

    def change(probe, g):
        return g.index_fill(0, torch.tensor([place]), value)

    return change


def raises(error, at=1):
    def change(probe, g):
        if probe == at:
            raise error
        return g

    return change


class Mine(Exception):
    """An error of the user's own."""


def never(_, g):
    raise NotImplementedError("later")


def forgets(_, g):
    return None


# the objective's functions: (which, what it does, error, message); {0} stands for the second block of the batch
INNER = {
    "too wide": (lambda n, g: torch.cat([g, g], 1), ValueError, r"inner .*\(3, 2\).*got \(3, 4\)"),
    "too short": (lambda n, g: g[:2], ValueError, r"inner .*\(3, 2\).*got \(2, 2\)"),
    "one dimension": (lambda n, g: g[:, 0], ValueError, r"inner .*\(3, 2\).*got \(3,\)"),
    "transposed": (lambda n, g: g.T, ValueError, r"inner .*\(3, 2\).*got \(2, 3\)"),
    "integers": (lambda n, g: g.long(), TypeError, "inner .*int64"),
    "complex": (lambda n, g: g.to(torch.complex64), TypeError, "inner .*complex64"),
    "list": (lambda n, g: g.tolist(), TypeError, "inner .*list"),
    "nothing": (forgets, TypeError, "inner .*NoneType"),
    "without graph": (lambda n, g: g.detach(), ValueError, "inner .*without a graph"),
    "elsewhere": (lambda n, g: g.to("meta"), ValueError, "inner .*cpu.*meta"),
    "nan": (nan_row(1), fcco.NonFiniteError, r"not finite for block {0}$"),
    "inf": (nan_row(1, INF), fcco.NonFiniteError, r"not finite for block {0}$"),
    "error of its own": (raises(Mine("mine")), Mine, "mine"),
    "index error": (raises(IndexError("theirs")), IndexError, "theirs"),
    "not written": (never, NotImplementedError, "later"),
    "interrupt": (raises(KeyboardInterrupt("stop")), KeyboardInterrupt, "stop"),
    "exit": (raises(SystemExit(3)), SystemExit, "3"),
}


@pytest.mark.parametrize("name", ["soap", "msvr-v1-sp"])
@pytest.mark.parametrize("case", INNER)
def test_what_inner_returns(case, name):
    fault, error, says = INNER[case]

    def spoil(trial):
        index, *rest = trial.batch(3)
        trial.objective.arm(fault=fault)
        trial.solver.step(index, *rest)

    block = int(Trial(name).batch(3)[0][1])
    found = check_failed_step(name, spoil, error, says.format(block))
    if error is fcco.NonFiniteError:
        assert found.blocks == [block]


OUTER = {
    "one column": (lambda n, f: f[:, None], ValueError, r"outer .*\(3,\).*got \(3, 1\)"),
    "the mean": (lambda n, f: f.mean(), ValueError, r"outer .*\(3,\).*got \(\)"),
    "too short": (lambda n, f: f[:2], ValueError, r"outer .*\(3,\).*got \(2,\)"),
    "list": (lambda n, f: f.tolist(), (TypeError, ValueError), "outer .*list"),
    "nothing": (forgets, (TypeError, ValueError), "outer .*NoneType"),
    "nan": (nan_row(1), fcco.NonFiniteError, r"not finite for block {0}$"),
    "inf": (nan_row(1, -INF), fcco.NonFiniteError, r"not finite for block {0}$"),
    "error of its own": (raises(Mine("mine")), Mine, "mine"),
}


@pytest.mark.parametrize("name", ["sox", "msvr-v2"])
@pytest.mark.parametrize("case", OUTER)
def test_what_outer_returns(case, name):
    fault, error, says = OUTER[case]

    def spoil(trial):
        index, *rest = trial.batch(3)
        trial.objective.arm(outer_fault=fault)
        trial.solver.step(index, *rest)

    block = int(Trial(name).batch(3)[0][1])
    found = check_failed_step(name, spoil, error, says.format(block))
    if error is fcco.NonFiniteError:
        assert found.blocks == [block]


PROJECT = {
    "too short": (lambda u: u[:1], ValueError, r"project .*\(3, 2\).*got \(1, 2\)"),
    "one row": (lambda u: u[0], ValueError, r"project .*\(3, 2\).*got \(2,\)"),
    "a number": (lambda u: u.mean(), ValueError, r"project .*\(3, 2\).*got \(\)"),
    "list": (lambda u: u.tolist(), TypeError, "project .*list"),
    "integers": (lambda u: u.long(), TypeError, "project .*int64"),
    "nothing": (lambda u: None, TypeError, "project .*NoneType"),
    "nan": (lambda u: u.index_fill(0, torch.tensor([1]), NAN), fcco.NonFiniteError, "block {0}$"),
    "inf": (lambda u: u.index_fill(0, torch.tensor([1]), INF), fcco.NonFiniteError, "block {0}$"),
}


@pytest.mark.parametrize("name", ["soap", "msvr-v2"])
@pytest.mark.parametrize("case", PROJECT)
def test_what_project_returns(case, name):
    fault, error, says = PROJECT[case]

    def spoil(trial):
        index, *rest = trial.batch(3)
        trial.objective.arm(project_fault=fault)
        trial.solver.step(index, *rest)

    block = int(Trial(name).batch(3)[0][1])
    found = check_failed_step(name, spoil, error, says.format(block))
    if error is fcco.NonFiniteError:
        assert found.blocks == [block]


def test_rows_keep_no_graph_of_a_trained_projection():
    """A projection onto a learned range must not tie the rows of u to a graph that grows with every step."""
    trial = Trial("msvr-v2")
    trial.objective.arm(project_fault=lambda u: u.clamp(max=trial.objective.shift.max() + 5))
    trial.run(1, 3)
    assert not trial.solver.table.rows.requires_grad


SAMPLES_CASES = {
    "error of its own": (raises(Mine("mine")), Mine, "mine"),
    "nothing": (lambda *_: None, TypeError, "samples .*None"),
    "a float": (lambda *_: 2.5, TypeError, "samples .*2.5"),
    "negative": (lambda *_: -4, ValueError, "samples .*-4"),
}


@pytest.mark.parametrize("name", ["soap", "msvr-v2"])
@pytest.mark.parametrize("case", SAMPLES_CASES)
def test_what_samples_returns(case, name):
    fault, error, says = SAMPLES_CASES[case]

    def spoil(trial):
        trial.objective.arm(samples_fault=lambda: fault(1, None))
        trial.solver.step(*trial.batch(3))

    check_failed_step(name, spoil, error, says)


# how many times a step looks, and the probes after the first
LATER = [
    ("msvr-v1", 2),
    ("msvr-v2", 2),
    ("storm-v2", 2),
    ("variant-v2", 2),
    ("msvr-v2-sp", 2),
    ("alexr", 2),
    ("sonx", 2),
]
LATER += [("msvr-v3", 2), ("msvr-v3", 3), ("variant-v3", 3), ("bspiderboost", 2)]


@pytest.mark.parametrize("error", [Mine("mine"), KeyboardInterrupt("mine")], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(("name", "probe"), LATER)
def test_error_at_a_later_probe(name, probe, error):
    """The weights are those of an earlier step when it comes, and buffers and masks are being replayed."""

    def spoil(trial):
        trial.objective.arm(fault=raises(error, at=probe))
        trial.solver.step(*trial.batch(3))

    check_failed_step(name, spoil, type(error), "mine")


@pytest.mark.parametrize(("name", "probe"), LATER)
def test_not_finite_at_a_later_probe(name, probe):
    def spoil(trial):
        trial.objective.arm(fault=lambda n, g: nan_row(2)(n, g) if n == probe else g)
        trial.solver.step(*trial.batch(3))

    block = int(Trial(name).batch(3)[0][2])
    assert check_failed_step(name, spoil, fcco.NonFiniteError, f"block {block}$").blocks == [block]


@pytest.mark.parametrize("probe", range(1, 8))
def test_error_while_the_anchor_is_renewed(probe):
    """v3's first step: two passes of two batches each, then the looks."""

    def spoil(trial):
        trial.objective.arm(fault=raises(Mine("mine"), at=probe))
        trial.solver.step(*trial.batch(1))

    check_failed_step("msvr-v3", spoil, Mine, "mine", t=1)


@pytest.mark.parametrize("name", fcco.METHODS)
def test_the_first_step_may_fail_too(name):
    def spoil(trial):
        trial.objective.arm(fault=nan_row(0))
        trial.solver.step(*trial.batch(1))

    check_failed_step(name, spoil, fcco.NonFiniteError, "not finite", t=1)


@pytest.mark.parametrize("name", fcco.METHODS)
def test_not_finite_data(name):
    """BatchNorm spreads a NaN over the batch: every block of it is named."""

    def spoil(trial):
        index, x, weight = trial.batch(3)
        x[1, 0, 2] = NAN
        trial.solver.step(index, x, weight)

    blocks = Trial(name).batch(3)[0].tolist()
    says = "not finite for blocks " + ", ".join(str(block) for block in blocks)
    assert check_failed_step(name, spoil, fcco.NonFiniteError, says).blocks == blocks


@pytest.mark.parametrize("name", ["sox", "bsgd", "msvr-v2", "msvr-v1-sp", "scent"])
def test_not_finite_data_without_batch_norm(name):
    """Without it only the block that the NaN belongs to is named."""

    def spoil(trial):
        index, x, weight = trial.batch(3)
        x[1, 0, 2] = INF
        trial.solver.step(index, x, weight)

    block = int(Trial(name).batch(3)[0][1])
    found = check_failed_step(name, spoil, fcco.NonFiniteError, f"block {block}$", batch_norm=False)
    assert found.blocks == [block]


def once(optimizer, hook):
    """Run a hook before the optimizer's next step, and then no more."""

    def run(*_):
        handle.remove()
        hook()

    handle = optimizer.register_step_pre_hook(run)


def refuse():
    raise Mine("mine")


@pytest.mark.parametrize("t", [1, 3])
@pytest.mark.parametrize("name", fcco.METHODS)
def test_the_optimizer_raises(name, t):
    def spoil(trial):
        once(trial.optimizer, refuse)
        trial.solver.step(*trial.batch(t))

    check_failed_step(name, spoil, Mine, "mine", t=t)


@pytest.mark.parametrize("t", [1, 3])
@pytest.mark.parametrize("option", [{"normalize": True}, {"keep": "uniform"}, {"nonfinite": "skip"}], ids=str)
@pytest.mark.parametrize("name", ["soap", "msvr-v2"])
def test_the_optimizer_raises_with_options(name, option, t):
    def spoil(trial):
        once(trial.optimizer, refuse)
        trial.solver.step(*trial.batch(t))

    check_failed_step(name, spoil, Mine, "mine", t=t, after=2, **option)


@pytest.mark.parametrize("name", ["soap", "sox", "msvr-v2"])
def test_the_optimizer_raises_after_it_wrote_into_the_gradient(name):
    def spoil(trial):
        def clip():
            nn.utils.clip_grad_norm_(trial.objective.parameters(), 1e-3)
            raise Mine("mine")

        once(trial.optimizer, clip)
        trial.solver.step(*trial.batch(3))

    check_failed_step(name, spoil, Mine, "mine")


def test_an_optimizer_that_writes_into_the_gradient_leaves_z_alone():
    trial = Trial("msvr-v2").run(1, 2)
    once(trial.optimizer, lambda: nn.utils.clip_grad_norm_(trial.objective.parameters(), 1e-3))
    found, wanted = trial.run(3, 3).snapshot(), clean("msvr-v2", 3)
    assert_same((found["z"], found["previous"]), (wanted["z"], wanted["previous"]))


@pytest.mark.parametrize("name", ["soap", "msvr-v2", "msvr-v3"])
def test_an_interrupt_during_the_optimizer_waits_until_the_step_is_taken(name):
    trial = Trial(name, keep="uniform").run(1, 2)
    once(trial.optimizer, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        trial.run(3, 3)
    assert_same(trial.snapshot(), clean(name, 3, keep="uniform"))
    assert_same(trial.run(4, 5).snapshot(), clean(name, 5, keep="uniform"))


def root_of(place):
    """Adds sqrt(0 g) to one row: its value is finite, its gradient is not."""

    def change(probe, g):
        where = torch.arange(g.shape[0]).unsqueeze(1) == min(place, g.shape[0] - 1)
        return g + (torch.where(where, 0.0, 1.0) * g.square()).sqrt() * 0.0

    return change


class Rooted(fcco.Objective):
    """g_i = mean of sqrt(|x w|), with no derivative at x = 0; `model` works on all blocks at once."""

    def __init__(self, model=None, shared=False):
        super().__init__(num_blocks=BLOCKS, dim=1)
        self.w, self.model, self.shared = nn.Parameter(torch.ones(4)), model or nn.Identity(), shared

    def inner(self, index, x, *rest):
        y = (x @ self.w).abs().sqrt().mean(1, keepdim=True)
        return self.model(y)

    def outer(self, index, u):
        return u.square().sum(1)


def rooted_step(objective, place, *rest, method=None, **options):
    solver = fcco.Solver(
        objective,
        torch.optim.SGD(objective.parameters(), lr=0.1),
        method or recipe("msvr-v2"),
        **options,
    )
    index = torch.tensor([4, 0, 3])
    solver.step(index, torch.ones(3, 2, 4), *rest)
    x = torch.ones(3, 2, 4)
    x[place, 1] = 0.0
    before = snapshot(solver)
    with pytest.raises(fcco.NonFiniteError, match="not finite") as caught:
        solver.step(index, x, *rest)
    assert_same(before, snapshot(solver))
    return caught.value.blocks


@pytest.mark.parametrize("name", ["soap", "sox", "msvr-v1", "msvr-v2", "msvr-v1-sp", "bspiderboost"])
@pytest.mark.parametrize("place", range(3))
def test_gradient_that_is_not_finite_names_the_block(place, name):
    options = {"radius": 2.0} if name.endswith("sp") else {}
    assert rooted_step(Rooted(), place, method=recipe(name), **options) == [[4, 0, 3][place]]


def test_gradient_that_is_not_finite_with_data_that_all_blocks_share():
    """Data that cannot be cut up by block: all blocks are suspects, since 0 * inf spoils every row's gradient."""
    blocks = rooted_step(Rooted(), 1, torch.zeros(7))
    assert 0 in blocks


def test_gradient_that_is_not_finite_behind_batch_norm():
    """BatchNorm refuses a batch of one, so the replay block by block cannot run: the step's error must come all
    the same, not BatchNorm's."""
    blocks = rooted_step(Rooted(nn.BatchNorm1d(1)), 2)
    assert 3 in blocks


def test_gradient_that_is_not_finite_in_a_full_pass_names_blocks():
    objective, x = Rooted(), torch.ones(BLOCKS, 2, 4)
    passes = lambda: iter([(torch.tensor([0, 1, 2]), x[:3]), (torch.tensor([3, 4, 5]), x[3:])])  # noqa: E731
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.0)
    solver = fcco.Solver(objective, optimizer, recipe("msvr-v3", period=2), full_pass=passes)
    for _ in range(2):
        solver.step(torch.tensor([1]), x[1:2])
    x[4, 1] = 0.0
    before = snapshot(solver)
    with pytest.raises(fcco.NonFiniteError, match=r"full_pass.*gradient.*blocks 3, 4, 5$") as caught:
        solver.step(torch.tensor([1]), x[1:2])
    assert caught.value.blocks == [3, 4, 5]  # those of the batch that it came from
    assert_same(before, snapshot(solver))


def test_overflow_of_u_is_refused():
    """g and the gradient are finite, and yet the new row is not."""
    w = nn.Parameter(torch.ones(1))
    f = fcco.objective(lambda i, x: x * (1 + 0 * w), lambda i, u: torch.tanh(u).sum(1), num_blocks=3, parameters=[w])
    solver = fcco.Solver(f, torch.optim.SGD([w], lr=0.1), fcco.msvr_v1(alpha=0.5, beta=0.5, gamma=1e20))
    solver.step(torch.tensor([0, 2]), torch.ones(2, 1))
    solver.state.engine.previous[0].fill_(-1e25)
    g = fcco.objective(lambda i, x: x * w, lambda i, u: torch.tanh(u).sum(1), num_blocks=3, parameters=[w])
    f.inner = g.inner
    before = snapshot(solver)
    with pytest.raises(fcco.NonFiniteError, match=r"block 2$"):
        solver.step(torch.tensor([0, 2]), torch.tensor([[0.0], [1.0]]))
    assert_same(before, snapshot(solver))


@pytest.mark.parametrize("option", [{"radius": 1.0}, {"normalize": True}])
def test_norm_that_overflows_is_not_taken_for_a_zero_step(option):
    """Every component of z is finite, ||z|| is not: z/||z|| would be zero, and the run would stand still."""
    w = nn.Parameter(torch.ones(4))
    f = fcco.objective(lambda i, x: (x * w).sum(1, True), lambda i, u: u.sum(1), num_blocks=2, parameters=[w])
    solver = fcco.Solver(f, torch.optim.SGD([w], lr=1.0), fcco.bsgd(), **option)
    with pytest.raises(fcco.NonFiniteError, match="gradient"):
        solver.step([0], torch.tensor([[2e38, -2e38, 2e38, -2e38]]))
    assert torch.equal(w.detach(), torch.ones(4))


# ---------------------------------------------------------------------- full passes

X = data()


def passes(*batches):
    return lambda: iter(batches)


def good(first=0, last=BLOCKS, index=None):
    blocks = torch.arange(first, last)
    return (blocks if index is None else index, X[first:last], torch.full((last - first, 5), 0.2))


def nan_batch(place):
    index, x, weight = good()
    return index, x, weight.index_fill(0, torch.tensor([place]), NAN)


FULL = {
    "nothing": (passes(), ValueError, "full_pass .*blocks 0, 1, 2, 3, 4, 5"),
    "one missing": (passes(good(0, 5)), ValueError, "full_pass .*blocks? 5"),
    "float index": (passes(good(index=torch.arange(6.0))), TypeError, "index of full_pass .*float32"),
    "index too large": (passes(good(index=torch.arange(1, 7))), ValueError, "index of full_pass .*block 6"),
    "negative index": (passes(good(index=torch.arange(-1, 5))), ValueError, "index of full_pass .*block -1"),
    "a tensor": (passes(torch.arange(6)), TypeError, "full_pass .*Tensor"),
    "an empty tuple": (passes(()), TypeError, r"full_pass .*tuple"),
    "a dict": (passes({"index": 1}), TypeError, "full_pass .*dict"),
    "not an iterator": (lambda: None, TypeError, "full_pass .*NoneType"),
    "a number": (lambda: 3, TypeError, "full_pass .*int"),
    "error of its own": (lambda: (raises(Mine("mine"))(1, i) for i in (1,)), Mine, "mine"),
    "nan": (passes(nan_batch(3)), fcco.NonFiniteError, "full.pass.*block.* 3$"),
    "wrong data": (passes((torch.arange(6),)), TypeError, "inner|missing"),
}


@pytest.mark.parametrize(("name", "t"), [("msvr-v3", 1), ("variant-v3", 5)], ids=["first", "later"])
@pytest.mark.parametrize("case", FULL)
def test_full_pass(case, name, t):
    bad, error, says = FULL[case]

    def spoil(trial):
        kept, trial.solver.full_pass = trial.solver.full_pass, bad
        try:
            trial.solver.step(*trial.batch(t))
        finally:
            trial.solver.full_pass = kept

    found = check_failed_step(name, spoil, error, says, t=t)
    if error is fcco.NonFiniteError:
        assert found.blocks == [3]


@pytest.mark.parametrize("name", FINITE_SUM)
def test_full_pass_that_is_used_up_after_one_look(name):
    """The classic: a function that hands out the same iterator again. The second pass finds it empty."""
    used = iter(list(full_pass(X)))
    trial = Trial(name, full_pass=lambda: used)
    before = trial.snapshot()
    with pytest.raises(ValueError, match=r"full_pass .*never came to blocks"):
        trial.solver.step(*trial.batch(1))
    assert_same(before, trial.snapshot())


@pytest.mark.parametrize("case", FULL)
def test_diagnose_with_a_bad_full_pass(case):
    bad, error, says = FULL[case]
    trial = Trial("sox").run(1, 2)
    before = trial.snapshot()
    with pytest.raises(error, match=says):
        trial.solver.diagnose(bad)
    assert_same(before, trial.snapshot())


def test_diagnose_without_full_pass():
    with pytest.raises(ValueError, match=r"full_pass.*None"):
        Trial("sox").solver.diagnose()


def test_diagnose_changes_nothing():
    trial = Trial("soap").run(1, 2)
    before = trial.snapshot()
    trial.solver.diagnose(lambda: full_pass(trial.x))
    assert_same(before, trial.snapshot())


# ---------------------------------------------------------------------- the Solver's arguments


def solver_with(**options):
    objective = options.pop("objective", None) or Noisy()
    optimizer = options.pop("optimizer", None) or torch.optim.SGD(objective.parameters(), lr=0.1)
    return fcco.Solver(objective, optimizer, options.pop("method", recipe("msvr-v2")), **options)


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
        "optimizer lacks .*shift",
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
    "u0: a string": (lambda: {"u0": "zeros"}, TypeError, "u0 .*'zeros'"),
    "z0: wrong shapes": (lambda: {"z0": SHAPES[::-1]}, ValueError, r"z0 .*got \["),
    "z0: too few": (lambda: {"z0": SHAPES[:-1]}, ValueError, "z0 .*got"),
    "z0: one tensor": (lambda: {"z0": torch.zeros(3)}, (TypeError, ValueError), "z0 .*got"),
    "z0: nan": (lambda: {"z0": NAN}, ValueError, "z0 .*nan"),
    "z0: nan in a tensor": (lambda: {"z0": nan_in(SHAPES)}, ValueError, "z0 .*finite"),
    "z0: numbers": (lambda: {"z0": [0.0] * len(SHAPES)}, TypeError, r"z0 .*\[0.0, 0.0"),
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
    with pytest.raises(ValueError, match=r"optimizer lacks .*: shift$"):
        fcco.Solver(objective, optimizer, recipe("sox"))


def test_single_point_without_radius_warns_and_does_not_refuse():
    with pytest.warns(UserWarning, match="radius"):
        solver_with(method=recipe("msvr-v1-sp"))


# ---------------------------------------------------------------------- the Objective's arguments

OBJECTIVE = {
    "num_blocks: zero": ({"num_blocks": 0}, ValueError, "num_blocks .*0"),
    "num_blocks: negative": ({"num_blocks": -1}, ValueError, "num_blocks .*-1"),
    "num_blocks: a float": ({"num_blocks": 3.0}, TypeError, "num_blocks .*3.0"),
    "num_blocks: a bool": ({"num_blocks": True}, TypeError, "num_blocks .*True"),
    "num_blocks: a string": ({"num_blocks": "3"}, TypeError, "num_blocks .*'3'"),
    "num_blocks: none": ({"num_blocks": None}, TypeError, "num_blocks .*None"),
    "dim: zero": ({"dim": 0}, ValueError, "dim .*0"),
    "dim: a float": ({"dim": 1.5}, TypeError, "dim .*1.5"),
    "log: too many": ({"log": [True, False, True]}, ValueError, r"log .*\[True, False, True\]"),
    "log: not bools": ({"log": [1, 0]}, ValueError, r"log .*\[1, 0\]"),
    "log: a number": ({"log": 1}, (TypeError, ValueError), "log .*1"),
    "log: none": ({"log": None}, (TypeError, ValueError), "log .*None"),
    "log: a string": ({"log": "no"}, ValueError, "log .*'no'"),
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
    arguments = {"inner": len, "outer": len, "num_blocks": 3, "dim": 2, "parameters": NOISY} | changes
    with pytest.raises(error, match=says):
        fcco.objective(arguments.pop("inner"), arguments.pop("outer"), **arguments)
    if set(changes) <= {"num_blocks", "dim", "log"}:
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

    solver = solver_with(objective=Half())
    with pytest.raises(NotImplementedError, match=f"Half must define {missing}"):
        solver.step([0], torch.ones(1, 1))
    assert solver.t == solver.samples == 0


# ---------------------------------------------------------------------- schedules, stages, optimizer, sampler

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
}
COUNT = [(0, ValueError), (-2, ValueError), (2.0, TypeError), (NAN, TypeError), ("2", TypeError), (None, TypeError)]
POSITIVE = [(0.0, ValueError), (-1.0, ValueError), (NAN, ValueError), (INF, ValueError), ("1", TypeError)]
NUMBERS = {
    **dict.fromkeys(("m", "n", "b1", "b2", "horizon"), COUNT),
    **dict.fromkeys(("mu", "accuracy", "distance", "smoothness"), POSITIVE),
    "c": [*POSITIVE, (0.5, ValueError)],
    "gap": [(-1.0, ValueError), (NAN, ValueError), ("1", TypeError)],
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


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "convex_mu"])
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
    optimizer = torch.optim.SGD(NOISY.parameters(), lr=1.0)
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


STAGES = [Stage(2, 0.1, 0.5, 0.5), Stage(3, 0.05, 0.25, 0.25)]
STAGEWISE = {
    "solver: an optimizer": ({"solver": torch.optim.SGD(NOISY.parameters())}, TypeError, "solver .*SGD"),
    "stages: none": ({"stages": None}, (TypeError, ValueError), "stages .*None"),
    "stages: empty": ({"stages": []}, ValueError, r"stages .*\[\]"),
    "stages: a stage": ({"stages": STAGES[0]}, (TypeError, ValueError), "stages .*Stage"),
    "stages: tuples": ({"stages": [(2, 0.1, 0.5, 0.5)]}, ValueError, "stages .*0.1"),
    "stages: an iterator": ({"stages": iter(STAGES)}, (TypeError, ValueError), "stages .*iterator"),
    "mu: negative": ({"mu": -1.0}, ValueError, "mu .*-1"),
    "mu: nan": ({"mu": NAN}, ValueError, "mu .*nan"),
    "mu: without weight decay": ({"mu": 0.5}, ValueError, "mu is 0.5.*weight_decay.*got 0"),
    "drawn: a string": ({"drawn": "no"}, TypeError, "drawn .*'no'"),
    "seed: a float": ({"seed": 0.5}, TypeError, "seed .*0.5"),
}


@pytest.mark.parametrize("case", STAGEWISE)
def test_stage_wise_argument(case):
    changes, error, says = STAGEWISE[case]
    trial = Trial("msvr-v2")
    before = trial.snapshot()
    with pytest.raises(error, match=says):
        StageWise(**{"solver": trial.solver, "stages": STAGES} | changes)
    assert_same(before, trial.snapshot())


def test_stage_wise_is_over_when_it_is_over():
    trial = Trial("msvr-v2")
    run = StageWise(trial.solver, STAGES)
    for t in range(1, 6):
        run.step(*trial.batch(t))
    before = trial.snapshot(), run.state_dict()
    with pytest.raises(ValueError, match="2 stages are through"):
        run.step(*trial.batch(6))
    assert_same(before, (trial.snapshot(), run.state_dict()))


@pytest.mark.parametrize("name", ["msvr-v2", "msvr-v3"])
@pytest.mark.parametrize("t", range(1, 5))
def test_stage_wise_survives_a_bad_step(name, t):
    """At t = 1 and t = 3 a stage begins: the bad step must not begin it, or begin it twice."""

    def run(spoilt):
        trial = Trial(name)
        run = StageWise(trial.solver, STAGES, drawn=False)
        for step in range(1, 6):
            if spoilt and step == t:
                before = trial.snapshot(), run.state_dict()
                trial.objective.arm(fault=nan_row(0))
                with pytest.raises(fcco.NonFiniteError):
                    run.step(*trial.batch(step))
                trial.objective.disarm()
                assert_same(before, (trial.snapshot(), run.state_dict()))
            run.step(*trial.batch(step))
        return trial.snapshot(), run.state_dict()

    assert_same(run(False), run(True))


def test_stage_wise_does_not_count_a_skipped_step():
    def run(spoilt):
        trial = Trial("msvr-v2", nonfinite="skip")
        run = StageWise(trial.solver, STAGES)
        for step in range(1, 6):
            if spoilt and step == 2:
                trial.objective.arm(fault=nan_row(0))
                assert run.step(*trial.batch(step)).skipped
                trial.objective.disarm()
            run.step(*trial.batch(step))
        return without_counts(trial.snapshot()), run.state_dict()

    assert_same(run(False), run(True))


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
]


@pytest.mark.parametrize(("argument", "value", "error"), ADAPTIVE)
def test_adaptive_argument(argument, value, error):
    with pytest.raises(error, match=f"{argument} .*{value}"):
        fcco.Adaptive(NOISY.parameters(), **{argument: value})
    with pytest.raises(error, match=f"{argument} .*{value}"):
        fcco.Adaptive([{"params": list(NOISY.parameters()), argument: value}])


SAMPLER = [
    ("num_blocks", 0, ValueError),
    ("num_blocks", 6.0, TypeError),
    ("num_blocks", None, TypeError),
    ("blocks_per_step", 0, ValueError),
    ("blocks_per_step", 7, ValueError),
    ("blocks_per_step", -1, ValueError),
    ("blocks_per_step", 2.0, TypeError),
    ("blocks_per_step", True, TypeError),
    ("seed", 1.5, TypeError),
    ("seed", "a", TypeError),
    ("seed", None, TypeError),
]


@pytest.mark.parametrize(("argument", "value", "error"), SAMPLER)
def test_sampler_argument(argument, value, error):
    with pytest.raises(error, match=f"{argument} .*{value}"):
        fcco.BlockSampler(**{"num_blocks": 6, "blocks_per_step": 2, "seed": 0} | {argument: value})


# ---------------------------------------------------------------------- skipping

SPOILT = {
    "g": {"fault": nan_row(1)},
    "f": {"outer_fault": nan_row(0, INF)},
    "u": {"project_fault": lambda u: u * INF},
    "gradient": {"fault": root_of(1)},
}


SKIPPED = [(name, "g") for name in fcco.METHODS]
SKIPPED += [(name, what) for name in ("soap", "msvr-v2", "msvr-v3", "scent") for what in SPOILT if what != "g"]


@pytest.mark.parametrize(("name", "what"), SKIPPED)
def test_skipping(name, what):
    """A skipped step counts itself and its samples, and is else as if it had never been."""
    t = 1 if what == "f" else 5 if name in FINITE_SUM else 3  # v3's anchor is due at 1 and at 5
    trial = Trial(name, nonfinite="skip").run(1, t - 1)
    before, drawn = trial.snapshot(), trial.solver.samples
    for count in (1, 2):
        trial.objective.arm(**SPOILT[what])
        report = trial.solver.step(*trial.batch(t))
        assert report.skipped
        assert (trial.solver.skipped, report.step, trial.solver.t) == (count, t - 1, t - 1)
        assert report.samples == trial.solver.samples == drawn + 9 * count
        assert math.isnan(report.value)
        assert math.isnan(report.tracking_error)
    trial.objective.disarm()
    assert_same(without_counts(before), without_counts(trial.snapshot()))
    went_on = trial.run(t, t + 1).snapshot()
    assert trial.solver.skipped == 2
    assert_same(without_counts(went_on), without_counts(clean(name, t + 1)))


def test_skipping_is_for_numbers_only():
    """A wrong shape is an error whatever `nonfinite` says."""
    trial = Trial("msvr-v2", nonfinite="skip").run(1, 2)
    before = trial.snapshot()
    trial.objective.arm(fault=lambda n, g: g[:, 0])
    with pytest.raises(ValueError, match="inner"):
        trial.solver.step(*trial.batch(3))
    trial.objective.disarm()
    assert_same(before, trial.snapshot())


# ---------------------------------------------------------------------- buffers that come to life in a pass


class Lazy(fcco.Objective):
    """Its buffer is None until the first pass, and holds the latest mean from then on."""

    def __init__(self):
        super().__init__(num_blocks=3, dim=1)
        self.w = nn.Parameter(torch.ones(2))
        self.register_buffer("mean", None)
        self.fail = False

    def inner(self, index, x):
        y = x @ self.w
        self.mean = y.detach().mean() if self.mean is None else 0.5 * self.mean + 0.5 * y.detach().mean()
        if self.fail:
            raise Mine("mine")
        return (y - self.mean).square().mean(1, keepdim=True)

    def outer(self, index, u):
        return (1 + u).log().sum(1)


@pytest.mark.parametrize("lag", [0, 1])
def test_buffer_that_is_none_at_first(lag):
    def run(spoilt):
        objective = Lazy()
        optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
        solver = fcco.Solver(objective, optimizer, fcco.msvr_v2(alpha=0.5, beta=0.5, lag=lag))
        generator = torch.Generator().manual_seed(3)
        for _ in range(3):
            batch = torch.tensor([0, 2]), torch.randn(2, 4, 2, generator=generator)
            if spoilt:
                objective.fail, before = True, objective.mean
                with pytest.raises(Mine):
                    solver.step(*batch)
                objective.fail = False
                assert (objective.mean is None) == (before is None)
            solver.step(*batch)
        return snapshot(solver)

    assert_same(run(False), run(True))


@pytest.mark.parametrize("lag", [0, 1])
def test_only_the_pass_at_the_current_weights_marks_a_new_buffer(lag):
    """The first step looks twice; the mean must come from one pass, not from two."""
    objective = Lazy()
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
    solver = fcco.Solver(objective, optimizer, fcco.msvr_v1(alpha=0.5, beta=0.5, lag=lag))
    x = torch.randn(2, 4, 2)
    solver.step([0, 2], x)
    assert torch.equal(objective.mean, (x @ torch.ones(2)).mean())
