"""What a captured step is given: a copy at fixed addresses, or a batch that it draws itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields
from typing import Any, final

import torch
from torch import Tensor

from fcco.data import Batch
from fcco.data._batch import map_tensors
from fcco.data._pending import LazyBatch, PendingBatch, PlannedBatch

PLAIN = (bool, int, float, str, type(None))  # values that are compared as they are


class NotFixed(TypeError):
    """Data that no copy at a fixed address can stand for."""


def is_pending(data: tuple[Any, ...]) -> bool:
    """Whether the step draws or fetches its own batch."""
    return len(data) == 1 and isinstance(data[0], LazyBatch)


def layout(value: Any) -> Any:
    """What a graph depends on in its inputs: shapes, types and plain values, as something that can be compared."""
    if isinstance(value, PendingBatch):
        return ("pending", id(value.generator), len(value), value.blocks, value.large)
    if isinstance(value, PlannedBatch):
        return ("planned", value.fetch, len(value))
    if isinstance(value, Tensor):
        return (tuple(value.shape), value.dtype, value.stride())
    if isinstance(value, Batch):
        return ("batch", *(layout(getattr(value, item.name)) for item in fields(value)))
    if type(value) in (list, tuple):
        return (type(value), *(layout(item) for item in value))
    if type(value) is dict:
        return tuple((name, layout(item)) for name, item in value.items())
    if isinstance(value, PLAIN):
        return (type(value), value)
    raise NotFixed(f"data of type {type(value).__name__} have no fixed place")


class Inputs(ABC):
    """The data of a captured step; abstract."""

    @abstractmethod
    def data(self) -> tuple[Any, ...]:
        """Within the program: what the step works on."""

    @abstractmethod
    def load(self, data: tuple[Any, ...]) -> None:
        """Before a replay: take the step's data in."""

    @abstractmethod
    def keep(self, stops: Tensor) -> None:
        """Within the program: keep the data where the step stops the run, () bool on the device."""

    def undo(self) -> None:
        """The step that the data were loaded for is not taken after all."""
        return None  # most data are as good for the next try


@final
class DrawnInputs(Inputs):
    """A batch that the step draws from the loader's generator."""

    def __init__(self, pending: PendingBatch) -> None:
        self.generator = pending.generator
        self._draw = pending.draw

    def data(self) -> tuple[Any, ...]:
        return (self._draw(self.generator),)

    def load(self, data: tuple[Any, ...]) -> None:
        self._pending: PendingBatch = data[0]
        self._before = self.generator.get_state()
        self._pending.mark_drawn(self._before)

    def undo(self) -> None:
        self.generator.set_state(self._before)
        self._pending.mark_drawn(None)

    def keep(self, stops: Tensor) -> None:
        return None  # drawn again from the generator's state


@final
class FetchedInputs(Inputs):
    """A batch whose examples are given, and which the step fetches."""

    def __init__(self, planned: PlannedBatch) -> None:
        self._fetch = planned.fetch
        self._id = planned.id.clone()
        self._probability = planned.probability.clone()

    def data(self) -> tuple[Any, ...]:
        return (self._fetch(self._id, self._probability),)

    def load(self, data: tuple[Any, ...]) -> None:
        self._id.copy_(data[0].id, non_blocking=True)
        self._probability.copy_(data[0].probability, non_blocking=True)

    def keep(self, stops: Tensor) -> None:
        return None  # the host has the examples' numbers


@final
class CopiedInputs(Inputs):
    """Copies at fixed addresses.

    Args:
        data: an example of what comes.
        device: where the copies are.
    """

    def __init__(self, data: tuple[Any, ...], device: torch.device) -> None:
        self._static: tuple[Any, ...] = _mapped(with_tensor_index(data), lambda tensor: tensor.to(device, copy=True))
        self._kept: tuple[Any, ...] = _mapped(self._static, torch.clone)
        self._places = _tensors_of(self._static)

    def data(self) -> tuple[Any, ...]:
        return self._static

    def load(self, data: tuple[Any, ...]) -> None:
        # A user's own pinned memory may be written again before a copy that nobody waits for.
        is_ours = isinstance(data[0], Batch)
        for place, tensor in zip(self._places, _tensors_of(with_tensor_index(data)), strict=True):
            place.copy_(tensor, non_blocking=is_ours)

    def keep(self, stops: Tensor) -> None:
        for kept, place in zip(_tensors_of(self._kept), self._places, strict=True):
            torch.where(stops, place, kept, out=kept)

    @property
    def stopped_data(self) -> tuple[Any, ...]:
        """The data of the step that stopped the run."""
        return self._kept


def inputs_for(data: tuple[Any, ...], device: torch.device) -> Inputs:
    """The inputs of a program for such data."""
    if isinstance(data[0], PendingBatch):
        return DrawnInputs(data[0])
    if isinstance(data[0], PlannedBatch):
        return FetchedInputs(data[0])
    return CopiedInputs(data, device)


def with_tensor_index(data: tuple[Any, ...]) -> tuple[Any, ...]:
    """Blocks may come as a list of numbers."""
    first, *rest = data
    if isinstance(first, (Tensor, Batch, LazyBatch)):
        return data
    return (torch.as_tensor(first), *rest)


def _mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Batch):
        return value.map(function)
    if isinstance(value, tuple):
        return tuple(_mapped(item, function) for item in value)
    return map_tensors(value, function)


def _tensors_of(data: tuple[Any, ...]) -> list[Tensor]:
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    _mapped(data, note)
    return found
