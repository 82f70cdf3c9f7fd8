"""The training loop: step, evaluate, checkpoint; stopped at any moment it can go on in the same bits."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, final

import torch
from torch import Tensor

import fcco
from fcco.checkpoint import Stateful
from fcco.lab.beside import Board, Signals
from fcco.lab.config import TrainConfig
from fcco.lab.errors import Diverged, Interrupted, LabError, Pruned, one_line, writing
from fcco.lab.evaluate import Row, exact, ranking, scores
from fcco.lab.parts import Parts, build
from fcco.lab.runs import RunFolder, environment, read_json, read_rows
from fcco.lab.weights import save_weights
from fcco.sampling import Batch


class Watch(Protocol):
    """Who is told how a run goes."""

    def began(self, parts: Parts, rows: list[dict[str, Any]]) -> None:
        """At the start, with the evaluations of an earlier part of the run."""

    def stepped(self, step: int) -> None:
        """After every step."""

    def evaluated(self, row: Row) -> None:
        """After every evaluation."""


@final
class Silent:
    """Tells nobody."""

    def began(self, parts: Parts, rows: list[dict[str, Any]]) -> None:
        pass

    def stepped(self, step: int) -> None:
        pass

    def evaluated(self, row: Row) -> None:
        pass


@final
@dataclass(frozen=True)
class Outcome:
    """What a finished run left behind."""

    path: Path
    config: TrainConfig
    rows: list[dict[str, Any]]


@final
class Tally:
    """Seconds spent on steps, and the mean of the steps' estimates of F since the last evaluation."""

    def __init__(self, device: torch.device) -> None:
        self.seconds, self.count = 0.0, 0
        self.total = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, f: Tensor | None, seconds: float) -> None:
        self.seconds += seconds
        if f is not None:
            self.total += f.mean()
            self.count += 1

    def take(self) -> float | None:
        """The mean so far, starting anew."""
        mean = float(self.total) / self.count if self.count else None
        self.total.zero_()
        self.count = 0
        return mean

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "count": self.count, "total": self.total.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seconds, self.count = state["seconds"], state["count"]
        self.total.copy_(state["total"])


def train(config: TrainConfig, path: Path, *, resume: bool = False, watch: Watch | None = None) -> Outcome:
    """Train in a folder.

    Args:
        config: what; where a run is resumed, the one from its folder.
        path: the run's folder.
        resume: go on with the run in it.
        watch: told how it goes.

    Raises:
        LabError: where something is the user's to mend.
        Interrupted: after SIGINT or SIGTERM, once everything is saved.
        Diverged: where the run met numbers that are not finite.
    """
    with _threads(config):
        _deterministic(config.device)
        folder = RunFolder(path)
        parts = build(config)
        try:
            if resume:
                folder.lock()
            else:
                data = parts.data
                folder.start(parts.config, environment(parts.device, str(data), data.sha256))
            return _run(parts, folder, watch or Silent())
        finally:
            folder.release()


def finish(config: TrainConfig, path: Path, watch: Watch | None = None) -> Outcome:
    """The outcome of a run: from its folder where it is finished, else by training, from its checkpoint if need be."""
    folder = RunFolder(path)
    if not folder.used:
        return train(config, path, watch=watch)
    if folder.status.exists() and read_json(folder.status).get("status") == "finished":
        return Outcome(path, folder.read_config(), read_rows(folder.metrics))
    return train(folder.read_config(), path, resume=True, watch=watch)


def _run(parts: Parts, folder: RunFolder, watch: Watch) -> Outcome:
    try:
        return _Training(parts, folder, watch).run()
    except (LabError, Interrupted, Diverged, fcco.CheckpointError):
        raise
    except Pruned as error:
        folder.end("interrupted", one_line(error))
        raise
    except Exception as error:
        folder.end("failed", f"{type(error).__name__}: {one_line(error)}")
        raise


@final
class _Training:
    def __init__(self, parts: Parts, folder: RunFolder, watch: Watch) -> None:
        self.parts, self.folder, self.watch = parts, folder, watch
        self.tally = Tally(parts.device)
        self.solver = parts.solver
        self.saved_at = time.monotonic()
        restarts = [] if parts.restarts is None else [parts.restarts]
        self.stateful: tuple[Stateful, ...] = (parts.solver, parts.draws, parts.scheduler, self.tally, *restarts)

    def run(self) -> Outcome:
        rows = self._load()
        self.watch.began(self.parts, rows)
        with Board(self.folder.path, self.parts.config.tensorboard, self.solver.t) as self.board, Signals() as signals:
            try:
                if self.solver.t == 0:
                    self._evaluate()
                self._loop(signals)
            except fcco.NonFiniteError as error:
                self._diverged(one_line(error))
        self._save()
        with writing(self.folder.path):
            save_weights(self.folder.path / "weights.pt", self.parts)
        self.folder.end("finished", f"{self.solver.t} steps")
        return Outcome(self.folder.path, self.parts.config, read_rows(self.folder.metrics))

    def _loop(self, signals: Signals) -> None:
        total, every = self.parts.total_steps, self.parts.eval_every
        batches = self._batches()
        while self.solver.t < total:
            began = time.perf_counter()
            report = self.solver.step(*next(batches))
            self.parts.scheduler.step()
            self.tally.add(report.f, time.perf_counter() - began)
            self.watch.stepped(report.step)
            if report.step % every == 0 or report.step == total or self._just_charged():
                self._evaluate()
            if signals.received is not None:
                self._interrupted(signals.received)
            if time.monotonic() - self.saved_at >= self.parts.config.checkpoint_seconds:
                self._save()

    def _just_charged(self) -> bool:
        """After a step that began with a full pass: a curve against samples has a level part there."""
        period = self.solver.method.period
        return self.solver.t == 1 or (period is not None and self.solver.t % period == 1)

    def _batches(self) -> Iterator[tuple[Tensor, Batch]]:
        """Batches without end; bspiderboost's restarts get their larger ones."""
        usual = _endless(self.parts.draws)
        large = None if self.parts.restarts is None else _endless(self.parts.restarts)
        period = self.parts.config.period or 1
        while True:
            yield next(large if large is not None and self.solver.t % period == 0 else usual)

    def _evaluate(self) -> None:
        parts, solver = self.parts, self.solver
        figures = exact(solver, parts.exact_pass, gradient_norm=parts.config.gradient_norm)
        ranked = ranking(scores(parts.model, parts.x_test), parts.y_test)
        more = passes(solver) * (parts.pass_samples - parts.pass_evaluations)
        row = Row(
            step=solver.t,
            samples=solver.samples + more,
            oracle_g=solver.oracle.g + more,
            oracle_j=solver.oracle.j + more,
            oracle_jvp=solver.oracle.jvp,
            evaluations=solver.oracle.g,
            seconds=self.tally.seconds,
            objective=figures.objective,
            auroc=ranked.auroc,
            ap=ranked.ap,
            tracking_error=figures.tracking_error,
            gradient_norm=figures.gradient_norm,
            loss_estimate=self.tally.take(),
        )
        self.folder.append(asdict(row))
        self.board.add(row)
        self.watch.evaluated(row)
        if not figures.objective < float("inf"):
            self._diverged(f"F is {figures.objective} at step {solver.t}")

    def _diverged(self, message: str) -> None:
        self.folder.end("diverged", message)
        raise Diverged(f"{self.folder.path} diverged after {self.solver.t} steps: {message}; try a smaller --lr")

    def _interrupted(self, number: int) -> None:
        self._save()
        name = signal.Signals(number).name
        self.folder.end("interrupted", f"{name} at step {self.solver.t}")
        raise Interrupted(
            number, f"stopped at step {self.solver.t}, saved; go on with: fcco train --resume {self.folder.path}"
        )

    def _save(self) -> None:
        target = self.folder.checkpoint
        try:
            with writing(target):
                fcco.save(target, *self.stateful)
        except LabError:
            target.with_name(target.name + ".partial").unlink(missing_ok=True)
            raise
        self.saved_at = time.monotonic()

    def _load(self) -> list[dict[str, Any]]:
        """Go on from the checkpoint, where there is one; the evaluations up to there."""
        if self.folder.checkpoint.exists():
            fcco.load(self.folder.checkpoint, *self.stateful)
        self.folder.status.unlink(missing_ok=True)
        started = self.solver.t > 0
        return self.folder.keep_rows(self.solver.t if started else -1)


def passes(solver: fcco.Solver) -> int:
    """Full passes that the method was charged for so far."""
    period = solver.method.period
    return 0 if period is None or solver.t == 0 else 1 + (solver.t - 1) // period


def _endless(loader: Any) -> Iterator[tuple[Tensor, Batch]]:
    while True:
        yield from loader


@contextmanager
def _threads(config: TrainConfig) -> Iterator[None]:
    before = torch.get_num_threads()
    wanted = config.threads or (1 if config.model in ("linear", "mlp") else before)
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _deterministic(device: str) -> None:
    """Same seed, same bits, on an accelerator too."""
    if device != "cpu" and torch.cuda.is_available():
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
