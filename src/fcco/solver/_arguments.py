"""The solver's arguments, checked: each error names the argument and the value."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from fcco._objective import Objective
from fcco._support import checks
from fcco._support.parallel import rank_and_world
from fcco._support.sharded import is_sharded, part, refuse_other_meshes, spread
from fcco.methods._recipes import Method
from fcco.methods.trackers import OwnRate

_Choice = TypeVar("_Choice", bound=StrEnum)


def choice(kind: type[_Choice], value: Any, name: str) -> _Choice:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{name} must be one of {', '.join(kind)}, got {value!r}") from None


def start_z(z0: float | Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
    if isinstance(z0, (int, float)):
        return [torch.full_like(part(p), checks.number("z0", z0)) for p in parameters]
    if not all(isinstance(z, Tensor) for z in z0):
        raise TypeError(f"z0 must be a number or one tensor a parameter, got {z0!r}")
    shapes, wanted = [tuple(z.shape) for z in z0], [tuple(p.shape) for p in parameters]
    if shapes != wanted:
        raise ValueError(f"z0 must have one tensor a parameter, of shapes {wanted}, got {shapes}")
    wrong = [place for place, z in enumerate(z0) if not bool(torch.isfinite(z).all())]
    if wrong:
        raise ValueError(f"z0 must be finite, got other values in tensors {checks.some(wrong)}")
    return [part(spread(z.detach().to(p.device, p.dtype), p)).clone() for z, p in zip(z0, parameters, strict=True)]


def _needs_closure(optimizer: Optimizer) -> bool:
    try:
        inspect.signature(type(optimizer).step).bind(optimizer)  # of the class: schedulers patch the instance
    except TypeError:
        return True
    return False


def check_parts(objective: Any, optimizer: Any, method: Any, full_pass: Callable[..., Any] | None) -> None:
    for name, value, kind in (
        ("objective", objective, Objective),
        ("optimizer", optimizer, Optimizer),
        ("method", method, Method),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be a {kind.__name__}, got {type(value).__name__}")
    if _needs_closure(optimizer):
        raise ValueError(f"optimizer must take a step from p.grad alone; {type(optimizer).__name__} needs a closure")
    refuse_other_meshes(objective, rank_and_world()[1])
    trained = [(name, p) for name, p in objective.named_parameters() if p.requires_grad]
    if not trained:
        raise ValueError("objective has no parameter that requires a gradient: nothing to train")
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [name for name, p in trained if id(p) not in known]
    if missing:
        raise ValueError(f"optimizer lacks these parameters of the objective: {checks.some(missing)}")
    if getattr(method.tracker, "single_point", False) and any(is_sharded(p) for _, p in trained):
        raise ValueError(
            f"{method.name} needs Jacobian-vector products, which parameters sharded by fully_shard do not give; "
            f"use {method.name.removesuffix('-sp')}"
        )
    if full_pass is not None and not callable(full_pass):
        raise TypeError(f"full_pass must be a function that returns an iterator, got {full_pass!r}")
    if method.period is not None and full_pass is None:
        raise ValueError(f"full_pass must be given for {method.name}: it renews its anchor from all data")
    exponentials = all(objective.log) and objective.mean_of_exponentials
    if isinstance(method.tracker, OwnRate) and not exponentials:
        raise ValueError(
            f"{method.name} is for log-domain objectives whose g is a mean of exponentials; "
            f"{type(objective).__name__} is not one"
        )
