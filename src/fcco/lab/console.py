"""What is seen while a run goes on: a live bar on a terminal, one line per evaluation elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
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

from fcco.fitting import Progress as FitProgress
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


def figures(row: Mapping[str, Any]) -> str:
    """Return the latest evaluation in few characters."""
    text = f"F {row['objective']:.4f}"
    for name, title in (("auroc", "AUROC"), ("ap", "AP"), ("metric", "metric")):
        if row.get(name) is not None:
            text += f"  {title} {row[name]:.4f}"
    return text


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
            text = figures(rows[-1])
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
        text = figures(asdict(row))
        if self._task is not None:
            self._progress.update(self._task, completed=row.step, figures=text)
        if not self._console.is_terminal:
            self._console.print(f"step {row.step}  samples {short(row.samples)}  {text}", highlight=False)


@final
class FitBar:
    """One fit: how far it is, the trial that is under way, the best so far, and the time left."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = _progress(console)
        self._task: TaskID | None = None
        self._trial = ""
        self._told = float("-inf")

    def __enter__(self) -> FitBar:
        return self

    def __exit__(self, *error: object) -> None:
        if self._task is not None and self._console.is_terminal:
            self._progress.stop()

    def __call__(self, told: FitProgress) -> None:
        """Show where the run stands after the validation part was scored."""
        text = f"{told.value:.4f}, best {told.best:.4f}"
        if self._task is None:
            self._task = self._progress.add_task(told.trial, total=told.total, figures=text)
            if self._console.is_terminal:
                self._progress.start()
        self._progress.update(self._task, description=told.trial, completed=told.examples, figures=text)
        if self._console.is_terminal:
            return
        now = time.monotonic()
        # In a log a line per trial, and one now and then in a long trial.
        if told.trial != self._trial or now - self._told > 30.0:
            self._trial = told.trial
            self._told = now
            share = told.examples / told.total
            left = f"at most {_minutes(told.remaining)} left"
            line = f"{told.trial:<12} {share:4.0%}  {text}  {left}  {told.setting}"
            self._console.print(line, highlight=False, soft_wrap=True)


def _minutes(seconds: float) -> str:
    """
    >>> _minutes(75.2)
    '1:15'
    """
    if seconds == float("inf"):
        return "-:--"
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


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
        """Show that the next run begins."""
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
        self._progress.update(self._task, completed=done, figures=figures(asdict(row)))
