"""Ctrl-C, held back where a state would be left half-written."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, final

# what the module signal wraps: the wrappers look every handler up in an enum, which takes longer than all else here
_signal: Any = sys.modules.get("_signal", signal)
_SIGINT = int(signal.SIGINT)


@final
class uninterrupted:
    """Hold Ctrl-C back until the block is through, so that no state is left half-written.

    Args:
        patience: how many presses are held back; one more gets through at once. None: all of them.
    """

    # A class, not a generator: a step enters two of these, and they take a third of the time.
    __slots__ = ("_handler", "_is_held", "_patience", "_pressed")

    def __init__(self, *, patience: int | None = None) -> None:
        self._patience = patience
        self._is_held = False

    def __enter__(self) -> None:
        # Signals reach the main thread alone, and a handler of C code cannot be put back from Python.
        if threading.get_ident() != threading.main_thread().ident:
            return
        # Known before it is needed: a press may come as soon as the other handler is in place.
        self._handler = _signal.getsignal(_SIGINT)
        if self._handler is None:
            return
        self._pressed: list[tuple[int, FrameType | None]] = []
        self._is_held = True
        _signal.signal(_SIGINT, self._hold_back)

    def _hold_back(self, number: int, frame: FrameType | None) -> None:
        self._pressed.append((number, frame))
        handler = self._handler
        if self._patience is not None and len(self._pressed) > self._patience and callable(handler):
            handler(number, frame)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_held:
            return
        _signal.signal(_SIGINT, self._handler)
        self._is_held = False
        if self._pressed and callable(self._handler):
            self._handler(*self._pressed[0])  # as if it had been pressed just now
