"""fit: name the metric, get the model."""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from fcco._support import checks
from fcco._support.digests import digest
from fcco._support.signals import Signals
from fcco.data import Structure
from fcco.data._source import Source, TensorSource, _flat
from fcco.fitting._callbacks import Callback, ProgressBar
from fcco.fitting._data import check_shape, parts_of
from fcco.fitting._goal import Goal
from fcco.fitting._recipe import Recipe, recipe_for
from fcco.fitting._result import FitResult, result_of
from fcco.fitting._scoring import device_of, score
from fcco.fitting._search import Search
from fcco.fitting._trial import Problem

_LARGE = 30.0  # beyond so large a root mean square columns ought to be scaled


def fit(
    model: nn.Module,
    data: Any,
    metric: str = "average_precision",
    *,
    validation: Any = 0.2,
    max_fpr: float = 0.3,
    min_tpr: float = 0.7,
    k: int | None = 10,
    epochs: float | None = None,
    batch_size: int | None = None,
    backbone: nn.Module | None = None,
    backbone_lr: float = 0.1,
    recipe: Recipe | None = None,
    seed: int = 0,
    device: torch.device | str = "auto",
    precision: Literal["fp32", "bf16"] = "fp32",
    num_workers: int = 0,
    callbacks: Iterable[Callback] = (),
    progress: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
) -> FitResult:
    """Train a network for a ranking metric. You name the metric; everything else is chosen.

    A plain loss is trained first, then ranking objectives with the output memory. Settings are compared on validation
    data, and most are dropped early. The average of the ranking models is returned, unless a single trial, the plain
    ones included, is clearly better there. The recipe is :class:`fcco.fitting.Recipe`.

    Args:
        model: any network. It is not changed. It must return one score per example, (K,) or (K, 1), or (K, T) for T
            labels or classes. Training starts from its weights.
        data: (x, y), or data of :mod:`fcco.data`: Points for the AUCs and average precision, Queries for "ndcg",
            RiskSets for "concordance", Groups for "worst_group".
        metric: roc_auc, average_precision, partial_auc, two_way_partial_auc, ndcg, concordance or worst_group. With
            several labels or classes it is the mean over them.
        validation: the share of the data to hold out for choosing settings; or other data in the
            same form. None: nothing is chosen, and the recipe's first settings are trained, the plain one for
            one run and the ranking one for half of one.
        max_fpr: the highest false-positive rate that partial AUCs count, in (0, 1).
        min_tpr: the lowest true-positive rate that the two-way partial AUC counts, in (0, 1).
        k: the number of items at the top of the list that NDCG counts.
        epochs: passes over the data in one run; the whole search has about six of them. None: 20, but at least
            100,000 and at most 2,000,000 examples.
        batch_size: examples per step. None: about a tenth of the data, a power of two from 64 to 256.
        backbone: a pretrained part of the model, if there is one.
        backbone_lr: factor of the learning rate in that part.
        recipe: your own settings and lengths in place of the default ones.
        seed: seed of the split, of all draws and of dropout.
        device: where to train. "auto": on CUDA if it is available, otherwise where the model is.
        precision: "bf16" runs the network under autocast.
        num_workers: processes that fetch from a data set.
        callbacks: functions called with a :class:`fcco.fitting.Progress` after each check. Returning True ends the fit.
        progress: show a progress bar, if tqdm is installed.
        checkpoint: a file. The fit resumes from it if it exists, and saves to it along the way and on Ctrl-C.

    Returns:
        The model with its history, its metrics and what was chosen.

    Example:
        >>> x = torch.randn(400, 5)
        >>> y = (x[:, 0] + 0.3 * torch.randn(400) > 1.5).long()
        >>> quick = Recipe(epochs=1, least_examples=400)
        >>> result = fit(nn.Linear(5, 1), (x, y), "roc_auc", recipe=quick, progress=False)
        >>> result.predict(x[:3]).shape
        torch.Size([3])
    """
    goal = Goal(metric, max_fpr=max_fpr, min_tpr=min_tpr, k=k)
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    recipe = _with_epochs(recipe or recipe_for(model), epochs)
    if precision not in ("fp32", "bf16"):
        raise ValueError(f'precision must be "fp32" or "bf16", got {precision!r}')
    seed = _checked_seed(seed)
    told = _checked_callbacks(callbacks)
    path = _checked_path(checkpoint)
    place = _device(device, model)
    train, valid = parts_of(data, validation, goal, seed)
    _check_trainable(model)
    _check_ending(model)
    _warn_of_scale(model, train)
    with _isolated(place):
        network = copy.deepcopy(model).to(place)
        train = train.to(place)
        if valid is not None:
            valid = valid.to(place)
        _check_outputs(network, train, precision, "data")
        if valid is not None:
            _check_outputs(network, valid, precision, "validation")
        size = batch_size
        if size is None:
            size = recipe.batch_size(train.num_examples)
        if checks.positive_int("batch_size", size) < 2:
            raise ValueError(f"batch_size must be at least 2, a positive and a negative, got {size}")
        problem = Problem(
            train=train,
            valid=valid,
            goal=goal,
            recipe=recipe,
            batch_size=size,
            run_length=recipe.run_length(train.num_examples),
            precision=precision,
            num_workers=num_workers,
            backbone=_backbone_names(model, backbone),
            backbone_lr=checks.positive("backbone_lr", backbone_lr),
            seed=seed,
        )
        with Signals() as signals, _bar(progress, goal) as bars:
            search = Search(
                network,
                problem,
                identity=_identity(problem, network),
                checkpoint=path,
                callbacks=[*told, *bars],
                interrupted=lambda: signals.received is not None,
            )
            choice = search.run()
        return result_of(search, choice)


def _with_epochs(recipe: Recipe, epochs: float | None) -> Recipe:
    if epochs is None:
        return recipe
    # Somebody who asks for one epoch wants one, however small the data.
    return replace(recipe, epochs=checks.positive("epochs", epochs), least_examples=1, most_examples=None)


# ------------------------------------------------------------------ arguments


def _checked_seed(seed: int) -> int:
    number = checks.whole("seed", seed)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"seed must fit into 64 bits, got {number}")
    return number


def _checked_callbacks(callbacks: Iterable[Callback]) -> list[Callback]:
    if callable(callbacks):
        raise TypeError("callbacks must be a list of functions, got a single function: put it in a list")
    told = list(callbacks)
    for callback in told:
        if not callable(callback):
            raise TypeError(f"callbacks must be functions of a Progress, got {callback!r}")
    return told


def _checked_path(checkpoint: str | os.PathLike[str] | None) -> Path | None:
    """Where checkpoints go; a folder that is not there is told now, and not after half a minute of training."""
    if checkpoint is None:
        return None
    path = Path(checkpoint)
    if path.is_dir():
        raise ValueError(f"checkpoint must be a file, but {path} is a folder")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"checkpoint must be in an existing folder, but {path.parent} does not exist")
    return path


# ------------------------------------------------------------------ model and device


def _device(wanted: torch.device | str, model: nn.Module) -> torch.device:
    if wanted == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return device_of(model)
    try:
        device = torch.device(wanted)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"device must be one that torch can use on this machine, got {str(wanted)!r}: {reason:.200}"
        ) from error
    return device


def _check_trainable(model: nn.Module) -> None:
    """Refuse a model in which there is nothing to train, or that cannot be trained as it is."""
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trained:
        raise ValueError("model must have parameters that require a gradient, got none")
    for name, parameter in trained:
        if parameter.dtype == torch.float16:
            raise ValueError(
                f"model must not have float16 parameters, because training overflows in them, got {name}: pass "
                "model.float(), "
                'and precision="bf16" for speed'
            )


def _check_ending(model: nn.Module) -> None:
    """Refuse scores squashed by the last layer: the plain loss would squash them again, margins would not fit in."""
    last = model
    while isinstance(last, nn.Sequential) and len(last) > 0:
        last = last[-1]
    if isinstance(last, nn.Sigmoid | nn.Softmax | nn.LogSigmoid | nn.LogSoftmax):
        raise ValueError(
            "model must return the scores of its last linear layer, got one that ends in "
            f"{type(last).__name__}: remove that layer"
        )


def _warn_of_scale(model: nn.Module, data: Structure) -> None:
    """Warn of large numbers that go straight into a linear layer: the learning rates are for numbers near 1."""
    first = model
    while isinstance(first, nn.Sequential) and len(first) > 0:
        first = first[0]
    if not isinstance(first, nn.Linear) or not isinstance(data.source, TensorSource):
        return
    x = data.source.x
    if not isinstance(x, torch.Tensor) or x.dim() != 2 or not x.is_floating_point():
        return
    size = torch.linalg.vector_norm(x, dim=0, dtype=torch.float64) / math.sqrt(len(x))  # (F,) root mean squares
    column = int(size.argmax())
    if size[column] > _LARGE:
        warnings.warn(
            f"column {column} of x has a root mean square of {float(size[column]):.3g}, and networks learn badly from "
            "numbers far from 1: standardise x, begin the model with torch.nn.BatchNorm1d, or use fcco.sklearn",
            stacklevel=3,
        )


def _check_outputs(model: nn.Module, data: Structure, precision: str, argument: str) -> None:
    """Try the model on two examples, so that a wrong shape is told before anything is trained."""
    few = data.source.subset(torch.arange(min(2, data.num_examples)))
    try:
        outputs = score(model, few, precision=precision)
    except Exception as error:  # a model may raise anything
        raise ValueError(_failed_call(error, few, argument)) from error
    check_shape(tuple(outputs.shape), outputs.shape[0], data)


def _failed_call(error: Exception, few: Source, argument: str) -> str:
    """One sentence for a model that does not take its inputs: what it was given, and what it said."""
    given = "items of a data set"
    hint = ""
    if isinstance(few, TensorSource):
        parts = _flat(few.x)
        given = ", ".join(f"{part.dtype} {(few.size, *part.shape[1:])}".removeprefix("torch.") for part in parts)
        if not any(part.is_floating_point() or part.is_complex() for part in parts):
            hint = "; if it wants floating point, give x as such: x.float()"
    said = " ".join(str(error).split())
    return f"the model failed on the first examples of {argument} ({given}): {type(error).__name__}: {said:.300}{hint}"


def _backbone_names(model: nn.Module, backbone: nn.Module | None) -> frozenset[str]:
    if backbone is None:
        return frozenset()
    if not isinstance(backbone, nn.Module):
        raise TypeError(f"backbone must be a part of model, a torch.nn.Module, got {backbone!r}")
    inside = {id(parameter) for parameter in backbone.parameters()}
    names = frozenset(name for name, parameter in model.named_parameters() if id(parameter) in inside)
    if len(names) < len(inside) or not names:
        raise ValueError("backbone must be a part of model, but some of its parameters are not parameters of model")
    return names


# ------------------------------------------------------------------ surroundings


@contextmanager
def _isolated(device: torch.device) -> Iterator[None]:
    """The caller's random numbers go on as if nothing had been drawn; on CUDA, same seed, same bits."""
    if device.type != "cuda":
        with torch.random.fork_rng([]):
            yield
        return
    cudnn = torch.backends.cudnn
    same_bits = cudnn.flags(enabled=cudnn.enabled, benchmark=False, deterministic=True, allow_tf32=cudnn.allow_tf32)
    with torch.random.fork_rng([device]), same_bits:
        yield


@contextmanager
def _bar(wanted: bool, goal: Goal) -> Iterator[list[ProgressBar]]:
    bars: list[ProgressBar] = []
    if wanted:
        try:
            bars.append(ProgressBar(goal.describe()))
        except ImportError:
            bars = []
    try:
        yield bars
    finally:
        for bar in bars:
            bar.close()


def _identity(problem: Problem, model: nn.Module) -> dict[str, Any]:
    """What a checkpoint must be of: anything else would be continued wrongly without a word."""
    return {
        "metric": problem.goal.describe(),
        "recipe": repr(asdict(problem.recipe)),
        "seed": problem.seed,  # before the data, which it splits
        "training data": _fingerprint(problem.train),
        "validation data": None if problem.valid is None else _fingerprint(problem.valid),
        "batch_size": problem.batch_size,
        "precision": problem.precision,
        "backbone": sorted(problem.backbone),
        "backbone_lr": problem.backbone_lr,
        "model": digest(model.state_dict().values()),
    }


def _fingerprint(data: Structure) -> str:
    """A digest of labels and, where they are tensors, of inputs."""
    tensors = data.facts()
    if isinstance(data.source, TensorSource):
        tensors.extend(_flat(data.source.x))
        if data.source.rows is not None:
            tensors.append(data.source.rows)
    return f"{data.num_examples} examples, {digest(tensors)}"
