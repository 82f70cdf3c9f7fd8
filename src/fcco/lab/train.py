"""The training loop: step, evaluate, checkpoint; stopped at any moment it goes on bit for bit."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import torch

import fcco
from fcco._support import checks
from fcco._support.signals import Signals
from fcco.checkpoint import Stateful
from fcco.data import Batch
from fcco.lab.config import TrainConfig, check
from fcco.lab.errors import Diverged, Interrupted, LabError, Pruned, one_line, writing
from fcco.lab.evaluate import Judged, Row, judge, scores
from fcco.lab.files import read_json, read_rows, step_of, write_json
from fcco.lab.loaded import inputs_of
from fcco.lab.machine import thread_count
from fcco.lab.monitor import Board, Silent, Tally, Watch
from fcco.lab.parts import Parts, build, network_settings
from fcco.lab.runs import RunFolder, environment
from fcco.lab.weights import INPUTS_FILE, describe_inputs, save_weights


@final
@dataclass(frozen=True)
class Outcome:
    """What a finished run left behind."""

    path: Path
    config: TrainConfig
    rows: list[dict[str, Any]]


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
    with thread_count(check(config).threads, small=config.model in ("linear", "mlp")):
        _deterministic(config.device)
        folder = RunFolder(path)
        parts = build(config)
        try:
            if resume:
                folder.lock()
                folder.check_data(parts.data.sha256)
            else:
                data = parts.data
                folder.start(parts.config, environment(parts.device, str(data), data.sha256))
            return _run(parts, folder, watch or Silent())
        finally:
            folder.release()


def finish(config: TrainConfig, path: Path, watch: Watch | None = None) -> Outcome:
    """Return the outcome of a run: read from its folder where it is finished, else by training on from there."""
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
    """One run under way: the parts, the folder, and what has been counted so far."""

    def __init__(self, parts: Parts, folder: RunFolder, watch: Watch) -> None:
        self.parts = parts
        self.folder = folder
        self.watch = watch
        self.solver = parts.solver
        self.tally = Tally(parts.device)
        self.saved_at = time.monotonic()

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
        self._save_weights()
        self.folder.end("finished", f"{self.solver.t} steps")
        return Outcome(self.folder.path, self.parts.config, read_rows(self.folder.metrics))

    def _save_weights(self) -> None:
        """Write the weights, and beside them what the network needs to be built again."""
        path = self.folder.path
        with writing(path):
            save_weights(path / "weights.pt", self.parts)
        settings = network_settings(self.parts.config, self.parts.data.num_classes)
        described = describe_inputs(settings, self.parts.data, self.parts.config)
        write_json(path / INPUTS_FILE, described)

    def _loop(self, signals: Signals) -> None:
        total = self.parts.total_steps
        batches = self._batches()
        while self.solver.t < total:
            passed = self._step(next(batches))
            step = self.solver.t
            self.watch.stepped(step)
            if passed or step in (1, total) or step % self.parts.eval_every == 0:
                self._evaluate()
            if signals.received is not None:
                self._interrupted(signals.received)
            if time.monotonic() - self.saved_at >= self.parts.config.checkpoint_seconds:
                self._save()

    def _batches(self) -> Iterator[Batch]:
        while True:
            yield from self.parts.loader

    def _step(self, batch: Batch) -> bool:
        """Take a step, and return whether it began with a full pass (a curve against samples is flat there)."""
        before = self.solver.samples
        began = time.perf_counter()
        if self.parts.stages is None:
            report = self.solver.step(batch)
            self.parts.scheduler.step()
        else:
            report = self.parts.stages.step(batch)
        self.tally.add(report, time.perf_counter() - began)
        in_pass = report.samples - before - len(batch)
        if not self.solver.method.finite_sum or in_pass == 0:
            return False
        # The Solver counts the examples that it went through; the paper charges m n.
        self.tally.uncounted += self.parts.pass_samples - in_pass
        return True

    def _evaluate(self) -> None:
        parts = self.parts
        solver = self.solver
        began = time.perf_counter()
        solver.wait()  # captured steps may still be under way
        self.tally.seconds += time.perf_counter() - began
        exact = solver.diagnose(parts.exact_pass, gradient=parts.config.gradient_norm)
        tested = judge(scores(parts.model, parts.x_test), parts.test)
        validated = Judged(None, None, None)
        if parts.valid is not None:
            validated = judge(scores(parts.model, inputs_of(parts.valid)), parts.valid)
        row = Row(
            step=solver.t,
            samples=solver.samples + self.tally.uncounted,
            oracle_g=solver.oracle.g + self.tally.uncounted,
            oracle_j=solver.oracle.j + self.tally.uncounted,
            oracle_jvp=solver.oracle.jvp,
            evaluations=solver.oracle.g,
            seconds=self.tally.seconds,
            objective=exact.value,
            auroc=tested.auroc,
            ap=tested.ap,
            tracking_error=exact.tracking_error,
            gradient_norm=exact.gradient_norm,
            loss_estimate=self.tally.take(),
            metric=tested.metric,
            validation_auroc=validated.auroc,
            validation_ap=validated.ap,
            validation_metric=validated.metric,
        )
        self.folder.append(asdict(row))
        self.board.add(row)
        self.watch.evaluated(row)
        if not exact.value < float("inf"):
            self._diverged(f"F is {exact.value} at step {solver.t}")

    def _diverged(self, message: str) -> None:
        self.folder.end("diverged", message)
        raise Diverged(f"{self.folder.path} diverged after {self.solver.t} steps: {message}; try a smaller --lr")

    def _interrupted(self, number: int) -> None:
        self._save()
        name = signal.Signals(number).name
        self.folder.end("interrupted", f"{name} at step {self.solver.t}")
        message = f"stopped at step {self.solver.t} and saved; resume with: fcco train --resume {self.folder.path}"
        raise Interrupted(number, message)

    def _stateful(self) -> dict[str, Stateful]:
        stateful: dict[str, Stateful] = {
            "solver": self.solver,
            "loader": self.parts.loader,
            "scheduler": self.parts.scheduler,
            "tally": self.tally,
        }
        if self.parts.stages is not None:
            stateful["stages"] = self.parts.stages
        return stateful

    def _save(self) -> None:
        target = self.folder.checkpoint
        with writing(target):
            fcco.save(target, **self._stateful())
        self.saved_at = time.monotonic()

    def _load(self) -> list[dict[str, Any]]:
        """Go on from the checkpoint, where there is one, and return the evaluations up to there."""
        if self.folder.checkpoint.exists():
            fcco.load(self.folder.checkpoint, **self._stateful())
        self.folder.status.unlink(missing_ok=True)
        last_step = self.solver.t
        if last_step == 0:
            last_step = -1  # the evaluation before the first step comes again
        self._check_rows()
        return self.folder.keep_rows(last_step)

    def _check_rows(self) -> None:
        """Refuse to go on where evaluations are gone: a checkpoint is written after those of its steps."""
        taken = self.solver.t
        if taken == 0:
            return
        due = {0, 1, *range(self.parts.eval_every, taken + 1, self.parts.eval_every)}
        if taken == self.parts.total_steps:
            due.add(taken)
        lost = sorted(due - {step_of(row) for row in read_rows(self.folder.metrics)})
        if lost:
            raise LabError(
                f"{self.folder.metrics} lacks the evaluations of steps {checks.some(lost)}, which came before the "
                "checkpoint: put the file back, or start a new run"
            )


def _deterministic(device: str) -> None:
    """Make the same seed give the same bits on an accelerator too."""
    if device != "cpu" and torch.cuda.is_available():
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
