"""The numbers of one step: what its schedules say at t, as floats, or as numbers on a device."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from fcco.methods._recipes import Method
from fcco.methods.estimators import Weights
from fcco.methods.trackers import Coefficients, OwnRate


class DeviceNumbers(NamedTuple):
    """The numbers of a step on a device: those of the tracker (a,), of the estimator (b,), and the decay ()."""

    tracker: Tensor
    estimator: Tensor
    decay: Tensor


def varies(method: Method) -> bool:
    """Whether a rate of the method follows a schedule."""
    parts: tuple[Any, ...] = (method.tracker, method.estimator)
    return any(callable(getattr(part, item.name)) for part in parts for item in fields(part))


def fits_device(method: Method) -> bool:
    """Whether the numbers of a step follow from t alone, so that a device can have them before the step."""
    return not isinstance(method.tracker, OwnRate)


@final
class Rates(NamedTuple):
    """The numbers of step t.

    Args:
        method: whose schedules they are.
        t: the step.
        large: whether the batch is one of its loader's large ones; None: the loader has none.
        on_device: the numbers on the device; None: floats will do.
    """

    method: Method
    t: int
    large: bool | None = None
    on_device: DeviceNumbers | None = None

    def weights(self, *, starts: bool) -> Weights:
        """Of the estimator; ``starts``: there is no z yet."""
        if starts:
            return self.method.estimator.start(self.t)
        found = self.method.estimator.weights(self.t, self.large)
        if self.on_device is None:
            return found
        filled: Weights = _filled(found, self.on_device.estimator)
        return filled

    def coefficients(self, ratio: float, u: Tensor) -> Coefficients:
        """Of the tracker, with ratio = m/B1 and the rows u_{t-1} (B, dim)."""
        found = self.method.tracker.coefficients(self.t, ratio, u)
        if self.on_device is None:
            return found
        filled: Coefficients = _filled(found, self.on_device.tracker)
        return filled

    def decay(self) -> float | Tensor:
        """What the rows of blocks that are not drawn are multiplied by."""
        if self.on_device is None:
            return self.method.tracker.decay(self.t)
        return self.on_device.decay


def step_numbers(method: Method, t: int, ratio: float, large: bool | None) -> list[float]:
    """The numbers of step t in a fixed order; :func:`split_numbers` tells them apart again."""
    coefficients = method.tracker.coefficients(t, ratio, torch.zeros(1, 1))
    weights = method.estimator.weights(t, large)
    return [*_numbers(coefficients), *_numbers(weights), method.tracker.decay(t)]


def split_numbers(method: Method, row: Tensor) -> DeviceNumbers:
    """The numbers of a step from (n,), as :func:`step_numbers` lists them."""
    count = len(_numbers(method.tracker.coefficients(1, 1.0, torch.zeros(1, 1))))
    return DeviceNumbers(row[:count], row[count:-1], row[-1])


def _names(record: Any) -> list[str]:
    return [item.name for item in fields(record) if getattr(record, item.name) is not None]


def _numbers(record: Any) -> list[float]:
    return [getattr(record, name) for name in _names(record)]


def _filled(record: Any, row: Tensor) -> Any:
    """The record with each of its numbers taken from the row, in the order of its fields."""
    return replace(record, **{name: row[place] for place, name in enumerate(_names(record))})
