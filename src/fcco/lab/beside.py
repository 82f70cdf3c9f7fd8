"""What goes on beside the steps of a run: signals that ask it to stop, and TensorBoard."""

from __future__ import annotations

import signal
import threading
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, final

from fcco.lab.errors import writing
from fcco.lab.evaluate import Row


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


@final
class Board:
    """TensorBoard events beside the metrics, where asked for and installed."""

    def __init__(self, path: Path, wanted: bool, step: int) -> None:
        self._writer: Any = None
        if not wanted:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        with writing(path):
            self._writer = SummaryWriter(str(path / "tensorboard"), purge_step=step + 1 if step else None)

    def add(self, row: Row) -> None:
        for name, value in asdict(row).items():
            if self._writer is not None and name != "step" and value is not None:
                self._writer.add_scalar(name, value, row.step)

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()
