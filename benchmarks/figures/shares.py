"""The share of MSVR's correction along the reported runs: the solver's own warning, beside what the figures found.

    FCCO_DATA=DATA python -m benchmarks.figures.shares --only pays-small --out results/figures

Every tuned point of MSVR-v1 and v2 is run again at the first reported seed, on the CPU.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

import fcco
from benchmarks.figures.plan import only, whole_plan
from benchmarks.figures.runs import Run, endless, located
from benchmarks.figures.store import read, settled
from benchmarks.figures.studies import Progress, reported_runs
from fcco.lab.parts import build

PLACES = 5
METHODS = ("msvr-v1", "msvr-v2")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/figures"), help="the folder of rows")
    parser.add_argument("--only", nargs="+", default=["pays-small"], metavar="PREFIX", help="of studies")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    everything = whole_plan()
    progress = Progress(everything, settled(read(options.out)))
    print("| study | share at each fifth of the run |")
    print("|---|---|")
    for study in only(everything, options.only):
        best = progress.best(study)
        if best is None or study.base.config.method not in METHODS or study.base.warm_up:
            continue
        found = shares(reported_runs(study, best)[0])
        print(f"| {study.name} | {', '.join(found)} |", flush=True)
    return 0


def shares(run: Run) -> list[str]:
    """The solver's correction_share after each fifth of a run; - where it is not known."""
    config = replace(located(run.config), device="cpu")
    parts = build(config)
    batches = endless(parts)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place in range(1, PLACES + 1):
            try:
                while parts.solver.t < round(run.steps * place / PLACES):
                    parts.solver.step(next(batches))
            except fcco.NonFiniteError:
                return [*found, "diverged"]
            share = parts.solver.correction_share
            text = "-"
            if share is not None:
                text = f"{share:.2g}"
            found.append(text)
    return found


if __name__ == "__main__":
    sys.exit(main())
