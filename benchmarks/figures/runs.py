"""One training run: what it is, its key, and the row that it leaves behind."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import fcco
from benchmarks.figures.sets import SETS
from fcco.data import Batch
from fcco.lab.config import TrainConfig
from fcco.lab.datasets import Dataset
from fcco.lab.models import is_channels_last
from fcco.lab.parts import Parts, build
from fcco.lab.runs import environment, finite
from fcco.lab.values import as_values

Row = dict[str, Any]
Trainer = Literal["fcco", "cross-entropy", "aucm"]

#: Fields of a configuration that do not change the numbers, or change rounding at most.
INCIDENTAL = frozenset({"device", "threads", "tensorboard", "checkpoint_seconds", "capture", "compile"})


@dataclass(frozen=True)
class Run:
    """One training run.

    Args:
        config: of the lab; ``steps`` says how long, ``eval_examples`` on how many training images F is drawn.
        points: evaluations on the curve, about.
        whole: whether F is taken over all training data at the end, too.
        trainer: fcco's solver, or a baseline of `baselines.py`.
        warm_up: steps of SOX at ``warm_up_lr`` that every method starts after.
    """

    config: TrainConfig
    points: int = 12
    whole: bool = False
    trainer: Trainer = "fcco"
    warm_up: int = 0
    warm_up_lr: float = 0.1

    @property
    def key(self) -> str:
        """Tells runs apart, in every process and at every later version that adds settings with a default."""
        text = json.dumps(_given(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def steps(self) -> int:
        assert self.config.steps is not None
        return self.config.steps


def _given(run: Run) -> dict[str, Any]:
    """What differs from the defaults."""
    values = _differing(run, Run(TrainConfig()), frozenset({"config"}))
    values["config"] = _differing(run.config, TrainConfig(), INCIDENTAL)
    return values


def _differing(given: Any, usual: Any, left_out: frozenset[str]) -> dict[str, Any]:
    values = {}
    for field in fields(given):
        value = getattr(given, field.name)
        if field.name not in left_out and value != getattr(usual, field.name):
            values[field.name] = value
    return values


def described(run: Run) -> Row:
    """A run as plain values, whole."""
    values = {field.name: getattr(run, field.name) for field in fields(run)}
    values["config"] = as_values(run.config)
    return values


def carry_out(run: Run, device: str) -> Row:
    """Train; the row says how it went. A run that diverges has a row, too."""
    began = time.perf_counter()
    on_device = replace(run, config=replace(located(run.config), device=device))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MSVR's correction: what it does to F is what the figure shows
        if run.trainer == "fcco":
            found = _train(on_device)
        else:
            from benchmarks.figures.baselines import train_baseline

            found = train_baseline(on_device)
    row = {"key": run.key, "run": described(run), **found, "wall": round(time.perf_counter() - began, 2)}
    kept: Row = finite(row)
    return kept


def located(config: TrainConfig) -> TrainConfig:
    """The same run with the path of a set of our own making in place of its name."""
    if config.dataset in SETS and SETS[config.dataset].made_of is not None:
        return replace(config, dataset=str(Path(os.environ["FCCO_DATA"]) / f"{config.dataset}.npz"))
    return config


def _train(run: Run) -> Row:
    state = None
    if run.warm_up:
        state = _warmed_up(run)
    parts = build(run.config)
    if state is not None:
        parts.model.load_state_dict(state)
    check_data(parts)
    training = _Training(run, parts)
    status, message = training.run()
    row: Row = {
        "status": status,
        "message": message,
        "curve": training.curve,
        "f": None,
        "f_whole": None,
        "f_eval": None,
        "auroc": None,
        "optimum": None,
        "pass_evaluations": training.pass_evaluations(),
        "environment": surroundings(parts.device, parts.data) | {"channels_last": is_channels_last(parts.model)},
    }
    if status == "finished":
        row["f"] = training.curve["f"][-1]
        row["auroc"] = macro_auroc(scores(parts.model, parts.x_test), parts.y_test)
        if run.whole:
            row["f_eval"] = in_evaluation_mode(parts)
            if parts.exact_pass is not None:
                row["f_whole"] = parts.solver.diagnose(gradient=False).value
        if run.config.model == "linear":
            row["optimum"] = linear_optimum(parts)
    return row


def in_evaluation_mode(parts: Parts) -> float:
    """F by BatchNorm's running statistics: one function, whatever the batches of training are composed of."""
    objective = parts.solver.objective
    objective.eval()
    try:
        return float(parts.solver.diagnose(parts.exact_pass, gradient=False).value)
    finally:
        objective.train()


def surroundings(device: torch.device, data: Dataset) -> Row:
    """Where a run took place; FCCO_COMMIT stands in where the checkout has no history."""
    found = environment(device, str(data), data.sha256)
    found["commit"] = os.environ.get("FCCO_COMMIT") or found["commit"]
    found["tf32"] = torch.backends.cudnn.allow_tf32
    return found


def check_data(parts: Parts) -> None:
    """The data must be what the plan counted on."""
    name = Path(parts.data.name).stem
    planned = SETS[name].train
    if len(parts.data.x_train) != planned:
        raise ValueError(f"{name} must have {planned} training examples, got {len(parts.data.x_train)}")


def _warmed_up(run: Run) -> Mapping[str, Tensor]:
    """The model after some steps of SOX, the same for every method."""
    config = replace(
        run.config, method="sox", lr=run.warm_up_lr, alpha=0.5, beta=0.5, gamma=None, period=None, lag=None,
        schedule="constant", optimizer="sgd", nesterov=False, radius=None, steps=run.warm_up,
    )  # fmt: skip
    return _after_steps(config)


@lru_cache(maxsize=4)  # runs of a panel share few warm-ups: one per seed
def _after_steps(config: TrainConfig) -> Mapping[str, Tensor]:
    """The model after all steps of a run."""
    assert config.steps is not None
    parts = build(config)
    batches = endless(parts)
    for _ in range(config.steps):
        parts.solver.step(next(batches))
    return {name: value.detach().clone() for name, value in parts.model.state_dict().items()}


def clock(device: torch.device) -> Callable[[], float]:
    """What steps are timed by: on a CPU the time that this process had, whatever runs beside it."""
    if device.type == "cpu":
        return time.process_time
    return time.perf_counter


def endless(parts: Parts) -> Iterator[Batch]:
    """Epoch after epoch."""
    while True:
        yield from parts.loader


class _Training:
    """The loop: steps, and evaluations that the clock does not count."""

    def __init__(self, run: Run, parts: Parts) -> None:
        self._parts = parts
        self._solver = parts.solver
        self._steps = parts.total_steps
        self._marks = marks(self._steps, run.points, self._period())
        self._draws = run.points > 1  # else only the end is asked for
        self._digits = 6
        if run.config.precision == "fp64":
            self._digits = 14  # the distance to the optimum is wanted
        self._seconds = 0.0
        self.curve: dict[str, list[Any]] = {
            name: [] for name in ("step", "samples", "charged_n", "oracle", "network", "seconds", "f", "u_error")
        }

    def run(self) -> tuple[str, str]:
        """Train to the end, or to numbers that are not finite."""
        batches = endless(self._parts)
        now = clock(self._parts.device)
        if self._draws:
            self._evaluate()
        try:
            for mark in self._marks:
                began = now()
                while self._solver.t < mark:
                    self._solver.step(next(batches))
                    self._parts.scheduler.step()
                self._wait()
                self._seconds += now() - began
                self._evaluate()
                if self.curve["f"][-1] is None:
                    return "diverged", f"F is not finite at step {self._solver.t}"
        except fcco.NonFiniteError as error:
            return "diverged", str(error).splitlines()[0][:200]
        return "finished", ""

    def _wait(self) -> None:
        if self._parts.device.type == "cuda":
            torch.cuda.synchronize(self._parts.device)

    def _period(self) -> int | None:
        if self._solver.method.finite_sum:
            return self._parts.config.period
        return None

    def _passes(self) -> int:
        period = self._period()
        if period is None:
            return 0
        return math.ceil(self._solver.t / period)

    def pass_evaluations(self) -> int:
        """Examples that a full pass sent through the network."""
        passes = self._passes()
        if passes == 0:
            return 0
        return round((self._solver.samples - self._solver.t * self._parts.loader.batch_size) / passes)

    def _evaluate(self) -> None:
        solver = self._solver
        parts = self._parts
        drawn = solver.t * parts.loader.batch_size
        passes = self._passes()
        in_passes = solver.samples - drawn
        exact = solver.diagnose(parts.exact_pass, gradient=False)
        # The solver charges what a pass evaluates; the paper m n, for g and for J.
        oracle = solver.oracle.g + solver.oracle.j + 2 * (passes * parts.pass_samples - in_passes)
        point = {
            "step": solver.t,
            "samples": drawn + passes * parts.pass_samples,
            "charged_n": drawn + passes * len(parts.data.x_train),
            "oracle": oracle,
            "network": solver.oracle.g,
            "seconds": round(self._seconds, 3),
            "f": rounded(exact.value, self._digits),
            "u_error": rounded(exact.tracking_error),
        }
        for name, value in point.items():
            self.curve[name].append(value)


def marks(steps: int, points: int, period: int | None) -> list[int]:
    """The steps after which F is evaluated: evenly spread, and around full passes where those are few."""
    chosen = {steps}
    for number in range(1, points):
        chosen.add(max(1, round(steps * number / points)))
    if period is not None and points >= 4 * steps / period:
        chosen.add(1)
        for renewal in range(period, steps, period):
            chosen.update((renewal, renewal + 1))
    return sorted(chosen)


def rounded(value: float | None, digits: int = 6) -> float | None:
    """Few digits; None where it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


@torch.no_grad()
def scores(model: torch.nn.Module, x: Tensor, chunk: int = 2000) -> Tensor:
    """The model's scores (N, m) in evaluation mode; it is left in training mode."""
    model.eval()
    try:
        return torch.cat([model(part) for part in x.split(chunk)])
    finally:
        model.train()


def macro_auroc(h: Tensor, y: Tensor) -> float:
    """Mean over the classes of the AUROC of scores h (N, m) for classes y (N,); ties count one half.

    Example:
        >>> macro_auroc(torch.tensor([[3.0, -2.0], [1.0, 2.0], [2.0, 5.0]]), torch.tensor([0, 1, 1]))
        1.0
    """
    found = []
    for k, column in enumerate(h.double().unbind(1)):
        positive = y == k
        count = int(positive.sum())
        if count in (0, len(y)):
            continue
        ordered = column.sort().values
        below = torch.searchsorted(ordered, column.contiguous())
        up_to = torch.searchsorted(ordered, column.contiguous(), right=True)
        ranks = (below + up_to + 1).double() / 2  # from 1, the mean over ties
        wins = ranks[positive].sum() - count * (count + 1) / 2
        found.append(float(wins) / (count * (len(y) - count)))
    return sum(found) / len(found)


def linear_optimum(parts: Parts) -> float:
    """F's minimum for linear scores w x + b, in closed form.

    Per task F = w'Sw + 1/2 max(c - w'd, 0)^2, S the sum of both classes' covariances, d the difference of their means;
    so F* = c^2 / (2 + d' S^-1 d).
    """
    x = parts.data.x_train.double().flatten(1)
    spread, mean = torch.std_mean(x, 0, correction=0)
    x = (x - mean) / torch.where(spread > 0, spread, 1.0)
    values = []
    for k in range(parts.data.num_classes):
        positive = x[parts.data.y_train == k]
        negative = x[parts.data.y_train != k]
        covariance = positive.T.cov(correction=0) + negative.T.cov(correction=0)
        difference = positive.mean(0) - negative.mean(0)
        gain = float(difference @ torch.linalg.solve(covariance, difference))
        values.append(parts.config.margin**2 / (2 + gain))
    return sum(values) / len(values)


__all__ = ["Row", "Run", "Trainer", "carry_out", "described", "linear_optimum", "macro_auroc", "marks"]
