"""Signals that ask a run to stop, remembered until it is at a place where it can."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, final


@final
class Signals:
    """Remembers SIGINT and SIGTERM instead of obeying at once; a second SIGINT is obeyed."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
