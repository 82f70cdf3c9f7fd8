"""The last result of some work on tensors, for as long as they are the same: several probes ask for the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar, final

import torch
from torch import Tensor

_Result = TypeVar("_Result")

#: The run of a program that is under way, as an object of its own; None: steps are eager.
_RUN: ContextVar[object | None] = ContextVar("run", default=None)


@contextmanager
def one_program_run() -> Iterator[None]:
    """Within the block, remember results on every device, and use none from outside.

    A graph that is being recorded does the work once for all probes; a later one must do its own.
    """
    token = _RUN.set(object())
    try:
        yield
    finally:
        _RUN.reset(token)


@final
class Remembered(Generic[_Result]):
    """Does some work only where what it follows from has changed since the last time.

    Tensors are the same where they are the very same objects and nobody has written to them since. In eager steps that
    is looked at on the CPU alone: an accelerator would be done before the host has looked. Within one run of a captured
    step's program it is looked at everywhere. Copies start empty.

    Example:
        >>> remembered = Remembered()
        >>> x = torch.ones(2)
        >>> double = remembered.get((x,), lambda: 2 * x)
        >>> remembered.get((x,), lambda: 2 * x) is double
        True
        >>> _ = x.zero_()
        >>> remembered.get((x,), lambda: 2 * x)
        tensor([0., 0.])
    """

    def __init__(self) -> None:
        self._last: _Last[_Result] | None = None

    def get(self, source: tuple[Any, ...], work: Callable[[], _Result]) -> _Result:
        """What ``work`` gives; not to be written to.

        Args:
            source: everything that the result follows from: tensors, and other objects, which are the same only where
                they are the very same; what changes most often comes first.
            work: makes it.
        """
        run = _RUN.get()
        last = self._last
        if last is not None and last.is_of(source, run):
            return last.result
        result = work()
        versions = _versions(source, on_any_device=run is not None)
        # What is made in inference mode cannot serve a pass with a graph.
        if versions is not None and not torch.is_inference_mode_enabled():
            self._last = _Last(source, versions, run, result)
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> Remembered[_Result]:
        return Remembered()

    def __reduce__(self) -> tuple[Any, ...]:
        return Remembered, ()


@final
class Slot(Generic[_Result]):
    """Room for the last result of some work, where the caller sees for itself whether it still serves.

    Captured steps do not depend on it, and copies start empty.

    Attributes:
        last: the result; None: there is none.
    """

    def __init__(self) -> None:
        self.last: _Result | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Slot[_Result]:
        return Slot()

    def __reduce__(self) -> tuple[Any, ...]:
        return Slot, ()


@final
class _Last(Generic[_Result]):
    """A result and what it was made from, held: nothing else may take its place in memory."""

    def __init__(self, source: tuple[Any, ...], versions: list[int], run: object | None, result: _Result) -> None:
        self._source = source
        self._versions = versions
        self._run = run
        self.result = result

    def is_of(self, source: tuple[Any, ...], run: object | None) -> bool:
        if self._run is not run:
            return False
        for mine, other in zip(self._source, source, strict=True):
            if mine is not other:
                return False
        return self._versions == _versions(source, on_any_device=True)


def _versions(source: tuple[Any, ...], *, on_any_device: bool) -> list[int] | None:
    """Return how often each tensor was written to; None: one of them does not tell, or is where it is not looked at."""
    versions = []
    for item in source:
        if isinstance(item, Tensor):
            if item.is_inference() or not (item.is_cpu or on_any_device):
                return None
            versions.append(item._version)
    return versions
