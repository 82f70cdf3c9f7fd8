"""A solver as plain values and tensors: saving it, checking what was saved, and loading it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

from fcco._support.parallel import gather_objects, rank_and_world
from fcco._support.sharded import joined, spread
from fcco.solver._engine import Engine
from fcco.solver._estimate import z_in_gradients
from fcco.solver._identity import check_identity, identity
from fcco.solver._optimizer_state import check_optimizer_state
from fcco.solver._state import (
    Placement,
    check_module_state,
    check_record,
    cloned,
    load_record,
    save_record,
    spread_module_state,
)

if TYPE_CHECKING:
    from fcco.solver._solver import Solver

STATE_VERSION = 2
PARTS = ("of", "state", "gradients", "objective", "optimizer", "random")


def save_solver(solver: Solver) -> dict[str, Any]:
    """Everything that a resumed run needs; each rank must call this."""
    grads = z_in_gradients(solver.method, solver.t, solver.parameters)
    if grads is not None:
        grads = [cloned(joined(gradient, p)) for gradient, p in zip(grads, solver.parameters, strict=True)]
    return {
        "version": STATE_VERSION,
        "of": _identity(solver),
        "state": save_record(solver.state, _placement(solver)),
        "gradients": grads,
        "objective": cloned(solver.objective.state_dict()),
        "optimizer": cloned(solver.optimizer.state_dict()),
        "random": gather_objects(solver.randomness.state_dict()),
    }


def check_saved(solver: Solver, engine: Engine, state: Any) -> None:
    """Raise if a state does not fit the solver, or its engine. Nothing is changed."""
    if not isinstance(state, dict):
        raise TypeError(f"the state must be a dict, got {type(state).__name__}")
    if state.get("version") != STATE_VERSION:
        raise ValueError(
            f"the state has version {state.get('version')}, but this fcco reads version {STATE_VERSION}: states "
            "of fcco 0.1 cannot be resumed"
        )
    missing = [name for name in PARTS if name not in state]
    if missing:
        raise ValueError(f"the state is not one of a Solver: it lacks {', '.join(missing)}")
    check_identity(_identity(solver), state["of"])
    check_module_state(solver.objective, state["objective"])
    check_record(solver.state, state["state"], _placement(solver))
    engine.check_state(state["state"]["engine"])
    check_optimizer_state(solver.optimizer, state["optimizer"], solver.parameters)
    _check_gradients(state["gradients"], solver.parameters)
    _check_random(state["random"])


def load_solver(solver: Solver, engine: Engine, state: dict[str, Any]) -> None:
    """Load a state that :func:`check_saved` has let pass."""
    place = _placement(solver)
    solver.objective.load_state_dict(spread_module_state(solver.objective, state["objective"]))
    solver.optimizer.load_state_dict(_spread_optimizer(solver.optimizer, state["optimizer"]))
    solver.state = load_record(solver.state, state["state"], place)
    engine.after_load()
    grads = state["gradients"] or [None] * len(solver.parameters)
    for p, gradient in zip(solver.parameters, grads, strict=True):
        p.grad = None if gradient is None else spread(gradient.to(p.device, copy=True), p)
    if place.rank < len(state["random"]):  # a new rank keeps its own random state
        solver.randomness.load_state_dict(state["random"][place.rank])


def _identity(solver: Solver) -> dict[str, Any]:
    return identity(solver.objective, solver.method, solver.optimizer, solver.keep)


def _placement(solver: Solver) -> Placement:
    rank, world = rank_and_world()
    return Placement(
        rank=rank,
        world=world,
        num_blocks=solver.objective.num_blocks,
        device=solver.device,
        parameters=solver.parameters,
        module=solver.objective,
    )


def _check_gradients(grads: Any, parameters: Sequence[Tensor]) -> None:
    if grads is None:
        return
    wanted = [tuple(p.shape) for p in parameters]
    if not isinstance(grads, list) or [tuple(getattr(z, "shape", ())) for z in grads] != wanted:
        raise ValueError(f"the state's gradients do not fit this solver's parameters, of shapes {wanted}")


def _check_random(random: Any) -> None:
    if not isinstance(random, list) or not all(isinstance(part, dict) for part in random):
        raise ValueError("the state's random must be a list of the ranks' random states")


def _spread_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """A copy of the optimizer's state, since torch would use the tensors themselves, distributed over ranks."""
    copied: dict[str, Any] = cloned(state)
    places = [p for group in optimizer.param_groups for p in group["params"]]
    for place, entries in copied["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                entries[name] = spread(value, places[place])
    return copied
