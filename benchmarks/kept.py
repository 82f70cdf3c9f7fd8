"""What benchmarks share: many runs in a few processes, kept as they come (one JSON line each; a run that is there is not
run again), the choice among settings, and their optimizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Job = tuple[Any, ...]
Row = dict[str, Any]
Choice = tuple[float, ...]  # learning rate, knobs: what is tuned


class Kept:
    """Rows of runs, by the job that made them.

    Args:
        path: of the file, one JSON line per run.
        names: of a job's parts, as they stand in a row.
        call: makes a row from a job, in a process of its own.
        workers: how many of those.
    """

    def __init__(self, path: Path, names: Sequence[str], call: Callable[..., Row], workers: int) -> None:
        self._path, self._names, self._call = path, names, call
        self._pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))  # starts with the first run
        self._done = {self._job(row): row for row in self._read()}

    def gather(self, jobs: Sequence[Job]) -> list[Row]:
        """The rows of the jobs, in their order."""
        missing = [job for job in dict.fromkeys(jobs) if job not in self._done]
        with open(self._path, "a") as lines:
            for future in as_completed([self._pool.submit(self._call, *job) for job in missing]):
                row = future.result()
                self._done[self._job(row)] = row
                lines.write(json.dumps(row) + "\n")
                lines.flush()
        return [self._done[job] for job in jobs]

    def halved(
        self,
        choices: Sequence[Choice],
        seeds: Sequence[int],
        rungs: Sequence[tuple[int, int]],
        job: Callable[[Choice, int], Job],
        value: Callable[[list[Row]], Any],
    ) -> list[tuple[Any, Choice]]:
        """Successive halving: the choices that reached the last rung with their value, best first.

        Args:
            choices: what there is to choose from.
            seeds: of the runs that choose (or whatever else tells them apart).
            rungs: each how many of the seeds, and how many choices get them at most.
            job: of a choice and a seed.
            value: of the rows of a choice, one per seed; the largest is best.
        """
        found: list[tuple[Any, Choice]] = []
        for count, most in rungs:
            rows = self.gather([job(choice, seed) for choice in choices[:most] for seed in seeds[:count]])
            values = [value(rows[at : at + count]) for at in range(0, len(rows), count)]
            found = sorted(zip(values, choices[:most], strict=True), reverse=True)
            choices = [choice for _, choice in found]
        return found

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _read(self) -> list[Row]:
        """The rows of the file; a last line that a stopped process left unfinished is cut off."""
        if not self._path.exists():
            return []
        text = self._path.read_text()
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self._path.write_text(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def _job(self, row: Row) -> Job:
        return tuple(row[name] for name in self._names)


def adam(parameters: Iterable[nn.Parameter], lr: float, decay: float, l2: float = 0.0) -> torch.optim.Optimizer:
    """AdamW, and with ``l2`` the other decay beside it, the one inside Adam's moments."""
    own = list(parameters)
    optimizer = torch.optim.AdamW(own, lr=lr, weight_decay=decay)

    @torch.no_grad()
    def add_l2(*_: Any) -> None:
        torch._foreach_add_([p.grad for p in own], own, alpha=l2)

    if l2:
        optimizer.register_step_pre_hook(add_l2)
    return optimizer


@cache
def arrays(path: str) -> dict[str, Tensor]:
    """The arrays of an npz file, read once per process."""
    with np.load(path, allow_pickle=False) as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}
