"""Files that are replaced whole: at any moment there is the old one or the new one, also after a loss of power."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch

fcntl: Any = None
with contextlib.suppress(ImportError):  # Windows has none
    import fcntl

_SUFFIX = ".partial"
_STALE = 60.0  # seconds: a younger file may belong to a writer that has not locked it yet
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def replace_file(path: str | os.PathLike[str], write: Callable[[IO[bytes]], object]) -> None:
    """Replace a file by what ``write`` writes, all or nothing.

    It is written under a name that nobody else has, flushed to the disk, and renamed; then the folder is flushed. Where
    ``path`` is a link, the file that it leads to is replaced, and the link stays.

    Raises:
        OSError: where the disk refuses, or where something is there that is no file (whoever may write into /dev could
            replace a device); nothing is left beside the old file then.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder {target.parent}, in which to write {target.name}, does not exist")
    if target.exists() and not target.is_file():
        kind = "device, a pipe or a socket"
        if target.is_dir():
            kind = "folder"
        raise OSError(f"{target} is a {kind}, which no file can replace")
    _remove_stale(target)
    aside = target.with_name(f"{target.name}.{secrets.token_hex(8)}{_SUFFIX}")
    try:
        _write_aside(aside, target, write)
        _flush_folder(target.parent)
    except OSError as error:
        if error.filename != str(aside):
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error  # of the file that the user knows


def _write_aside(aside: Path, target: Path, write: Callable[[IO[bytes]], object]) -> None:
    number = os.open(aside, _FLAGS, 0o666)
    try:
        with open(number, "wb") as file:
            _lock(file.fileno())  # until it is closed: others know by it that somebody writes here
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise


def _flush_folder(folder: Path) -> None:
    """Flush a folder to the disk; without this the rename itself may be lost with the power."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _lock(number: int) -> bool:
    """Lock a file; return whether this process has it to itself, which is True where the system cannot tell."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _remove_stale(target: Path) -> None:
    """Remove what processes that were killed in a save have left behind: old, and nobody holds it."""
    if fcntl is None:
        return
    for aside in target.parent.glob(f"{_escaped(target.name)}.*{_SUFFIX}"):
        # Another process may clean up too, or the folder may be another user's.
        with contextlib.suppress(OSError):
            if time.time() - aside.lstat().st_mtime < _STALE:
                continue
            number = os.open(aside, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
            try:
                if _lock(number):
                    os.unlink(aside)
            finally:
                os.close(number)


def _escaped(name: str) -> str:
    """Return a file's name as a pattern that matches nothing else."""
    special = {"[": "[[]", "*": "[*]", "?": "[?]"}
    return "".join(special.get(letter, letter) for letter in name)


def save_content(content: Any, file: IO[bytes]) -> None:
    """Save as ``torch.save`` does; where the disk fails the error is the disk's own."""
    try:
        torch.save(content, file)
    except RuntimeError as error:
        # torch's writer may fail once more while it closes, over the disk's own error.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
