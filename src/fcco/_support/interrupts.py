"""Ctrl-C, held back where a state would be left half-written."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# what the module signal wraps: the wrappers look every handler up in an enum, which takes longer than all else here
_signal: Any = sys.modules.get("_signal", signal)


@contextmanager
def uninterrupted(*, patience: int | None = None) -> Iterator[None]:
    """Hold Ctrl-C back until the block is through, so that no state is left half-written.

    Args:
        patience: how many presses are held back; one more gets through at once. None: all of them.
    """
    # Signals reach the main thread alone, and a handler of C code cannot be put back from Python.
    if threading.current_thread() is not threading.main_thread() or _signal.getsignal(signal.SIGINT) is None:
        yield
        return
    pressed: list[tuple[int, FrameType | None]] = []

    def hold_back(number: int, frame: FrameType | None) -> None:
        pressed.append((number, frame))
        if patience is not None and len(pressed) > patience and callable(handler):
            handler(number, frame)

    handler = _signal.signal(signal.SIGINT, hold_back)
    try:
        yield
    finally:
        _signal.signal(signal.SIGINT, handler)
        if pressed and callable(handler):
            handler(*pressed[0])  # as if it had been pressed just now
