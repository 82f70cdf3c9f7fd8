"""Whether a saved state of an optimizer is whole: torch takes any, and fails in the next step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer


def check_optimizer_state(optimizer: Optimizer, state: Any, trained: Sequence[nn.Parameter]) -> None:
    """Raise where a state does not fit the optimizer, or lacks for some parameter what it holds for others.

    Args:
        optimizer: takes the state over.
        state: what its ``state_dict`` gave.
        trained: the parameters that have a gradient in every step.
    """
    groups = _saved_groups(state)
    _check_sizes(groups, optimizer.param_groups)
    always_trained = {id(p) for p in trained}
    entries_are_known = _is_plain(optimizer)
    every_place: set[Any] = set()
    for saved, own in zip(groups, optimizer.param_groups, strict=True):
        _check_settings(saved, own, optimizer.defaults)
        members = dict(zip(saved["params"], own["params"], strict=True))  # the parameter at each place
        entries = _entries_of(members, state["state"])
        if entries_are_known:
            _check_entries(entries, members)
            _check_complete({place: entry for place, entry in entries.items() if id(members[place]) in always_trained})
        every_place |= members.keys()
    _check_known(state["state"], every_place)


def _saved_groups(state: Any) -> list[dict[str, Any]]:
    """The parameter groups of a state that has the shape of torch's: entries by place, groups with lists of places."""
    if not isinstance(state, dict) or not isinstance(state.get("state"), dict):
        raise ValueError("the state's optimizer must have state and param_groups")
    groups = state.get("param_groups")
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise ValueError("the state's optimizer must have state and param_groups")
    if not all(isinstance(group.get("params"), list) for group in groups):
        raise ValueError("the state's optimizer must have a list of params in every group")
    return groups


def _check_sizes(saved: list[dict[str, Any]], own: list[dict[str, Any]]) -> None:
    """Places are matched by their order: groups of other sizes would give parameters the entries of others."""
    saved_sizes = [len(group["params"]) for group in saved]
    own_sizes = [len(group["params"]) for group in own]
    if saved_sizes != own_sizes:
        raise ValueError(f"the state's optimizer has parameter groups of sizes {saved_sizes}, this one of {own_sizes}")


def _entries_of(members: dict[Any, nn.Parameter], entries: dict[Any, Any]) -> dict[Any, dict[str, Any]]:
    """What is kept of each parameter of a group, by place; nothing where it had no gradient yet."""
    found: dict[Any, dict[str, Any]] = {}
    for place in members:
        entry = entries.get(place) or {}
        if not isinstance(entry, dict):
            raise ValueError(f"the state's optimizer must hold a dict for parameter {place}, got {entry!r}")
        found[place] = entry
    return found


def _check_known(entries: dict[Any, Any], places: set[Any]) -> None:
    """Every entry is a parameter's: torch would keep the others for ever."""
    unknown = [place for place in entries if place not in places]
    if unknown:
        raise ValueError(f"the state's optimizer has entries of no parameter: {unknown[0]!r}")


def _is_plain(optimizer: Optimizer) -> bool:
    """Whether the optimizer is known to keep the same things of all parameters with as many dimensions, each a number
    or of the parameter's shape (a side of it, in torch's Adafactor). Others may keep large ones in 8 bits, say."""
    return type(optimizer).__module__.split(".")[0] in ("torch", "fcco")


def _check_settings(saved: dict[str, Any], own: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Rates and the like must be there, as numbers; what torch has added later it fills in itself."""
    for name in defaults:
        if _is_number(own.get(name)) and not _is_number(saved.get(name)):
            raise ValueError(f"the state's optimizer must have a number as {name}, got {saved.get(name)!r}")
        if isinstance(own.get(name), tuple) and not isinstance(saved.get(name), (tuple, list)):
            raise ValueError(f"the state's optimizer must have numbers as {name}, got {saved.get(name)!r}")


def _check_complete(entries: dict[Any, dict[str, Any]]) -> None:
    """Of parameters that had their gradients in the same steps, all have an entry or none."""
    without = [place for place, entry in entries.items() if not entry]
    if without and len(without) < len(entries):
        raise ValueError(f"the state's optimizer lacks its entry for parameter {without[0]}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Tensor)) and not isinstance(value, bool)


def _check_entries(entries: dict[Any, dict[str, Any]], members: dict[Any, nn.Parameter]) -> None:
    """What is kept of the parameters of a group: of those with as many dimensions, the same things."""
    first_of_dim: dict[int, tuple[Any, dict[str, bool]]] = {}  # by dimensions: the first place, and what it keeps
    for place, entry in entries.items():
        if not entry:
            continue  # it had no gradient yet
        p = members[place]
        is_tensor = {name: isinstance(value, Tensor) for name, value in entry.items()}
        first, expected = first_of_dim.setdefault(p.dim(), (place, is_tensor))
        if is_tensor != expected:
            differing = sorted(name for name in {*is_tensor, *expected} if is_tensor.get(name) != expected.get(name))
            raise ValueError(
                f"the state's optimizer differs in {', '.join(differing)} between parameters {first} and {place}"
            )
        _check_shapes(place, entry, p)


def _check_shapes(place: Any, entry: dict[str, Any], p: nn.Parameter) -> None:
    """Tensors are of the parameter's shape, or numbers."""
    for name, value in entry.items():
        if isinstance(value, Tensor) and not _fits(value, p):
            raise ValueError(
                f"the state's optimizer has {name} of shape {tuple(value.shape)} for parameter {place}, whose "
                f"shape is {tuple(p.shape)}"
            )


def _fits(value: Tensor, p: nn.Parameter) -> bool:
    """Whether a tensor is a number, or of the parameter's shape but for sides of 1."""
    if value.numel() == 1:
        return True
    if value.dim() != p.dim():
        return False
    return all(size in (1, wanted) for size, wanted in zip(value.shape, p.shape, strict=True))
