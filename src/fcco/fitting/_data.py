"""What is fitted: data as the metric needs them, in two parts; one sentence where nothing could be learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from fcco._support import checks
from fcco._support.row_order import warn_of_order
from fcco.data import Groups, Points, Queries, RiskSets, Structure, Tasks
from fcco.data._batch import map_tensors
from fcco.data._source import Source, TensorSource
from fcco.fitting._goal import Goal

MOST_RELEVANT = 1024  # 2^1024 is infinite


@final
@dataclass(frozen=True)
class Reading:
    """How the training labels were read, so that other labels are read alike.

    Args:
        classes: of which the labels are numbers; None: the labels are targets; empty, of Groups: they stay as they are.
        positive: the value that was said to be positive; None: none was.
        columns: what the labels' columns are called; empty: they have numbers.
    """

    classes: tuple[Any, ...] | None = None
    positive: Any = None
    columns: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: Structure) -> Reading:
        """How the labels of these data were read; data without labels have none."""
        if isinstance(data, Groups):
            return cls(data.classes)
        if not isinstance(data, Points):
            return cls()
        return cls(data.classes, data.positive, data.columns)


def parts_of(data: Any, validation: Any, goal: Goal, seed: int) -> tuple[Structure, Structure | None]:
    """The training and the validation part."""
    whole = as_structure(data, goal)
    _check_labelled(whole)
    if validation is None:
        return whole, None
    if isinstance(validation, (int, float)) and not isinstance(validation, bool):
        share = float(validation)
        if not 0.0 < share < 1.0:
            raise ValueError(f"validation must be a share in (0, 1), data or None, got {validation}")
        try:
            first, second = whole.split(share, seed=seed)
        except ValueError as error:
            raise ValueError(f"validation={validation} cannot be split off from {_counted(whole)}: {error}") from error
        _check_parts(second, first)
        return second, first
    if isinstance(validation, (bool, str)):
        raise TypeError(f"validation must be a share in (0, 1), data or None, got {validation!r}")
    valid = as_structure(validation, goal, Reading.of(whole))
    _check_parts(whole, valid)
    return whole, valid


def _counted(data: Structure) -> str:
    """How many things there are to share out; queries stay whole."""
    examples = f"{data.num_examples} examples"
    if data.num_examples == 1:
        examples = "1 example"
    if isinstance(data, Queries):
        queries = len(data.query_names)
        return f"{examples} in 1 query" if queries == 1 else f"{examples} in {queries} queries"
    return examples


def as_structure(data: Any, goal: Goal, like: Reading | None = None) -> Structure:
    """Data as the metric needs them, from (x, y) or from data of fcco.data.

    Args:
        data: what was given.
        goal: the metric.
        like: how the training labels were read, for other data than those; these are read and checked by it.
    """
    if isinstance(data, Tasks):
        structure: Structure = data.as_points()
    elif isinstance(data, Structure):
        structure = data
    else:
        structure = _from_tuple(data, goal, like or Reading())
    goal.check(structure)
    if isinstance(structure, Queries):
        _check_relevance(structure.relevance)
    check_finite(structure.source)
    if like is not None:
        _check_labels(Reading.of(structure), like)
    return structure


def _check_labels(theirs_read: Reading, like: Reading) -> None:
    """Refuse labels that are called otherwise than the training data's: columns of scores would change places."""
    pairs = (
        ("classes", theirs_read.classes, like.classes),
        ("label columns", theirs_read.columns, like.columns),
    )
    for what, theirs, ours in pairs:
        if theirs and ours and theirs != ours:
            raise ValueError(
                f"the {what} must equal those of the training data, in the same order, {checks.some(list(ours))}, got "
                f"{checks.some(list(theirs))}"
            )


def _from_tuple(data: Any, goal: Goal, like: Reading) -> Structure:
    if not isinstance(data, (tuple, list)) or len(data) not in (2, 3):
        raise TypeError(f"data must be (x, y) or data of fcco.data, got {type(data).__name__}{_other_form(data)}")
    x = data[0]
    warn_of_order(x, data[1])
    if goal.metric == "ndcg":
        if len(data) == 2:
            return Queries(x, [0] * len(data[1]), data[1])
        return Queries(x, data[1], data[2])
    if goal.metric == "concordance":
        if len(data) != 3:
            raise TypeError('for metric="concordance" data must be (x, time, event) or fcco.data.RiskSets')
        return RiskSets(x, data[1], data[2])
    if goal.metric == "worst_group":
        if len(data) != 3:
            raise TypeError('for metric="worst_group" data must be (x, y, group) or fcco.data.Groups')
        return Groups(x, data[1], data[2], classes=like.classes)
    if len(data) != 2:
        raise TypeError(f"for metric={goal.metric!r} data must be (x, y) or fcco.data.Points, got {len(data)} parts")
    return Points(x, data[1], classes=like.classes, positive=like.positive)


def _other_form(data: Any) -> str:
    """How to hand over what people have in place of (x, y)."""
    if isinstance(data, DataLoader):
        return ": give (loader.dataset, y) with the labels y of all its items, since batches are drawn here"
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, (Tensor, str, list, tuple)):
        return ": give (dataset, y) with the labels y of all its items"
    return ""


def _check_relevance(relevance: Tensor) -> None:
    """Refuse relevances that have no gain 2^relevance - 1 >= 0, before anything is trained."""
    strange = ((relevance < 0) | (relevance >= MOST_RELEVANT)).nonzero()[:, 0].tolist()
    if strange:
        raise ValueError(
            f"relevance must be at least 0 and below {MOST_RELEVANT}, got {relevance[strange[0]].item():g} in row "
            f"{checks.some(strange)}"
        )


def check_finite(source: Source) -> None:
    """Refuse tensors with NaN or infinity in them, by row and column."""
    if not isinstance(source, TensorSource):
        return

    def check(part: Tensor) -> Tensor:
        if part.is_floating_point() and not bool(torch.isfinite(part).all()):
            place = (~torch.isfinite(part)).nonzero()[0].tolist()
            value = part[tuple(place)].item()
            where = f"row {place[0]}"
            if len(place) > 1:
                where += f", column {', '.join(str(number) for number in place[1:])}"
            raise ValueError(
                f"x must be finite, got {value} in {where}; fcco.tables and fcco.sklearn can fill in missing values"
            )
        return part

    map_tensors(source.x, check)


def _check_parts(train: Structure, valid: Structure) -> None:
    """Refuse parts on which no metric can be taken, or nothing learned."""
    for name, part in (("training", train), ("validation", valid)):
        if isinstance(part, RiskSets) and not bool(part.event.any()):
            raise ValueError(
                f"event must be 1 for at least one subject of the {name} part, got none of {part.num_examples}"
            )
    if not isinstance(train, Points) or not isinstance(valid, Points):
        return
    if train.num_tasks != valid.num_tasks:
        raise ValueError(
            f"validation must have as many labels as the training data, {train.num_tasks}, got {valid.num_tasks}"
        )
    for name, part in (("training", train), ("validation", valid)):
        if not bool(_has_both(part).any()):
            raise ValueError(
                f"the {name} part must have positives and negatives of at least one label; its {part.num_examples} "
                f"examples do not{_how_many(train, valid)}: pass more data, or train with validation=None"
            )


def _how_many(train: Points, valid: Points) -> str:
    """How many of a single label are positive, in both parts together."""
    if train.num_tasks != 1:
        return ""
    positives = int((train.y == 1).sum() + (valid.y == 1).sum())
    return f" (positives among all {train.num_examples + valid.num_examples}: {positives})"


def _check_labelled(whole: Structure) -> None:
    """Refuse labels of which none has two sides: no part of such data has."""
    if not isinstance(whole, Points) or bool(_has_both(whole).any()):
        return
    found = set(whole.y[whole.y.isfinite()].tolist())
    what = f"none of {whole.num_tasks} labels has both"
    if len(found) == 0:
        what = "missing values alone"
    elif len(found) == 1:
        what = f"{found.pop():g} alone"
    raise ValueError(f"y must have positives and negatives, got {what} in {whole.num_examples} rows")


def _has_both(data: Points) -> Tensor:
    """(T,) bool: which labels have positives and negatives."""
    y = data.y
    if data.classes is not None:
        count = y[y >= 0].bincount(minlength=data.num_tasks)
        return (count > 0) & (count < int((y >= 0).sum()))
    if y.dim() == 1:
        y = y.unsqueeze(1)
    return (y == 1).any(0) & (y == 0).any(0)


def check_shape(shape: tuple[int, ...], rows: int, data: Structure) -> None:
    """Refuse outputs of another shape than the data's labels ask for."""
    if isinstance(data, Groups):
        _check_class_numbers(shape, data)
        return
    columns = 1
    if isinstance(data, Points):
        columns = data.num_tasks
    if shape == (rows, columns) or (columns == 1 and shape == (rows,)):
        return
    wanted = f"({rows}, {columns})"
    if columns == 1:
        wanted = f"({rows},) or ({rows}, 1)"
    hint = ""
    if columns == 1 and shape == (rows, 2):
        hint = ": two classes need one score, of the positive one"
    elif isinstance(data, Points) and data.classes is not None:
        hint = f": y has the {columns} classes {checks.some(list(data.classes))} (a missing label is NaN)"
    raise ValueError(
        f"the model must return one score per example and label, shape {wanted} for {rows} examples, got {shape}{hint}"
    )


def _check_class_numbers(shape: tuple[int, ...], data: Groups) -> None:
    """Of data with groups: (K, C) outputs have classes 0 ... C - 1, (K,) or (K, 1) have 0 and 1."""
    y = data.y
    if len(shape) not in (1, 2) or y.dim() != 1:
        raise ValueError(
            f"the model must return (K,), (K, 1) or (K, C) scores for y (N,), got {shape} for {tuple(y.shape)}"
        )
    classes = 2
    if len(shape) == 2 and shape[1] > 1:
        classes = shape[1]
    strange = ((y < 0) | (y >= classes) | (y != y.round())).nonzero()[:, 0].tolist()
    if strange:
        raise ValueError(
            f"y must be 0 ... {classes - 1} for a model with scores of shape {shape}, got {y[strange[0]].item():g} in "
            f"row {checks.some(strange)}"
        )
