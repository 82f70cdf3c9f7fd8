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
    """Return ``name`` if it is one of ``names``, and raise an error that suggests the nearest one otherwise.

    Example:
        >>> pick("method", "msrv-v2", ["sox", "msvr-v2"])
        Traceback (most recent call last):
        fcco.lab.errors.LabError: unknown method 'msrv-v2' (did you mean 'msvr-v2'?); known: sox, msvr-v2
    """
    known = list(names)
    if name in known:
        return name
    raise LabError(f"unknown {what} {name!r}{nearest(name, known)}; known: {', '.join(known)}")


def nearest(name: str, names: Iterable[str], cutoff: float = 0.5) -> str:
    """Return ' (did you mean ...?)', or '' where no name is near."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    if not close:
        return ""
    return f" (did you mean {close[0]!r}?)"


@contextmanager
def refusing() -> Iterator[None]:
    """Turn what the library refuses while a run is put together into an error that the user can mend."""
    try:
        yield
    except DataMissing:
        raise
    except (ValueError, TypeError, ImportError) as error:
        raise LabError(one_line(error)) from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of the file system into one line for the user."""
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
    """Return one line for an error of the file system."""
    where = path
    if error.filename is not None:
        where = Path(str(error.filename))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: {where} could not be written; what was saved before is whole"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"no permission: {where} ({error.strerror})"
    if where is None or not error.strerror:
        return one_line(error)
    return f"{where}: {error.strerror}"


def one_line(error: BaseException) -> str:
    """Return the message of an error on one line."""
    return " ".join(str(error).split()) or type(error).__name__
