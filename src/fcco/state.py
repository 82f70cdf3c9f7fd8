"""A solver's state as plain values and tensors, and back."""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from fcco.anchor import Anchor
from fcco.blocks import rank_and_world
from fcco.report import Oracle
from fcco.rewind import copy_into

if TYPE_CHECKING:
    from fcco.solver import Solver

_PLAIN = ("t", "samples", "skipped", "_renew", "_anchored_at")


def _over_ranks(mine: Any) -> list[Any]:
    _, world = rank_and_world()
    if world == 1:
        return [mine]
    everyone: list[Any] = [None] * world
    dist.all_gather_object(everyone, mine)
    return everyone


def _kind(solver: Solver) -> list[Any]:
    method = solver.method
    return [method.name, type(method.tracker).__name__, type(method.estimator).__name__, method.lag]


def solver_state(solver: Solver) -> dict[str, Any]:
    """Everything that a resumed run needs; collective under torch.distributed."""
    state: dict[str, Any] = {name: getattr(solver, name) for name in _PLAIN}
    anchor = solver.anchor
    return state | {
        "kind": _kind(solver),
        "oracle": astuple(solver.oracle),
        "objective": _cloned(solver.objective.state_dict()),
        "optimizer": _cloned(solver.optimizer.state_dict()),
        "table": solver.table.state_dict(),
        "z": _cloned(solver._z),
        "previous": _cloned(solver.previous),
        "anchor": None
        if anchor is None
        else {
            "weights": _cloned(anchor.weights),
            "gradient": _cloned(anchor.gradient),
            "g": solver.table._gather(anchor.g),
            "u": solver.table._gather(anchor.u),
        },
        "reservoir": None if solver._reservoir is None else _cloned(solver._reservoir.state_dict()),
        "random": _over_ranks(solver._evaluator.surroundings.randomness.capture()),
    }


def load_solver_state(solver: Solver, state: dict[str, Any]) -> None:
    """Go on from a saved state; refused before anything is changed where it does not fit."""
    _refuse(solver, state)
    rank, world = solver.table.rank, solver.table.world
    solver.objective.load_state_dict(state["objective"])
    solver.optimizer.load_state_dict(state["optimizer"])
    solver.table.load_state_dict(state["table"])
    for name in _PLAIN:
        setattr(solver, name, state[name])
    solver.oracle = Oracle(*state["oracle"])
    solver._z = _like(state["z"], solver.parameters)
    solver.previous = _like(state["previous"], solver.parameters)
    saved = state["anchor"]
    if saved is None:
        solver.anchor = None
    else:
        weights, gradient = (
            _like(saved["weights"], solver.parameters),
            _like(saved["gradient"], solver.parameters),
        )
        assert weights is not None
        assert gradient is not None
        rows = solver.table.rows
        solver.anchor = Anchor(weights, saved["g"][rank::world].to(rows), saved["u"][rank::world].to(rows), gradient)
    if solver._reservoir is not None:
        solver._reservoir.load_state_dict(state["reservoir"])
    if rank < len(state["random"]):
        solver._evaluator.surroundings.randomness.restore(state["random"][rank])


def _refuse(solver: Solver, state: dict[str, Any]) -> None:
    missing = [name for name in (*_PLAIN, "kind", "table", "objective", "optimizer") if name not in state]
    if missing:
        raise ValueError(f"the state is not one of a Solver: it lacks {', '.join(missing)}")
    if list(state["kind"]) != _kind(solver):
        raise ValueError(f"the state is of method {list(state['kind'])}, this solver runs {_kind(solver)}")
    if (state["reservoir"] is None) != (solver._reservoir is None):
        raise ValueError("the state and this solver differ in keep")
    solver.table.refuse(state["table"])
    own = solver.objective.state_dict()
    wrong = sorted(set(own) ^ set(state["objective"]))
    wrong += [name for name in own if name not in wrong and not _same(own[name], state["objective"][name])]
    if wrong:
        raise ValueError(f"the state does not fit this objective at: {', '.join(wrong)}")
    groups = [len(group["params"]) for group in state["optimizer"]["param_groups"]]
    if groups != [len(group["params"]) for group in solver.optimizer.param_groups]:
        raise ValueError(f"the state's optimizer has parameter groups of sizes {groups}, this one has others")


def _same(mine: Any, theirs: Any) -> bool:
    if not isinstance(mine, Tensor):
        return type(mine) is type(theirs)
    return isinstance(theirs, Tensor) and mine.shape == theirs.shape and mine.dtype == theirs.dtype


def _like(saved: list[Tensor] | None, parameters: list[Any]) -> list[Tensor] | None:
    if saved is None:
        return None
    fresh = [torch.empty_like(p) for p in parameters]
    copy_into(fresh, [tensor.to(p.device) for tensor, p in zip(saved, parameters, strict=True)])
    return fresh


def _cloned(value: Any) -> Any:
    """A deep copy in which every tensor is detached and cloned."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _cloned(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_cloned(item) for item in value)
    return value
