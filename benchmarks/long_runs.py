"""Long runs: 200,000 steps per engine on a small problem. Is memory flat, step time flat, and does no sum drift?

    python benchmarks/long_runs.py [--steps 200000] [--minutes 15] [--out FILE.json]

Every engine takes its steps in ten parts; after each part the script notes the process's resident memory, Python's own
allocations (tracemalloc, over a thousand steps of each part, since it slows them down), seconds per step, and the relative
difference between what an engine carries from step to step and the same computed anew in double precision: the output
memory's rows and F against a pass over its whole table, MSVR-v2's and v3's rows u being finite. A bound on the minutes
ends a run early; what was measured until then is printed all the same.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
import tracemalloc
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import fcco

PARTS = 10
TRACED = 1000  # steps per part under tracemalloc


@dataclass(frozen=True)
class Measured:
    """After one part of a run."""

    step: int
    rss_mib: float
    traced_kib: float
    us_per_step: float
    drift: float


def solver_for(name: str) -> tuple[fcco.Solver, Any]:
    torch.manual_seed(0)
    x = torch.randn(400, 8, dtype=torch.float64)
    y = (x[:, 0] + 0.5 * torch.randn(400, dtype=torch.float64) > 1.2).long()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    objective = fcco.objectives.PartialAUC(model, fcco.data.Points(x, y), temperature=1.0)
    # A small step: 200,000 of them must neither diverge nor come to rest at once.
    optimizer = torch.optim.SGD(objective.parameters(), lr=1e-3)
    solver = fcco.Solver(objective, optimizer, fcco.METHODS[name]())
    return solver, solver.loader(blocks=4, samples=8, seed=0)


def is_refreshed(solver: fcco.Solver) -> bool:
    """Whether the memory has just evaluated its whole table: between that, rows of blocks not drawn are old by design."""
    return getattr(solver.state.engine, "refreshed", solver.t) == solver.t


def drift(solver: fcco.Solver) -> float:
    """What an engine carries, against the same computed anew; relative."""
    state = solver.state.engine
    form = getattr(state, "form", None)
    if form is None:
        rows = solver.u()
        return 0.0 if bool(torch.isfinite(rows).all()) else float("inf")
    carried = state.rows
    anew = form.evaluate_all(form.start_rows()).rows
    worst = 0.0
    for mine, fresh in zip(_tensors(carried), _tensors(anew), strict=True):
        scale = float(fresh.double().abs().max()) or 1.0
        worst = max(worst, float((mine.double() - fresh.double()).abs().max()) / scale)
    return worst


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def resident() -> float:
    """MiB that the process has in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def run(name: str, steps: int, seconds: float) -> list[Measured]:
    solver, loader = solver_for(name)
    until = time.monotonic() + seconds
    found: list[Measured] = []
    batches = iter(loader)

    def advance(count: int) -> None:
        nonlocal batches
        for _ in range(count):
            batch = next(batches, None)
            if batch is None:
                batches = iter(loader)
                batch = next(batches)
            solver.step(batch)

    for part in range(PARTS):
        began = time.perf_counter()
        plain = steps // PARTS - TRACED
        advance(plain)
        per_step = (time.perf_counter() - began) / plain
        tracemalloc.start()
        advance(10)
        before = tracemalloc.get_traced_memory()[0]
        advance(TRACED - 10)
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        while not is_refreshed(solver):
            advance(1)
        found.append(Measured(solver.t, resident(), grown / 1024, 1e6 * per_step, drift(solver)))
        if time.monotonic() > until:
            print(f"{name}: out of time after {solver.t} of {steps} steps ({part + 1} of {PARTS} parts)")
            break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--minutes", type=float, default=15.0, help="per engine, at most")
    parser.add_argument("--methods", nargs="+", default=["sox", "msvr-v2", "msvr-v3", "output-memory"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    print(
        "| engine | steps | MiB, first to last part | KiB per 1,000 steps, last part | us per step, first, last | drift |"
    )
    print("|---|---|---|---|---|---|")
    for name in arguments.methods:
        found = run(name, arguments.steps, 60 * arguments.minutes)
        results[name] = [asdict(part) for part in found]
        first, last = found[0], found[-1]
        memory = f"{first.rss_mib:.1f} to {last.rss_mib:.1f}"
        pace = f"{first.us_per_step:.0f}, {last.us_per_step:.0f}"
        worst = max(part.drift for part in found)
        print(f"| {name} | {last.step} | {memory} | {last.traced_kib:.1f} | {pace} | {worst:.1e} |", flush=True)
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
