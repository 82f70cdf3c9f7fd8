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
    if not isinstance(state, dict) or not isinstance(state.get("state"), dict):
        raise ValueError("the state's optimizer must have state and param_groups")
    groups = state.get("param_groups")
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise ValueError("the state's optimizer must have state and param_groups")
    if not all(isinstance(group.get("params"), list) for group in groups):
        raise ValueError("the state's optimizer must have a list of params in every group")
    sizes = [len(group["params"]) for group in groups]
    mine = [len(group["params"]) for group in optimizer.param_groups]
    if sizes != mine:
        raise ValueError(f"the state's optimizer has parameter groups of sizes {sizes}, this one of {mine}")
    places: dict[Any, nn.Parameter] = {}
    always = {id(p) for p in trained}
    plain = _is_plain(optimizer)
    for group, own in zip(groups, optimizer.param_groups, strict=True):
        _check_settings(group, own, optimizer.defaults)
        members = dict(zip(group["params"], own["params"], strict=True))
        entries = {place: state["state"].get(place) or {} for place in members}
        for place, entry in entries.items():
            if not isinstance(entry, dict):
                raise ValueError(f"the state's optimizer must hold a dict for parameter {place}, got {entry!r}")
        if plain:
            _check_entries(entries, members)
            _check_complete({place: entry for place, entry in entries.items() if id(members[place]) in always})
        places |= members
    unknown = [place for place in state["state"] if place not in places]
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
    known: dict[int, tuple[Any, dict[str, bool]]] = {}
    for place, entry in entries.items():
        if not entry:
            continue  # it had no gradient yet
        p = members[place]
        kinds = {name: isinstance(value, Tensor) for name, value in entry.items()}
        first, wanted = known.setdefault(p.dim(), (place, kinds))
        if kinds != wanted:
            names = sorted(name for name in {*kinds, *wanted} if kinds.get(name) != wanted.get(name))
            raise ValueError(
                f"the state's optimizer differs in {', '.join(names)} between parameters {first} and {place}"
            )
        for name, value in entry.items():
            if isinstance(value, Tensor) and not _fits(value, p):
                raise ValueError(
                    f"the state's optimizer has {name} of shape {tuple(value.shape)} for parameter {place}, whose "
                    f"shape is {tuple(p.shape)}"
                )


def _fits(value: Tensor, p: nn.Parameter) -> bool:
    if value.numel() == 1:
        return True
    if value.dim() != p.dim():
        return False
    return all(size in (1, wanted) for size, wanted in zip(value.shape, p.shape, strict=True))
