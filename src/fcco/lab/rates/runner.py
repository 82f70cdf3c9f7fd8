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
from typing import NamedTuple

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


class Done(NamedTuple):
    """What an experiment found, and the seconds of processor time that it took."""

    outcome: Outcome
    seconds: float


def _one(name: str, quick: bool, seeds: int) -> Done:
    """Run one experiment on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are small: a second thread only waits
    began = time.process_time()
    try:
        with torch.inference_mode():
            outcome = EXPERIMENTS[name](quick, seeds)
    finally:
        torch.set_num_threads(threads)
    return Done(outcome, time.process_time() - began)


def _chosen(only: Sequence[str] | None) -> list[str]:
    """Return the names of the experiments to run, in the order of the table; None or nothing named: all."""
    if not only:
        return list(EXPERIMENTS)
    unknown = sorted(set(only) - set(EXPERIMENTS))
    if unknown:
        raise ValueError(f"only must name some of {', '.join(EXPERIMENTS)}, got {', '.join(unknown)}")
    return [name for name in EXPERIMENTS if name in only]


def _all(names: list[str], quick: bool, seeds: int, jobs: int) -> dict[str, Done]:
    """Run the experiments, ``jobs`` at a time, each in a process of its own where there are several."""
    if jobs == 1 or len(names) == 1:
        return {name: _one(name, quick, seeds) for name in names}
    order = [name for name in LONGEST_FIRST if name in names]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _leave_interrupts) as pool:
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
    """Ignore Ctrl-C: it reaches all processes of a terminal, and the first one ends the others."""
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
    names = _chosen(only)
    began = time.perf_counter()
    done = _all(names, quick, seeds, jobs)
    wall = time.perf_counter() - began
    out.mkdir(parents=True, exist_ok=True)
    outcomes = {}
    for name, (outcome, _) in done.items():
        outcome.rows = report.with_reasons(outcome.rows, quick)
        plots.draw(name, outcome, out)
        outcomes[name] = outcome
    shares = [f"{name} {one.seconds:.0f} s of processor time" for name, one in done.items()]
    versions = [f"{name} {version}" for name, version in report.environment().items()]
    facts = {
        "command": _command(quick, names, all_of_them=only is None),
        "commit": report.commit(),
        "seeds": f"0..{seeds - 1}",
        "environment": ", ".join(versions),
        "time": f"{wall:.0f} s with {jobs} processes; {', '.join(shares)}",
    }
    return report.write(out, outcomes, facts)


def _command(quick: bool, names: Sequence[str], *, all_of_them: bool) -> str:
    """Return the command that runs this again."""
    command = "fcco rates"
    if quick:
        command += " --quick"
    if not all_of_them:
        command += f" --only {','.join(names)}"
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: fcco rates [--quick] [--only tracking,...] [--out DIR] [--seeds N] [--jobs N]."""
    parser = argparse.ArgumentParser(prog="fcco rates", description="Measure the rates that the theory claims.")
    parser.add_argument("--quick", action="store_true", help="short runs, under a minute")
    parser.add_argument("--only", help=f"some of {','.join(EXPERIMENTS)}")
    parser.add_argument("--out", type=Path, default=Path("rates"), help="folder to write to (default: rates)")
    parser.add_argument("--seeds", type=int, default=16, help="how many seeds (default: 16)")
    parser.add_argument("--jobs", type=int, default=2, help="experiments at a time (default: 2)")
    given = parser.parse_args(arguments)
    only = None
    if given.only:
        only = given.only.split(",")
    try:
        rows = run(given.quick, given.out, only, given.seeds, given.jobs)
    except ValueError as error:
        parser.error(str(error))
    sys.stdout.write(report.table(rows))
    return 0
