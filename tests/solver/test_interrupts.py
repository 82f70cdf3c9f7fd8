"""Ctrl-C in the middle of a step: the first one waits until it is taken, a second one drops it without a trace."""

import signal

import pytest
import torch
from torch import nn

import fcco
from fcco.data import Points
from tests.helpers.same import assert_same

X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
Y = [1, 0, 0, 1] * 5


class Pressed(nn.Module):
    """A linear score; Ctrl-C is pressed so many times in the next forward pass."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.presses = 0

    def forward(self, x):
        for _ in range(self.presses):
            self.presses -= 1
            signal.raise_signal(signal.SIGINT)
        return self.linear(x)


def start(name):
    torch.manual_seed(0)
    model = Pressed()
    objective = fcco.objectives.PartialAUC(model, Points(X, Y))
    solver = fcco.Solver(objective, torch.optim.Adam(objective.parameters(), lr=0.05), fcco.METHODS[name]())
    return model, solver, solver.loader(2, 4, seed=0, steps_per_epoch=10)


@pytest.mark.parametrize("name", ["sox", "msvr-v2", "msvr-v3", "output-memory"])
def test_a_run_that_was_stopped_in_a_step_goes_on_as_if_it_had_not_been(name, tmp_path):
    _, whole, loader = start(name)
    for batch in loader:
        whole.step(batch)
    model, stopped, loader = start(name)
    batches = iter(loader)
    for _ in range(3):
        stopped.step(next(batches))
    model.presses = 1
    with pytest.raises(KeyboardInterrupt):
        stopped.step(next(batches))
    assert stopped.t == 4  # the step was taken first
    fcco.save(tmp_path / "run.pt", solver=stopped, loader=loader)
    _, resumed, loader = start(name)
    fcco.load(tmp_path / "run.pt", solver=resumed, loader=loader)
    for batch in loader:
        resumed.step(batch)
    assert_same(resumed.state_dict(), whole.state_dict())


def test_a_second_press_drops_the_step_without_a_trace():
    model, solver, loader = start("msvr-v2")
    batches = iter(loader)
    solver.step(next(batches))
    before = solver.state_dict()
    model.presses = 2
    with pytest.raises(KeyboardInterrupt):
        solver.step(next(batches))
    assert_same(solver.state_dict(), before)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_tracker_refuses_the_batches_of_the_memory():
    _, _, loader = start("output-memory")
    _, solver, _ = start("sox")
    with pytest.raises(ValueError, match="drawn by importance, for the output memory; sox needs a batch of its own"):
        solver.step(next(iter(loader)))
