# ruff: noqa: PT012 (blocks are what is tested)
"""The seam: within `with solver.gradient(...)` z is in p.grad, and the caller's own optimizer takes the step."""

import signal

import pytest
import torch
from torch import nn

import fcco
from tests.helpers.failing import Mine, clean, nan_row
from tests.helpers.methods import TRACKED
from tests.helpers.same import assert_same
from tests.helpers.trials import Trial, without_counts

pytestmark = pytest.mark.usefixtures("one_thread")


def through_the_seam(trial, t):
    """Step t, taken by the caller."""
    with trial.solver.gradient(*trial.batch(t)) as pending:
        if not pending.skipped:
            trial.optimizer.step()
    return pending


@pytest.mark.parametrize("name", TRACKED)
def test_equals_step(name):
    trial = Trial(name)
    reports = [through_the_seam(trial, t).report for t in range(1, 7)]
    assert_same(trial.snapshot(), clean(name, 6))
    other = Trial(name)
    for t, report in enumerate(reports, start=1):
        wanted = other.solver.step(*other.batch(t))
        assert (report.step, report.samples, report.oracle) == (wanted.step, wanted.samples, wanted.oracle)
        assert (report.value, report.tracking_error) == (wanted.value, wanted.tracking_error)


@pytest.mark.parametrize("options", [{"normalize": True}, {"radius": 0.1}, {"keep": "uniform"}, {"z0": 0.0}], ids=str)
@pytest.mark.parametrize("name", ["soap", "sox", "msvr-v2"])
def test_equals_step_with_options(name, options):
    trial = Trial(name, **options)
    for t in range(1, 6):
        through_the_seam(trial, t)
    assert_same(trial.snapshot(), clean(name, 5, **options))


def test_z_is_in_the_gradients():
    trial = Trial("msvr-v2").run(1, 3)
    weights = [p.detach().clone() for p in trial.solver.parameters]
    with trial.solver.gradient(*trial.batch(4)):
        z = [p.grad.clone() for p in trial.solver.parameters]
        assert_same(weights, [p.detach() for p in trial.solver.parameters])
        assert trial.solver.t == 3
    assert trial.solver.t == 4
    assert_same(z, trial.solver.z)


def test_an_optimizer_that_the_solver_does_not_know():
    """SGD of the user's own; the solver was given another one, which never steps."""

    def made():
        torch.manual_seed(0)
        w = nn.Parameter(torch.ones(3, dtype=torch.float64))
        objective = fcco.objective(
            lambda i, x: (x @ w).tanh().unsqueeze(1), lambda i, u: u.square().sum(1), num_blocks=4, parameters=[w]
        )
        return w, fcco.Solver(objective, torch.optim.SGD([w], lr=0.1), fcco.msvr_v2(alpha=0.3, beta=0.4))

    def batch(t):
        generator = torch.Generator().manual_seed(t)
        index = torch.randperm(4, generator=generator)[:2]
        return index, torch.randn(2, 3, generator=generator, dtype=torch.float64)

    w, solver = made()
    other, by_hand = made()
    for t in range(6):
        solver.step(*batch(t))
        with by_hand.gradient(*batch(t)), torch.no_grad():
            other -= 0.1 * other.grad
    assert torch.equal(w, other)
    assert torch.equal(solver.u(), by_hand.u())


ERRORS = [Mine("mine"), KeyboardInterrupt("mine"), SystemExit(3)]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("t", [1, 3, 5])
@pytest.mark.parametrize("name", TRACKED)
def test_an_error_in_the_block_drops_the_step(name, t, error):
    """At 1 and at 5 the reference of v3 is due."""
    trial = Trial(name).run(1, t - 1)
    before = trial.snapshot()
    with pytest.raises(type(error)), trial.solver.gradient(*trial.batch(t)):
        raise error
    assert_same(before, trial.snapshot())
    assert_same(trial.run(t, t + 1).snapshot(), clean(name, t + 1))


def test_a_second_one_before_the_end_of_the_first_is_refused():
    trial = Trial("msvr-v2").run(1, 2)
    with trial.solver.gradient(*trial.batch(3)):
        for again in (
            lambda: trial.solver.step(*trial.batch(4)),
            lambda: trial.solver.gradient(*trial.batch(4)).__enter__(),
            trial.solver.state_dict,
            lambda: trial.solver.load_state_dict({}),
        ):
            with pytest.raises(RuntimeError, match="a step is pending: leave its"):
                again()
        trial.optimizer.step()
    assert_same(trial.snapshot(), clean("msvr-v2", 3))
    assert_same(trial.run(4, 5).snapshot(), clean("msvr-v2", 5))


def test_one_that_was_never_entered_is_nothing():
    trial = Trial("msvr-v2").run(1, 2)
    trial.solver.gradient(*trial.batch(9))
    assert_same(trial.run(3, 3).snapshot(), clean("msvr-v2", 3))


def test_a_bad_batch_raises_where_the_block_begins():
    trial = Trial("msvr-v2").run(1, 2)
    before = trial.snapshot()
    with pytest.raises(ValueError, match=r"index .*block 99"), trial.solver.gradient([99], *trial.batch(3)[1:]):
        pytest.fail("the block must not be entered")
    assert_same(before, trial.snapshot())
    assert_same(trial.run(3, 4).snapshot(), clean("msvr-v2", 4))


@pytest.mark.parametrize("name", ["soap", "msvr-v2", "msvr-v3"])
def test_what_is_not_finite_is_told_in_the_block(name):
    trial = Trial(name, nonfinite="skip").run(1, 4)
    before = trial.snapshot()
    trial.objective.arm(fault=nan_row(1))
    pending = through_the_seam(trial, 5)
    trial.objective.disarm()
    assert pending.skipped
    assert pending.report.skipped
    assert trial.solver.skipped == 1
    assert trial.solver.samples == before["samples"] + 9
    assert_same(without_counts(before), without_counts(trial.snapshot()))
    through_the_seam(trial, 5)
    assert_same(without_counts(trial.snapshot()), without_counts(clean(name, 5)))


def test_an_error_in_the_block_of_a_skipped_step_is_just_that():
    trial = Trial("msvr-v2", nonfinite="skip").run(1, 2)
    trial.objective.arm(fault=nan_row(1))
    with pytest.raises(Mine) as caught, trial.solver.gradient(*trial.batch(3)) as pending:
        assert pending.skipped
        raise Mine("mine")
    assert caught.value.__context__ is None
    trial.objective.disarm()
    assert trial.solver.skipped == 1
    assert_same(without_counts(trial.run(3, 3).snapshot()), without_counts(clean("msvr-v2", 3)))


@pytest.mark.parametrize("t", [3, 4])  # at 4 the watch over the correction takes its figure
@pytest.mark.parametrize("name", ["soap", "msvr-v2", "msvr-v3"])
def test_ctrl_c_in_the_block_waits_for_its_end(name, t):
    trial = Trial(name).run(1, t - 1)
    reached = []
    with pytest.raises(KeyboardInterrupt), trial.solver.gradient(*trial.batch(t)):
        signal.raise_signal(signal.SIGINT)
        trial.optimizer.step()
        reached.append(True)
    assert reached
    assert_same(trial.snapshot(), clean(name, t))
    assert_same(trial.run(t + 1, t + 2).snapshot(), clean(name, t + 2))


def test_a_warning_points_at_the_block():
    """Where the watch over MSVR's correction warns, it names the caller's line."""
    trial = Trial("msvr-v2").run(1, 2)
    trial.solver.state.engine.watch.rho = 3.0
    with pytest.warns(fcco.CorrectionWarning) as caught:
        through_the_seam(trial, 3)
    assert caught[0].filename == __file__
