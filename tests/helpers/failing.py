"""Steps that fail: faults for the objective and the optimizer, and what must be the same after them."""

import functools
import math

import pytest
import torch

from tests.helpers.same import assert_same
from tests.helpers.trials import Trial

NAN, INF = math.nan, math.inf


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


def once(optimizer, hook):
    """Run a hook before the optimizer's next step, and then no more."""

    def run(*_):
        handle.remove()
        hook()

    handle = optimizer.register_step_pre_hook(run)


def refuse():
    raise Mine("mine")


def root_of(place):
    """Adds sqrt(0 g) to one row: its value is finite, its gradient is not."""

    def change(probe, g):
        where = torch.arange(g.shape[0]).unsqueeze(1) == min(place, g.shape[0] - 1)
        return g + (torch.where(where, 0.0, 1.0) * g.square()).sqrt() * 0.0

    return change
