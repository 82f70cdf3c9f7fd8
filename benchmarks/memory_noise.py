"""Where the noise is, and what cap and balance cost: gradients of one mini-batch against the exact one, at fixed weights.

    python benchmarks/memory_noise.py                    # a minute on one core; FCCO_DATA as for memory.py

The network of benchmarks/memory.py is trained for 500 steps, then stands still and the table is filled. For many draws
of 16 + 64 examples the gradient is taken: of BSGD; of a tracker whose u is exact, the best that any tracker could do;
and of the memory. Bias is |mean - exact| / |exact| (its own standard error beside it), noise the root mean square of
|gradient - mean| / |exact|.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from fcco.memory._memory import Memory, phi_of
from fcco.memory._settings import OutputMemory
from memory import SETTINGS, data
from torch import Tensor

import fcco
from fcco.memory import MemoryLoader

MEMORIES = {
    "memory, uniform draws": OutputMemory(importance=0.0, cap=None, balance=False),
    "memory, p = 0.5": OutputMemory(importance=0.5, cap=None, balance=False),
    "memory, p = 0.5, balance": OutputMemory(importance=0.5, cap=None),
    "memory, p = 0.5, balance, cap 6": OutputMemory(importance=0.5, cap=6.0),
    "memory, p = 0.5, balance, cap 3 (default)": OutputMemory(),
}


def flat(gradients: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([g.flatten() for g in gradients])


def trained(name: str, lr: float, steps: int) -> tuple[fcco.Solver, MemoryLoader]:
    """Some steps with the memory; then every output in the table is that of the weights as they are."""
    torch.manual_seed(0)
    objective, loader = SETTINGS[name].build(0, steps, "cpu")
    solver = fcco.Solver(objective, torch.optim.Adam(objective.parameters(), lr=lr), fcco.output_memory())
    memory = MemoryLoader(solver, loader, seed=0)
    for index, batch in memory:
        solver.step(index, batch)
    memory.score()
    return solver, memory


def pushes(loader: MemoryLoader, settings: OutputMemory, x: Tensor, c: Tensor) -> Iterator[Tensor]:
    """Gradients of the memory with these settings."""
    old, objective = loader.memory, loader.memory.objective
    strata = [fcco.memory.draws.Stratum(chances.members, chances.draws) for chances in old.chances]
    memory = Memory(objective, loader.loader, strata, settings, c[:0])
    memory.table, memory.phi = old.table, old.phi
    memory.refresh(0, due=True)
    parameters, generator = list(objective.parameters()), torch.Generator().manual_seed(1)
    while True:
        parts = [chances.draw(settings.importance, generator) for chances in memory.chances]
        id, q, weight = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        v = memory.weigh(id, q, weight, c[id])[0]
        yield flat(torch.autograd.grad(objective.outputs(x[id]).squeeze(1), parameters, v.to(x.dtype)))


def batches(solver: fcco.Solver, loader: MemoryLoader, rows: Tensor | None) -> Iterator[Tensor]:
    """Gradients of uniform batches: f' at the batch's own g, or at the rows of log g (or g) given."""
    objective, parameters = solver.objective, solver.parameters
    log = torch.tensor(objective.log)
    while True:
        for index, batch in loader.loader:
            g = objective(index, batch)
            u = (g.detach() if rows is None else rows[index].to(g.dtype)).requires_grad_()
            (slope,) = torch.autograd.grad(objective.outer(index, u).mean(), [u])
            slope = torch.where(log, slope * (g - u).exp().detach(), slope)
            yield flat(torch.autograd.grad(g, parameters, slope))


def measured(gradients: Iterator[Tensor], exact: Tensor, draws: int) -> tuple[float, float, float]:
    found = torch.stack([next(gradients) for _ in range(draws)]).double()
    noise = float((found - found.mean(0)).square().sum(1).mean().sqrt() / exact.norm())
    return float((found.mean(0) - exact).norm() / exact.norm()), noise / math.sqrt(draws), noise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", nargs="+", choices=SETTINGS, default=["pauc-1.0", "pauc-0.1", "ap"])
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = ["| setting | gradient | bias (± standard error) | noise |", "|---|---|---|---|"]
    for name in args.setting:
        solver, loader = trained(name, args.lr, args.steps)
        table, objective = loader.memory.table, loader.memory.objective
        assert table is not None
        x = data("cpu")[0]
        phi = phi_of(objective, loader.loader, table)
        with torch.no_grad():
            c = phi.everything().c
        exact = flat(torch.autograd.grad(objective.outputs(x).squeeze(1), solver.parameters, c)).double()
        rows = phi.rows[0]  # type: ignore[attr-defined]
        makers: dict[str, Callable[[], Iterator[Tensor]]] = {
            "BSGD": lambda s=solver, o=loader: batches(s, o, None),  # type: ignore[misc]
            "a tracker with exact u": lambda s=solver, o=loader, r=rows: batches(s, o, r),  # type: ignore[misc]
        }
        for kind, settings in MEMORIES.items():
            makers[kind] = lambda o=loader, p=settings, x=x, c=c: pushes(o, p, x, c)  # type: ignore[misc]
        for kind, make in makers.items():
            bias, error, noise = measured(make(), exact, args.draws)
            lines.append(f"| {name} | {kind} | {bias:.2f} ± {error:.2f} | {noise:.1f} |")
            print(lines[-1], flush=True)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
