"""Long runs: 200,000 steps per engine on a small problem. Is memory flat, step time flat, and does no sum drift?

    python benchmarks/long_runs.py [--cases sox msvr-v2 ...] [--steps 200000] [--out FOLDER]

A run is ten parts. After each of them the script notes

- the process's resident memory, and how many objects Python's collector knows (after a collection),
- what Python itself allocated and kept over a thousand steps (tracemalloc; not counted in the step time),
- processor time per step (not wall time, which tells of whoever else uses the machine),
- drift: what the engine carries from step to step against the same computed another way, relative to its largest entry.

What drift is depends on the engine: SOX's rows against the recursion in plain double precision (the engine keeps their
logarithms); the rows of a method whose undrawn rows decay (the engine keeps a sum of logarithms over all steps) against
a table that is multiplied at every step; the rows of MSVR-v2 and v3 against what each block's last report said; the
class means and mean squares of the output memory, kept up to date by what comes and goes, against all scores in the table.
The last is measured before the engine renews its sums, and once with renewals switched off, so that the sums are those
of 200,000 additions. "none": nothing is carried but the table itself.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import time
import tracemalloc
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import fcco

PARTS = 10
TRACED = 1000  # steps per part under tracemalloc
NEVER = 10**9
EXAMPLES = 400


@dataclass(frozen=True)
class Measured:
    """After one part of a run."""

    step: int
    rss_mib: float
    objects: int
    traced_kib: float
    us_per_step: float
    drift: float | None


def network(outputs: int = 1) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, outputs)).double()


def points() -> tuple[Tensor, Tensor]:
    x = torch.randn(EXAMPLES, 8, dtype=torch.float64)
    y = (x[:, 0] + 0.5 * torch.randn(EXAMPLES, dtype=torch.float64) > 1.2).long()
    return x, y


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


class Case(ABC):
    """Something that takes steps."""

    @abstractmethod
    def advance(self, count: int) -> None:
        """Take so many steps."""

    @abstractmethod
    def drift(self) -> float | None:
        """Of what is carried; None: nothing is."""


class Solved(Case):
    """A Solver over a loader that begins again at its end."""

    def __init__(self, objective: fcco.Objective, method: fcco.Method) -> None:
        # A small step: 200,000 of them must neither diverge nor come to rest at once.
        optimizer = torch.optim.SGD(objective.parameters(), lr=1e-3)
        self.solver = fcco.Solver(objective, optimizer, method)
        self._loader = self.solver.loader(blocks=4, samples=8, seed=0)
        self._batches = iter(self._loader)

    def advance(self, count: int) -> None:
        for _ in range(count):
            batch = next(self._batches, None)
            if batch is None:
                self._batches = iter(self._loader)
                batch = next(self._batches)
            self.observe(batch, self.solver.step(batch))

    def observe(self, batch: fcco.Batch, report: fcco.Report) -> None:
        """Follow the step by other means."""

    def drift(self) -> float | None:
        return None


class Tracked(Solved):
    """Rows u of a partial AUC (log domain), and a table of the same in double precision."""

    def __init__(self, method: fcco.Method) -> None:
        x, y = points()
        super().__init__(fcco.objectives.PartialAUC(network(), fcco.data.Points(x, y), temperature=1.0), method)
        self._logs = torch.tensor(self.solver.objective.log_domain)
        self.mine = self.plain(self.solver.u())  # (m, dim)
        self.met = torch.zeros(self.mine.shape[0], dtype=torch.bool)

    def plain(self, rows: Tensor) -> Tensor:
        """u itself where the rows are log u."""
        return torch.where(self._logs, rows.exp(), rows)

    def drift(self) -> float | None:
        return relative(self.plain(self.solver.u())[self.met], self.mine[self.met])


class Sox(Tracked):
    """u = (1 - beta) u + beta g, by hand."""

    beta = 0.1

    def __init__(self) -> None:
        super().__init__(fcco.sox(alpha=0.1, beta=self.beta))

    def observe(self, batch: fcco.Batch, report: fcco.Report) -> None:
        assert batch.index is not None
        assert report.g is not None
        g = self.plain(report.g)
        averaged = (1 - self.beta) * self.mine[batch.index] + self.beta * g
        known = self.met[batch.index].unsqueeze(1)
        self.mine[batch.index] = torch.where(known, averaged, g)  # a block's first u is its g
        self.met[batch.index] = True


class Reported(Tracked):
    """What each block's last report said."""

    def observe(self, batch: fcco.Batch, report: fcco.Report) -> None:
        assert batch.index is not None
        assert report.u is not None
        self.mine[batch.index] = self.plain(report.u)
        self.met[batch.index] = True


class Decaying(Reported):
    """The others decay, a factor at a time."""

    beta = 0.1

    def __init__(self) -> None:
        super().__init__(fcco.variant_v2(alpha=0.1, beta=self.beta))

    def observe(self, batch: fcco.Batch, report: fcco.Report) -> None:
        self.mine *= 1 - self.beta
        super().observe(batch, report)


class Remembered(Solved):
    """The output memory of a partial AUC, whose rows are computed anew as they are met."""

    def __init__(self) -> None:
        x, y = points()
        objective = fcco.objectives.PartialAUC(network(), fcco.data.Points(x, y), temperature=1.0)
        super().__init__(objective, fcco.output_memory())


class Moments(Solved):
    """The output memory of AUCs of three tasks, which carries sums over classes."""

    tasks = 3

    def __init__(self, refresh: int | None) -> None:
        x = torch.randn(EXAMPLES, 8, dtype=torch.float64)
        y = (x[:, : self.tasks] + 0.5 * torch.randn(EXAMPLES, self.tasks, dtype=torch.float64) > 1.0).long()
        self._is_positive = y.bool()
        objective = fcco.objectives.MultiTaskAUC(network(self.tasks), fcco.data.Tasks(x, y))
        super().__init__(objective, fcco.output_memory(refresh=refresh))

    def drift(self) -> float | None:
        state = self.solver.state.engine
        center, weight, first, second = state.rows[0]  # (2, T) each
        mean = center + first / weight
        square = second / weight - (first / weight).square()
        seen = (state.written >= 0).unsqueeze(1)
        worst = 0.0
        for place, members in enumerate((self._is_positive & seen, ~self._is_positive & seen)):
            size = members.sum(0)
            exact_mean = (state.values * members).sum(0) / size
            exact_square = ((state.values - exact_mean).square() * members).sum(0) / size
            worst = max(worst, relative(mean[place], exact_mean), relative(square[place], exact_square))
        return worst


class OwnLoop(Case):
    """A loss in a loop of one's own."""

    def __init__(self) -> None:
        x, y = points()
        self._x = x
        self._y = y
        self._model = network()
        self._loss = fcco.losses.PartialAUC(y, temperature=1.0)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._random = torch.Generator().manual_seed(0)

    def advance(self, count: int) -> None:
        positives = (self._y == 1).nonzero()[:, 0]
        negatives = (self._y == 0).nonzero()[:, 0]
        for _ in range(count):
            some = positives[torch.randint(len(positives), (4,), generator=self._random)]
            others = negatives[torch.randint(len(negatives), (8,), generator=self._random)]
            id = torch.cat([some, others])
            self._optimizer.zero_grad()
            self._loss(self._model(self._x[id]).squeeze(1), self._y[id], id).backward()
            self._optimizer.step()

    def drift(self) -> float | None:
        return None


CASES = {
    "sox": Sox,
    "msvr-v2": lambda: Reported(fcco.msvr_v2(alpha=0.1, beta=0.1)),
    "msvr-v3": lambda: Reported(fcco.msvr_v3(alpha=0.1, beta=0.1)),
    "variant-v2": Decaying,
    "output-memory": Remembered,
    "memory-of-moments": lambda: Moments(None),
    "memory-of-moments-never-renewed": lambda: Moments(NEVER),
    "loss-in-own-loop": OwnLoop,
}


def resident() -> float:
    """MiB that the process has in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def run(name: str, steps: int) -> list[Measured]:
    torch.manual_seed(0)
    case = CASES[name]()
    found: list[Measured] = []
    plain = max(1, steps // PARTS - TRACED)
    traced = steps // PARTS - plain
    for part in range(1, PARTS + 1):
        began = time.process_time()
        case.advance(plain)
        per_step = (time.process_time() - began) / plain
        tracemalloc.start()
        case.advance(traced // 10)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        case.advance(traced - traced // 10)
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        step = part * (plain + traced)
        found.append(Measured(step, resident(), len(gc.get_objects()), kept / 1024, 1e6 * per_step, case.drift()))
    return found


def row(name: str, found: list[Measured]) -> str:
    first = found[0]
    last = found[-1]
    paces = [part.us_per_step for part in found]
    drifts = [part.drift for part in found if part.drift is not None]
    drift = f"{max(drifts):.1e}" if drifts else "none"
    cells = [
        name,
        f"{last.step:,}",
        f"{first.rss_mib:.1f}, {last.rss_mib:.1f}",
        f"{first.objects}, {last.objects}",
        f"{max(part.traced_kib for part in found[1:]):.1f}",
        f"{paces[0]:.0f}, {paces[-1]:.0f} ({min(paces):.0f} to {max(paces):.0f})",
        drift,
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--out", type=Path, help="a folder: one file per case")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| engine | steps | MiB, first and last part | objects, first and last part "
        "| KiB kept in 1,000 steps, at most | us per step, first, last (range) | drift, at most |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in arguments.cases:
        found = run(name, arguments.steps)
        print(row(name, found), flush=True)
        if arguments.out is not None:
            arguments.out.mkdir(parents=True, exist_ok=True)
            parts = [asdict(part) for part in found]
            (arguments.out / f"{name}.json").write_text(json.dumps(parts, indent=1) + "\n")


if __name__ == "__main__":
    main()
