"""What the first round of tuning saw at each learning rate: the best F there, and how many points diverged.

python -m benchmarks.figures.rates --only small-figure1 small-figure2 --out results/figures
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.figures.plan import only, whole_plan
from benchmarks.figures.store import read, settled
from benchmarks.figures.studies import Point, Progress, Study


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/figures"), help="the folder of rows")
    parser.add_argument("--only", nargs="+", default=["small-"], metavar="PREFIX", help="of studies")
    options = parser.parse_args(argv)
    everything = whole_plan()
    progress = Progress(everything, settled(read(options.out)))
    for study in only(everything, options.only):
        values = progress.first_round(study)
        if study.grid and values is not None:
            print(line(study, values))
    return 0


def line(study: Study, values: Mapping[Point, float]) -> str:
    """A study in one line: lr, the best F at it, and the points that diverged of all at it."""
    parts = []
    for lr, found in by_rate(values).items():
        finite = [value for value in found if math.isfinite(value)]
        text = "all diverged"
        if finite:
            text = f"{min(finite):.4f}, {len(found) - len(finite)} of {len(found)} diverged"
        parts.append(f"lr {lr}: {text}")
    return f"{study.name}, {round(study.base.steps * study.rungs[0].share)} steps; " + "; ".join(parts)


def by_rate(values: Mapping[Point, float]) -> dict[float, list[float]]:
    """Learning rate -> F of its points, the smallest rate first."""
    found: dict[float, list[float]] = {}
    for point, value in values.items():
        found.setdefault(float(str(dict(point)["lr"])), []).append(value)
    return dict(sorted(found.items()))


if __name__ == "__main__":
    sys.exit(main())
