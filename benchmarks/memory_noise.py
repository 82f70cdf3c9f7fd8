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
from collections.abc import Iterator
from pathlib import Path

import torch
from memory import SETTINGS, Sizes, data, evaluated
from torch import Tensor

import fcco
from fcco.objectives import OutputObjective

MEMORIES = {
    "memory, uniform draws": fcco.output_memory(importance=0.0, cap=None, balance=False),
    "memory, p = 0.5": fcco.output_memory(importance=0.5, cap=None, balance=False),
    "memory, p = 0.5, balance": fcco.output_memory(importance=0.5, cap=None),
    "memory, p = 0.5, balance, cap 6": fcco.output_memory(importance=0.5, cap=6.0),
    "memory, p = 0.5, balance, cap 3 (default)": fcco.output_memory(),
}
FOREVER = 10**9  # steps


def flat(gradients: list[Tensor]) -> Tensor:
    return torch.cat([g.flatten() for g in gradients])


def trained(name: str, lr: float, steps: int) -> OutputObjective:
    """The objective after some steps with the memory."""
    torch.manual_seed(0)
    objective = SETTINGS[name].build("cpu")
    solver = fcco.Solver(objective, torch.optim.Adam(objective.parameters(), lr=lr), fcco.output_memory())
    for batch in solver.loader(*SETTINGS[name].sizes("memory"), seed=0, steps_per_epoch=steps):
        solver.step(batch)
    return objective


def by_memory(objective: OutputObjective, method: fcco.Method, sizes: Sizes) -> Iterator[Tensor]:
    """Gradients of a memory whose table is full and right; the weights stand still."""
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.0)
    solver = fcco.Solver(objective, optimizer, method)
    loader = solver.loader(*sizes, seed=1, steps_per_epoch=FOREVER)
    loader.score()  # type: ignore[attr-defined]
    for batch in loader:
        solver.step(batch)
        yield flat([p.grad for p in solver.parameters if p.grad is not None])


def by_batch(objective: OutputObjective, rows: Tensor | None, sizes: Sizes) -> Iterator[Tensor]:
    """Gradients of uniform batches: f' at the batch's own g, or at the rows of log g (or g) given."""
    parameters = list(objective.parameters())
    log_domain = torch.tensor(objective.log_domain)
    for batch in objective.loader(*sizes, seed=0, steps_per_epoch=FOREVER):
        index = batch.index
        assert index is not None
        g = objective(index, batch)
        u = (g.detach() if rows is None else rows[index].to(g.dtype)).requires_grad_()
        (slope,) = torch.autograd.grad(objective.outer(index, u).mean(), [u])
        slope = torch.where(log_domain, slope * (g - u).exp().detach(), slope)
        yield flat(list(torch.autograd.grad(g, parameters, slope)))


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
        objective = trained(name, args.lr, args.steps)
        sizes = SETTINGS[name].sizes("memory")
        s = objective.outputs(data("cpu")[0]).squeeze(1)
        with torch.no_grad():
            found = evaluated(objective, s)
        exact = flat(list(torch.autograd.grad(s, list(objective.parameters()), found.c))).double()
        sources = {
            "BSGD": by_batch(objective, None, sizes),
            "a tracker with exact u": by_batch(objective, found.rows[0], sizes),
        }
        sources |= {kind: by_memory(objective, method, sizes) for kind, method in MEMORIES.items()}
        for kind, gradients in sources.items():
            bias, error, noise = measured(gradients, exact, args.draws)
            lines.append(f"| {name} | {kind} | {bias:.2f} ± {error:.2f} | {noise:.1f} |")
            print(lines[-1], flush=True)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
