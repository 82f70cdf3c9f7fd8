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
from fcco.lab import datasets
from fcco.lab.config import RATES, RECIPE_NAMES, RECIPES, TrainConfig, check, recipe_arguments
from fcco.lab.datasets import Dataset
from fcco.lab.errors import LabError, nearest, refusing
from fcco.lab.passes import ComposedPass, depends_on_company
from fcco.lab.weights import Prepared, network, scaling
from fcco.memory import MemoryLoader
from fcco.objectives import MultiTaskAUC, Square, SquaredHinge
from fcco.sampling import BlockLoader
from fcco.solver._full_pass import FullPass

#: Rates that the lab takes where none are given; the recipes themselves have no defaults.
DEFAULT_RATES: dict[str, float] = {"alpha": 0.5, "beta": 0.5, "theta": 1.0, "rate": 1.0}


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
    draws: BlockLoader | MemoryLoader  # what hands out the batches: the loader, or the output memory over it
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
        restarts = _restarts(config, data, loader, x, y)
        full_pass = _full_pass(config, model, loader, x)
        optimizer = _optimizer(config, objective)
        solver = fcco.Solver(objective, optimizer, _method(config), radius=config.radius, full_pass=full_pass)
        draws = loader if solver.method.memory is None else MemoryLoader(solver, loader)
        total, every = _lengths(config, loader, restarts)
        if config.compile:
            model.net.compile()
    return Parts(
        config=config,
        data=data,
        device=device,
        model=model,
        solver=solver,
        scheduler=fcco.LRSchedule(optimizer, _schedule(config, total)),
        loader=loader,
        draws=draws,
        restarts=restarts,
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
    if config.method in ("scent", "output-memory"):
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
    net = network(config, data.in_shape, data.num_classes)
    return Prepared(net, *scaling(x), bf16=config.precision == "bf16").to(x.device)


def _loss(config: TrainConfig) -> SquaredHinge | Square:
    kind = SquaredHinge if config.loss == "squared-hinge" else Square
    return kind(margin=config.margin, scale=0.5)


def _method(config: TrainConfig) -> fcco.Method:
    named = {RECIPE_NAMES.get(name, name): getattr(config, name) for name in RATES}
    taken = recipe_arguments(config.method)
    rates = {name: value for name, value in named.items() if name in taken and value is not None}
    return RECIPES[config.method](**rates)


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


def _restarts(config: TrainConfig, data: Dataset, loader: BlockLoader, x: Tensor, y: Tensor) -> BlockLoader | None:
    """BSpiderBoost restarts on four times the samples, as far as the smallest class goes."""
    if config.method != "bspiderboost":
        return None
    size, tasks = 4 * config.samples_per_block, loader.tasks
    if not config.replacement:
        size = min(
            size,
            int(tasks.positive.count.min()) * config.samples_per_block // loader.positives_per_block,
            int(tasks.negative.count.min()) * config.samples_per_block // loader.negatives_per_block,
        )
    return _loader(config, data, x, y, samples=max(size - 1, config.samples_per_block), seed=1_000_000)


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


def _lengths(config: TrainConfig, loader: BlockLoader, restarts: BlockLoader | None) -> tuple[int, int]:
    """Steps in all, and between evaluations."""
    every = len(loader) if config.eval_every is None else config.eval_every
    if config.steps is not None:
        return config.steps, every
    if config.samples is None:
        return max(1, round(config.epochs * len(loader))), every
    step = loader.blocks_per_step * loader.samples_per_block
    extra = _labelled(loader)  # v3: a full pass
    if restarts is not None:
        extra = loader.blocks_per_step * restarts.samples_per_block - step
    return max(1, steps_within(config.samples, step, config.period, extra)), every


def steps_within(samples: int, step: int, period: int | None, extra: int) -> int:
    """How many steps draw at most so many samples, where every period begins with ``extra`` ones.

    Example:
        >>> steps_within(100, 10, None, 0), steps_within(100, 10, 4, 20), steps_within(75, 10, 4, 20)
        (10, 6, 4)
    """
    if period is None:
        return samples // step
    whole, rest = divmod(samples, period * step + extra)
    return whole * period + max(0, rest - extra) // step


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
