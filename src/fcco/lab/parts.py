"""From a configuration to what trains: data, model, objective, method, optimizer, solver, loader."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

import fcco
from fcco.data import Batch, Loader, Structure, TaskBlocks, Tasks, full_pass
from fcco.data._epochs import EpochLoader
from fcco.lab.config import RATES, RECIPE_NAMES, TrainConfig, check, recipe_arguments
from fcco.lab.errors import LabError, refusing
from fcco.lab.lengths import Costs, schedule, total_steps
from fcco.lab.loaded import Loaded, inputs_of, load
from fcco.lab.machine import pick_device
from fcco.lab.models import channels_last
from fcco.lab.objectives import check_kind, make_objective, num_outputs
from fcco.lab.passes import ComposedPass, FullPass, depends_on_batch
from fcco.lab.values import from_values, read_toml
from fcco.lab.weights import Prepared, new_model
from fcco.objectives import MultiTaskAUC, OutputObjective

#: In place of the methods' own 0.1, for the lab's step size: at lr 0.1 on digits MSVR-v2 with 0.1 ended far off in 4 of
#: 28 runs (one diverged), with 0.5 in none of 20.
SAFE_RATES = {"alpha": 0.5, "beta": 0.5}
DEFAULT_LR = {"sgd": 0.1}  # 0.001 for all others


@final
@dataclass(frozen=True)
class Parts:
    """Everything that a training run works with.

    Args:
        config: the lab's and the method's own choices stand in place of None.
        data: training and test part.
        train: what is trained on: the training part less the validation part.
        test, valid: what is scored at evaluations, on the device; valid: None where no share is left out for it.
        device: where everything is.
        model: scales its inputs by itself.
        solver: of the objective.
        loader: what the solver is stepped with.
        scheduler: of the step size.
        exact_pass: what F is evaluated over; None: the solver's own pass.
        stages: runs the solver where the configuration has stages; else None.
        total_steps: how long.
        eval_every: steps between evaluations.
        pass_samples: what the paper charges for a full pass: m n.
    """

    config: TrainConfig
    data: Loaded
    train: Structure
    test: Structure
    valid: Structure | None
    device: torch.device
    model: Prepared
    solver: fcco.Solver
    loader: EpochLoader
    scheduler: fcco.LRSchedule
    exact_pass: FullPass | None
    total_steps: int
    eval_every: int
    pass_samples: int
    stages: fcco.StageWise | None = None

    @property
    def x_test(self) -> Tensor:
        """(M, ...) inputs of the test part."""
        return inputs_of(self.test)

    @property
    def y_test(self) -> Tensor:
        """(M,) or (M, T) labels of the test part."""
        assert isinstance(self.test, Tasks)
        return self.test.y


def build(config: TrainConfig, method: fcco.Method | None = None) -> Parts:
    """Put a run together. This seeds the global generator.

    Args:
        config: of the run.
        method: in place of the one that the configuration names, for trials.
    """
    check(config)
    with refusing():
        loaded = load(config)
        check_kind(config, loaded.train)
        device = pick_device(config.device)
        torch.manual_seed(config.seed)
        train, valid = _parts_of(config, loaded)
        data = train.to(device)
        model = _model(config, loaded, device)
        objective = make_objective(config, model, data)
        config = resolved(config, objective)
        optimizer = _optimizer(config, objective)
        composed = _composed(config, objective)
        if method is None:
            method = _method(config)
        solver = fcco.Solver(
            objective,
            optimizer,
            method,
            radius=config.radius,
            full_pass=composed,
            keep=config.keep,
            seed=config.seed,
            capture=_capture(config, device),
        )
        loader = solver.loader(blocks=_blocks(config), samples=config.samples, seed=config.seed)
        pass_samples = _labelled(objective)
        stages = _stages(config, solver)
        if stages is None:
            costs = _costs(loader, data, pass_samples, composed)
            steps = total_steps(config, solver.method, len(loader), costs)
        else:
            steps = sum(stage.steps for stage in stages.stages)
        exact_pass = _exact_pass(config, objective, data)
        if config.compile:
            model.net.compile()
        if valid is not None:
            valid = valid.to(device)
    return Parts(
        config=config,
        data=loaded,
        train=data,
        test=loaded.test.to(device),
        valid=valid,
        device=device,
        model=model,
        solver=solver,
        loader=loader,
        scheduler=fcco.LRSchedule(optimizer, schedule(config, steps)),
        exact_pass=exact_pass,
        total_steps=steps,
        eval_every=config.eval_every or len(loader),
        pass_samples=pass_samples,
        stages=stages,
    )


def _costs(loader: EpochLoader, data: Structure, pass_samples: int, composed: ComposedPass | None) -> Costs:
    """Return what a step and a full pass cost."""
    evaluations = data.num_examples
    if composed is not None:
        evaluations = composed.evaluations
    large = None
    if isinstance(loader, Loader):
        large = loader.large_batch_size
    return Costs(loader.batch_size, pass_samples, evaluations, large)


def _parts_of(config: TrainConfig, data: Loaded) -> tuple[Structure, Structure | None]:
    """Return what is trained on, and what is left out of it for validation."""
    if config.validation == 0.0:
        return data.train, None
    valid, train = data.train.split(config.validation, seed=config.seed)
    return train, valid


def resolved(config: TrainConfig, objective: OutputObjective) -> TrainConfig:
    """Return the same configuration with the lab's and the method's own choices in place of None."""
    choices = _default_rates(config)
    if config.blocks is None:
        choices["blocks"] = _chosen_blocks(config, objective)
    if config.lr is None:
        choices["lr"] = DEFAULT_LR.get(config.optimizer, 0.001)
    return replace(config, **choices)


def _default_rates(config: TrainConfig) -> dict[str, Any]:
    """Return the rates that the method takes and the configuration leaves open."""
    taken = recipe_arguments(config.method)
    rates: dict[str, Any] = {}
    for name in RATES:
        parameter = taken.get(RECIPE_NAMES.get(name, name))
        if getattr(config, name) is None and parameter is not None and parameter.default is not None:
            rates[name] = SAFE_RATES.get(name, parameter.default)
    return rates


def _chosen_blocks(config: TrainConfig, objective: OutputObjective) -> int:
    if isinstance(objective, MultiTaskAUC):
        return default_blocks(objective.num_blocks)
    if config.method == "output-memory":
        return max(1, 256 // config.samples)  # it draws B1 B2 examples, each for all blocks
    return min(32, objective.num_blocks)  # blocks are examples, items or groups, and there are many of them


def default_blocks(num_tasks: int) -> int:
    """Return the paper's B1: 5, and 50 for a hundred tasks."""
    if num_tasks >= 100:
        return 50
    return min(5, num_tasks)


def _blocks(config: TrainConfig) -> int:
    assert config.blocks is not None  # resolved
    return config.blocks


def _model(config: TrainConfig, data: Loaded, device: torch.device) -> Prepared:
    model = new_model(network_settings(config, data.num_classes), data, bf16=config.precision == "bf16")
    if config.precision == "fp64":
        model = model.double()
    model = model.to(device)
    if device.type == "cuda":
        return channels_last(model)
    return model


def network_settings(config: TrainConfig, num_classes: int) -> dict[str, Any]:
    """Return what the network is made from; without dropout, so that F is a function of the weights."""
    return {
        "model": config.model,
        "outputs": num_outputs(config, num_classes),
        "hidden": list(config.hidden),
        "stem": config.stem,
        "dropout": 0.0,
    }


def _stages(config: TrainConfig, solver: fcco.Solver) -> fcco.StageWise | None:
    """Read the stages of a TOML file: [[stage]] tables with steps, lr, alpha and beta."""
    if config.stages is None:
        return None
    content = read_toml(config.stages)
    tables = content.get("stage")
    if not isinstance(tables, list) or not tables or set(content) != {"stage"}:
        raise LabError(f"{config.stages} must hold only [[stage]] tables")
    stages = []
    for number, values in enumerate(tables):
        where = f"{config.stages}, stage {number + 1}"
        absent = [name for name in ("steps", "lr", "alpha", "beta") if name not in values]
        if absent:
            raise LabError(f"{where}: {absent[0]} is missing")
        stages.append(from_values(fcco.Stage, values, where))
    return fcco.StageWise(solver, stages, mu=config.weight_decay, seed=config.seed)


def _method(config: TrainConfig) -> fcco.Method:
    taken = recipe_arguments(config.method)
    rates: dict[str, Any] = {}
    for name in RATES:
        argument = RECIPE_NAMES.get(name, name)
        value = getattr(config, name)
        if argument in taken and value is not None:
            rates[argument] = value
    if config.nesterov:
        rates["nesterov"] = True
    return fcco.METHODS[config.method](**rates)


def _capture(config: TrainConfig, device: torch.device) -> bool | Literal["auto"]:
    """Return the Solver's argument `capture`."""
    if config.capture and device.type == "cuda":
        return "auto"
    return False


def _composed(
    config: TrainConfig, objective: OutputObjective, structure: TaskBlocks | None = None
) -> ComposedPass | None:
    """Return a pass composed as the steps are, over the objective's blocks or others; None where none is needed."""
    if structure is None and isinstance(objective.blocks, TaskBlocks):
        structure = objective.blocks
    if structure is None or not depends_on_batch(objective):
        return None
    return ComposedPass(structure, blocks=_blocks(config), samples=config.samples, seed=config.seed)


def _exact_pass(config: TrainConfig, objective: OutputObjective, data: Structure) -> FullPass | None:
    """Return a pass over the examples that F is evaluated on; None where those are all of them."""
    if config.eval_examples == 0 or config.eval_examples >= data.num_examples:
        return None
    if not isinstance(objective, MultiTaskAUC):
        raise LabError(f"--eval-examples is for --objective MultiTaskAUC, got {config.objective}")
    assert isinstance(data, Tasks)
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
    return partial(_part_pass, part, objective.input_dtype())


def _part_pass(part: TaskBlocks, dtype: torch.dtype | None) -> Iterator[Batch]:
    """Pass over a part of the objective's data: the tasks are the same, and the batches do not name their data set."""
    for batch in full_pass(part, dtype=dtype):
        yield replace(batch, origin=None)


def _labelled(objective: OutputObjective) -> int:
    """Return m n: the number of labels of all tasks, or of examples where blocks are no tasks."""
    structure = objective.blocks
    if not isinstance(structure, TaskBlocks):
        return structure.data.num_examples
    used = structure.block_task
    return int(structure.positives.count[used].sum() + structure.negatives.count[used].sum())


def _optimizer(config: TrainConfig, objective: nn.Module) -> torch.optim.Optimizer:
    assert config.lr is not None  # resolved
    parameters = list(objective.parameters())
    settings: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    # Steps are captured where the device has graphs, and these three count their steps on the host otherwise.
    settings_on_device: dict[str, Any] = settings | {"capturable": parameters[0].device.type == "cuda"}
    if config.optimizer == "adam":
        return torch.optim.Adam(parameters, amsgrad=config.amsgrad, **settings_on_device)
    if config.optimizer == "nadam":
        return torch.optim.NAdam(parameters, **settings_on_device)
    if config.optimizer == "adaptive":
        return fcco.Adaptive(parameters, amsgrad=config.amsgrad, **settings_on_device)
    return torch.optim.SGD(parameters, **settings)
