"""What Tasks and Points share: labels by the rules of _labels.py, and the lists of positives and negatives."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from fcco._support import checks
from fcco.data._draws import Choice, Lists, Rest
from fcco.data._labels import Labels, labels_of
from fcco.data._structure import Structure


class Labelled(Structure):
    """Examples with one label or many; abstract.

    Attributes:
        y: class numbers (N,) int64, -1 where missing; or targets (N,) or (N, T): 1, 0, NaN where missing.
        classes: what class 0, 1, ... is called; None: y holds targets.
        columns: what the columns of y were called, where it was a data frame.
        positive: the value that was said to be positive, or the string that evidently is; None: neither.
    """

    per_example: ClassVar[tuple[str, ...]] = ("weight", "y")

    def __init__(self, x: Any, y: Any, weight: Any, positive: Any, classes: Any, inputs: int) -> None:
        super().__init__(x, weight, inputs)
        labels = labels_of("y", y, self.num_examples, self.device, positive=positive, classes=classes)
        self.y = labels.y
        self.classes = labels.classes
        self.columns = labels.columns
        self.positive = labels.positive

    @property
    def labels(self) -> Labels:
        """The labels, with what they are called."""
        return Labels(self.y, self.classes, self.columns)

    @property
    def num_tasks(self) -> int:
        """T, how many columns a model's outputs have."""
        return self.labels.num_tasks

    def labels_at(self, id: Tensor) -> Tensor:
        return self.y[id]

    def _split_units(self) -> tuple[Tensor, Tensor]:
        unit = torch.arange(self.num_examples, device=self.device)
        if self.y.dim() > 1:
            return unit, _rarest_label(self.y)
        stratum = self.y  # (N,)
        if stratum.is_floating_point():
            stratum = stratum.nan_to_num(nan=-1.0).to(torch.int64)
        return unit, stratum


def _rarest_label(y: Tensor) -> Tensor:
    """(N,) of the labels (N, T) that an example is a positive of, the rarest one; T: it is a positive of none."""
    positive = y == 1  # (N, T)
    order = positive.sum(0).argsort(stable=True)  # (T,) rare ones first
    first = positive[:, order].int().argmax(1)
    return torch.where(positive.any(1), order[first], y.shape[1])


@final
@dataclass(frozen=True)
class TaskLists:
    """T binary tasks over N examples, each with its positives and its negatives.

    Args:
        y: class numbers (N,) int64, -1 where missing, one task per class; or targets (N, T): 1, 0, NaN where missing.
        positive: T lists of examples.
        negative: T lists of examples.
        used: the tasks that have both, in growing order.
    """

    y: Tensor
    positive: Lists
    negative: Choice
    used: Tensor

    @classmethod
    def of(cls, data: Labelled) -> TaskLists:
        """The lists of all examples that have weight; tasks without positives or negatives are left out, and named."""
        labels = data.labels
        lists = cls._lists(labels, data.weight)
        short = _lacking(lists)
        kept = torch.ones(labels.num_tasks, dtype=torch.bool)
        kept[list(short)] = False
        reasons = [f"{labels.name(task)} has no {what}" for task, what in short.items()]
        if not bool(kept.any()):
            raise ValueError(f"y must have positives and negatives, but {checks.some(reasons)}")
        if reasons:
            warnings.warn(
                f"{checks.some(reasons)}: left out (the other output columns keep their numbers)", stacklevel=4
            )
        used = kept.nonzero()[:, 0].to(data.device)
        return cls(lists.y, lists.positive, lists.negative, used)

    @classmethod
    def _lists(cls, labels: Labels, weight: Tensor | None) -> TaskLists:
        used = torch.empty(0, dtype=torch.int64)
        if labels.classes is not None:
            y = labels.y
            if weight is not None:
                y = y.masked_fill(weight == 0, -1)
            # One-vs-rest: the negatives of a class are all others, so nothing is stored for them.
            members = Lists.by_label(y, len(labels.classes))
            return cls(y, members, Rest(members), used)
        matrix = labels.matrix
        if weight is not None:
            matrix = matrix.masked_fill((weight == 0).unsqueeze(1), torch.nan)
        return cls(matrix, Lists.where(matrix == 1), Lists.where(matrix == 0), used)

    @property
    def number(self) -> int:
        """T, how many tasks there are, those left out among them."""
        return int(self.positive.count.shape[0])

    def at(self, task: Tensor, id: Tensor) -> tuple[Tensor, Tensor]:
        """(B, K) bool twice: which examples (K,) are positives, and which negatives, of the tasks (B,)."""
        if self.y.dim() == 1:
            y = self.y[id]
            positive = y == task.unsqueeze(1)
            return positive, ~positive & (y >= 0)
        targets = self.y[id][:, task].T  # (B, K)
        return targets == 1, targets == 0


def _lacking(lists: TaskLists) -> dict[int, str]:
    """What the tasks lack that lack something."""
    lack: dict[int, str] = {}
    for what, choice in (("negatives", lists.negative), ("positives", lists.positive)):
        for task in (choice.count == 0).nonzero()[:, 0].tolist():
            lack[task] = what
    return dict(sorted(lack.items()))


def positives_of(size: int, fraction: float, least: int = 1) -> int:
    """How many of ``size`` samples are positives: a fraction, but at least ``least``, and not all of them."""
    checks.fraction("the fraction of positives", fraction)
    return min(max(round(size * fraction), least), size - 1)


def of_task(y: Tensor, task: int, *, has_classes: bool) -> tuple[Tensor, Tensor]:
    """Which examples have a label of the task, and which are its positives: both (N,) bool.

    Args:
        y: class numbers (N,), -1 where missing; or targets (N,) or (N, T): 1, 0, NaN where missing.
        task: which class or column.
        has_classes: whether y are class numbers.
    """
    if has_classes:
        return y >= 0, y == task
    targets = y
    if y.dim() == 2:
        targets = y[:, task]
    return ~targets.isnan(), targets == 1
