"""Probing at other weights: how parameters, buffers and random state are set for such a probe, and put back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, final

import torch
from torch import Tensor, nn

from fcco._support.flat import Flat, Kept
from fcco._support.module_state import ModuleState, Snapshot
from fcco.solver._graph import Recording


class Places(ABC):
    """How a probe at other weights than w_t is made; abstract."""

    #: whether such a probe needs a copy of w_t to put back
    copies_weights: bool

    @abstractmethod
    def elsewhere(
        self, weights: Sequence[Tensor], kept: Sequence[Tensor] | None, before: Snapshot | None, begun: bool
    ) -> AbstractContextManager[object]:
        """Within the block the network has ``weights``, and buffers and random state are those of before the step.

        After it all three are as they were.

        Args:
            weights: one tensor per parameter.
            kept: a copy of what the parameters hold, where there is one already.
            before: buffers and random state before the first probe of the step.
            begun: whether another probe has come before.
        """


class BufferReplaced(ValueError):
    """A forward pass puts another tensor in a buffer's place."""


class Rewinder(Protocol):
    """What puts other weights into the parameters: the evaluator."""

    module_state: ModuleState

    def at(
        self, weights: Sequence[Tensor] | None, kept: Sequence[Tensor] | None = None
    ) -> AbstractContextManager[object]: ...


@final
class CopiedPlaces(Places):
    """Values are copied into the parameters and back: DDP, FSDP2, torch.compile and hooks keep working."""

    copies_weights = True

    def __init__(self, evaluator: Rewinder) -> None:
        self._evaluator = evaluator

    @contextmanager
    def elsewhere(
        self, weights: Sequence[Tensor], kept: Sequence[Tensor] | None, before: Snapshot | None, begun: bool
    ) -> Iterator[None]:
        state = self._evaluator.module_state
        assert before is not None
        left = before
        if begun:
            left = state.capture()
            state.restore(before)
        with self._evaluator.at(weights, kept):
            yield
        state.restore(left)


@final
class SwappedPlaces(Places):
    """Parameters and buffers are pointed at other memory: a captured step knows addresses alone, so nothing is copied.

    Args:
        parameters: what is trained.
        state: lists the buffers.
        recording: gives the same random numbers at every point.
        points: how many probes elsewhere a step has, at most.
    """

    copies_weights = False

    def __init__(
        self, parameters: Sequence[nn.Parameter], state: ModuleState, recording: Recording, points: int
    ) -> None:
        self._parameters = list(parameters)
        self._buffers = state.buffers()
        self.recording = recording
        self.kept = Kept([place.value for place in self._buffers])  # as they were before the step
        self._scratch = [Flat(self.kept.tensors) for _ in range(points)]
        self._used = 0

    def begin(self) -> None:
        """A step begins: keep the buffers as they are."""
        self._used = 0
        self.kept.keep()

    def check_buffers(self) -> None:
        """Refuse a pass that has put another tensor in a buffer's place: a graph would write to neither."""
        for place in self._buffers:
            if place.module._buffers[place.name] is not place.value:
                name = f"{type(place.module).__name__}.{place.name}"
                raise BufferReplaced(
                    f"a forward pass assigns a new tensor to the buffer {name}; write it in place (copy_, lerp_, ...)"
                )

    def hang_back(self) -> None:
        """Every buffer where it was."""
        for place in self._buffers:
            place.module._buffers[place.name] = place.value

    @contextmanager
    def elsewhere(
        self, weights: Sequence[Tensor], kept: Sequence[Tensor] | None, before: Snapshot | None, begun: bool
    ) -> Iterator[None]:
        self.check_buffers()
        number = self._used
        self._used += 1
        scratch = self._scratch[number]
        scratch.copy_from(self.kept.before.views)
        own = [p.data for p in self._parameters]
        _point(self._parameters, weights)
        for place, value in zip(self._buffers, scratch.views, strict=True):
            place.module._buffers[place.name] = value
        # Autocast's half-precision copies must not serve a pass at other weights.
        torch.clear_autocast_cache()
        try:
            with self.recording.apart(number):
                yield
        finally:
            _point(self._parameters, own)
            self.hang_back()
            torch.clear_autocast_cache()


def _point(parameters: Sequence[nn.Parameter], weights: Sequence[Tensor]) -> None:
    for p, tensor in zip(parameters, weights, strict=True):
        p.data = tensor
