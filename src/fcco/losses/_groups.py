"""Losses whose blocks are groups of examples: GroupDRO and MultiInstance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

from torch import Tensor

from fcco import objectives
from fcco.data import Bags, Groups
from fcco.data._convert import numbers_or_objects
from fcco.losses._base import Given, Loss, no_inputs
from fcco.methods.schedules import Schedule
from fcco.objectives import CVaRRisk, KLRisk, Square, SquaredHinge
from fcco.objectives._group_dro import cross_entropy


@final
class GroupDRO(Loss):
    """:class:`fcco.objectives.GroupDRO` as a loss. Pass ``loss.parameters()`` (the threshold) to the optimizer.

    Args:
        y: (N, ...) the training targets.
        group: (N,) the group of each training example.
        risk: ``KLRisk(strength)`` or ``CVaRRisk(fraction)``.
        beta: see :class:`Loss`.
        loss: (scores, y) -> (K,). The default is cross-entropy with logits.
        group_weight: (m,) how much each group counts. None: equally.
        start: initial threshold. A good choice is the mean loss expected at first.
        weight: (N,) how much each example counts within its group. None: equally.
    """

    def __init__(
        self,
        y: Any,
        group: Any,
        risk: KLRisk | CVaRRisk,
        *,
        beta: Schedule = 0.1,
        loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
        group_weight: Tensor | None = None,
        start: float = 0.0,
        weight: Any = None,
    ) -> None:
        data = Groups(no_inputs(y), y, group, weight=weight)
        objective = objectives.GroupDRO(Given(), data, risk, loss=loss, group_weight=group_weight, start=start)
        super().__init__(objective, y, beta=beta)


@final
class MultiInstance(Loss):
    """:class:`fcco.objectives.MultiInstance` as a loss. Pass ``loss.parameters()`` (the centers) to the optimizer.

    Each call takes a score, the label of the bag and an id for every instance.

    Args:
        bag: (N,) the bag of each training instance: its row in y, or its key if y is a dict.
        y: (m,) the label of each bag, or a dict from bags to labels.
        beta: see :class:`Loss`.
        temperature: temperature of the pooling within a bag. A small one approaches the maximum.
        loss: loss of the difference of the centers. The default is ``SquaredHinge(margin=1, scale=2)``.
        weight: (N,) how much each instance counts within its bag. None: equally.
        positive: the value of y that is positive.
    """

    def __init__(
        self,
        bag: Any,
        y: Any,
        *,
        beta: Schedule = 0.1,
        temperature: float = 0.1,
        loss: SquaredHinge | Square | None = None,
        weight: Any = None,
        positive: Any = None,
    ) -> None:
        data = Bags(no_inputs(bag), bag, y, weight=weight, positive=positive)
        objective = objectives.MultiInstance(Given(), data, temperature=temperature, loss=loss)
        super().__init__(objective, _labels_of_instances(data, y), beta=beta)


def _labels_of_instances(data: Bags, y: Any) -> Any:
    """(N,) the label of each instance's bag, as the user gave it."""
    if isinstance(y, Mapping):
        y = [y[name] for name in data.bag_names]
    labels = numbers_or_objects("y", y)
    if isinstance(labels, Tensor):
        return labels[data.bag.to(labels.device)]
    return [labels[bag] for bag in data.bag.tolist()]
