"""Checkpoints: atomic, exact, and loadable with ``weights_only=True``."""

from __future__ import annotations

import copy
import ctypes
import hashlib
import os
from collections import Counter, OrderedDict
from pathlib import Path
from typing import IO, Any, Protocol

import torch
from torch import Tensor

from fcco._support.parallel import gather_objects, rank_and_world

_FORMAT = "fcco checkpoint"
_VERSION = 2
_LOADABLE = (int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


class Stateful(Protocol):
    """Anything with a state: a solver, a loader, a scheduler, a model."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


class CheckpointError(ValueError):
    """A checkpoint that is damaged, foreign or does not fit."""


def save(
    path: str | os.PathLike[str], *, solver: Stateful, loader: Stateful | None = None, **others: Stateful | None
) -> None:
    """Write the states of all parts to one file; at any moment the file holds the old or the new state, whole.

    Args:
        path: the file; written aside first (``path`` + ``.partial``), flushed, then renamed.
        solver: the solver; under torch.distributed call ``save`` on every rank: the states are collective, rank 0
            writes, and all return (or raise) when it has.
        loader: its loader, so that the run resumes in the middle of an epoch.
        others: whatever else has a ``state_dict``: schedulers, samplers of your own, each by a keyword of your choice.

    Example:
        >>> fcco.save("run.pt", solver=solver, loader=loader, scheduler=scheduler)  # doctest: +SKIP
    """
    target = Path(path)
    parts = _named_parts(solver, loader, others)
    states = {name: _loadable(part.state_dict(), name) for name, part in parts.items()}
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "kinds": {name: type(part).__name__ for name, part in parts.items()},
        "states": states,
        "digest": _digest(states),
    }
    failed: OSError | None = None
    if rank_and_world()[0] == 0:
        try:
            _write(target, content)
        except OSError as error:
            failed = error
    message = None
    if failed is not None:
        message = str(failed)
    rank0_error = gather_objects(message)[0]  # no rank goes on before the file is there
    if failed is not None:
        raise failed
    if rank0_error is not None:
        raise OSError(f"rank 0 could not write {target}: {rank0_error}")


def _named_parts(solver: Any, loader: Any, others: dict[str, Any]) -> dict[str, Stateful]:
    """Every part that was given by its name; those without a state are refused."""
    given = {"solver": solver, "loader": loader, **others}
    parts = {name: part for name, part in given.items() if part is not None}
    for name, part in parts.items():
        if not hasattr(part, "state_dict") or not hasattr(part, "load_state_dict"):
            raise TypeError(f"{name} must have state_dict and load_state_dict, got a {type(part).__name__}")
    return parts


def _loadable(value: Any, where: str) -> Any:
    """The same state with plain numbers in the place of numpy's (a learning rate from a grid).

    Raises:
        TypeError: where it holds what ``weights_only`` would refuse to load: better now than when it is needed.
    """
    kind = type(value)
    if kind in (dict, OrderedDict, Counter):
        for key in value:
            if type(key) not in (str, int, float, bool, bytes, tuple):
                raise TypeError(
                    f"a key of {where} is {key!r} of type {type(key).__name__}, which a checkpoint cannot hold"
                )
        return kind({key: _loadable(item, f"{where}[{key!r}]") for key, item in value.items()})
    if kind in (list, tuple):
        return kind(_loadable(item, f"{where}[{place}]") for place, item in enumerate(value))
    if kind.__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        value = value.item()
    if not isinstance(value, Tensor) and type(value) not in _LOADABLE:
        raise TypeError(f"{where} is {value!r} of type {type(value).__name__}, which a checkpoint cannot hold")
    return value


def _write(target: Path, content: dict[str, Any]) -> None:
    aside = target.with_name(target.name + ".partial")
    with open(aside, "wb") as file:
        _save_content(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _save_content(content: dict[str, Any], file: IO[bytes]) -> None:
    try:
        torch.save(content, file)
    except RuntimeError as error:
        # Where the disk fails, torch's writer may fail once more while it closes, over the disk's own error.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def load(
    path: str | os.PathLike[str], *, solver: Stateful, loader: Stateful | None = None, **others: Stateful | None
) -> None:
    """Read a file of :func:`save` back into parts of the same names.

    Raises:
        CheckpointError: where the file is damaged, foreign, or does not fit; every part is then as before.
        FileNotFoundError: where there is no such file.
    """
    parts = _named_parts(solver, loader, others)
    content = read(path)
    kinds = {name: type(part).__name__ for name, part in parts.items()}
    if content.get("kinds") != kinds:
        raise CheckpointError(f"{path} holds {_listed(content.get('kinds'))}, asked for were {_listed(kinds)}")
    before = {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}
    try:
        for name, part in parts.items():
            part.load_state_dict(content["states"][name])
    except Exception as error:
        for name, part in parts.items():
            # Loading ends the loop that is under way, so a part that was not touched is left alone.
            if _digest(part.state_dict()) != _digest(before[name]):
                part.load_state_dict(before[name])
        raise CheckpointError(f"{path} does not fit: {_first_line(error)}") from error


def _listed(kinds: Any) -> str:
    """'solver (Solver), loader (Loader)'."""
    if not isinstance(kinds, dict):
        return "nothing that is named"
    return ", ".join(f"{name} ({kind})" for name, kind in kinds.items())


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a checkpoint, checked for damage; executes nothing from the file."""
    if not Path(path).exists():
        raise FileNotFoundError(f"no checkpoint at {path}")
    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        raise CheckpointError(f"{path} is damaged or not a checkpoint: {_first_line(error)}") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise CheckpointError(f"{path} is not an fcco checkpoint")
    version = content.get("version")
    if version == 1:
        raise CheckpointError(f"{path} was written by fcco 0.1, whose runs cannot be resumed by this version")
    if version != _VERSION:
        raise CheckpointError(f"{path} has checkpoint version {version}; this fcco reads version {_VERSION}")
    if _digest(content.get("states")) != content.get("digest"):
        raise CheckpointError(f"{path} is damaged: its content does not match its digest")
    return content


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def _bytes(tensor: Tensor) -> Any:
    """The memory of a contiguous tensor on the CPU, as it is (torch's own way there leads through numpy)."""
    size = tensor.numel() * tensor.element_size()
    return (ctypes.c_ubyte * size).from_address(tensor.data_ptr()) if size else b""


def _digest(value: Any) -> str:
    sha = hashlib.sha256()
    _feed(sha, value)
    return sha.hexdigest()


def _feed(sha: Any, value: Any) -> None:
    """Hash a nested state: types, keys, shapes and bytes, in order."""
    if isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous()
        sha.update(f"tensor {plain.dtype} {tuple(plain.shape)};".encode())
        sha.update(_bytes(plain))
    elif isinstance(value, dict):
        sha.update(f"dict {len(value)};".encode())
        for key, item in value.items():
            sha.update(f"{key!r}:".encode())
            _feed(sha, item)
    elif isinstance(value, (list, tuple)):
        sha.update(f"list {len(value)};".encode())
        for item in value:
            _feed(sha, item)
    else:
        sha.update(f"{type(value).__name__} {value!r};".encode())
