"""What every framework's loop needs of a solver and its loader."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any

from torch import nn

from fcco.data import Batch
from fcco.solver import Solver


def check_solver(solver: Any, model: nn.Module) -> None:
    """Refuse a solver that does not train parameters of ``model``, or whose parameters have moved since it was made."""
    if not isinstance(solver, Solver):
        raise TypeError(f"solver must be a fcco.Solver, got {type(solver).__name__}")
    known = {id(p) for p in model.parameters()}
    if any(id(p) not in known for p in solver.parameters):
        raise ValueError(
            "the solver trains parameters that the model does not have: make the objective an attribute of the model"
        )
    if solver.parameters[0].device != solver.device:
        raise ValueError(
            f"the solver was created on {solver.device}, but the objective is on {solver.parameters[0].device}: "
            "move the objective first, then create the Solver"
        )


def check_loader(loader: Any) -> None:
    """Refuse a loader without a length, or one that cannot say where in an epoch it is."""
    if not isinstance(loader, Sized) or not isinstance(loader, Iterable):
        raise TypeError(f"loader must be iterable and have a length, got {type(loader).__name__}")
    if not hasattr(loader, "load_state_dict") or not hasattr(loader, "state_dict"):
        raise TypeError(f"loader must have state_dict and load_state_dict, got {type(loader).__name__}")
    if "step" not in loader.state_dict():
        raise TypeError(f"the state_dict of a {type(loader).__name__} must have 'step', its position in the epoch")


def as_arguments(batch: Any) -> tuple[Any, ...]:
    """Return the arguments of ``solver.step`` from what a loader yields: a batch, or ``(index, *data)``."""
    if isinstance(batch, Batch):
        return (batch,)
    return tuple(batch)


def at_next_epoch(state: dict[str, Any]) -> dict[str, Any]:
    """Return a loader's state after its epoch's last step as that of one about to begin the next epoch.

    A framework that counts to the loader's length never asks for one batch too many, so the loader itself would go
    on with the rest of its epoch, which is empty.
    """
    return state | {"step": 0}
