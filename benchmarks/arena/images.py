"""Runs on LibAUC's image problems: LibAUC 2.0.1 at its published settings, tuned cross-entropy, and ``fcco.fit``.

A run is kept whole every few epochs: model, LibAUC's loss with its u, LibAUC's optimizer with all that it holds, draws and
random states, in one file; a run that was stopped goes on from there, bit for bit on the CPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import fcco
from benchmarks.arena.cifar import (
    DualDraws,
    Images,
    ShuffledDraws,
    image_network,
    image_score,
    make_images,
    read_arrays,
)
from benchmarks.arena.plain import SETTINGS
from benchmarks.arena.replayed import Passes, flatten
from benchmarks.arena.runs import NAMES, commit
from benchmarks.kept import Row

Setting = dict[str, Any]


@dataclass(frozen=True)
class Recipe:
    """A LibAUC method as its notebook publishes it.

    Args:
        loss: of LibAUC's losses module, the number of training images and positives, the device.
        optimizer: of LibAUC's optimizers module, the parameters, the loss, the device.
        weight_decay: also of the cross-entropy stage.
        batch, rate: rows per batch and the share of positives.
        epochs, decays: in all, and after which the learning rate is divided by 10.
        sigmoid: whether the loss sees probabilities.
        warm: whether a cross-entropy stage comes first.
    """

    loss: Callable[[Any, int, int, str], Any]
    optimizer: Callable[[Any, Any, Any, str], Any]
    weight_decay: float
    batch: int = 64
    rate: float = 0.5
    epochs: int = 60
    decays: tuple[int, ...] = (30, 45)
    sigmoid: bool = True
    warm: bool = True


def _adam(name: str, decay: float) -> Callable[[Any, Any, Any, str], Any]:
    def make(optimizers: Any, parameters: Any, loss: Any, device: str) -> Any:
        return getattr(optimizers, name)(parameters, mode="adam", lr=1e-3, weight_decay=decay, device=device)

    return make


RECIPES: dict[str, Recipe] = {
    "PESG": Recipe(
        lambda losses, n, p, device: losses.AUCMLoss(margin=1.0, device=device),
        lambda optimizers, parameters, loss, device: optimizers.PESG(
            parameters, loss_fn=loss, lr=0.1, momentum=0.9, epoch_decay=0.003, weight_decay=1e-4, device=device
        ),
        weight_decay=1e-4,
        batch=128,
        rate=0.2,
        epochs=100,
        decays=(50, 75),
    ),
    "SOAP": Recipe(
        lambda losses, n, p, device: losses.AveragePrecisionLoss(n, gamma=0.1, margin=0.6, device=device),
        _adam("SOAP", 2e-4),
        weight_decay=2e-4,
    ),
    "SOPAs": Recipe(
        lambda losses, n, p, device: losses.pAUC_DRO_Loss(n, gamma=0.1, margin=0.6, Lambda=1.0, device=device),
        _adam("SOPAs", 2e-4),
        weight_decay=2e-4,
    ),
    "SOPA": Recipe(
        lambda losses, n, p, device: losses.pAUC_CVaR_Loss(n, p, margin=1.0, beta=0.1, eta=1.0, device=device),
        _adam("SOPA", 2e-4),
        weight_decay=2e-4,
    ),
    "SOTAs": Recipe(
        lambda losses, n, p, device: losses.tpAUC_KL_Loss(
            n, tau=1.0, Lambda=0.5, gammas=(0.5, 0.5), margin=1.0, device=device
        ),
        _adam("SOTAs", 2e-4),
        weight_decay=2e-4,
    ),
    "STACO": Recipe(
        lambda losses, n, p, device: losses.auc.tpAUC_CVaR_loss(
            n, threshold=0.5, alpha=1e-3, beta_0=1e-3, beta_1=1e-3, theta_0=0.5, theta_1=0.5, device=device
        ),
        _adam("STACO", 1e-4),
        weight_decay=1e-4,
        decays=(20, 40),
        sigmoid=False,
        warm=False,
    ),
}


@dataclass(frozen=True)
class ImageProblem:
    """One of LibAUC's notebooks: its data, network, metric, and the methods that it publishes for them."""

    ratio: float
    data_seed: int
    test_ratio: float
    net: str
    metric: str
    methods: tuple[str, ...]


PROBLEMS: dict[str, ImageProblem] = {
    "cifar-ap": ImageProblem(0.02, 2023, 0.5, "resnet18", "average_precision", ("SOAP",)),
    "cifar-auroc": ImageProblem(0.1, 0, 0.5, "resnet20", "roc_auc", ("PESG",)),
    "cifar-pauc": ImageProblem(0.2, 2023, 0.2, "resnet18", "partial_auc", ("SOPAs", "SOPA")),
    "cifar-tpauc": ImageProblem(0.2, 2023, 0.2, "resnet18", "two_way_partial_auc", ("SOTAs", "STACO")),
}
METHODS = ("plain", *RECIPES, "fcco.fit")


def settings(problem: str, method: str) -> list[Setting]:
    """12 of the plain loss; the published one of LibAUC where there is one; none of ``fcco.fit``."""
    if method == "plain":
        return list(SETTINGS)
    if method == "fcco.fit" and hasattr(fcco, "fit"):
        return [{}]
    if method in PROBLEMS[problem].methods:
        return [{}]
    return []


@torch.no_grad()
def predict(model: nn.Module, x: Tensor, chunk: int = 1000) -> Tensor:
    """Scores (N,) in evaluation mode."""
    before = model.training
    model.eval()
    scores = [model(part)[:, 0] for part in x.split(chunk)]
    model.train(before)
    return torch.nan_to_num(torch.cat([*scores, torch.zeros(0, device=x.device)]))


@dataclass
class Running:
    """All that a run holds; pickled in one piece, so that what shares tensors goes on sharing them."""

    stage: str
    epoch: int
    model: nn.Module
    draws: Any
    loss: Any
    optimizer: Any
    examples: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)


def save(path: Path, running: Running) -> None:
    """Write a run whole; torch's own pickling of an optimizer leaves out what LibAUC's subclasses add."""
    parts = dict(vars(running))
    parts["optimizer"] = dict(vars(running.optimizer))
    parts["random"] = torch.get_rng_state()
    parts["cuda_random"] = [state.cpu() for state in torch.cuda.get_rng_state_all()]
    own = path.with_suffix(".tmp")
    torch.save(parts, own)
    own.replace(path)


def restore(path: Path, running: Running, device: str) -> Running:
    """The run of a file, with a new optimizer object that gets all that the old one held."""
    parts = torch.load(path, map_location=device, weights_only=False)
    torch.set_rng_state(parts.pop("random").cpu())
    torch.cuda.set_rng_state_all([state.cpu() for state in parts.pop("cuda_random")])
    vars(running.optimizer).clear()
    vars(running.optimizer).update(parts.pop("optimizer"))
    for name, value in parts.items():
        setattr(running, name, value)
    return running


class Trainer:
    """Trains a LibAUC method on one of its problems.

    Args:
        problem: whose metric and network.
        recipe: of the method.
        data: the images.
        seed: of weights, draws and augmentation.
        device: where.
        checkpoint: the file; None: nothing is kept.
        every: epochs between two writes.
    """

    def __init__(
        self,
        problem: ImageProblem,
        recipe: Recipe,
        data: Images,
        seed: int,
        device: str,
        checkpoint: Path | None,
        every: int = 10,
    ) -> None:
        self.problem = problem
        self.recipe = recipe
        self.data = data
        self.seed = seed
        self.device = device
        self.checkpoint = checkpoint
        self.every = every
        self._passes: Passes | None = None

    def run(self, stop_after: int | None = None) -> Row | None:
        """The row; None where it stopped after so many epochs (a test's way of being cut off)."""
        running = self._start()
        epochs = 0
        while running.stage != "done":
            if stop_after is not None and epochs >= stop_after:
                return None
            start = time.perf_counter()
            self._epoch(running)
            running.seconds += time.perf_counter() - start
            epochs += 1
            if running.epoch == self.recipe.epochs:
                running = self._next_stage(running)
            if self.checkpoint is not None and (epochs % self.every == 0 or running.epoch == 0):
                save(self.checkpoint, running)
        return self._row(running)

    def _start(self) -> Running:
        """From the file, or from the beginning."""
        if self.recipe.warm:
            running = self._ce_stage()
        else:
            running = self._main_stage(image_network(self.problem.net, self.seed).to(self.device))
        if self.checkpoint is None or not self.checkpoint.exists():
            return running
        stage = torch.load(self.checkpoint, map_location=self.device, weights_only=False)["stage"]
        if stage != running.stage:
            running = self._main_stage(image_network(self.problem.net, self.seed).to(self.device))
        return restore(self.checkpoint, running, self.device)

    def _ce_stage(self) -> Running:
        model = image_network(self.problem.net, self.seed).to(self.device)
        flat = flatten(model)
        optimizer = torch.optim.Adam([flat], lr=1e-3, weight_decay=self.recipe.weight_decay, fused=flat.is_cuda)
        draws = ShuffledDraws(len(self.data.y_train), self.recipe.batch, self.seed)
        return Running("ce", 0, model, draws, None, optimizer)

    def _main_stage(self, model: nn.Module) -> Running:
        from libauc import losses, optimizers

        count = len(self.data.y_train)
        positives = int(self.data.y_train.sum())
        with contextlib.redirect_stdout(io.StringIO()):
            loss = self.recipe.loss(losses, count, positives, self.device)
            optimizer = self.recipe.optimizer(optimizers, [flatten(model)], loss, self.device)
        draws = DualDraws(self.data.y_train.cpu().numpy(), self.recipe.batch, self.recipe.rate, self.seed)
        return Running("main", 0, model, draws, loss, optimizer)

    def _next_stage(self, running: Running) -> Running:
        """From cross-entropy to LibAUC's loss, the last layer drawn anew; or the end."""
        if running.stage == "main":
            running.stage = "done"
            return running
        if "weights" in running.best:
            running.model.load_state_dict(running.best["weights"])
        torch.manual_seed(self.seed + 1)
        running.model.get_submodule("net.fc").reset_parameters()  # type: ignore[operator]
        following = self._main_stage(running.model)
        following.examples = running.examples
        following.seconds = running.seconds
        return following

    def _epoch(self, running: Running) -> None:
        if running.epoch in self.recipe.decays:
            self._decay(running)
        running.model.train()
        passes = self._passes_of(running)
        for rows in running.draws.epoch():
            index = torch.from_numpy(rows).to(self.device)
            outputs = passes.outputs(index)  # (B, 1)
            for parameter in running.optimizer.param_groups[0]["params"][1:]:  # the loss's own
                parameter.grad = None
            self._loss(running, outputs, index).backward()
            passes.backward(outputs)
            running.optimizer.step()
            passes.settle()
            running.examples += len(rows)
        running.epoch += 1
        self._look(running)

    def _passes_of(self, running: Running) -> Passes:
        """The network's passes; made anew where a stage or a file brought another network."""
        flat = running.optimizer.param_groups[0]["params"][0]
        if self._passes is None or self._passes.flat is not flat:
            self._passes = Passes(running.model, flat, self.data.x_train, self.recipe.batch)
        return self._passes

    def _loss(self, running: Running, outputs: Tensor, index: Tensor) -> Tensor:
        y = self.data.y_train[index].unsqueeze(1)
        if running.stage == "ce":
            return functional.binary_cross_entropy_with_logits(outputs, y)
        if self.recipe.sigmoid:
            outputs = torch.sigmoid(outputs)
        loss: Tensor = running.loss(outputs, y, index=index)
        return loss

    def _decay(self, running: Running) -> None:
        """The learning rate by 10; PESG takes its reference anew, STACO's own rates follow."""
        with contextlib.redirect_stdout(io.StringIO()):
            if hasattr(running.optimizer, "update_regularizer") and getattr(running.optimizer, "model_ref", None):
                running.optimizer.update_regularizer(decay_factor=10)
            else:
                for group in running.optimizer.param_groups:
                    group["lr"] /= 10
        if type(running.optimizer).__name__ == "STACO":
            for name in ("alpha", "beta_0", "beta_1"):
                setattr(running.loss, name, getattr(running.loss, name) / 10)

    def _look(self, running: Running) -> None:
        """The metric on validation, and on the test images where that was best or the stage ends."""
        metric = self.problem.metric
        valid = math.nan
        if len(self.data.y_valid):
            valid = image_score(metric, predict(running.model, self.data.x_valid), self.data.y_valid)
        best = valid > running.best.get("valid", -math.inf)
        found = {"valid": valid}
        if best or running.epoch == self.recipe.epochs:
            found["test"] = image_score(metric, predict(running.model, self.data.x_test), self.data.y_test)
        if best:
            running.best = {"valid": valid, "test": found["test"], "epoch": running.epoch}
            if running.stage == "ce":
                running.best["weights"] = {k: v.clone() for k, v in running.model.state_dict().items()}
        running.history.append(found)

    def _row(self, running: Running) -> Row:
        last = running.history[-1]
        return {
            "valid": running.best.get("valid", math.nan),
            "test": running.best.get("test", last["test"]),
            "last_valid": last["valid"],
            "last_test": last["test"],
            "at": running.best.get("epoch", self.recipe.epochs) / self.recipe.epochs,
            "examples": running.examples,
            "seconds": round(running.seconds, 1),
        }


def budget(problem: ImageProblem, data: Images) -> int:
    """Examples through the network in a run of the problem's first LibAUC method, cross-entropy stage included."""
    recipe = RECIPES[problem.methods[0]]
    draws = DualDraws(data.y_train.cpu().numpy(), recipe.batch, recipe.rate, 0)
    examples = recipe.epochs * draws.steps * recipe.batch
    if recipe.warm:
        examples += recipe.epochs * len(data.y_train)
    return examples


def run_plain(problem: ImageProblem, data: Images, setting: Setting, seed: int, device: str) -> Row:
    """Cross-entropy with AdamW and a cosine, as long as LibAUC's two stages together."""
    recipe = RECIPES[problem.methods[0]]
    model = image_network(problem.net, seed).to(device)
    flat = flatten(model)
    optimizer = torch.optim.AdamW([flat], lr=setting["lr"], weight_decay=setting["decay"], fused=flat.is_cuda)
    passes = Passes(model, flat, data.x_train, recipe.batch)
    draws = ShuffledDraws(len(data.y_train), recipe.batch, seed)
    epochs = max(1, budget(problem, data) // len(data.y_train))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * draws.steps)
    best = {"valid": -math.inf, "test": math.nan, "at": 0.0}
    start = time.perf_counter()
    for epoch in range(epochs):
        model.train()
        for rows in draws.epoch():
            index = torch.from_numpy(rows).to(device)
            outputs = passes.outputs(index)
            functional.binary_cross_entropy_with_logits(outputs[:, 0], data.y_train[index]).backward()
            passes.backward(outputs)
            optimizer.step()
            scheduler.step()
        valid = image_score(problem.metric, predict(model, data.x_valid), data.y_valid)
        if valid > best["valid"]:
            test = image_score(problem.metric, predict(model, data.x_test), data.y_test)
            best = {"valid": valid, "test": test, "at": (epoch + 1) / epochs}
    last = image_score(problem.metric, predict(model, data.x_test), data.y_test)
    row: Row = {**best, "last_valid": valid, "last_test": last, "examples": epochs * len(data.y_train)}
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def run_fit(problem: ImageProblem, data: Images, seed: int, device: str, checkpoint: Path | None) -> Row:
    """``fcco.fit`` as it comes; its whole search sees fewer examples than LibAUC's two stages do (:func:`budget`)."""
    model = image_network(problem.net, seed)
    start = time.perf_counter()
    result = fcco.fit(
        model,
        (data.x_train, data.y_train),
        metric=problem.metric,
        validation=(data.x_valid, data.y_valid),
        max_fpr=0.3,
        min_tpr=0.7,
        seed=seed,
        device=device,
        progress=False,
        checkpoint=checkpoint,
    )
    test = image_score(problem.metric, result.predict(data.x_test), data.y_test)
    valid = image_score(problem.metric, result.predict(data.x_valid), data.y_valid)
    row: Row = {"valid": valid, "test": test, "last_valid": valid, "last_test": test, "examples": result.examples}
    row |= {"chosen": result.chosen, "chosen_setting": result.setting}
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def jobs(problems: list[str], methods: list[str], seeds: list[int]) -> Iterator[tuple[str, str, str, int]]:
    """All runs, seed by seed."""
    for seed in seeds:
        for problem in problems:
            for method in methods:
                for setting in settings(problem, method):
                    yield problem, method, json.dumps(setting, sort_keys=True), seed


def one(
    path: str, device: str, hold_out: float, checkpoints: str, problem: str, method: str, setting: str, seed: int
) -> Row:
    """One run, in a process of its own; what failed says so in its row."""
    torch.set_num_threads(1)
    row: Row = dict(zip(NAMES, (problem, method, setting, seed), strict=True))
    chosen = PROBLEMS[problem]
    data = make_images(read_arrays(path), chosen.ratio, chosen.data_seed, chosen.test_ratio, hold_out, seed, device)
    Path(checkpoints).mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(f"{problem} {method} {setting} {seed} {hold_out}".encode()).hexdigest()[:16]
    checkpoint = Path(checkpoints) / f"{problem}-{method}-{seed}-{name}.pt"
    try:
        if method == "plain":
            row |= run_plain(chosen, data, json.loads(setting), seed, device)
        elif method == "fcco.fit":
            row |= run_fit(chosen, data, seed, device, checkpoint)
        else:
            row |= Trainer(chosen, RECIPES[method], data, seed, device, checkpoint).run() or {}
        checkpoint.unlink(missing_ok=True)
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"
    row["hold_out"] = hold_out
    row["cpu_seconds"] = row.get("seconds", 0.0)
    row["fcco"] = fcco.__version__
    row["commit"] = commit()
    return row
