"""From a configuration to what trains: data, model, objective, method, optimizer, loader, solver."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

import fcco
from fcco.fullpass import FullPass
from fcco.lab import datasets, models
from fcco.lab.config import RATES, RECIPE_NAMES, TrainConfig, check, recipe_arguments
from fcco.lab.datasets import Dataset
from fcco.lab.errors import LabError, nearest, refusing
from fcco.lab.passes import ComposedPass, depends_on_company
from fcco.objectives.multitask_auc import MultiTaskAUC
from fcco.objectives.surrogates import Square, SquaredHinge
from fcco.sampling.tasks import BlockLoader

#: Rates that the lab takes where none are given; the recipes themselves have no defaults.
DEFAULT_RATES: dict[str, float] = {"alpha": 0.1, "beta": 0.5, "theta": 1.0, "rate": 1.0}


@final
class Prepared(nn.Module):
    """Raw examples in, scores out: scales the examples by the training data's mean and spread, then the network.

    Args:
        net: the network.
        x: the training examples, images (N, C, H, W) uint8 or numbers (N, ...).
        precision: "bf16" runs the network under autocast.
    """

    def __init__(self, net: nn.Module, x: Tensor, precision: str) -> None:
        super().__init__()
        self.net, self._bf16 = net, precision == "bf16"
        axes = (0, 2, 3) if x.dim() == 4 else (0,)
        some = x[:: max(1, x.shape[0] // 10_000)].double()
        spread, mean = torch.std_mean(some, axes, correction=0, keepdim=True)
        spread = torch.where(spread > 0, spread, 1.0)
        self.mean: Tensor
        self.spread: Tensor
        self.register_buffer("mean", mean[0].float(), persistent=False)
        self.register_buffer("spread", spread[0].float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        scaled = (x.to(self.mean.dtype) - self.mean) / self.spread
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self._bf16):
            out: Tensor = self.net(scaled)
        return out.float() if self._bf16 else out


@final
@dataclass(frozen=True)
class Parts:
    """Everything that a training run works with; ``config`` has no None left in it that the lab fills."""

    config: TrainConfig
    data: Dataset
    device: torch.device
    model: Prepared
    solver: fcco.Solver
    scheduler: fcco.LRSchedule
    loader: BlockLoader
    restarts: BlockLoader | None  # bspiderboost's larger batches
    exact_pass: FullPass
    x_test: Tensor
    y_test: Tensor
    total_steps: int
    eval_every: int
    pass_evaluations: int  # examples through the network in a full pass of the method
    pass_samples: int  # what the paper charges for it: m n


def build(config: TrainConfig) -> Parts:
    """Put a run together; the global generator is seeded here."""
    check(config)
    with refusing():
        data = load_data(config.dataset, config.target, config.image_size)
        device = _device(config.device)
        config = resolved(config, data)
        torch.manual_seed(config.seed)
        x, y = data.x_train.to(device), data.y_train.to(device)
        model = _model(config, data, x)
        objective = MultiTaskAUC(
            model, data.num_classes, loss=_loss(config), trained_centers=config.trained_centers
        ).to(device)
        loader = _loader(config, data, x, y)
        full_pass = _full_pass(config, model, loader, x)
        optimizer = _optimizer(config, objective)
        solver = fcco.Solver(objective, optimizer, _method(config), radius=config.radius, full_pass=full_pass)
        total, every = _lengths(config, loader)
        scheduler = fcco.LRSchedule(optimizer, _schedule(config, total))
        if config.compile:
            model.net.compile(dynamic=True)
        return Parts(
            config=config,
            data=data,
            device=device,
            model=model,
            solver=solver,
            scheduler=scheduler,
            loader=loader,
            restarts=_restarts(config, data, x, y),
            exact_pass=_exact_pass(config, data, model, x, y) or full_pass,
            x_test=data.x_test.to(device),
            y_test=data.y_test.to(device),
            total_steps=total,
            eval_every=every,
            pass_evaluations=full_pass.evaluations if isinstance(full_pass, ComposedPass) else len(x),
            pass_samples=_labelled(loader),
        )


@lru_cache(maxsize=2)
def load_data(dataset: str, target: tuple[str, ...] = (), image_size: int | None = None) -> Dataset:
    """A data set by name, or the user's own by its path."""
    if dataset in datasets.NAMES:
        return datasets.load(dataset)
    path = Path(dataset)
    if path.is_dir():
        return datasets.from_folder(path, size=image_size)
    if not path.exists():
        hint = nearest(dataset, datasets.NAMES)
        raise LabError(f"unknown dataset {dataset!r}{hint}; known: {', '.join(datasets.NAMES)}, or a path")
    if target:
        return datasets.from_table(path, target=target[0] if len(target) == 1 else list(target))
    if path.suffix == ".npz":
        return datasets.from_npz(path)
    raise LabError(f"--target must name the label column of {path}")


def resolved(config: TrainConfig, data: Dataset) -> TrainConfig:
    """The same configuration with the lab's choices in place of None."""
    m, n = data.num_classes, len(data.x_train)
    blocks = min(50 if m >= 100 else 5, m) if config.blocks_per_step is None else config.blocks_per_step
    lr = (0.1 if config.optimizer == "sgd" else 0.001) if config.lr is None else config.lr
    taken = recipe_arguments(config.method)
    rates: dict[str, Any] = {
        name: value
        for name, value in DEFAULT_RATES.items()
        if getattr(config, name) is None and RECIPE_NAMES.get(name, name) in taken
    }
    if config.method == "scent":
        rates.pop("alpha", None)  # plain where none is given
    if "period" in taken and config.period is None:
        rates["period"] = max(1, round(m * n / (blocks * config.samples_per_block)))
    return replace(config, blocks_per_step=blocks, lr=lr, **rates)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise LabError(f"--device {name} cannot be used here: {str(error).splitlines()[0]}") from error
    return device


def _model(config: TrainConfig, data: Dataset, x: Tensor) -> Prepared:
    plain = config.model in ("linear", "mlp")
    net = models.build(
        config.model,
        data.in_shape,
        data.num_classes,
        stem=None if plain else config.stem,
        hidden=config.hidden if config.model == "mlp" else None,
    )
    return Prepared(net, x, config.precision).to(x.device)


def _loss(config: TrainConfig) -> SquaredHinge | Square:
    kind = SquaredHinge if config.loss == "squared-hinge" else Square
    return kind(margin=config.margin, scale=0.5)


def _method(config: TrainConfig) -> fcco.Method:
    named = {RECIPE_NAMES.get(name, name): getattr(config, name) for name in RATES}
    taken = recipe_arguments(config.method)
    rates = {name: value for name, value in named.items() if name in taken and value is not None}
    return fcco.METHODS[config.method](**rates)


def _loader(
    config: TrainConfig, data: Dataset, x: Tensor, y: Tensor, samples: int | None = None, seed: int = 0
) -> BlockLoader:
    return BlockLoader(
        x,
        y,
        config.blocks_per_step or 1,
        config.samples_per_block if samples is None else samples,
        positive_fraction=config.positive_fraction,
        replacement=config.replacement,
        num_tasks=data.num_classes,
        seed=config.seed + seed,
    )


def _restarts(config: TrainConfig, data: Dataset, x: Tensor, y: Tensor) -> BlockLoader | None:
    """BSpiderBoost restarts on four times the samples, as far as the smallest class goes."""
    if config.method != "bspiderboost":
        return None
    tasks = _loader(config, data, x, y).tasks
    share = max(config.positive_fraction, 1 / config.samples_per_block)
    most = min(int(tasks.positive.count.min() / share), int(tasks.negative.count.min() / max(1 - share, share)))
    size = 4 * config.samples_per_block if config.replacement else min(4 * config.samples_per_block, most)
    return _loader(config, data, x, y, max(size, config.samples_per_block), seed=1_000_000)


def _full_pass(config: TrainConfig, model: nn.Module, loader: BlockLoader, x: Tensor) -> FullPass:
    return ComposedPass(loader, x, config.seed) if depends_on_company(model) else loader.full_pass


def _exact_pass(config: TrainConfig, data: Dataset, model: nn.Module, x: Tensor, y: Tensor) -> FullPass | None:
    """A pass over the examples that F is evaluated on, where those are not all."""
    if config.eval_examples == 0 or config.eval_examples >= len(x):
        return None
    generator = torch.Generator().manual_seed(config.seed)
    some = torch.randperm(len(x), generator=generator)[: config.eval_examples].to(x.device)
    return _full_pass(config, model, _loader(replace(config, replacement=True), data, x[some], y[some]), x[some])


def _labelled(loader: BlockLoader) -> int:
    return int(loader.tasks.positive.count.sum() + loader.tasks.negative.count.sum())


def _optimizer(config: TrainConfig, objective: nn.Module) -> torch.optim.Optimizer:
    lr = 0.0 if config.lr is None else config.lr
    if config.optimizer == "adam":
        return torch.optim.Adam(objective.parameters(), lr=lr, weight_decay=config.weight_decay)
    if config.optimizer == "adaptive":
        if config.weight_decay:
            raise LabError("--weight-decay is for sgd and adam; the adaptive form has none")
        return fcco.Adaptive(objective.parameters(), lr=lr)
    return torch.optim.SGD(objective.parameters(), lr=lr, weight_decay=config.weight_decay)


def _lengths(config: TrainConfig, loader: BlockLoader) -> tuple[int, int]:
    """Steps in all, and between evaluations."""
    total = config.steps if config.steps is not None else max(1, round(config.epochs * len(loader)))
    return total, len(loader) if config.eval_every is None else config.eval_every


def _schedule(config: TrainConfig, total: int) -> Callable[[int], float]:
    lr = 0.0 if config.lr is None else config.lr

    def at(t: int) -> float:
        done = min(1.0, (t - 1) / total)
        if config.schedule == "cosine":
            return lr * 0.5 * (1 + math.cos(math.pi * done))
        if config.schedule == "linear":
            return lr * (1 - done)
        if config.schedule == "step":
            return lr * (0.01 if done >= 0.75 else 0.1 if done >= 0.5 else 1.0)
        return lr

    return at
