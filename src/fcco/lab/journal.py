"""A sweep's record in a file that network folders can hold, of whole lines only."""

from __future__ import annotations

import json
import os
from typing import Any, final

from optuna.storages.journal import JournalFileBackend

_PIECE = 4096  # bytes


@final
class Journal(JournalFileBackend):
    """Optuna's journal, less what a full disk or a killed process has left of a line.

    Optuna itself appends the next line right behind that, and the file can then never be read again.
    """

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append lines, all of them or none."""
        lines = [json.dumps(log, separators=(",", ":")) + "\n" for log in logs]
        self._lock.acquire()  # whoever holds it is the only one that writes
        try:
            number = os.open(self._file_path, os.O_RDWR)
            try:
                _append(number, "".join(lines).encode("utf-8"))
            finally:
                os.close(number)
        finally:
            self._lock.release()


def _append(number: int, content: bytes) -> None:
    end = _end_of_lines(number)
    os.ftruncate(number, end)
    os.lseek(number, end, os.SEEK_SET)
    try:
        while content:
            content = content[os.write(number, content) :]
        os.fsync(number)
    except OSError:
        os.ftruncate(number, end)
        raise


def _end_of_lines(number: int) -> int:
    """Return where the last whole line of a file ends."""
    end = os.lseek(number, 0, os.SEEK_END)
    while end > 0:
        start = max(0, end - _PIECE)
        os.lseek(number, start, os.SEEK_SET)
        place = os.read(number, end - start).rfind(b"\n")
        if place >= 0:
            return start + place + 1
        end = start
    return 0
