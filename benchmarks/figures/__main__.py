"""The paper's figures on real data, run in pieces of any length.

    FCCO_DATA=DATA python -m benchmarks.figures prepare          # derived sets, once per machine
    python -m benchmarks.figures plan                            # what there is to run, and what it costs
    FCCO_DATA=DATA python -m benchmarks.figures run --workers 12 --seconds 480 --out results/figures
    FCCO_DATA=DATA python -m benchmarks.figures time --only figure1/cifar10      # steps with nothing beside them
    python -m benchmarks.figures draw --out results/figures      # figures and claims from the runs that are there

`run` works off the plan in its order (or the studies named by --only, in the order given), never repeats a run whose
row is in the folder, and starts none that would not end in time. Rows are JSON lines; the folder may be carried
from machine to machine, and files of several machines may lie side by side in it. On a GPU start CUDA's
multi-process service in the shell before (nvidia-cuda-mps-control -d) and stop it afterwards; without it the processes
take turns. Where runs fail the exit status is 1. FCCO_COMMIT names the commit where the checkout has no history. --quick is a small plan for a CPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import costs
from benchmarks.figures.plan import only, quick_plan, whole_plan
from benchmarks.figures.pool import Pool, Setting
from benchmarks.figures.sets import prepare
from benchmarks.figures.store import read, settled
from benchmarks.figures.studies import Progress, Study, reported_runs, tuning_run
from benchmarks.figures.timing import measure, read_times, with_alone_seconds


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    needs_data = options.command in ("prepare", "run", "time") and not options.quick
    if needs_data and not os.path.isdir(os.environ.get("FCCO_DATA", "")):
        print("figures: FCCO_DATA must name the folder that holds the data sets", file=sys.stderr)
        return 2
    if options.command == "prepare":
        for path in prepare(Path(os.environ["FCCO_DATA"])):
            print(path)
        return 0
    everything = whole_plan()
    if options.quick:
        everything = quick_plan()
    studies = only(everything, options.only)
    failed = False
    if options.command == "run":
        setting = Setting(options.workers, options.seconds, options.device, options.grace, options.autotune)
        pool = Pool(possible(studies), everything, options.out, setting, say=_say)
        made = pool.run()
        print(f"{made} runs made")
        if pool.failures:
            _say(f"figures: {pool.failures} of {made} runs failed")
            failed = True
    if options.command == "time":
        for name, found in measure(studies, options.device, options.out).items():
            print(f"{name}: {1000 * found['step']:.2f} ms per step, {found['pass']:.2f} s per full pass")
        return 0
    rows = with_alone_seconds(settled(read(options.out)), read_times(options.out))
    if options.command == "draw":
        from benchmarks.figures.draw import draw_all

        for path in draw_all(studies, everything, rows, options.out):
            print(path)
        return 0
    print(table(studies, Progress(everything, rows)))
    return int(failed)


def possible(studies: Sequence[Study]) -> list[Study]:
    """Without LibAUC's baseline where that is not installed; says so."""
    if importlib.util.find_spec("libauc") is not None:
        return list(studies)
    kept = [study for study in studies if study.base.trainer != "aucm"]
    if len(kept) < len(studies):
        _say("LibAUC is not installed: its baseline is left out")
    return kept


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("prepare", "plan", "run", "time", "draw"))
    parser.add_argument("--out", type=Path, default=Path("results/figures"), help="the folder of rows and figures")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="PREFIX", help="of studies: figure1/cifar10, free, ..."
    )
    parser.add_argument("--workers", type=int, default=12, help="processes side by side")
    parser.add_argument("--seconds", type=float, default=480.0, help="how long")
    parser.add_argument(
        "--grace", type=float, default=20.0, help="seconds more for runs that take longer than expected"
    )
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--autotune", action="store_true", help="let cuDNN try its algorithms")
    parser.add_argument("--quick", action="store_true", help="a small plan, minutes on a CPU")
    return parser


def left_to_pay(study: Study, progress: Progress) -> tuple[float, float]:
    """Seconds of the GPU (small problems: of a core) for a study: all of it, and what is left (runs whose points are not known yet included)."""
    total = 0.0
    left = 0.0
    for number, rung in enumerate(study.rungs):
        points = progress.rung_points(study, number)
        one = costs.shared(tuning_run(study, (), rung.share))
        total += rung.points * one
        if points is None:
            left += rung.points * one
            continue
        left += one * sum(not progress.has(study, point, rung.share) for point in points)
    seeds = len(study.seeds)
    one = costs.shared(reported_runs(study, ())[0])
    return total + seeds * one, left + (seeds - len(progress.reported(study))) * one


def table(studies: Sequence[Study], progress: Progress) -> str:
    """What is done and what is left, study by study and in all."""
    lines = [f"{'study':44} {'done':>5} {'runs':>5} {'s':>7} {'left':>7}  best point"]
    sums: dict[str, list[float]] = {}
    for study in studies:
        done, runs = progress.counts(study)
        total, left = left_to_pay(study, progress)
        best = progress.best(study)
        text = ""
        if best is not None and (study.rungs or study.from_study):
            text = " ".join(f"{name} {value}" for name, value in best)
        lines.append(f"{study.name:44} {done:5} {runs:5} {total:7.0f} {left:7.0f}  {text}")
        for name in (study.figure, "all"):
            sums.setdefault(name, [0, 0, 0, 0])
            sums[name] = [a + b for a, b in zip(sums[name], (done, runs, total, left), strict=True)]
    lines.append("")
    for name, (some, of, seconds, rest) in sums.items():
        lines.append(f"{name:44} {some:5.0f} {of:5.0f} {seconds:7.0f} {rest:7.0f}  ({rest / 60:.0f} minutes left)")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
