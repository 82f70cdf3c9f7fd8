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
from fcco.solver import _capture
from fcco.solver._clock import Clock, Reading

BLOCKS = 6


@pytest.fixture(autouse=True)
def captures_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_capture, "CAPTURING", {"cpu"})


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
