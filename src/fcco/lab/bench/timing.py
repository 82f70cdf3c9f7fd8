"""Interleaved timing: contenders take turns within one process, so that what slows one slows all."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import final

import torch

from fcco.lab.bench.rows import Name, Row, Way
from fcco.lab.errors import one_line

#: Takes so many steps.
Steps = Callable[[int], None]

CPU = torch.device("cpu")
WARM = 12  # steps before a captured one is timed: more than it needs to be captured
WARM_EAGER = 3
LEAST_ROUNDS = 3
MOST_STEPS = 200  # of one visit


@final
@dataclass(frozen=True)
class Budget:
    """How long a part may time, and how long it does at least.

    Args:
        seconds: for all visits of all its settings together.
        rounds: at least this many rounds per setting.
        warm: steps of a captured contender before its first visit; eager ones need no more than a few.
        visits: rounds that are aimed at; the more, the shorter a visit.
    """

    seconds: float
    rounds: int = LEAST_ROUNDS
    warm: int = WARM
    visits: int = 8

    def split(self, settings: int) -> Budget:
        """What one of several settings gets."""
        return replace(self, seconds=self.seconds / settings)


def measured(
    contenders: Mapping[Name, Callable[[], Steps]], device: torch.device, budget: Budget
) -> tuple[list[Row], dict[Name, Steps]]:
    """Make all contenders, then time them in turns.

    Args:
        contenders: how each is made.
        device: what has to be waited for.
        budget: for this setting.

    Returns:
        A row per contender, and the contenders that could be made.
    """
    rows: list[Row] = []
    running: dict[Name, Steps] = {}
    with quiet():
        for name, make in contenders.items():
            row = Row(name)
            rows.append(row)
            warm = budget.warm
            if name.way is Way.EAGER:
                warm = min(warm, WARM_EAGER)
            steps = _made(row, make, device, warm)
            if steps is not None:
                running[name] = steps
        times = interleaved(list(running.values()), device, budget)
    for name, found in zip(running, times, strict=True):
        next(row for row in rows if row.name == name).times = [1e3 * value for value in found]
    return rows, running


def _made(row: Row, make: Callable[[], Steps], device: torch.device, warm: int) -> Steps | None:
    """Make and warm up one contender; None where it fails, which its row then says."""
    before = _start_peak(device)
    try:
        steps = make()
        steps(warm)
        synchronize(device)
    except Exception as error:  # one contender that fails must not take the table with it
        row.failed = f"{type(error).__name__}: {one_line(error)}"
        return None
    row.peak_mb = _peak_mb(device, before)
    return steps


def interleaved(contenders: Sequence[Steps], device: torch.device, budget: Budget) -> list[list[float]]:
    """Seconds per step of each contender, a number per round."""
    if not contenders:
        return []
    visit = budget.seconds / (budget.visits * len(contenders))
    lengths = [_visit_length(steps, device, visit) for steps in contenders]
    times: list[list[float]] = [[] for _ in contenders]
    order = list(range(len(contenders)))
    end = time.perf_counter() + budget.seconds
    done = 0
    while done < budget.rounds or time.perf_counter() < end:
        first = done % len(order)  # who comes first changes: what a visit leaves in the caches is shared out
        for place in order[first:] + order[:first]:
            times[place].append(seconds_per_step(contenders[place], lengths[place], device))
        done += 1
    return times


def _visit_length(steps: Steps, device: torch.device, visit: float) -> int:
    """How many steps fill a visit."""
    one = seconds_per_step(steps, 2, device)
    return max(1, min(MOST_STEPS, round(visit / one)))


def seconds_per_step(steps: Steps, number: int, device: torch.device) -> float:
    """Seconds per step of a visit of ``number`` steps, the device's work included."""
    synchronize(device)
    start = time.perf_counter()
    steps(number)
    synchronize(device)
    return (time.perf_counter() - start) / number


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Give back the memory of contenders that nobody holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _start_peak(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _peak_mb(device: torch.device, before: int) -> float | None:
    if device.type != "cuda":
        return None
    return (torch.cuda.max_memory_allocated(device) - before) / 1e6


@contextmanager
def quiet() -> Iterator[None]:
    """Warnings about rates and step sizes say nothing here: nobody looks at what is learned."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def threads(number: int) -> Iterator[None]:
    """So many threads for the CPU's own work."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
