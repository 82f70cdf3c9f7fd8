"""A solver's state as plain values and tensors, and back."""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fcco._support.module_state import copy_into
from fcco._support.parallel import gather_objects
from fcco._support.sharded import joined, part, parts, spread, whole
from fcco.solver._reference import Anchor
from fcco.solver._report import Oracle

if TYPE_CHECKING:
    from fcco.solver._solver import Solver

_PLAIN = ("t", "samples", "skipped", "_renew", "_anchored_at")
_NESTED = (
    "kind",
    "oracle",
    "objective",
    "optimizer",
    "table",
    "z",
    "norm",
    "previous",
    "anchor",
    "reservoir",
    "random",
)


def _kind(solver: Solver) -> list[Any]:
    method, optimizer = solver.method, type(solver.optimizer).__name__
    return [method.name, type(method.tracker).__name__, type(method.estimator).__name__, method.lag, optimizer]


def _z(solver: Solver) -> list[Tensor] | None:
    """z where it lies: plain estimators keep it in ``p.grad`` only."""
    if solver.method.estimator.remembers:
        return solver._z
    grads = parts(p.grad for p in solver.parameters if p.grad is not None)
    return grads if solver.t > 0 and len(grads) == len(solver.parameters) else None


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
        "z": _whole(_z(solver), solver),
        "norm": _cloned(solver._norm),
        "previous": _whole(solver.previous, solver),
        "anchor": None
        if anchor is None
        else {
            "weights": _whole(anchor.weights, solver),
            "gradient": _whole(anchor.gradient, solver),
            "g": solver.table._gather(anchor.g),
            "u": solver.table._gather(anchor.u),
        },
        "reservoir": None if solver._reservoir is None else _cloned(solver._reservoir.state_dict()),
        "random": gather_objects(solver._evaluator.module_state.randomness.state_dict()),
        "watch": None if solver._watch is None else gather_objects(solver._watch.state_dict()),
    }


def load_solver_state(solver: Solver, state: dict[str, Any]) -> None:
    """Go on from a saved state; refused before anything is changed where it does not fit."""
    _refuse(solver, state)
    rank, world = solver.table.rank, solver.table.world
    solver.objective.load_state_dict(_spread(state["objective"], solver))
    solver.optimizer.load_state_dict(_optimizer_state(state["optimizer"], solver))
    solver.table.load_state_dict(state["table"])
    for name in _PLAIN:
        setattr(solver, name, state[name])
    solver.oracle = Oracle(*state["oracle"])
    z = _like(state["z"], solver.parameters)
    if solver.method.estimator.remembers:
        solver._z = z
    else:
        for place, p in enumerate(solver.parameters):
            p.grad = None if z is None else joined(z[place], p)
    solver._norm = None if state["norm"] is None else state["norm"].to(solver.table.device)
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
        kept = state["reservoir"]["kept"]
        solver._reservoir.load_state_dict(state["reservoir"] | {"kept": kept and _spread(kept, solver)})
    if rank < len(state["random"]):
        solver._evaluator.module_state.randomness.load_state_dict(state["random"][rank])
    watched = state.get("watch") or []  # states of before it have none
    if solver._watch is not None and rank < len(watched):
        solver._watch.load_state_dict(watched[rank], solver.table.device)


def _refuse(solver: Solver, state: dict[str, Any]) -> None:
    if not isinstance(state, dict):
        raise TypeError(f"the state must be a dict, got {type(state).__name__}")
    missing = [name for name in (*_PLAIN, *_NESTED) if name not in state]
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
    _refuse_shapes(solver, state)


def _refuse_shapes(solver: Solver, state: dict[str, Any]) -> None:
    anchor, wanted = state["anchor"] or {}, [tuple(p.shape) for p in solver.parameters]
    lists = {"z": state["z"], "previous": state["previous"]}
    for name, saved in (lists | {name: anchor.get(name) for name in ("weights", "gradient")}).items():
        shapes = wanted if saved is None else [tuple(tensor.shape) for tensor in saved]
        if shapes != wanted:
            raise ValueError(f"the state's {name} has tensors of shapes {shapes}, this solver trains {wanted}")


def _same(mine: Any, theirs: Any) -> bool:
    if not isinstance(mine, Tensor):
        return type(mine) is type(theirs)
    return isinstance(theirs, Tensor) and mine.shape == theirs.shape and mine.dtype == theirs.dtype


def _like(saved: list[Tensor] | None, parameters: list[Any]) -> list[Tensor] | None:
    if saved is None:
        return None
    fresh = [torch.empty_like(part(p)) for p in parameters]
    copy_into(fresh, [spread(tensor.to(p.device), p) for tensor, p in zip(saved, parameters, strict=True)])
    return fresh


def _whole(mine: list[Tensor] | None, solver: Solver) -> list[Tensor] | None:
    """One tensor a parameter, whole where each rank has its part."""
    if mine is None:
        return None
    return [_cloned(joined(tensor, p)) for tensor, p in zip(mine, solver.parameters, strict=True)]


def _spread(saved: dict[str, Any], solver: Solver) -> dict[str, Any]:
    """A state of the objective, laid out over ranks as the objective is."""
    own = solver.objective.state_dict()
    return {name: spread(value, own[name]) for name, value in saved.items()}


def _optimizer_state(saved: dict[str, Any], solver: Solver) -> dict[str, Any]:
    """A state of the optimizer, copied (torch takes the tensors over as they are) and laid out over ranks."""
    copied: dict[str, Any] = _cloned(saved)
    places = [p for group in solver.optimizer.param_groups for p in group["params"]]
    for place, own in copied["state"].items():
        for name, value in own.items():
            own[name] = spread(value, places[place]) if isinstance(value, Tensor) else value
    return copied


def _cloned(value: Any) -> Any:
    """A deep copy in which every tensor is detached, whole and cloned."""
    if isinstance(value, Tensor):
        return whole(value.detach()).clone()
    if isinstance(value, dict):
        return {key: _cloned(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_cloned(item) for item in value)
    return value
