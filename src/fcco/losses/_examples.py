"""Losses over features: GlobalContrastive and NCA, every example against all others."""

from __future__ import annotations

from typing import Any, final

import torch

from fcco import objectives
from fcco._support import checks
from fcco.data import Examples
from fcco.losses._base import Given, Loss, no_inputs
from fcco.methods.schedules import Schedule
from fcco.objectives import LearnedTemperature


@final
class GlobalContrastive(Loss):
    """:class:`fcco.objectives.GlobalContrastive` as a loss (SogCLR; iSogCLR with a learned temperature).

    The call is ``loss((first, second), id=id)`` with features (K, d) of two views or modalities, or
    ``loss(features, id=id)`` with (K, 2, d). It has no labels and ignores y.

    Args:
        num_examples: N, the number of training examples.
        beta: see :class:`Loss`.
        temperature: a number, or a :class:`fcco.objectives.LearnedTemperature`.
        two_modal: whether the two features belong to two modalities.
        epsilon: >= 0, relative to the positive pair.
        normalize: divide features by their length.
        weight: (N,) how much each example counts. None: equally.
    """

    def __init__(
        self,
        num_examples: int,
        *,
        beta: Schedule = 0.1,
        temperature: float | LearnedTemperature = 0.1,
        two_modal: bool = False,
        epsilon: float = 0.0,
        normalize: bool = True,
        weight: Any = None,
    ) -> None:
        data = Examples(torch.empty(checks.positive_int("num_examples", num_examples), 0), weight=weight)
        objective = objectives.GlobalContrastive(
            Given(), data, temperature=temperature, two_modal=two_modal, epsilon=epsilon, normalize=normalize
        )
        super().__init__(objective, None, beta=beta)


@final
class NCA(Loss):
    """:class:`fcco.objectives.NCA` as a loss, of features (K, d).

    Args:
        y: (N,) the training classes.
        beta: see :class:`Loss`.
        log_likelihood: use the logarithm of the probability of the right class.
        weight: (N,) how much each example counts. None: equally.
    """

    def __init__(self, y: Any, *, beta: Schedule = 0.1, log_likelihood: bool = False, weight: Any = None) -> None:
        data = Examples(no_inputs(y), y, weight=weight)
        super().__init__(objectives.NCA(Given(), data, log_likelihood=log_likelihood), y, beta=beta)
