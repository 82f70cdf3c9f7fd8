"""Checkpoints: atomic, exact, and loadable with ``weights_only=True``."""

from __future__ import annotations

import copy
import hashlib
import os
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fcco._support.digests import memory_of
from fcco._support.files import replace_file, save_content
from fcco._support.parallel import (
    broadcast_object,
    first_line,
    gather_objects,
    raise_everywhere,
    rank_and_world,
    together,
)

__all__ = [
    "CheckpointError",
    "Stateful",
    "load",
    "read",
    "save",
]

_FORMAT = "fcco checkpoint"
_VERSION = 2
_LOADABLE = (int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


class Stateful(Protocol):
    """Anything with a state, such as a solver, a loader, a scheduler or a model."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as tensors, numbers, strings and containers of them."""

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Go on from it.

        Args:
            state: what ``state_dict`` gave.
        """


class CheckpointError(ValueError):
    """A checkpoint is damaged, is not one of fcco, or does not fit."""


def save(
    path: str | os.PathLike[str], *, solver: Stateful, loader: Stateful | None = None, **others: Stateful | None
) -> None:
    """Write the states of all parts to one file. At any moment, it holds either the old or the new state, complete.

    Args:
        path: the file, or a link to it. It is first written under another name that ends in ``.partial``, then
            flushed to the disk and renamed.
        solver: the solver. Under torch.distributed, call ``save`` on every rank: the states are collective, rank 0
            writes, and all ranks return when it is done, or raise if any rank has failed.
        loader: its loader, so that the run resumes in the middle of an epoch.
        others: anything else with a ``state_dict``, such as schedulers, each by a keyword of your choice.

    Raises:
        OSError: if the file cannot be written. The old one is then as it was.

    Example:
        >>> fcco.save("run.pt", solver=solver, loader=loader, scheduler=scheduler)  # doctest: +SKIP
    """
    with together(f"to save {path}"):
        parts = _named_parts(solver, loader, others)
    states = {}
    failed: Exception | None = None
    for name, part in parts.items():
        # A rank that fails goes on to the other parts all the same, whose states the ranks gather together.
        try:
            states[name] = _loadable(part.state_dict(), name)
        except Exception as error:
            failed = failed or error
    raise_everywhere(failed, f"to save {path}")
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "kinds": {name: type(part).__name__ for name, part in parts.items()},
        "states": states,
        "digest": _digest(states),
    }
    if rank_and_world()[0] == 0:
        try:
            replace_file(path, lambda file: save_content(content, file))
        except Exception as error:  # torch's writer may raise others than OSError
            failed = error
    message = None
    if failed is not None:
        message = f"{type(failed).__name__}: {first_line(failed)}"
    rank0_error = gather_objects(message)[0]  # no rank goes on before the file is there
    if failed is not None:
        raise failed
    if rank0_error is not None:
        raise OSError(f"rank 0 could not write {path}: {rank0_error}")


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
                    f"{where} has the key {key!r} of type {type(key).__name__}, which a checkpoint cannot hold"
                )
        return kind({key: _loadable(item, f"{where}[{key!r}]") for key, item in value.items()})
    if kind in (list, tuple):
        return kind(_loadable(item, f"{where}[{place}]") for place, item in enumerate(value))
    if kind.__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        value = value.item()
    if not isinstance(value, Tensor) and type(value) not in _LOADABLE:
        raise TypeError(f"{where} is {value!r} of type {type(value).__name__}, which a checkpoint cannot hold")
    return value


def load(
    path: str | os.PathLike[str], *, solver: Stateful, loader: Stateful | None = None, **others: Stateful | None
) -> None:
    """Load a file of :func:`save` into parts of the same names. A running loop over the loader then ends.

    Under torch.distributed, call it on every rank. Ranks without the file (on machines that share no disk) receive the
    content from one that has it. If two ranks have different files, all refuse.

    Args:
        path: the file.
        solver: the solver, created as it was for the run that saved.
        loader: its loader. None: the file holds none.
        others: schedulers, samplers and whatever else was saved, under the same keywords.

    Raises:
        CheckpointError: if the file is damaged, is not one of fcco, or does not fit (if on one rank, then on all).
            Every part is then as before, and a loop over the loader continues.
        FileNotFoundError: if there is no such file (with several ranks: on none of them).
    """
    with together(f"to load {path}"):
        parts = _named_parts(solver, loader, others)
    content = _read_everywhere(path)
    with together(f"to load {path}", CheckpointError):
        _check_fits(path, content, parts)
    before = {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}
    failed: Exception | None = None
    try:
        for name in _in_order(parts):
            parts[name].load_state_dict(content["states"][name])
    except Exception as error:
        failed = CheckpointError(f"{path} does not fit: {first_line(error)}")
        failed.__cause__ = error
    if any(gather_objects(failed is not None)):
        _put_back(parts, before)
    raise_everywhere(failed, f"to load {path}", CheckpointError)


def _in_order(parts: dict[str, Stateful]) -> list[str]:
    """The solver first, and last what has been asked whether it fits: loaders, whose loop a load ends.

    Parts that could not be asked, schedulers among them, may still refuse before a loop has ended.
    """
    return sorted(parts, key=lambda name: name != "solver" and hasattr(parts[name], "check_state_dict"))


def _check_fits(path: str | os.PathLike[str], content: dict[str, Any], parts: dict[str, Stateful]) -> None:
    """Refuse what does not fit before anything is changed: loading a state ends the loop that is under way."""
    kinds = {name: type(part).__name__ for name, part in parts.items()}
    if content.get("kinds") != kinds:
        raise CheckpointError(f"{path} holds {_listed(content.get('kinds'))}, but the call asks for {_listed(kinds)}")
    for name, part in parts.items():
        check = getattr(part, "check_state_dict", None)
        if check is None:
            continue
        try:
            check(content["states"][name])
        except Exception as error:
            raise CheckpointError(f"{path} does not fit: {first_line(error)}") from error


def _put_back(parts: dict[str, Stateful], before: dict[str, Any]) -> None:
    for name, part in parts.items():
        now = part.state_dict()  # every rank takes part
        # One that was not touched is left alone, and with it the loop that is under way.
        if _digest(now) != _digest(before[name]):
            part.load_state_dict(before[name])


class _Found(NamedTuple):
    """What a rank has read: the digest of the content, or why there is none; both None: there is no file."""

    digest: str | None
    error: str | None


def _read_everywhere(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a checkpoint on every rank, from one that has it where others do not."""
    content: dict[str, Any] | None = None
    failed: Exception | None = None
    mine = _Found(None, None)
    try:
        content = read(path)
        mine = _Found(content["digest"], None)
    except FileNotFoundError as error:
        failed = error
    except Exception as error:
        failed = error
        mine = _Found(None, first_line(error))
    found = gather_objects(mine)
    if mine.error is not None and failed is not None:
        raise failed
    holders = _holders(found, path)
    if len(holders) < len(found):
        content = broadcast_object(content, holders[0])
    assert content is not None
    return content


def _holders(found: list[_Found], path: str | os.PathLike[str]) -> list[int]:
    """The ranks that have the checkpoint; at least one must, and all that do must have the same."""
    holders = []
    for rank, theirs in enumerate(found):
        if theirs.error is not None:
            raise CheckpointError(f"rank {rank}: {theirs.error}")
        if theirs.digest is not None:
            holders.append(rank)
    if not holders:
        raise FileNotFoundError(f"no checkpoint at {path}")
    first = holders[0]
    for rank in holders:
        if found[rank].digest != found[first].digest:
            raise CheckpointError(
                f"rank {rank} and rank {first} have different checkpoints at {path}: remove the older one"
            )
    return holders


def _listed(kinds: Any) -> str:
    """'solver (Solver), loader (Loader)'."""
    if not isinstance(kinds, dict):
        return "nothing that is named"
    return ", ".join(f"{name} ({kind})" for name, kind in kinds.items())


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a checkpoint, checked for damage. Nothing in the file is executed.

    Args:
        path: the file.
    """
    if not Path(path).exists():
        raise FileNotFoundError(f"no checkpoint at {path}")
    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        raise CheckpointError(f"{path} is damaged or not a checkpoint: {first_line(error)}") from error
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


def _digest(value: Any) -> str:
    sha = hashlib.sha256()
    _feed(sha, value)
    return sha.hexdigest()


def _feed(sha: Any, value: Any) -> None:
    """Hash a nested state: types, keys, shapes and bytes, in order."""
    if isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous()
        sha.update(f"tensor {plain.dtype} {tuple(plain.shape)};".encode())
        sha.update(memory_of(plain))
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
