"""What is seen while a run goes on: a live bar on a terminal, one line per evaluation elsewhere."""

from __future__ import annotations

import time
from typing import Any, final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from fcco.lab.evaluate import Row
from fcco.lab.figure import short
from fcco.lab.parts import Parts


def _progress(console: Console, *middle: ProgressColumn) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        *middle,
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
        console=console,
        refresh_per_second=5,
    )


def figures(objective: float, auroc: float) -> str:
    """The latest evaluation in few characters."""
    return f"F {objective:.4f}  AUROC {auroc:.4f}"


@final
class Live:
    """One run: steps, samples per second, time left, and the latest evaluation."""

    def __init__(self, console: Console) -> None:
        columns = (MofNCompleteColumn(), TextColumn("{task.fields[speed]}"))
        self._console = console
        self._progress = _progress(console, *columns)
        self._task: TaskID | None = None
        self._per_step = 0
        self._first = 0
        self._began = 0.0
        self._told = 0.0

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *error: object) -> None:
        if self._task is not None:
            self._progress.stop()

    def began(self, parts: Parts, rows: list[dict[str, Any]]) -> None:
        self._per_step = parts.loader.batch_size
        self._first = parts.solver.t
        self._began = time.monotonic()
        self._console.print(str(parts.data), highlight=False, soft_wrap=True)
        text = ""
        if rows:
            text = figures(rows[-1]["objective"], rows[-1]["auroc"])
        self._task = self._progress.add_task(
            parts.config.method, total=parts.total_steps, completed=self._first, speed="", figures=text
        )
        self._progress.start()

    def stepped(self, step: int) -> None:
        now = time.monotonic()
        if self._task is None or now - self._told < 0.2:
            return
        self._told = now
        speed = (step - self._first) * self._per_step / max(now - self._began, 1e-9)
        self._progress.update(self._task, completed=step, speed=f"{short(round(speed))} samples/s")

    def evaluated(self, row: Row) -> None:
        text = figures(row.objective, row.auroc)
        if self._task is not None:
            self._progress.update(self._task, completed=row.step, figures=text)
        if not self._console.is_terminal:
            self._console.print(f"step {row.step}  samples {short(row.samples)}  {text}", highlight=False)


@final
class Bar:
    """Several runs, one after the other: a bar over all of them."""

    def __init__(self, console: Console, name: str, runs: int) -> None:
        columns = (TextColumn("run {task.fields[run]} of {task.fields[runs]}"),)
        self._console = console
        self._progress = _progress(console, *columns)
        self._task = self._progress.add_task(name, total=runs, run=1, runs=runs, figures="")
        self._runs = runs
        self._done = -1
        self._total = 1
        self._told = 0.0

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def next(self, name: str) -> None:
        """The next run begins."""
        self._done += 1
        self._progress.update(self._task, description=name, completed=self._done, run=self._done + 1)
        if not self._console.is_terminal:
            self._console.print(f"{name} ({self._done + 1} of {self._runs})", highlight=False)

    def began(self, parts: Parts, rows: list[dict[str, Any]]) -> None:
        self._total = parts.total_steps

    def stepped(self, step: int) -> None:
        if time.monotonic() - self._told >= 0.2:
            self._told = time.monotonic()
            self._progress.update(self._task, completed=self._done + step / self._total)

    def evaluated(self, row: Row) -> None:
        done = self._done + row.step / self._total
        self._progress.update(self._task, completed=done, figures=figures(row.objective, row.auroc))
