"""What the output memory's table costs: a step's rows and columns, the whole table, the bytes kept.

    python benchmarks/memory_cost.py                      # n = 10^4, 10^5, 10^6 on the CPU
    python benchmarks/memory_cost.py --device cuda --sizes 10000 1000000 10000000
    python benchmarks/memory_cost.py --device cuda --networks   # steps of ResNets with 256 images, with and without

Scores are normal, positives (1 % of all) 2.5 higher, so that part of the pairs is inside the hinge; 16 positives and 64
negatives per step, 80 examples where there are no classes. Times are medians. A case of more than ``--pairs`` pairs is left
out (-).
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import fcco
from fcco.data import Examples, Points, Tasks
from fcco.memory import MemoryLoader, MemoryState, OutputTable
from fcco.memory._sampler import gradient_sizes, renewed
from fcco.memory._strata import Strata
from fcco.memory._table import last_draws
from fcco.memory.forms import Form, form_of
from fcco.objectives import AveragePrecision, GlobalContrastive, MultiTaskAUC, OutputObjective, PartialAUC

POSITIVES, NEGATIVES = 16, 64
KINDS: dict[str, tuple[int, ...]] = {  # and the shape of an output
    "polynomial": (),
    "exponential": (),
    "moments, 10 tasks": (10,),
    "features, d = 64": (2, 64),
}
SLOW = ("exponential", "features, d = 64")  # all pairs, where everything is evaluated


def problem(kind: str, n: int, device: str) -> OutputObjective:
    """An objective over n examples that a table stands for."""
    x, place = torch.zeros(n, 1, device=device), torch.arange(n, device=device)
    if kind == "moments, 10 tasks":
        return MultiTaskAUC(nn.Linear(1, 10), Tasks(x, place % 10))
    if kind == "features, d = 64":
        return GlobalContrastive(nn.Linear(1, 64), Examples((x, x)))
    points = Points(x, place % 100 == 0)
    if kind == "polynomial":
        return AveragePrecision(nn.Linear(1, 1), points)
    return PartialAUC(nn.Linear(1, 1), points, temperature=0.3)


@dataclass(frozen=True)
class Case:
    """A memory with a full table, and the examples of one step."""

    loader: MemoryLoader
    state: MemoryState
    strata: Strata
    id: Tensor
    sizes: tuple[int, ...] | None

    @property
    def table(self) -> OutputTable:
        assert self.state.table is not None
        return self.state.table

    @property
    def form(self) -> Form:
        assert self.state.form is not None
        return self.state.form

    def step(self) -> None:
        """What a step asks of the table."""
        old = self.table.read(self.id, last_draws(self.id), self.sizes)
        self.form.evaluate(self.id, self.state.rows, old)

    def refresh(self) -> None:
        """Everything evaluated, and kept."""
        found = self.form.evaluate_all(self.state.rows)
        members = self.strata.members
        self.state.rows = found.rows
        self.state.shares = [renewed(torch.empty(0), gradient_sizes(found.c, own, None), 1.0) for own in members]


def made(kind: str, n: int, device: str) -> Case:
    """The memory over n examples."""
    generator = torch.Generator(device).manual_seed(0)
    objective = problem(kind, n, device).to(device)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), fcco.output_memory())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the output memory does not pay")  # for features
        loader = solver.loader(POSITIVES, NEGATIVES)
    outputs = torch.randn(n, *KINDS[kind], generator=generator, device=device)
    if not KINDS[kind]:
        outputs += 2.5 * (torch.arange(n, device=device) % 100 == 0)
    table = OutputTable.empty(n, KINDS[kind], like=outputs)
    table.write(torch.arange(n, device=device), outputs, 0)
    table.recount()
    form, state = form_of(objective, table), solver.state.engine
    state.take_over(table, form, form.start_rows())
    assert isinstance(loader, MemoryLoader)
    batch = next(iter(loader))  # the order of the sweep, made by this, is part of what is kept
    return Case(loader, state, Strata(objective.blocks, table.device), batch.id.to(device), batch.strata)


def held(thing: Any, found: dict[int, int] | None = None) -> int:
    """Bytes of all tensors that an object of the memory holds, the data's own left out."""
    found = {} if found is None else found
    if isinstance(thing, Tensor):
        found[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    elif isinstance(thing, list | tuple):
        for part in thing:
            held(part, found)
    elif type(thing).__module__.startswith("fcco.memory"):
        for part in vars(thing).values():
            held(part, found)
    return sum(found.values())


def milliseconds(call: Callable[[], object], device: str, repeats: int) -> float:
    times = []
    for _ in range(repeats + 1):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[1:])


def networks(device: str, steps: int = 60) -> None:
    """Milliseconds per step with 256 images of 32 x 32 (500 of 23,000 positive): BSGD, and the memory; table work alone."""
    from cifar_rare import Network

    y = (torch.arange(23_000, device=device) < 500).long()
    x = torch.randint(256, (23_000, 3, 32, 32), dtype=torch.uint8, device=device)
    print("| network | BSGD | memory | refresh every |\n|---|---|---|---|")
    for copies in (1, 4):  # scores averaged over so many ResNet18s
        found = []
        for method in (fcco.bsgd(), fcco.output_memory()):
            model = Mean([Network().to(device) for _ in range(copies)])
            objective = PartialAUC(model, Points(x, y), temperature=1.0).to(device)
            solver = fcco.Solver(objective, torch.optim.Adam(objective.parameters(), lr=1e-4), method)
            batches = iter(solver.loader(blocks=32, samples=224, seed=0, steps_per_epoch=3 * steps))
            milliseconds(lambda s=solver, b=batches: s.step(next(b)), device, steps)  # type: ignore[misc]
            found.append(milliseconds(lambda s=solver, b=batches: s.step(next(b)), device, steps))  # type: ignore[misc]
            period = 0 if method.memory is None else fcco.memory.diagnose(solver).period
        print(f"| {copies} x ResNet18 | {found[0]:.1f} | {found[1]:.1f} | {period} |", flush=True)


class Mean(nn.Module):
    """The mean of several networks."""

    def __init__(self, networks: list[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([network(x) for network in self.networks]).mean(0)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**4, 10**5, 10**6])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--pairs", type=float, default=2e9, help="the most pairs that are summed one by one")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--networks", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    name = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {args.threads} thread(s)"
    print(f"torch {torch.__version__}, {name}; milliseconds")
    if args.networks:
        with torch.enable_grad():
            networks(args.device)
        return
    print("| n | kind | a step | the whole table | state, MB |\n|---|---|---|---|---|")
    for n in args.sizes:
        for kind in args.kinds:
            case = made(kind, n, args.device)
            if kind not in SLOW:
                case.refresh()
            elif kind.startswith("features"):
                case.state.rows[0].zero_()  # a run has met everyone by now; else the first step would meet all pairs
            step = milliseconds(case.step, args.device, args.repeats)
            whole = "-"
            if kind not in SLOW or case.form.cost() <= args.pairs:
                repeats = args.repeats if n < 10**6 else 2
                whole = f"{milliseconds(case.refresh, args.device, repeats):.1f}"
            state = held(case.loader)
            print(f"| {n:.0e} | {kind} | {step:.1f} | {whole} | {state / 1e6:.1f} |", flush=True)


if __name__ == "__main__":
    main()
