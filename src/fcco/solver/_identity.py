"""What a state is of: objective, method, optimizer and sizes. A state of something else is refused by name."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from fcco._objective import Objective
from fcco._support.digests import digest
from fcco.data import Structure
from fcco.methods import Method


def identity(objective: Objective, method: Method, optimizer: Optimizer, keep: str) -> dict[str, Any]:
    """Plain values that say what a solver solves; rates are left out, since a schedule may change them."""
    known: dict[str, Any] = {
        "objective": type(objective).__name__,
        "constants": {name: _plain(value) for name, value in objective.constants().items()},
        "blocks": objective.num_blocks,
        "dim": objective.dim,
        "method": method.name,
        "tracker": type(method.tracker).__name__,
        "estimator": type(method.estimator).__name__,
        "nesterov": getattr(method.estimator, "nesterov", False),
        "lag": method.lag,
        "optimizer": type(optimizer).__name__,
        "keep": str(keep),
    }
    data = getattr(objective, "data", None)  # an objective of the user's own has none
    if isinstance(data, Structure):
        # Not x, which may be anything. u_i is of block i, which other labels, in another order, make another block.
        known["data"] = digest(data.facts())
    return known


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return repr(value)  # compared as text: a checkpoint holds plain values only


def check_identity(mine: dict[str, Any], theirs: Any) -> None:
    """Raise where a state is of something else; the first difference is named."""
    if not isinstance(theirs, dict):
        raise ValueError("the state does not say what it belongs to, so it is not from a Solver of this version")
    for name, value in mine.items():
        if name not in ("constants", "data") and theirs.get(name) != value:
            raise ValueError(f"the state has {name} {theirs.get(name)!r}, but this solver has {value!r}")
    constants = theirs.get("constants")
    if not isinstance(constants, dict):
        raise ValueError("the state does not say which constants its objective has")
    for name, value in mine["constants"].items():
        if constants.get(name) != value:
            got = constants.get(name)
            raise ValueError(f"the state is of an objective with {name} {got!r}, but this one has {value!r}")
    before = theirs.get("data")  # states from before this was kept have none
    if before is not None and before != mine.get("data"):
        raise ValueError(
            "the state is of other data: their labels, groups, times or weights, or the order of the "
            "examples, differ from "
            "those of this objective"
        )
