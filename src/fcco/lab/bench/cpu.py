"""The settings on the CPU: small networks, memories with many labels, and LibAUC's losses."""

from __future__ import annotations

import functools
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

import fcco
from fcco.data import Points
from fcco.lab.bench.libauc import there_is_libauc
from fcco.lab.bench.literal import repeated
from fcco.lab.bench.problems import (
    CLASSES,
    METHODS,
    NEVER,
    RATES,
    PlainData,
    class_numbers,
    given_steps,
    loader_steps,
    plain_steps,
    seeded,
    solver_of,
    solver_steps,
    tasks,
)
from fcco.lab.bench.rows import Name, Row, Step
from fcco.lab.bench.timing import CPU, Budget, Steps, measured, quiet, threads
from fcco.lab.models import MLP
from fcco.objectives import AveragePrecision, MultiTaskAUC, OutputObjective, PartialAUC

EXAMPLES = 2_000

# ---------------------------------------------------------------------- small networks


@final
@dataclass(frozen=True)
class SmallProblem:
    """Multi-task AUC of a small network, one thread.

    Args:
        title: what it is called.
        features: inputs of the network.
        hidden: its width.
        blocks: B1.
        samples: B2.
    """

    title: str
    features: int
    hidden: int
    blocks: int
    samples: int

    @property
    def given(self) -> str:
        """The setting in which a batch is given: a step alone."""
        return f"{self.title}, given batch"

    @property
    def drawn(self) -> str:
        """The setting in which each step draws its batch."""
        return f"{self.title}, with the draw"

    def makers(self, *, draw: bool) -> dict[Name, Callable[[], Steps]]:
        """How each contender is made."""
        setting = self.given
        if draw:
            setting = self.drawn
        found: dict[Name, Callable[[], Steps]] = {Name(setting, Step.PLAIN): partial(self.plain, draw=draw)}
        for step in METHODS:
            found[Name(setting, step)] = partial(self.solver, step, draw=draw)
        return found

    def plain(self, *, draw: bool) -> Steps:
        """Plain SGD on the ten columns."""
        size = self.blocks * self.samples
        data = PlainData(self._x(), one_hot(class_numbers(EXAMPLES, CPU), CLASSES).float())
        if draw:
            return plain_steps(self._model(), data, size, capture=False)
        return repeated(_given_plain_step(self._model(), PlainData(data.x[:size], data.target[:size])))

    def solver(self, step: Step, *, draw: bool) -> Steps:
        """fcco."""
        solver = solver_of(MultiTaskAUC(self._model(), tasks(self._x())), step, capture=False)
        if draw:
            return solver_steps(solver, self.blocks, self.samples)
        return given_steps(solver, self.blocks, self.samples)

    def _x(self) -> Tensor:
        return torch.randn(EXAMPLES, self.features, generator=seeded(CPU))

    def _model(self) -> nn.Module:
        torch.manual_seed(0)
        return MLP(self.features, CLASSES, (self.hidden,))


def _given_plain_step(model: nn.Module, data: PlainData) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATES.lr)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(data.x), data.target).backward()
        optimizer.step()

    return step


TINY = SmallProblem("batch of 64, MLP 20-32-10", 20, 32, blocks=4, samples=16)
WIDE = SmallProblem("640 x 784, MLP 784-64-10", 784, 64, blocks=5, samples=128)


def run_small(problem: SmallProblem, budget: Budget) -> Iterator[list[Row]]:
    """A small network, on given batches and with the draws."""
    with threads(1):
        for draw in (False, True):
            yield measured(problem.makers(draw=draw), CPU, finely(budget.split(2)))[0]


def finely(budget: Budget) -> Budget:
    """Short visits and many rounds: a CPU shared with others is slow now and then."""
    return replace(budget, visits=40)


# ---------------------------------------------------------------------- the memory with many labels


@final
@dataclass(frozen=True)
class ManyLabels:
    """The output memory over a table with many labels, one thread."""

    labels: int
    examples: int
    blocks: int = 32
    samples: int = 32
    features: int = 20

    @property
    def name(self) -> str:
        return f"memory, {self.labels} labels of {self.examples:,} rows"

    def makers(self) -> dict[Name, Callable[[], Steps]]:
        """How each contender is made."""
        steps = (Step.MEMORY_AP, Step.MEMORY_PAUC)
        return {Name(self.name, step): partial(self.memory, step) for step in steps}

    def memory(self, step: Step) -> Steps:
        """A memory whose table is full."""
        generator = seeded(CPU)
        x = torch.randn(self.examples, self.features, generator=generator)
        y = (torch.rand(self.examples, self.labels, generator=generator) < 0.2).float()
        torch.manual_seed(0)
        model = MLP(self.features, self.labels, (32,))
        objective: OutputObjective = AveragePrecision(model, Points(x, y))
        if step is Step.MEMORY_PAUC:
            objective = PartialAUC(model, Points(x, y))
        solver = solver_of(objective, step, capture=False)
        loader: Any = solver.loader(self.blocks, self.samples, steps_per_epoch=NEVER)
        loader.score()
        return loader_steps(solver, loader)


MANY_LABELS = (ManyLabels(146, 302), ManyLabels(27, 1_000))


def run_memory(budget: Budget) -> Iterator[list[Row]]:
    """Memories with many labels."""
    with threads(1):
        for problem in MANY_LABELS:
            yield measured(problem.makers(), CPU, finely(budget.split(len(MANY_LABELS))))[0]


# ---------------------------------------------------------------------- LibAUC on the CPU

PEERS = "from scores to the step, "
PEER_STEPS = 10


def peers_missing() -> str | None:
    """Why the rows of benchmarks/peers.py cannot be measured here; None: they can."""
    if not there_is_libauc():
        return "LibAUC cannot be imported (make peers installs it)"
    if not _peers_file().is_file():
        return "only a checkout of the repository has benchmarks/peers.py"
    return None


def _peers_file() -> Path:
    return Path(fcco.__file__).parents[2] / "benchmarks" / "peers.py"


@functools.cache
def _peers() -> Any:
    spec = importlib.util.spec_from_file_location("fcco_benchmarks_peers", _peers_file())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def run_peers(budget: Budget) -> Iterator[list[Row]]:
    """Every loss that LibAUC has too, its step against ours."""
    with threads(1), quiet():
        peers = _peers()
        start = time.perf_counter()
        peers.speeds(1, PEER_STEPS, time.perf_counter)
        one = (time.perf_counter() - start) / 3  # speeds leaves its first two rounds out
        rounds = max(budget.rounds, round(budget.seconds / one))
        found = peers.speeds(rounds, PEER_STEPS, time.perf_counter)
    rows: list[Row] = []
    for speed in found:
        setting = PEERS + speed.name
        rows.append(Row(Name(setting, Step.SOAP), [speed.ours_ms]))
        rows.append(Row(Name(setting, Step.LIBAUC), [speed.theirs_ms]))
    yield rows
