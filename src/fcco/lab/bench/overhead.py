"""What a method costs beside its passes: over plain SGD where the passes dominate, and with many blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

import fcco
from fcco.lab.bench.literal import repeated
from fcco.lab.bench.problems import METHODS, RATES, method_of, solver_of
from fcco.lab.bench.rows import Name, Row, Step
from fcco.lab.bench.timing import CPU, Budget, Steps, measured

RATIOS = "a step of 50 ms or more, convolutional network"
BLOCKS = 64
PER_STEP = 8  # blocks
SAMPLES = 16
WIDTH = 32  # channels: a plain step then takes 50 ms or more on most machines
FEW = 10**3  # blocks
MANY = 10**7


class Scores(fcco.Objective):
    """A small convolutional network, its mean score per block, and a curved f."""

    def __init__(self, width: int) -> None:
        super().__init__(num_blocks=BLOCKS, dim=1)
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, 1),
        )

    def inner(self, index: Tensor, x: Tensor) -> Tensor:
        scores: Tensor = self.net(x.flatten(0, 1))
        return scores.view(x.shape[0], x.shape[1]).mean(1, keepdim=True)

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        return (1 + u.square()).sqrt().squeeze(1)


def _batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    index = torch.randperm(BLOCKS, generator=generator)[:PER_STEP]
    return index, torch.randn(PER_STEP, SAMPLES, 3, 32, 32, generator=generator)


def _every_block() -> list[tuple[Tensor, Tensor]]:
    x = torch.randn(PER_STEP, 1, 3, 32, 32, generator=torch.Generator().manual_seed(9))
    return [(torch.arange(i, i + PER_STEP), x) for i in range(0, BLOCKS, PER_STEP)]


def _scores_plain(width: int) -> Steps:
    torch.manual_seed(0)
    objective = Scores(width)
    optimizer = torch.optim.SGD(objective.parameters(), lr=RATES.lr)
    index, x = _batch()

    def step() -> None:
        optimizer.zero_grad()
        objective.outer(index, objective.inner(index, x)).mean().backward()
        optimizer.step()

    return repeated(step)


def _scores_forward(width: int) -> Steps:
    torch.manual_seed(0)
    objective = Scores(width)
    index, x = _batch()

    def step() -> None:
        with torch.no_grad():
            objective.inner(index, x)

    return repeated(step)


def _scores_method(step: Step, width: int) -> Steps:
    torch.manual_seed(0)
    solver = solver_of(Scores(width), step, capture=False, full_pass=_every_block, radius=1e3)
    index, x = _batch()
    return repeated(lambda: solver.step(index, x))


def run_ratios(width: int, budget: Budget) -> Iterator[list[Row]]:
    """Every method over plain SGD where the passes dominate; torch's own number of threads."""
    makers: dict[Name, Callable[[], Steps]] = {
        Name(RATIOS, Step.PLAIN): partial(_scores_plain, width),
        Name(RATIOS, Step.FORWARD): partial(_scores_forward, width),
    }
    for step in (*METHODS, Step.V1_SP, Step.V2_SP):
        makers[Name(RATIOS, step)] = partial(_scores_method, step, width)
    # One step per visit: a few per cent are at stake, and each is compared with the plain step of its own round.
    yield measured(makers, CPU, replace(budget, visits=10**6))[0]


# ---------------------------------------------------------------------- the cost of m


class Rows(fcco.Objective):
    """A tiny model with any number of blocks."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks=num_blocks, dim=1)
        self.w = nn.Parameter(torch.zeros(8))

    def inner(self, index: Tensor, x: Tensor) -> Tensor:
        return (x @ self.w).mean(1, keepdim=True).tanh()

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        return u.square().squeeze(1)


def blocks_setting(num_blocks: int) -> str:
    """A setting of the cost of m."""
    return f"tiny model, step and draw of blocks, m = {num_blocks:,}"


def _rows_steps(num_blocks: int) -> Steps:
    objective = Rows(num_blocks)
    optimizer = torch.optim.SGD(objective.parameters(), lr=RATES.lr)
    solver = fcco.Solver(objective, optimizer, method_of(Step.V2))
    sampler = fcco.BlockSampler(num_blocks, 16, seed=0)
    x = torch.randn(16, 4, 8)
    return repeated(lambda: solver.step(next(sampler), x))


def run_blocks(budget: Budget) -> Iterator[list[Row]]:
    """The same step with a thousand and with ten million blocks."""
    makers = {Name(blocks_setting(m), Step.V2): partial(_rows_steps, m) for m in (FEW, MANY)}
    yield measured(makers, CPU, replace(budget, visits=100))[0]
