"""Optimizers that raise or write into the gradient, and Ctrl-C while they step."""

import signal

import pytest
from torch import nn

from tests.helpers.failing import Mine, check_failed_step, clean, once, refuse
from tests.helpers.methods import TRACKED
from tests.helpers.same import assert_same
from tests.helpers.trials import Trial

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("t", [1, 3])
@pytest.mark.parametrize("name", TRACKED)
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
