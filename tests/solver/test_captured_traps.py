"""Captured steps where something comes between: Ctrl-C, a trial that fails, a state from before the first step.

Without a GPU the programs are called in place of graphs: all but the recording itself runs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fcco
from fcco.solver._clock import Clock, Reading

pytestmark = pytest.mark.usefixtures("capturing")

BLOCKS = 6


class Squares(fcco.Objective):
    def __init__(self) -> None:
        super().__init__(num_blocks=BLOCKS, dim=1)
        self.w = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.presses = False

    def inner(self, index: Tensor, x: Tensor) -> Tensor:
        if self.presses:
            self.presses = False
            os.kill(os.getpid(), signal.SIGINT)
        return (x @ self.w).mean(1, keepdim=True)

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        return u.square().squeeze(1)


def draws(steps: int, size: int = 2) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        index = torch.randperm(BLOCKS, generator=generator)[:size]
        yield index, torch.randn(size, 4, 3, generator=generator, dtype=torch.float64)


def solver(capture: Any, method: fcco.Method | None = None, **options: Any) -> fcco.Solver:
    objective = Squares()
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.05, momentum=0.9)
    return fcco.Solver(objective, optimizer, method or fcco.msvr_v2(), capture=capture, **options)


def weights(of: fcco.Solver) -> Tensor:
    return of.parameters[0].detach().clone()


@pytest.mark.parametrize("pressed_at", [10, 34])  # within a window, and in the last step before a look
def test_a_step_during_which_ctrl_c_comes_is_counted(pressed_at: int) -> None:
    runs = []
    for capture in (False, True):
        run = solver(capture)
        presses = 0
        for number, drawn in enumerate(draws(60)):
            run.objective.presses = number == pressed_at
            try:
                run.step(*drawn)
            except KeyboardInterrupt:
                presses += 1
        assert presses == 1
        assert run.t == 60
        runs.append(run)
    assert torch.equal(weights(runs[0]), weights(runs[1]))


def test_ctrl_c_while_the_host_waits_loses_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    run = solver(True)
    for drawn in draws(10):
        run.step(*drawn)
    read = Clock.read

    def interrupted(clock: Clock, attempts: int) -> Reading:
        reading = read(clock, attempts)
        os.kill(os.getpid(), signal.SIGINT)
        return reading

    monkeypatch.setattr(Clock, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.wait()
    assert run.t == 10


@pytest.mark.parametrize("method", [fcco.soap(), fcco.sox()])
def test_a_state_from_before_the_first_step_is_gone_on_from_as_eagerly(method: fcco.Method) -> None:
    runs = []
    for capture in (False, True):
        run = solver(capture, method)
        start = run.state_dict()
        for drawn in draws(8):
            run.step(*drawn)
        run.load_state_dict(start)
        for drawn in draws(12):
            run.step(*drawn)
        runs.append(run)
    assert torch.equal(weights(runs[0]), weights(runs[1]))


def test_an_optimizer_whose_first_steps_are_skipped_starts_as_eagerly() -> None:
    runs = []
    for capture in (False, True):
        run = solver(capture, fcco.soap(), nonfinite="skip")
        for number, (index, x) in enumerate(draws(12)):
            if number < 5:
                x = x * torch.nan
            run.step(index, x)
        runs.append(run)
    assert runs[1].skipped == 5
    assert torch.equal(weights(runs[0]), weights(runs[1]))


class Counting(torch.optim.Optimizer):
    """Counts its steps on the host."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            self.state[p]["step"] = self.state[p].get("step", 0) + 1
            p.sub_(0.05 / self.state[p]["step"] * p.grad)


def test_a_trial_that_fails_counts_nothing_in_the_optimizer() -> None:
    runs = []
    for capture in (False, "auto"):
        objective = Squares()
        run = fcco.Solver(objective, Counting(objective.parameters()), fcco.sox(), capture=capture)
        # Sizes that alternate: the rows of the last step have no place, and every trial fails.
        for one, other in zip(draws(8), draws(8, size=3), strict=True):
            run.step(*one)
            run.step(*other)
        runs.append(run)
    assert torch.equal(weights(runs[0]), weights(runs[1]))


def test_the_output_memory_goes_on_from_a_loaded_state_as_eagerly() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    y = (torch.arange(60).unsqueeze(1) % torch.tensor([2, 3])) == 0
    ends = []
    for capture in (False, True):
        torch.manual_seed(0)
        objective = fcco.objectives.MultiTaskAUC(nn.Linear(3, 2).double(), fcco.data.Tasks(x, y.double()))
        optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
        run = fcco.Solver(objective, optimizer, fcco.output_memory(refresh=6), capture=capture)
        loader = run.loader(2, 6, steps_per_epoch=40)
        for number, batch in enumerate(loader):
            if number == 30:
                run.load_state_dict(run.state_dict())  # the first step after it is tried in vain
            run.step(batch)
        ends.append(run.state_dict()["state"]["engine"])
    for name in ("staleness", "values", "written"):
        assert torch.equal(ends[0][name], ends[1][name]), name


def test_every_table_that_is_loaded_has_graphs_of_its_own() -> None:
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    objective = fcco.objectives.PartialAUC(nn.Linear(3, 1), fcco.data.Points(x, torch.arange(12) % 2))
    run = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), fcco.output_memory(), capture=True)
    for batch in run.loader(2, 2, steps_per_epoch=2):
        run.step(batch)
    state = run.state_dict()
    found = set()
    for _ in range(20):
        run.load_state_dict(state)
        found.add(run._engine.fingerprint())
    assert len(found) == 20
