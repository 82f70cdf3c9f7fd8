"""What the command line says when something is wrong: one line, with the nearest match for a misspelt name."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class LabError(Exception):
    """Something that the user can mend; its message is one line."""


class DataError(ValueError):
    """A file, an array or a label is not what it should be; the message names it."""


class DataMissing(DataError):
    """The files of a data set are nowhere at hand; the message says which, and where to put them."""


class StorageError(LabError):
    """A file could not be written: a full disk, a folder without permission."""


class Pruned(Exception):
    """A run of a sweep was stopped early, being behind."""


class Interrupted(Exception):
    """Stopped by a signal, after everything was saved.

    Args:
        signal: its number.
        message: how to go on.
    """

    def __init__(self, signal: int, message: str) -> None:
        super().__init__(message)
        self.signal = signal


class Diverged(Exception):
    """A run met numbers that are not finite."""


def pick(what: str, name: str, names: Iterable[str]) -> str:
    """``name`` where it is one of ``names``, else an error that suggests the nearest.

    Example:
        >>> pick("method", "msrv-v2", ["sox", "msvr-v2"])
        Traceback (most recent call last):
        fcco.lab.errors.LabError: unknown method 'msrv-v2' (did you mean 'msvr-v2'?); known: sox, msvr-v2
    """
    known = list(names)
    if name in known:
        return name
    raise LabError(f"unknown {what} {name!r}{nearest(name, known)}; known: {', '.join(known)}")


def nearest(name: str, names: Iterable[str]) -> str:
    """' (did you mean ...?)', or nothing where no name is near."""
    close = difflib.get_close_matches(name, list(names), 1, 0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


@contextmanager
def refusing() -> Iterator[None]:
    """What the library refuses while a run is put together is the user's to mend."""
    try:
        yield
    except DataMissing:
        raise
    except (ValueError, TypeError, ImportError) as error:
        raise LabError(one_line(error)) from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Errors of the file system, in words."""
    try:
        yield
    except OSError as error:
        raise StorageError(in_words(error, path)) from error
    except RuntimeError as error:  # torch's own writer hides the cause
        cause = error.__context__
        if isinstance(cause, OSError):
            raise StorageError(in_words(cause, path)) from error
        raise


def in_words(error: OSError, path: Path | None = None) -> str:
    """One line for an error of the file system."""
    where = path if error.filename is None else Path(str(error.filename))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: {where} could not be written; what was saved before is whole"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"no permission: {where} ({error.strerror})"
    return f"{where}: {error.strerror}" if where is not None and error.strerror else one_line(error)


def one_line(error: BaseException) -> str:
    """The message of an error, on one line."""
    return " ".join(str(error).split()) or type(error).__name__
