"""What the layout of weights and cuDNN's search cost or save: SOX's floor and eager SGD with ResNet18, on a CUDA device.

    python -m benchmarks.layouts --seconds 20 --out results/bench/layouts.json

Both stems, bf16 and TF32; weights contiguous or channels last; cuDNN's own choice of algorithms, or the fastest of those
that it tries. Medians of interleaved rounds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fcco.lab.bench.command import measured_on
from fcco.lab.bench.literal import LiteralSOX
from fcco.lab.bench.problems import Layout, Network, Precision, Sizes, images, tf32
from fcco.lab.bench.rows import Name, Step, Way
from fcco.lab.bench.settings import AUC
from fcco.lab.bench.timing import Budget, Steps, measured, release


@contextmanager
def search(enabled: bool) -> Iterator[None]:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = enabled
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    device = torch.device("cuda")
    x = images(Sizes().images, device)
    rows = []
    kinds = [kind for kind in Network if kind.is_convolutional]
    for kind in kinds:
        for precision in Precision:
            for tuned in (False, True):
                problem = AUC.over(x, kind, precision, Sizes())
                budget = Budget(options.seconds / (len(kinds) * len(Precision) * 2))
                with search(tuned), tf32():
                    found, running = measured(makers(problem), device, budget)
                running.clear()
                release(device)
                for row in found:
                    rows.append(row.as_json() | {"cudnn_benchmark": tuned})
                    print(tuned, row.name.setting, row.name.step, row.name.way, row.ms, row.failed, flush=True)
                content = {"environment": measured_on(), "rows": rows}
                options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def makers(problem: AUC) -> dict[Name, Callable[[], Steps]]:
    """The floor and plain SGD in both layouts."""
    found: dict[Name, Callable[[], Steps]] = {}
    for layout in Layout:
        name = f"{problem.name}, {layout.value}"
        found[Name(name, Step.PLAIN)] = lambda layout=layout: problem.plain(layout)
        found[Name(name, Step.SOX, Way.FLOOR)] = lambda layout=layout: problem.floor(LiteralSOX, layout)
    return found


if __name__ == "__main__":
    main()
