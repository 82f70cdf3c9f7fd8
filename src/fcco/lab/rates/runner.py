"""Runs the experiments, two at a time, and writes what they found."""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from fcco._support.interrupts import uninterrupted
from fcco.lab.rates import ablation, biased, convex, finite, plots, remarks, report, scaling, stationarity, tracking
from fcco.lab.rates.fit import Outcome, Row

EXPERIMENTS: dict[str, Callable[[bool, int], Outcome]] = {
    "tracking": tracking.run,
    "scaling": scaling.run,
    "stationarity": stationarity.run,
    "convex": convex.run,
    "ablation": ablation.run,
    "biased": biased.run,
    "finite": finite.run,
    "remarks": remarks.run,
}
LONGEST_FIRST = ("stationarity", "remarks", "scaling", "convex", "ablation", "finite", "tracking", "biased")


def _one(name: str, quick: bool, seeds: int) -> tuple[Outcome, float, float]:
    """One experiment on one thread: what it found, its processor and its wall time in seconds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are small: a second thread only waits
    wall, processor = time.perf_counter(), time.process_time()
    try:
        with torch.inference_mode():
            outcome = EXPERIMENTS[name](quick, seeds)
    finally:
        torch.set_num_threads(threads)
    return outcome, time.process_time() - processor, time.perf_counter() - wall


def _chosen(only: Sequence[str] | None) -> list[str]:
    unknown = sorted(set(only or ()) - set(EXPERIMENTS))
    if unknown:
        raise ValueError(f"only must name some of {', '.join(EXPERIMENTS)}; got {', '.join(unknown)}")
    return [name for name in EXPERIMENTS if not only or name in only]


def _all(names: list[str], quick: bool, seeds: int, jobs: int) -> dict[str, tuple[Outcome, float, float]]:
    if jobs == 1 or len(names) == 1:
        return {name: _one(name, quick, seeds) for name in names}
    order = [name for name in LONGEST_FIRST if name in names]
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _leave_interrupts) as pool:
        running = {name: pool.submit(_one, name, quick, seeds) for name in order}
        try:
            return {name: running[name].result() for name in names}
        except BaseException:  # nobody waits for what is under way
            with uninterrupted():
                for process in multiprocessing.active_children():
                    process.terminate()
                pool.shutdown()
            raise


def _leave_interrupts() -> None:
    """Ctrl-C reaches all processes of a terminal; the first one ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run(
    quick: bool = False, out: Path = Path("rates"), only: list[str] | None = None, seeds: int = 16, jobs: int = 2
) -> list[Row]:
    """Run the experiments and write table.md, rates.json, raw/*.csv.gz and a figure each under ``out``.

    Args:
        quick: short runs, under a minute; their slopes are rough.
        out: the folder to write to.
        only: names of experiments; None: all.
        seeds: how many, at least 2; the full run's claims are stated for 8 or more.
        jobs: how many experiments at a time, a process each.

    Returns:
        The rows of the table.
    """
    if seeds < 2 or jobs < 1:
        raise ValueError(f"seeds must be at least 2 and jobs at least 1, got {seeds} and {jobs}")
    names, started = _chosen(only), time.perf_counter()
    done = _all(names, quick, seeds, jobs)
    outcomes = {name: outcome for name, (outcome, _, _) in done.items()}
    for outcome in outcomes.values():
        outcome.rows = report.with_reasons(outcome.rows, quick)
    out.mkdir(parents=True, exist_ok=True)
    for name, outcome in outcomes.items():
        plots.draw(name, outcome, out)
    seconds = {name: f"{processor:.0f} s of processor time" for name, (_, processor, _) in done.items()}
    facts = {
        "command": "fcco rates"
        + (" --quick" if quick else "")
        + ("" if only is None else f" --only {','.join(names)}"),
        "commit": report.commit(),
        "seeds": f"0..{seeds - 1}",
        "environment": ", ".join(f"{name} {version}" for name, version in report.environment().items()),
        "time": f"{time.perf_counter() - started:.0f} s with {jobs} processes; "
        + ", ".join(f"{name} {took}" for name, took in seconds.items()),
    }
    return report.write(out, outcomes, facts)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: fcco rates [--quick] [--only tracking,...] [--out DIR] [--seeds N] [--jobs N]."""
    parser = argparse.ArgumentParser(prog="fcco rates", description="Measure the rates that the theory claims.")
    parser.add_argument("--quick", action="store_true", help="short runs, under a minute")
    parser.add_argument("--only", help=f"some of {','.join(EXPERIMENTS)}")
    parser.add_argument("--out", type=Path, default=Path("rates"), help="folder to write to (default: rates)")
    parser.add_argument("--seeds", type=int, default=16, help="how many seeds (default: 16)")
    parser.add_argument("--jobs", type=int, default=2, help="experiments at a time (default: 2)")
    given = parser.parse_args(arguments)
    only = given.only.split(",") if given.only else None
    try:
        rows = run(given.quick, given.out, only, given.seeds, given.jobs)
    except ValueError as error:
        parser.error(str(error))
    sys.stdout.write(report.HEAD + "|" + "---|" * 8 + "\n" + "".join(map(report.table_row, rows)))
    return 0
