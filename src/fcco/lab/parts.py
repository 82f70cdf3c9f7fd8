"""From a configuration to what trains: data, model, objective, method, optimizer, solver, loader."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

import fcco
from fcco.data import Loader, TaskBlocks, Tasks, full_pass
from fcco.data._epochs import EpochLoader
from fcco.lab import datasets
from fcco.lab.config import RATES, RECIPE_NAMES, TrainConfig, check, recipe_arguments
from fcco.lab.datasets import Dataset
from fcco.lab.errors import LabError, nearest, refusing
from fcco.lab.lengths import Costs, schedule, total_steps
from fcco.lab.models import channels_last
from fcco.lab.passes import ComposedPass, FullPass, depends_on_batch
from fcco.lab.weights import Prepared, network, scaling
from fcco.objectives import MultiTaskAUC, Square, SquaredHinge

#: In place of the methods' own 0.1, for the lab's step size: at lr 0.1 on digits MSVR-v2 with 0.1 ended far off in 4 of
#: 28 runs (one diverged), with 0.5 in none of 20.
SAFE_RATES = {"alpha": 0.5, "beta": 0.5}


@final
@dataclass(frozen=True)
class Parts:
    """Everything that a training run works with.

    Args:
        config: the lab's and the method's own choices stand in place of None.
        data: train and test.
        device: where everything is.
        model: scales its inputs by itself.
        solver: of the objective.
        loader: what the solver is stepped with.
        scheduler: of the step size.
        exact_pass: what F is evaluated over; None: the solver's own pass.
        x_test, y_test: on the device.
        total_steps: how long.
        eval_every: steps between evaluations.
        pass_samples: what the paper charges for a full pass: m n.
    """

    config: TrainConfig
    data: Dataset
    device: torch.device
    model: Prepared
    solver: fcco.Solver
    loader: EpochLoader
    scheduler: fcco.LRSchedule
    exact_pass: FullPass | None
    x_test: Tensor
    y_test: Tensor
    total_steps: int
    eval_every: int
    pass_samples: int


def build(config: TrainConfig, method: fcco.Method | None = None) -> Parts:
    """Put a run together; the global generator is seeded here.

    Args:
        config: of the run.
        method: in place of the one that the configuration names, for trials.
    """
    check(config)
    with refusing():
        dataset = load_data(config.dataset, config.target, config.image_size, config.drop, config.positive)
        device = _device(config.device)
        torch.manual_seed(config.seed)
        data = _tasks(dataset, device)
        model = _model(config, dataset, device)
        objective = _objective(config, model, data)
        config = resolved(config, objective.num_blocks)
        optimizer = _optimizer(config, objective)
        composed = _composed(config, objective, objective.blocks)
        if method is None:
            method = _method(config)
        solver = fcco.Solver(
            objective, optimizer, method, radius=config.radius, full_pass=composed, capture=_capture(config, device)
        )
        loader = solver.loader(blocks=_blocks(config), samples=config.samples, seed=config.seed)
        evaluations = data.num_examples
        if composed is not None:
            evaluations = composed.evaluations
        pass_samples = _labelled(objective.blocks)
        large = None
        if isinstance(loader, Loader):
            large = loader.large_batch_size
        costs = Costs(loader.batch_size, pass_samples, evaluations, large)
        steps = total_steps(config, solver.method, len(loader), costs)
        exact_pass = _exact_pass(config, objective, data)
        if config.compile:
            model.net.compile()
    return Parts(
        config=config,
        data=dataset,
        device=device,
        model=model,
        solver=solver,
        loader=loader,
        scheduler=fcco.LRSchedule(optimizer, schedule(config, steps)),
        exact_pass=exact_pass,
        x_test=dataset.x_test.to(device),
        y_test=dataset.y_test.to(device),
        total_steps=steps,
        eval_every=config.eval_every or len(loader),
        pass_samples=pass_samples,
    )


@lru_cache(maxsize=2)
def load_data(
    dataset: str,
    target: tuple[str, ...] = (),
    image_size: int | None = None,
    drop: tuple[str, ...] = (),
    positive: str | None = None,
) -> Dataset:
    """A data set by name, or the user's own by its path."""
    if (drop or positive is not None) and not target:
        raise LabError("--drop and --positive are for a table with --target")
    if dataset in datasets.NAMES:
        return datasets.load(dataset)
    path = Path(dataset)
    if path.is_dir():
        return datasets.from_folder(path, size=image_size)
    if not path.exists():
        hint = nearest(dataset, datasets.NAMES)
        raise LabError(f"unknown dataset {dataset!r}{hint}; known: {', '.join(datasets.NAMES)}, or a path")
    if len(target) == 1:
        return datasets.from_table(path, target=target[0], drop=drop, positive=positive)
    if target:
        return datasets.from_table(path, target=list(target), drop=drop, positive=positive)
    if path.suffix == ".npz":
        return datasets.from_npz(path)
    raise LabError(f"--target must name the label column of {path}")


def resolved(config: TrainConfig, num_blocks: int) -> TrainConfig:
    """The same configuration with the lab's and the method's own choices in place of None."""
    blocks = config.blocks
    if blocks is None:
        blocks = default_blocks(num_blocks)
    lr = config.lr
    if lr is None and config.optimizer == "sgd":
        lr = 0.1
    elif lr is None:
        lr = 0.001
    taken = recipe_arguments(config.method)
    rates: dict[str, Any] = {}
    for name in RATES:
        parameter = taken.get(RECIPE_NAMES.get(name, name))
        if getattr(config, name) is None and parameter is not None and parameter.default is not None:
            rates[name] = SAFE_RATES.get(name, parameter.default)
    return replace(config, blocks=blocks, lr=lr, **rates)


def default_blocks(num_tasks: int) -> int:
    """The paper's B1: 5, and 50 for a hundred tasks."""
    if num_tasks >= 100:
        return 50
    return min(5, num_tasks)


def _blocks(config: TrainConfig) -> int:
    assert config.blocks is not None  # resolved
    return config.blocks


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise LabError(f"--device {name} cannot be used here: {str(error).splitlines()[0]}") from error
    return device


def _tasks(dataset: Dataset, device: torch.device) -> Tasks:
    """The training data; a class is a task, also where there are only two of them."""
    classes = None
    if not dataset.multilabel:
        classes = range(dataset.num_classes)
    return Tasks(dataset.x_train.to(device), dataset.y_train.to(device), classes=classes)


def _model(config: TrainConfig, dataset: Dataset, device: torch.device) -> Prepared:
    net = network(config, dataset.in_shape, dataset.num_classes)
    mean, spread = scaling(dataset.x_train)
    model = Prepared(net, mean, spread, bf16=config.precision == "bf16")
    if config.precision == "fp64":
        model = model.double()
    model = model.to(device)
    if device.type == "cuda":
        return channels_last(model)
    return model


def _objective(config: TrainConfig, model: nn.Module, data: Tasks) -> MultiTaskAUC:
    loss: SquaredHinge | Square
    if config.loss == "squared-hinge":
        loss = SquaredHinge(margin=config.margin, scale=0.5)
    else:
        loss = Square(margin=config.margin)  # not halved: so F is the pairwise square loss
    return MultiTaskAUC(
        model,
        data,
        loss=loss,
        trained_centers=config.trained_centers,
        positive_fraction=config.positive_fraction,
    )


def _method(config: TrainConfig) -> fcco.Method:
    taken = recipe_arguments(config.method)
    named = {RECIPE_NAMES.get(name, name): getattr(config, name) for name in RATES}
    rates = {name: value for name, value in named.items() if name in taken and value is not None}
    if config.nesterov:
        rates["nesterov"] = True
    return fcco.METHODS[config.method](**rates)


def _capture(config: TrainConfig, device: torch.device) -> bool | Literal["auto"]:
    """What the Solver is told of captured steps."""
    if config.capture and device.type == "cuda":
        return "auto"
    return False


def _composed(config: TrainConfig, model: nn.Module, structure: TaskBlocks) -> ComposedPass | None:
    """A pass composed as the steps are, where the model needs it."""
    if not depends_on_batch(model):
        return None
    return ComposedPass(structure, blocks=_blocks(config), samples=config.samples, seed=config.seed)


def _exact_pass(config: TrainConfig, objective: MultiTaskAUC, data: Tasks) -> FullPass | None:
    """A pass over the examples that F is evaluated on, where those are not all."""
    if config.eval_examples == 0 or config.eval_examples >= data.num_examples:
        return None
    generator = torch.Generator().manual_seed(config.seed)
    some = torch.randperm(data.num_examples, generator=generator)[: config.eval_examples]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tasks left out: the error below says more
        part = TaskBlocks(data.subset(some), positive_fraction=config.positive_fraction)
    if not torch.equal(part.block_task, objective.blocks.block_task):
        raise LabError(
            f"--eval-examples {config.eval_examples} are too few: {part.num_blocks} of {objective.num_blocks} tasks "
            "have positives and negatives among them"
        )
    composed = _composed(config, objective, part)
    if composed is not None:
        return composed
    return partial(full_pass, part, dtype=objective.input_dtype())


def _labelled(structure: TaskBlocks) -> int:
    """m n: the labels of all tasks."""
    used = structure.block_task
    return int(structure.positives.count[used].sum() + structure.negatives.count[used].sum())


def _optimizer(config: TrainConfig, objective: nn.Module) -> torch.optim.Optimizer:
    assert config.lr is not None  # resolved
    parameters = list(objective.parameters())
    settings: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    # Steps are captured where the device has graphs, and these three count their steps on the host otherwise.
    settings_on_device: dict[str, Any] = settings | {"capturable": parameters[0].device.type == "cuda"}
    if config.optimizer == "adam":
        return torch.optim.Adam(parameters, **settings_on_device)
    if config.optimizer == "nadam":
        return torch.optim.NAdam(parameters, **settings_on_device)
    if config.optimizer == "adaptive":
        return fcco.Adaptive(parameters, **settings_on_device)
    return torch.optim.SGD(parameters, **settings)
