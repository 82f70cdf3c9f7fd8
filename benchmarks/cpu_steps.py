"""Step times of small problems on one CPU thread, over a plain SGD step of the same network and batch.

Run: .venv/bin/python benchmarks/cpu_steps.py --out results/cpu/cpu_steps.json
The objective is MultiTaskAUC with ten tasks; the plain step takes cross-entropy. In every round each contender takes
one step on the same batch, drawn beforehand, and who goes first changes: the median of the rounds' ratios is
printed. The time of the loader's draw stands beside it, and the number of tensor operations of a step.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

import fcco
from fcco.data import Batch, Loader, Tasks
from fcco.lab.bench.operations import operations, operations_by_caller
from fcco.objectives import MultiTaskAUC

EXAMPLES = 2000
TASKS = 10
BATCHES = 50  # drawn beforehand, and taken in turn
WARM_UP = 20  # rounds that are not counted
METHODS = ("sox", "msvr-v1", "msvr-v2")

Step = Callable[[Batch], object]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Problem:
    """A network, a batch size, and the ratios that must hold."""

    name: str
    inputs: int
    hidden: int
    blocks: int
    samples: int
    bounds: dict[str, float]


PROBLEMS = (
    Problem("64 x 20", inputs=20, hidden=32, blocks=4, samples=16, bounds={"sox": 2.0, "msvr-v2": 3.5}),
    Problem("640 x 784", inputs=784, hidden=64, blocks=5, samples=128, bounds={"sox": 1.25, "msvr-v2": 2.1}),
)


@dataclass
class Row:
    """What one contender took."""

    problem: str
    step: str
    ms: float
    ratio: float  # over the plain step of the same round
    with_draw: float  # the same where both draw their batch
    bound: float | None
    operations: int  # of a step

    @property
    def holds(self) -> bool:
        return self.bound is None or self.ratio <= self.bound


def network(problem: Problem) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(problem.inputs, problem.hidden), nn.ReLU(), nn.Linear(problem.hidden, TASKS))


def examples(problem: Problem) -> Tasks:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(EXAMPLES, problem.inputs, generator=generator)
    return Tasks(x, torch.arange(EXAMPLES) % TASKS)


def plain_step(problem: Problem) -> Step:
    model = network(problem)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loss = nn.CrossEntropyLoss()

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        loss(model(batch.x), batch.y).backward()
        optimizer.step()

    return step


def method_step(problem: Problem, data: Tasks, name: str) -> Step:
    objective = MultiTaskAUC(network(problem), data)
    optimizer = torch.optim.SGD(objective.parameters(), lr=1e-3)
    solver = fcco.Solver(objective, optimizer, fcco.METHODS[name](alpha=0.1, beta=0.1))
    return solver.step


def loader_of(problem: Problem, data: Tasks) -> Loader:
    objective = MultiTaskAUC(network(problem), data)
    return objective.loader(problem.blocks, problem.samples, steps_per_epoch=10**9)


def measure(problem: Problem, rounds: int, clock: Clock) -> list[Row]:
    data = examples(problem)
    steps = {"plain": plain_step(problem)}
    for name in METHODS:
        steps[name] = method_step(problem, data, name)
    source = iter(loader_of(problem, data))
    batches = [next(source) for _ in range(BATCHES)]
    spent: dict[str, list[float]] = {name: [] for name in steps}
    draws: list[float] = []
    for turn in range(rounds + WARM_UP):
        took = one_round(turn, steps, batches[turn % BATCHES], source, clock)
        if turn < WARM_UP:
            continue
        draws.append(took.pop("draw"))
        for name, seconds in took.items():
            spent[name].append(seconds)
    rows = []
    for name, step in steps.items():
        count = operations(functools.partial(step, batches[0]))
        rows.append(row(problem, name, spent, draws, count))
    return rows


def one_round(
    turn: int, steps: dict[str, Step], batch: Batch, source: Iterator[Batch], clock: Clock
) -> dict[str, float]:
    """Seconds that each contender took, and the draw of one batch."""
    start = clock()
    next(source)
    took = {"draw": clock() - start}
    order = list(steps.items())
    first = turn % len(order)  # what the step before left in the caches is shared out
    for name, step in order[first:] + order[:first]:
        start = clock()
        step(batch)
        took[name] = clock() - start
    return took


def row(problem: Problem, name: str, spent: dict[str, list[float]], draws: list[float], count: int) -> Row:
    plain = spent["plain"]
    ratios = [mine / other for mine, other in zip(spent[name], plain, strict=True)]
    both = [(mine + draw) / (other + draw) for mine, other, draw in zip(spent[name], plain, draws, strict=True)]
    return Row(
        problem=problem.name,
        step=name,
        ms=1e3 * statistics.median(spent[name]),
        ratio=statistics.median(ratios),
        with_draw=statistics.median(both),
        bound=problem.bounds.get(name),
        operations=count,
    )


def show(rows: list[Row]) -> None:
    print(f"{'problem':<12}{'step':<10}{'ms':>8}{'ratio':>8}{'bound':>8}{'with draw':>11}{'operations':>12}")
    for found in rows:
        bound = ""
        verdict = ""
        if found.bound is not None:
            bound = f"{found.bound:.2f}"
            verdict = "  holds" if found.holds else "  MISSED"
        print(
            f"{found.problem:<12}{found.step:<10}{found.ms:>8.3f}{found.ratio:>8.2f}{bound:>8}"
            f"{found.with_draw:>11.2f}{found.operations:>12}{verdict}"
        )


def show_callers(problem: Problem, name: str) -> None:
    """Whose operations a method's step runs: the backward pass's stand under the function that starts it."""
    data = examples(problem)
    batch = next(iter(loader_of(problem, data)))
    step = functools.partial(method_step(problem, data, name), batch)
    print(f"operations of a {name} step, {problem.name}")
    for caller, count in operations_by_caller(step).most_common():
        print(f"{count:>5}  {caller}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=800)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu-time", action="store_true", help="count this process's time only: for a busy machine")
    parser.add_argument("--callers", choices=METHODS, help="print whose operations this method's step runs, and stop")
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.callers:
        show_callers(PROBLEMS[0], options.callers)
        return 0
    clock = time.process_time if options.cpu_time else time.perf_counter
    print(f"fcco {fcco.__version__} on torch {torch.__version__}, {options.threads} thread(s), {platform.machine()}")
    rows: list[Row] = []
    for problem in PROBLEMS:
        rows += measure(problem, options.rounds, clock)
    show(rows)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        settings = {"torch": torch.__version__, "threads": options.threads, "rounds": options.rounds} | {
            "clock": clock.__name__
        }
        figures = [asdict(found) | {"holds": found.holds} for found in rows]
        options.out.write_text(json.dumps({"settings": settings, "steps": figures}, indent=1) + "\n")
    return int(not all(found.holds for found in rows))


if __name__ == "__main__":
    raise SystemExit(main())
