"""Losses over labelled points: PartialAUC, AveragePrecision, PNormPush and MultiTaskAUC."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor

from fcco import objectives
from fcco.data import Points, Tasks
from fcco.losses._base import Given, Loss, no_inputs
from fcco.methods import OutputMemory
from fcco.methods.schedules import Schedule
from fcco.objectives import Square, SquaredHinge, Surrogate


@final
class PartialAUC(Loss):
    """:class:`fcco.objectives.PartialAUC` as a loss: one-way, or two-way with ``positive_temperature``.

    Args:
        y: (N,) or (N, T) the training labels, by the rules of :class:`fcco.data.Points`.
        beta: see :class:`Loss`.
        temperature: a small one counts only the hardest negatives.
        positive_temperature: temperature of the positives, for the two-way form. None: one-way.
        loss: loss of a pair's difference of scores. The default is ``SquaredHinge(margin=1)``.
        start: initial threshold (two-way).
        weight: (N,) how much each example counts. None: equally.
        positive: the value of y that is positive.
        classes: the classes in the order of the scores' columns.
        memory: True, or settings, to use the output memory in place of u, with batches of :meth:`sampler`.

    Example:
        >>> import torch
        >>> loss = PartialAUC([1, 0, 0, 1], temperature=0.1)
        >>> scores = torch.tensor([0.2, 0.1, 0.4], requires_grad=True)
        >>> loss(scores, torch.tensor([1, 0, 0]), torch.tensor([0, 1, 2])).backward()
        >>> scores.grad
        tensor([-2.3989,  0.0033,  2.3956])
    """

    def __init__(
        self,
        y: Any,
        *,
        beta: Schedule = 0.1,
        temperature: float = 1.0,
        positive_temperature: float | None = None,
        loss: Surrogate | None = None,
        start: float = 0.0,
        weight: Any = None,
        positive: Any = None,
        classes: Any = None,
        memory: bool | OutputMemory = False,
    ) -> None:
        data = Points(no_inputs(y), y, weight=weight, positive=positive, classes=classes)
        objective = objectives.PartialAUC(
            Given(), data, temperature=temperature, positive_temperature=positive_temperature, loss=loss, start=start
        )
        super().__init__(objective, y, beta=beta, memory=memory)


@final
class AveragePrecision(Loss):
    """:class:`fcco.objectives.AveragePrecision` as a loss (SOAP).

    Args:
        y: (N,) or (N, T) the training labels, by the rules of :class:`fcco.data.Points`.
        beta: see :class:`Loss`.
        loss: loss of a pair's difference of scores. The default is ``SquaredHinge(margin=1)``.
        weight, positive, classes, memory: as for :class:`PartialAUC`.
    """

    def __init__(
        self,
        y: Any,
        *,
        beta: Schedule = 0.1,
        loss: Surrogate | None = None,
        weight: Any = None,
        positive: Any = None,
        classes: Any = None,
        memory: bool | OutputMemory = False,
    ) -> None:
        data = Points(no_inputs(y), y, weight=weight, positive=positive, classes=classes)
        super().__init__(objectives.AveragePrecision(Given(), data, loss=loss), y, beta=beta, memory=memory)


@final
class PNormPush(Loss):
    """:class:`fcco.objectives.PNormPush` as a loss; its blocks are the negatives.

    Args:
        y: (N,) or (N, T) the training labels, by the rules of :class:`fcco.data.Points`.
        beta: see :class:`Loss`.
        p: >= 1. A large one stresses the highest negatives.
        loss: loss of a pair's difference of scores. The default is ``Logistic()``.
        logarithm: use the form with a trained threshold, which cannot overflow.
        start: initial value of that threshold.
        weight, positive, classes, memory: as for :class:`PartialAUC`.
    """

    def __init__(
        self,
        y: Any,
        *,
        beta: Schedule = 0.1,
        p: float = 2.0,
        loss: Surrogate | None = None,
        logarithm: bool = False,
        start: float = 0.0,
        weight: Any = None,
        positive: Any = None,
        classes: Any = None,
        memory: bool | OutputMemory = False,
    ) -> None:
        data = Points(no_inputs(y), y, weight=weight, positive=positive, classes=classes)
        objective = objectives.PNormPush(Given(), data, p=p, loss=loss, logarithm=logarithm, start=start)
        super().__init__(objective, y, beta=beta, memory=memory)


@final
class MultiTaskAUC(Loss):
    """:class:`fcco.objectives.MultiTaskAUC` as a loss: an AUC per class or label, averaged.

    With ``trained_centers`` (the default), pass ``loss.parameters()`` to the optimizer.

    Args:
        y: (N,) classes or (N, T) the training labels, by the rules of :class:`fcco.data.Tasks`.
        beta: see :class:`Loss`.
        loss: loss of the difference of the class means. The default is ``SquaredHinge(margin=1, scale=0.5)``.
        trained_centers: whether the centers are trained variables; otherwise they are exact class means.
        block_weight: (T,) how much each task counts. None: equally.
        weight, positive, classes, memory: as for :class:`PartialAUC`.
    """

    def __init__(
        self,
        y: Any,
        *,
        beta: Schedule = 0.1,
        loss: SquaredHinge | Square | None = None,
        trained_centers: bool = True,
        block_weight: Tensor | None = None,
        weight: Any = None,
        positive: Any = None,
        classes: Any = None,
        memory: bool | OutputMemory = False,
    ) -> None:
        data = Tasks(no_inputs(y), y, weight=weight, positive=positive, classes=classes)
        objective = objectives.MultiTaskAUC(
            Given(), data, loss=loss, trained_centers=trained_centers, block_weight=block_weight
        )
        super().__init__(objective, y, beta=beta, memory=memory)
