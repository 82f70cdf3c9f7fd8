"""Many runs side by side in a few processes, for so many seconds; every finished run is on disk at once."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks.figures.costs import Forecast
from benchmarks.figures.runs import Row, Run, described
from benchmarks.figures.store import MOST_FAILURES, Journal, read, settled
from benchmarks.figures.studies import Progress, Study

Say = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    """How to run.

    Args:
        workers: processes side by side.
        seconds: no run is started that would end later; what is still running a little after is stopped.
        device: cpu, cuda, ...
        grace: seconds after the end for runs that take longer than expected.
        autotune: let cuDNN try its algorithms.
    """

    workers: int
    seconds: float
    device: str
    grace: float = 20.0
    autotune: bool = False


class Worker:
    """A process that makes one run after another; PyTorch and the data stay loaded between them."""

    def __init__(self, number: int, setting: Setting) -> None:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        self.pipe: Connection = ours
        self.process: BaseProcess = context.Process(target=_work, args=(theirs, setting), name=f"worker {number}")
        self.process.start()
        theirs.close()  # so that the pipe ends with the process
        self.run: Run | None = None

    def begin(self, run: Run) -> None:
        self.run = run
        self.pipe.send(run)

    def leave(self) -> None:
        """Ask the process to end, in the middle of a run if need be."""
        self.pipe.close()
        if self.run is not None:
            self.process.terminate()

    def join(self) -> None:
        """Wait for its end, not for ever."""
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _work(pipe: Connection, setting: Setting) -> None:
    """A worker's life: runs in, rows out; it ends where the other side is gone."""
    import gc

    import torch

    from benchmarks.figures.runs import carry_out

    device = setting.device
    torch.set_num_threads(1)
    if device.startswith("cuda"):
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = setting.autotune
    try:
        while True:
            run = pipe.recv()
            began = time.perf_counter()
            try:
                row = carry_out(run, device)
            except Exception as error:
                text = f"{type(error).__name__}: {error}; {traceback.format_exc(limit=-2)}"
                row = failed(run, text, time.perf_counter() - began)
            pipe.send(row)
            gc.collect()  # a solver and its parts hold each other, and captured graphs hold memory
            if device.startswith("cuda"):
                torch.cuda.empty_cache()
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return


def failed(run: Run, message: str, wall: float) -> Row:
    """The row of a run that could not be made."""
    text = " ".join(message.split())[:600]
    return {"key": run.key, "run": described(run), "status": "failed", "message": text, "f": None, "wall": wall}


def broke_the_device(row: Row) -> bool:
    """Whether later runs in the same process would fail, too."""
    return row["status"] == "failed" and any(
        word in row["message"] for word in ("CUDA", "cuDNN", "CUBLAS", "OutOfMemory")
    )


class Pool:
    """Works off studies in their order.

    Args:
        studies: those to work on, the most important first.
        everything: all studies of the plan; a study may build on another that is not worked on.
        out: the folder of rows.
        setting: how to run.
        say: where to tell.

    Attributes:
        failures: runs that could not be made.
    """

    def __init__(
        self, studies: Sequence[Study], everything: Sequence[Study], out: Path, setting: Setting, say: Say
    ) -> None:
        self._studies = studies
        self._out = out
        self._setting = setting
        self._say = say
        self._failed = [row for row in read(out) if row["status"] == "failed"]
        self._rows = settled(read(out))
        self._progress = Progress(everything, self._rows)
        self._forecast = Forecast(setting.workers)
        self._workers: list[Worker] = []
        self._made = 0
        self.failures = 0
        self._told = time.monotonic()
        self._count = 0

    def run(self) -> int:
        """Until the time is over or nothing is left; how many runs were made."""
        now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        journal = Journal(self._out / f"runs-{now}-{os.getpid()}.jsonl")
        end = time.monotonic() + self._setting.seconds
        try:
            while True:
                self._hand_out(end)
                busy = [worker for worker in self._workers if worker.run is not None]
                left = end + self._setting.grace - time.monotonic()
                if not busy or left <= 0:
                    return self._made
                for worker in self._ready(busy, min(left, 30.0)):
                    self._collect(worker, journal)
                self._tell(end)
        finally:
            journal.close()
            for worker in self._workers:
                worker.leave()
            for worker in self._workers:
                worker.join()

    def _tell(self, end: float) -> None:
        """A line per minute."""
        if time.monotonic() - self._told >= 60:
            self._told = time.monotonic()
            self._say(f"{end - self._told:.0f} seconds left, {self._made} runs made")

    def _hand_out(self, end: float) -> None:
        """Give each idle worker its next run, starting workers as they are needed."""
        while True:
            idle = next((worker for worker in self._workers if worker.run is None), None)
            if idle is None and len(self._workers) >= self._setting.workers:
                return
            run = self._next(end - time.monotonic())
            if run is None:
                return
            if idle is None:
                idle = Worker(self._count, self._setting)
                self._count += 1
                self._workers.append(idle)
            idle.begin(run)

    def _next(self, left: float) -> Run | None:
        """The first run by priority that fits into the time left.

        Studies stand in the order of their data sets, so workers stay with one set; a worker keeps the last two.
        """
        taken = {worker.run.key for worker in self._workers if worker.run is not None}
        for study in self._studies:
            for run in self._progress.open_runs(study):
                if run.key not in taken and self._forecast.seconds(run) <= left:
                    return run
        return None

    def _ready(self, busy: list[Worker], timeout: float) -> list[Worker]:
        """Workers that have a row, or are gone."""
        by_pipe = {worker.pipe: worker for worker in busy}
        return [by_pipe[pipe] for pipe in wait(list(by_pipe), timeout)]  # type: ignore[index]

    def _dismiss(self, worker: Worker) -> None:
        """Let a worker go; another one is started in its place when there is work."""
        worker.run = None
        worker.leave()
        worker.join()
        self._workers.remove(worker)

    def _collect(self, worker: Worker, journal: Journal) -> None:
        run = worker.run
        assert run is not None
        try:
            row: Row = worker.pipe.recv()
            worker.run = None
        except (EOFError, ConnectionResetError):
            worker.process.join(5)
            row = failed(run, f"the process ended with {worker.process.exitcode}", 0.0)
            self._dismiss(worker)
        if broke_the_device(row):
            self._dismiss(worker)
        row["workers"] = self._setting.workers
        row["time"] = datetime.now(UTC).isoformat(timespec="seconds")
        journal.append(row)
        self._made += 1
        if row["status"] == "failed":
            self.failures += 1
            self._failed.append(row)
            self._say(f"failed: {run.config.dataset} {run.config.method} {run.trainer}: {row['message'][:300]}")
            if sum(other["key"] == run.key for other in self._failed) < MOST_FAILURES:
                return
        else:
            self._forecast.learn(run, row)
        self._rows[run.key] = row
