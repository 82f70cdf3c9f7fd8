"""Everything that a run depends on, as one typed, frozen dataclass for flags, TOML files and config.json."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import fcco
from fcco.lab.errors import LabError, pick
from fcco.lab.texts import OBJECTIVES

OPTIMIZERS = ("sgd", "adam", "nadam", "adaptive")
SCHEDULES = ("constant", "cosine", "linear", "step")
RATES = ("alpha", "beta", "gamma", "zeta", "theta", "rate", "lag", "period", "importance")
RECIPE_NAMES = {"rate": "step"}  # where a recipe's argument has another name than the field here


@dataclass(frozen=True)
class DataConfig:
    """Which data, and what their columns are."""

    dataset: str = "digits"
    """Your data: a CSV or Parquet table (with --target), a folder of images with one sub-folder per class, or an .npz
    file. Or the name of a data set: digits, mnist, fashion-mnist, cifar10, cifar100, svhn, stl10."""
    target: tuple[str, ...] = ()
    """Label column of a table. Several columns are several 0/1 labels."""
    drop: tuple[str, ...] = ()
    """Columns of a table to leave out, such as a row's id."""
    positive: str | None = None
    """The class that counts as positive, against all others. None: of two classes, the larger number; of three or
    more, each in turn."""
    query: str | None = None
    """Column of the query that each row belongs to. Rows of one query are ranked against each other, by --target."""
    time: str | None = None
    """Column of the time until the event, or until observation ended. Give it with --event, in place of --target."""
    event: str | None = None
    """Column that says whether the event was observed (1) or not (0)."""
    group: str | None = None
    """Column of the group that each row belongs to. The worst group counts."""
    image_size: int | None = None
    """Resize the images of a folder to this height and width."""


@dataclass(frozen=True)
class FitConfig(DataConfig):
    """What `fcco.fit` is told: the data, the metric, the network, and how long."""

    metric: str | None = None
    """average_precision, roc_auc, partial_auc, two_way_partial_auc, ndcg (with --query), concordance (with --time and
    --event) or worst_group (with --group). None: as the given columns suggest, otherwise average_precision."""
    max_fpr: float = 0.3
    """Largest false-positive rate that the partial AUCs include."""
    min_tpr: float = 0.7
    """Smallest true-positive rate that two_way_partial_auc includes."""
    k: int = 10
    """Number of items at the top of each list that ndcg counts."""
    model: str | None = None
    """linear, mlp, resnet18, resnet34 or densenet121. None: the network for tables, and an MLP for everything else."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the MLP's hidden layers."""
    stem: Literal["small", "imagenet"] = "small"
    """First layers of the convolutional networks."""
    epochs: float | None = None
    """Passes over the data in one trial. There are about twelve trials. None: 20, or more for small data."""
    batch_size: int | None = None
    """Examples per step. None: chosen by the number of rows."""
    validation: float = 0.2
    """Share of the training data that is held out to choose among the trials. The test data are separate."""
    calibrate: Literal["auto", "isotonic", "platt", "none"] = "auto"
    """How scores become probabilities. auto: isotonic with 200 validation positives or more, otherwise platt."""
    seed: int = 0
    """Seed of the weights, the draws and the validation split."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: run the network under autocast."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    threads: int = 0
    """CPU threads. 0: one for small networks, torch's own choice for convolutional ones. The last bits of the results
    may depend on it."""
    tensorboard: bool = False
    """Write TensorBoard events beside the history."""


@dataclass(frozen=True)
class TrainConfig(DataConfig):
    """One objective by one method: data, model, method, optimizer and how long."""

    objective: str = "MultiTaskAUC"
    """A name from `fcco objectives`."""
    model: str = "mlp"
    """linear, mlp, resnet18, resnet34 or densenet121. For a table, the MLP has embeddings of its columns."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the MLP's hidden layers."""
    stem: Literal["small", "imagenet"] = "small"
    """First layers of the convolutional networks."""
    method: str = "msvr-v2"
    """A name from `fcco methods`."""
    alpha: float | None = None
    """Rate of the gradient estimate z. None: 0.5, or the plain gradient if that is the method's default."""
    beta: float | None = None
    """Rate of the tracked estimate u. None: 0.5."""
    gamma: float | None = None
    """Weight of MSVR's correction. None: the paper's formula."""
    zeta: float | None = None
    """Weight of STORM's correction of z in MSVR-v2, from 0 (momentum) to 1. None: 1, as in the paper."""
    theta: float | None = None
    """Extrapolation of alexr. None: the method's default."""
    rate: float | None = None
    """Step of scent's rate per block. None: the method's default."""
    lag: int | None = None
    """Weight gradients with the u from before the step (1) or after it (0). None: as published."""
    stages: Path | None = None
    """A TOML file of stages, each a [[stage]] with steps, lr, alpha and beta. Replaces lr, alpha and beta."""
    nesterov: bool = False
    """Use Nesterov momentum, for methods that have it."""
    period: int | None = None
    """Steps between full passes (v3; None: one epoch) or restarts (bspiderboost; None: the method's default)."""
    importance: float | None = None
    """Share of output-memory's draws made by importance. None: the method's default."""
    radius: float | None = None
    """Clip z to this norm. None: no clipping."""
    optimizer: str = "sgd"
    """sgd, adam, nadam, or adaptive (the paper's)."""
    lr: float | None = None
    """Step size. None: 0.1 for sgd, 0.001 for the others."""
    amsgrad: bool = False
    """Use the largest second moment so far and not the latest, for adam and adaptive."""
    keep: Literal["last", "uniform"] = "last"
    """Which weights to save: the last ones, or those of a step drawn uniformly over the run, as in the theory."""
    schedule: str = "constant"
    """constant, cosine, linear, or step (a tenth after half, a hundredth after three quarters)."""
    weight_decay: float = 0.0
    """L2 decay, in the optimizer."""
    blocks: int | None = None
    """B1, tasks per step. None: 5 (50 if there are 100 tasks or more), or all tasks if there are fewer."""
    samples: int = 128
    """B2, samples per task and step. A class with fewer examples gives all that it has."""
    positive_fraction: float = 0.5
    """Share of positives among these samples."""
    loss: Literal["squared-hinge", "square"] = "squared-hinge"
    """Surrogate of a difference of scores. In MultiTaskAUC it is applied to the class means, and with square, F is the
    pairwise square loss."""
    margin: float = 1.0
    """Margin c of the surrogate."""
    temperature: float | None = None
    """Temperature of PartialAUC. A small one stresses the hardest negatives. None: 1."""
    strength: float | None = None
    """Strength of GroupDRO's penalty. A small one stresses the worst group. None: 1."""
    embedding: int = 64
    """Width of NCA's embeddings."""
    trained_centers: bool = True
    """Train the centres a and b as variables, as in the paper, and do not use exact class means."""
    validation: float = 0.0
    """Share of the training data that is held out and scored beside the test data. Sweeps choose by it."""
    epochs: float = 20.0
    """Length of the run in epochs. An epoch draws as many samples as there are training examples."""
    total_samples: int | None = None
    """Length of the run in samples drawn, where every full pass of v3 counts m n. Overrides epochs."""
    steps: int | None = None
    """Length of the run in steps. Overrides both."""
    eval_every: int | None = None
    """Steps between evaluations. None: one epoch."""
    eval_examples: int = 0
    """Number of training examples on which the objective is evaluated. 0: all of them (exact)."""
    gradient_norm: bool = False
    """Also evaluate the exact ||grad F||, which takes a backward pass over all data."""
    seed: int = 0
    """Seed of the weights and the draws."""
    precision: Literal["fp32", "bf16", "fp64"] = "fp32"
    """bf16: run the network under autocast. fp64: compute everything in double precision."""
    capture: bool = True
    """On CUDA, replay each step as one captured graph if possible."""
    compile: bool = False
    """Apply torch.compile to the network."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    threads: int = 0
    """CPU threads. 0: one for mlp and linear, since more of them cost more than they save on a busy machine, and
    torch's own choice for the others. The last bits of the results may depend on it."""
    tensorboard: bool = True
    """Write TensorBoard events beside metrics.jsonl, if tensorboard is installed."""
    checkpoint_seconds: float = 60.0
    """Seconds between two checkpoints."""


#: What may change between a run and its resumption: none of it changes the numbers.
FREE = frozenset({"checkpoint_seconds", "tensorboard"})


def check(config: TrainConfig) -> TrainConfig:
    """Return the same configuration, once every name is known and every number is in range."""
    from fcco.lab.models import NAMES as MODELS

    pick("method", config.method, fcco.METHODS)
    pick("objective", config.objective, OBJECTIVES)
    pick("model", config.model, MODELS)
    pick("optimizer", config.optimizer, OPTIMIZERS)
    pick("schedule", config.schedule, SCHEDULES)
    _check_rates(config)
    _check_sizes(config)
    if config.amsgrad and config.optimizer not in ("adam", "adaptive"):
        raise LabError(f"--amsgrad applies only to adam and adaptive, got --optimizer {config.optimizer}")
    _share("validation", config.validation, with_zero=True)
    for name in ("lr", "margin", "weight_decay"):
        _number(name, getattr(config, name), least=0.0)
    for name in ("epochs", "radius", "checkpoint_seconds", "temperature", "strength"):
        _number(name, getattr(config, name), above=0.0)
    for name in ("blocks", "samples", "total_samples", "steps", "eval_every", "image_size", "period", "embedding"):
        _number(name, getattr(config, name), least=1)
    for name in ("eval_examples", "threads"):
        _number(name, getattr(config, name), least=0)
    _at_most("threads", config.threads, 1024)
    _at_most("image_size", config.image_size, 2**16)
    return config


def check_fit(config: FitConfig) -> FitConfig:
    """Return the same configuration, once every name is known and every number is in range."""
    from fcco.fitting._goal import METRICS, meant
    from fcco.lab.models import NAMES as MODELS

    _check_sizes(config)
    if config.metric is not None and config.metric not in METRICS:
        known = ", ".join(METRICS)
        raise LabError(f"--metric must be one of {known}, got {config.metric!r}{meant(config.metric)}")
    if config.model is not None:
        pick("model", config.model, MODELS)
    _share("validation", config.validation)
    _share("max_fpr", config.max_fpr)
    _share("min_tpr", config.min_tpr)
    _number("epochs", config.epochs, above=0.0)
    for name in ("k", "batch_size", "image_size"):
        _number(name, getattr(config, name), least=1)
    for name in ("threads", "seed"):
        _number(name, getattr(config, name), least=0)
    _at_most("threads", config.threads, 1024)
    _at_most("image_size", config.image_size, 2**16)
    return config


def _at_most(name: str, value: int | None, most: int) -> None:
    if value is not None and value > most:
        raise LabError(f"{flag(name)} must be at most {most}, got {value}")


def takes_rate(method: str, name: str) -> bool:
    """Return whether a method's recipe has the rate of this name."""
    return RECIPE_NAMES.get(name, name) in recipe_arguments(method)


def _check_rates(config: TrainConfig) -> None:
    """Refuse rates that the method does not have."""
    taken = [name for name in sorted(RATES) if takes_rate(config.method, name)]
    for name in RATES:
        if getattr(config, name) is not None and name not in taken:
            listed = ", ".join(taken) or "no rates"
            raise LabError(f"{config.method} has no {name} (it takes {listed})")
    if config.nesterov and "nesterov" not in recipe_arguments(config.method):
        raise LabError(f"{config.method} has no Nesterov momentum")


def _check_sizes(config: DataConfig) -> None:
    for field in fields(config):
        _check_size(field.name, getattr(config, field.name))


def _check_size(name: str, value: Any) -> None:
    """Refuse whole numbers that torch cannot hold, in lists too: its own errors name no setting."""
    if isinstance(value, tuple):
        for item in value:
            _check_size(name, item)
    elif isinstance(value, int) and abs(value) >= 2**63:
        raise LabError(f"{flag(name)} must be below 2^63, got {value}")


def _share(name: str, value: float, *, with_zero: bool = False) -> None:
    if 0.0 < value < 1.0 or (with_zero and value == 0.0):
        return
    bracket = "("
    if with_zero:
        bracket = "["
    raise LabError(f"{flag(name)} must be in {bracket}0, 1), got {value:g}")


def _number(name: str, value: float | None, *, least: float | None = None, above: float | None = None) -> None:
    if value is None:
        return
    if least is not None and not least <= value < math.inf:
        raise LabError(f"{flag(name)} must be >= {least:g}, got {value}")
    if above is not None and not above < value < math.inf:
        raise LabError(f"{flag(name)} must be > {above:g}, got {value}")


def flag(name: str) -> str:
    """Return a field's flag."""
    return "--" + name.replace("_", "-")


def recipe_arguments(method: str) -> Mapping[str, inspect.Parameter]:
    """Return the arguments of a method's recipe."""
    return inspect.signature(fcco.METHODS[method]).parameters
