"""Captured steps of a compiled network, on a GPU: torch.compile fuses what a captured graph only launches sooner.

    python -m benchmarks.compiled

ResNet18 with the small-image stem, bf16, channels last, 640 images per step; medians of nine visits of two steps, one
contender after the other. The time behind each line is what it took in all, compiling included.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from fcco.lab.bench import problems, settings
from fcco.lab.bench.problems import Layout, Network, Precision, Sizes, images
from fcco.lab.bench.rows import Step
from fcco.lab.bench.timing import Steps

WARM = 14  # steps: more than a captured one needs to be captured


def compiled_network(*arguments: Any, **options: Any) -> nn.Module:
    """The benchmark's network, compiled."""
    model = problems.network(*arguments, **options)
    model.net = torch.compile(model.net)  # type: ignore[assignment]
    return model


def milliseconds(steps: Steps) -> float:
    """Per step."""
    steps(WARM)
    visits = []
    for _ in range(9):
        torch.cuda.synchronize()
        start = time.perf_counter()
        steps(2)
        torch.cuda.synchronize()
        visits.append((time.perf_counter() - start) / 2 * 1e3)
    return statistics.median(visits)


def show(name: str, make: Callable[[], Steps]) -> None:
    start = time.time()
    with settings.tf32():
        found = milliseconds(make())
    print(f"{name:50s} {found:8.3f} ms   ({time.time() - start:.0f} s)", flush=True)
    torch.cuda.empty_cache()


def main() -> None:
    pool = images(50_000, torch.device("cuda"))
    sizes = Sizes(ids=100_000)
    ap = settings.AP.over(pool, Network.SMALL_STEM, sizes)
    auc = settings.AUC.over(pool, Network.SMALL_STEM, Precision.BF16, sizes)
    show("AP, LibAUC contiguous, as it is", partial(ap.libauc, Layout.CONTIGUOUS))
    for name, network in (("as it is", problems.network), ("compiled", compiled_network)):
        settings.network = network
        show(f"AP, SOX captured, {name}", partial(ap.sox, capture=True))
        show(f"AP, cross-entropy captured, {name}", partial(ap.plain, capture=True))
        show(f"AP, LibAUC channels last, {name}", ap.libauc)
        show(f"AUC, SGD eager, {name}", auc.plain)
        show(f"AUC, v2 captured, {name}", partial(auc.solver, Step.V2, capture=True))


if __name__ == "__main__":
    main()
