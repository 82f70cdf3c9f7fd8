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
    """Your data: a CSV or Parquet table (with --target), a folder of class sub-folders of images, an .npz; or a name:
    digits, mnist, fashion-mnist, cifar10, cifar100, svhn, stl10."""
    target: tuple[str, ...] = ()
    """Label column of a table; several columns are several 0/1 labels."""
    drop: tuple[str, ...] = ()
    """Columns of a table that are left out, such as a row's id."""
    positive: str | None = None
    """The class that counts as positive, against all others; None: the larger of two numbers, and every class of
    three or more in turn."""
    query: str | None = None
    """Column that says which rows are ranked against each other; --target is then their relevance."""
    time: str | None = None
    """Column of times until the event, or until nobody looked any more; with --event, in place of --target."""
    event: str | None = None
    """Column that says whether the event was seen (1) or not (0)."""
    group: str | None = None
    """Column of groups, of which the worst one counts."""
    image_size: int | None = None
    """Images of a folder are brought to this height and width."""


@dataclass(frozen=True)
class FitConfig(DataConfig):
    """What `fcco.fit` is told: the data, the metric, the network, and how long."""

    metric: str | None = None
    """average_precision, roc_auc, partial_auc, two_way_partial_auc; ndcg (with --query), concordance (with --time and
    --event), worst_group (with --group); None: by the columns that are named, else average_precision."""
    max_fpr: float = 0.3
    """Up to which false positive rate the partial AUCs go."""
    min_tpr: float = 0.7
    """From which true positive rate on two_way_partial_auc counts."""
    k: int = 10
    """How far down each list ndcg looks."""
    model: str | None = None
    """linear, mlp, resnet18, resnet34 or densenet121; None: the network for tables, and an MLP for everything else."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the MLP's hidden layers."""
    stem: Literal["small", "imagenet"] = "small"
    """First layers of the convolutional networks."""
    epochs: float | None = None
    """Passes over the data in one trial, of which there are about twelve; None: 20, and more where the data are
    few."""
    batch_size: int | None = None
    """Examples per step; None: by the number of rows."""
    validation: float = 0.2
    """Share of the training part that chooses among the trials and is not trained on; the test part is apart from
    it."""
    calibrate: Literal["auto", "isotonic", "platt", "none"] = "auto"
    """How scores become probabilities; auto: isotonic with 200 validation positives or more, else platt."""
    seed: int = 0
    """Of weights, draws and the validation part."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: the network runs under autocast."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    threads: int = 0
    """CPU threads; 0: one for small networks, torch's own choice for convolutional ones. Bits may depend on it."""
    tensorboard: bool = False
    """Write TensorBoard events beside the history."""


@dataclass(frozen=True)
class TrainConfig(DataConfig):
    """One objective by one method: data, model, method, optimizer and how long."""

    objective: str = "MultiTaskAUC"
    """A name from `fcco objectives`."""
    model: str = "mlp"
    """linear, mlp, resnet18, resnet34 or densenet121; for a table the MLP has embeddings of its columns."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the MLP's hidden layers."""
    stem: Literal["small", "imagenet"] = "small"
    """First layers of the convolutional networks."""
    method: str = "msvr-v2"
    """A name from `fcco methods`."""
    alpha: float | None = None
    """Rate of the gradient estimate z; None: 0.5, or the plain gradient where that is the method's default."""
    beta: float | None = None
    """Rate of the tracked u; None: 0.5."""
    gamma: float | None = None
    """Weight of MSVR's correction; None: the paper's formula."""
    zeta: float | None = None
    """How much of STORM's correction of z MSVR-v2 takes, from 0 (momentum) to 1; None: all of it, the paper's."""
    theta: float | None = None
    """Extrapolation of alexr; None: the method's default."""
    rate: float | None = None
    """Step of scent's rate per block; None: the method's default."""
    lag: int | None = None
    """Whether gradients are weighed with the u from before the step (1) or after it (0); None: as published."""
    stages: Path | None = None
    """A TOML file of stages, each [[stage]] with steps, lr, alpha and beta; takes the place of lr, alpha and beta."""
    nesterov: bool = False
    """Nesterov's form of the momentum, for methods that have one."""
    period: int | None = None
    """Steps between two full passes (v3; None: one epoch) or restarts (bspiderboost; None: the method's default)."""
    importance: float | None = None
    """Share of output-memory's draws that goes by how much an example matters; None: the method's default."""
    radius: float | None = None
    """Clip z to this norm; None: do not."""
    optimizer: str = "sgd"
    """sgd, adam, nadam, or adaptive (the paper's)."""
    lr: float | None = None
    """Step size; None: 0.1 for sgd, 0.001 else."""
    amsgrad: bool = False
    """The largest second moment so far in place of the latest, for adam and adaptive."""
    keep: Literal["last", "uniform"] = "last"
    """Which weights are saved: the last ones, or those of a step drawn uniformly over the run, as the theory has it."""
    schedule: str = "constant"
    """constant, cosine, linear, or step (a tenth after half, a hundredth after three quarters)."""
    weight_decay: float = 0.0
    """L2 decay, in the optimizer."""
    blocks: int | None = None
    """B1, tasks per step; None: 5 (50 where there are 100 tasks or more), or all tasks where there are fewer."""
    samples: int = 128
    """B2, samples per task and step; a class with fewer examples gives all that it has."""
    positive_fraction: float = 0.5
    """Share of positives among them."""
    loss: Literal["squared-hinge", "square"] = "squared-hinge"
    """Surrogate of a difference of scores (MultiTaskAUC: of the class means, where with square F is the pairwise
    square loss)."""
    margin: float = 1.0
    """The surrogate's margin c."""
    temperature: float | None = None
    """Of PartialAUC: small ones mind the hardest negatives; None: 1."""
    strength: float | None = None
    """Of GroupDRO's penalty: small ones mind the worst group; None: 1."""
    embedding: int = 64
    """Width of NCA's embeddings."""
    trained_centers: bool = True
    """The centres a, b as trained variables (the paper's), or as exact class means."""
    validation: float = 0.0
    """Share of the training part that is left out of training and scored beside the test part; sweeps choose by it."""
    epochs: float = 20.0
    """How long; an epoch is one pass over the data: as many samples as there are training examples."""
    total_samples: int | None = None
    """How long, in samples drawn, where every full pass of v3 counts m n; overrides epochs."""
    steps: int | None = None
    """How long, in steps; overrides both."""
    eval_every: int | None = None
    """Steps between evaluations; None: one epoch."""
    eval_examples: int = 0
    """Training examples that the objective is evaluated on; 0: all of them (exact)."""
    gradient_norm: bool = False
    """Also evaluate the exact ||grad F|| (a backward pass over all data)."""
    seed: int = 0
    """Of weights and draws."""
    precision: Literal["fp32", "bf16", "fp64"] = "fp32"
    """bf16: the network runs under autocast; fp64: everything in double precision."""
    capture: bool = True
    """On CUDA, replay each step as one captured graph where that is possible."""
    compile: bool = False
    """torch.compile the network."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    threads: int = 0
    """CPU threads; 0: one for mlp and linear (more of them cost more than they save on a busy machine), torch's own
    choice for the others. Bits may depend on it."""
    tensorboard: bool = True
    """Write TensorBoard events next to metrics.jsonl, where the package is installed."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints."""


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
        raise LabError(f"--amsgrad is for adam and adaptive, got --optimizer {config.optimizer}")
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
        raise LabError(f"{config.method} has no momentum in Nesterov's form")


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
