"""Step times: every method over a plain SGD step of the same model and batch, interleaved in one run.

Run: make bench. Prints medians as ratios; a machine that is busy elsewhere slows all of them alike.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import fcco

BLOCKS, PER_STEP, SAMPLES = 64, 8, 16
BOUNDS = {"sox": 1.03, "msvr-v2": 2.06, "msvr-v3": 3.10}  # v1's depends on the measured share of a forward pass


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
        return self.net(x.flatten(0, 1)).view(x.shape[0], x.shape[1]).mean(1, keepdim=True)

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        return (1 + u.square()).sqrt().squeeze(1)


def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    index = torch.randperm(BLOCKS, generator=generator)[:PER_STEP]
    return index, torch.randn(PER_STEP, SAMPLES, 3, 32, 32, generator=generator)


def everything() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(9)
    x = torch.randn(PER_STEP, 1, 3, 32, 32, generator=generator)
    return [(torch.arange(i, i + PER_STEP), x) for i in range(0, BLOCKS, PER_STEP)]


def plain_step(width: int) -> Callable[[Tensor, Tensor], None]:
    torch.manual_seed(0)
    objective = Scores(width)
    optimizer = torch.optim.SGD(objective.parameters(), lr=1e-3)

    def step(index: Tensor, x: Tensor) -> None:
        optimizer.zero_grad()
        objective.outer(index, objective.inner(index, x)).mean().backward()
        optimizer.step()

    return step


def forward_pass(width: int) -> Callable[[Tensor, Tensor], None]:
    torch.manual_seed(0)
    objective = Scores(width)

    def step(index: Tensor, x: Tensor) -> None:
        with torch.no_grad():
            objective.inner(index, x)

    return step


def method_step(name: str, width: int) -> Callable[[Tensor, Tensor], object]:
    torch.manual_seed(0)
    objective = Scores(width)
    rates = {"alpha": 0.1, "beta": 0.1} | ({"period": 10**9} if name.endswith("v3") else {})
    method = fcco.METHODS[name](**rates)
    optimizer = torch.optim.SGD(objective.parameters(), lr=1e-3)
    return fcco.Solver(objective, optimizer, method, full_pass=everything, radius=1e3).step


def step_times(names: list[str], width: int, rounds: int) -> dict[str, list[float]]:
    steps = {"sgd": plain_step(width), "forward": forward_pass(width)}
    steps |= {name: method_step(name, width) for name in names}
    generator, times = torch.Generator().manual_seed(0), {name: [] for name in steps}
    for turn in range(rounds + 3):
        batch = draw(generator)
        order = list(steps.items())
        turned = turn % len(order)  # who goes first changes: what the step before left in the caches is shared out
        for name, step in order[turned:] + order[:turned]:
            start = time.perf_counter()
            step(*batch)
            if turn >= 3:
                times[name].append(time.perf_counter() - start)
    return times


def ratio_table(times: dict[str, list[float]]) -> list[dict[str, float | str | bool | None]]:
    sgd = times["sgd"]
    share = statistics.median(a / b for a, b in zip(times["forward"], sgd, strict=True))
    bounds = BOUNDS | {"msvr-v1": 1.03 * (1 + share)}
    rows: list[dict[str, float | str | bool | None]] = []
    for name, measured in times.items():
        # each step is compared with the SGD step of its own round: what slows both cancels
        ratio = statistics.median(a / b for a, b in zip(measured, sgd, strict=True))
        bound = bounds.get(name)
        holds = None if bound is None else ratio <= bound
        rows.append(
            {"step": name, "ms": 1e3 * statistics.median(measured), "ratio": ratio, "bound": bound, "holds": holds}
        )
    return rows


class Rows(fcco.Objective):
    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks=num_blocks, dim=1)
        self.w = nn.Parameter(torch.zeros(8))

    def inner(self, index: Tensor, x: Tensor) -> Tensor:
        return (x @ self.w).mean(1, keepdim=True).tanh()

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        return u.square().squeeze(1)


def cost_of_blocks(sizes: tuple[int, ...], rounds: int) -> dict[int, float]:
    """Median milliseconds of a tiny step with its draw of blocks, for several m, interleaved."""
    runs = {}
    for m in sizes:
        objective = Rows(m)
        optimizer = torch.optim.SGD(objective.parameters(), lr=1e-3)
        solver = fcco.Solver(objective, optimizer, fcco.msvr_v2(alpha=0.1, beta=0.1))
        runs[m] = (solver, fcco.BlockSampler(m, 16, seed=0))
    x, times = torch.randn(16, 4, 8), {m: [] for m in sizes}
    for turn in range(rounds + 20):
        for m, (solver, sampler) in runs.items():
            start = time.perf_counter()
            solver.step(next(sampler), x)
            if turn >= 20:
                times[m].append(time.perf_counter() - start)
    return {m: 1e3 * statistics.median(values) for m, values in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--width", type=int, default=32, help="channels; the plain step should take >= 50 ms")
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    names = ["sox", "msvr-v1", "msvr-v2", "msvr-v3", "msvr-v1-sp", "msvr-v2-sp"]
    rows = ratio_table(step_times(names, options.width, options.rounds))
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}, {options.rounds} rounds"
    )
    print(f"{'step':<12}{'ms':>9}{'ratio':>8}{'bound':>8}")
    for row in rows:
        bound = "" if row["bound"] is None else f"{row['bound']:.2f}"
        verdict = {None: "", True: "  holds", False: "  MISSED"}[row["holds"]]  # type: ignore[index]
        print(f"{row['step']:<12}{row['ms']:>9.1f}{row['ratio']:>8.3f}{bound:>8}{verdict}")
    costs = cost_of_blocks((10**3, 10**7), 40 * options.rounds)
    more = costs[10**7] - costs[10**3]
    print(
        f"tiny model, step and draw: {costs[10**3]:.3f} ms at m = 10^3, {costs[10**7]:.3f} ms at m = 10^7 "
        f"({more:+.3f} ms, bound 0.3: {'holds' if more <= 0.3 else 'MISSED'})"
    )
    if options.out:
        options.out.write_text(json.dumps({"steps": rows, "blocks_ms": costs}, indent=1))
    failed = rows[0]["ms"] < 50 or more > 0.3 or any(row["holds"] is False for row in rows)  # type: ignore[operator]
    if rows[0]["ms"] < 50:  # type: ignore[operator]
        print("the plain step took less than 50 ms: give a larger --width")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
