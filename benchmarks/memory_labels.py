"""Milliseconds per step of the output memory with many labels, on the CPU with one thread.

    python benchmarks/memory_labels.py [--batch 64] [--steps 30] [--cpu-time]

Two sizes: 146 labels of 302 rows, 15 % of them positive, and 27 labels of 1,000 rows, 57 % of them positive. "step" is a
step without an evaluation of the whole table, "default" is one with the period that the memory chooses (at these sizes
the whole table is evaluated in every step), "plain" is the same network with a cross-entropy per label.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import fcco
from fcco.data import Points
from fcco.objectives import AveragePrecision, OutputObjective, PartialAUC

Clock = Callable[[], float]

SIZES = {"146 labels of 302 rows": (302, 146, 0.15), "27 labels of 1,000 rows": (1000, 27, 0.57)}
FEATURES = 64
KINDS: dict[str, Callable[[nn.Module, Points], OutputObjective]] = {
    "AveragePrecision": lambda model, data: AveragePrecision(model, data),
    "PartialAUC": lambda model, data: PartialAUC(model, data, temperature=0.3),
}


def points(rows: int, labels: int, share: float) -> Points:
    """Labels of very different frequency, as real ones are."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, FEATURES, generator=generator)
    rate = (share * 2.0 * torch.rand(labels, generator=generator)).clamp(0.02, 0.98)
    y = (torch.rand(rows, labels, generator=generator) < rate).double()
    y[0] = 1.0  # every label has both
    y[1] = 0.0
    return Points(x, y)


def network(labels: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, labels))


def memory_ms(kind: str, data: Points, batch: int, steps: int, refresh: int | None, clock: Clock) -> float:
    """Median over the steps, the first few left out."""
    objective = KINDS[kind](network(data.num_tasks), data)
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.01)
    solver = fcco.Solver(objective, optimizer, fcco.output_memory(refresh=refresh))
    solver.loader(blocks=4, samples=4).score()  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(1)
    size = data.num_examples
    share = torch.full((batch,), 1.0 / batch, dtype=torch.float64)
    chance = torch.full((batch,), 1.0 / size, dtype=torch.float64)
    times = []
    for _ in range(steps + 3):
        id = torch.randperm(size, generator=generator)[:batch]
        drawn = fcco.data.Batch(data.source.take(id), id, weight=share, probability=chance)
        began = clock()
        solver.step(drawn)
        times.append(clock() - began)
    return 1e3 * statistics.median(times[3:])


def plain_ms(data: Points, batch: int, steps: int, clock: Clock) -> float:
    """A step of the same network without the memory."""
    model = network(data.num_tasks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = nn.BCEWithLogitsLoss()
    times = []
    for _ in range(steps + 3):
        id = torch.randperm(data.num_examples)[:batch]
        x: Tensor = data.source.take(id)
        began = clock()
        optimizer.zero_grad()
        loss(model(x), data.y[id].to(x.dtype)).backward()
        optimizer.step()
        times.append(clock() - began)
    return 1e3 * statistics.median(times[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--cpu-time", action="store_true", help="count this process's time only: for a busy machine")
    options = parser.parse_args()
    clock = time.process_time if options.cpu_time else time.perf_counter
    torch.set_num_threads(1)
    print("| problem | batch | plain | AP, step | AP, default | pAUC, step | pAUC, default |")
    print("|---|---|---|---|---|---|---|")
    for name, size in SIZES.items():
        data = points(*size)
        for batch in options.batch:
            figures = [plain_ms(data, batch, options.steps, clock)]
            for kind in KINDS:
                for refresh in (10**6, None):
                    figures.append(memory_ms(kind, data, batch, options.steps, refresh, clock))
            cells = " | ".join(f"{figure:.1f}" for figure in figures)
            print(f"| {name} | {batch} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
