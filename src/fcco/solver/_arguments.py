"""The solver's arguments, checked: each error names the argument and the value."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from fcco._objective import Objective
from fcco._support import checks
from fcco._support.parallel import rank_and_world
from fcco._support.sharded import check_meshes, is_sharded, part, spread_like
from fcco.methods import Method
from fcco.methods.trackers import OwnRate
from fcco.objectives import OutputObjective
from fcco.objectives._base import OverData
from fcco.solver._full_pass import FullPass

_Choice = TypeVar("_Choice", bound=StrEnum)


def choice(kind: type[_Choice], value: Any, name: str) -> _Choice:
    """A member of an enum, from itself or its value."""
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{name} must be one of {', '.join(kind)}, got {value!r}") from None


def start_z(z0: float | Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
    """z_0 beside the parameters, from a number or one tensor per parameter."""
    if isinstance(z0, (int, float)):
        return [torch.full_like(part(p), checks.number("z0", z0)) for p in parameters]
    if not all(isinstance(z, Tensor) for z in z0):
        raise TypeError(f"z0 must be a number or one tensor per parameter, got {z0!r}")
    shapes = [tuple(z.shape) for z in z0]
    wanted = [tuple(p.shape) for p in parameters]
    if shapes != wanted:
        raise ValueError(f"z0 must have one tensor per parameter, of shapes {wanted}, got {shapes}")
    if any(z.is_complex() for z in z0):
        raise TypeError(f"z0 must hold real numbers, as the parameters do, got {', '.join(str(z.dtype) for z in z0)}")
    wrong = [place for place, z in enumerate(z0) if not bool(torch.isfinite(z).all())]
    if wrong:
        raise ValueError(f"z0 must be finite, got other values in tensors {checks.some(wrong)}")
    return spread_like(z0, parameters)


def check_settings(radius: Any, normalize: Any, seed: Any) -> None:
    """Refuse what is no radius, flag or seed."""
    checks.flag("normalize", normalize)
    checks.whole("seed", seed)
    if radius is not None:
        checks.positive("radius", radius)


def warn_if_unbounded(method: Method, radius: float | None, stacklevel: int) -> None:
    """Warn if the method's theory needs a bounded step, and nothing bounds it."""
    if radius is None and getattr(method.tracker, "single_point", False):
        warnings.warn(
            f"the theory of {method.name} needs a bounded step: pass radius (the paper's C_F) to the Solver",
            stacklevel=stacklevel,
        )


def check_capture(capture: Any) -> bool:
    """Whether steps may be captured; refused where it is none of the three words."""
    if capture is True or capture is False:
        return bool(capture)
    if capture != "auto":
        raise ValueError(f"capture must be False, True or 'auto', got {capture!r}")
    return True


def check_rates(optimizer: Optimizer) -> None:
    """Refuse learning rates below 0, or not finite: torch checks them when the optimizer is made, and never again."""
    for place, group in enumerate(optimizer.param_groups):
        lr = group.get("lr", 0.0)
        # One in a tensor may be on a device, which nobody should wait for.
        if isinstance(lr, (int, float)) and not 0.0 <= lr < math.inf:
            raise ValueError(f"lr of the optimizer's parameter group {place} must be finite and >= 0, got {lr}")


def check_parts(objective: Any, optimizer: Any, method: Any) -> None:
    """Refuse what is no objective, optimizer or method, and what the optimizer cannot train."""
    _check_kind("objective", objective, Objective)
    _check_kind("optimizer", optimizer, Optimizer)
    _check_kind("method", method, Method)
    if _needs_closure(optimizer):
        raise ValueError(f"optimizer must take a step from p.grad alone; {type(optimizer).__name__} needs a closure")
    check_meshes(objective, rank_and_world()[1])
    trained = [(name, p) for name, p in objective.named_parameters() if p.requires_grad]
    if not trained:
        raise ValueError("objective has no parameter that requires a gradient: nothing to train")
    meta = [name for name, p in trained if p.is_meta]
    if meta:
        raise ValueError(
            f"objective has parameters without values, on the device meta: {checks.some(meta)}; create them by "
            "to_empty and initialise them first"
        )
    complex_ones = [name for name, p in trained if p.is_complex()]
    if complex_ones:
        raise ValueError(
            f"objective has complex parameters, which fcco does not train: {checks.some(complex_ones)}; hold their "
            "real and imaginary parts (torch.view_as_real) as a real parameter"
        )
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [name for name, p in trained if id(p) not in known]
    if missing:
        raise ValueError(f"optimizer must have all parameters of the objective, but lacks {checks.some(missing)}")


def full_pass_of(objective: Objective, method: Method, given: FullPass | None) -> FullPass | None:
    """The given pass, or that of the objective's data. Raises if the method needs one and there is none."""
    if given is not None:
        if not callable(given):
            raise TypeError(f"full_pass must be a function that returns an iterator, got {given!r}")
        return given
    if isinstance(objective, OverData):
        return objective.full_pass
    if method.finite_sum:
        raise ValueError(f"full_pass must be given for {method.name}, which renews its reference from all data")
    return None


def _check_kind(name: str, value: Any, kind: type) -> None:
    if isinstance(value, kind):
        return
    article = "a"
    if kind.__name__[0] in "AEIOU":
        article = "an"
    raise TypeError(f"{name} must be {article} {kind.__name__}, got {type(value).__name__}")


def _needs_closure(optimizer: Optimizer) -> bool:
    try:
        inspect.signature(type(optimizer).step).bind(optimizer)  # of the class: schedulers patch the instance
    except TypeError:
        return True
    return False


# ---------------------------------------------------------------------- pairs that make no sense


class Refusal(NamedTuple):
    """A pair of method and objective that makes no sense, and the sentence that says why."""

    applies: Callable[[Method, Objective], bool]
    sentence: str


def _off_exponentials(method: Method, objective: Objective) -> bool:
    exponentials = all(objective.log_domain) and objective.mean_of_exponentials
    return isinstance(method.tracker, OwnRate) and not exponentials


def _memory_without_outputs(method: Method, objective: Objective) -> bool:
    return method.memory is not None and not isinstance(objective, OutputObjective)


def _memory_without_form(method: Method, objective: Objective) -> bool:
    return method.memory is not None and isinstance(objective, OutputObjective) and not objective.compares_examples


def _products_of_shards(method: Method, objective: Objective) -> bool:
    single_point = getattr(method.tracker, "single_point", False)
    return single_point and any(is_sharded(p) for p in objective.parameters())


#: In the order in which they are tried; {method} and {objective} are filled in.
REFUSALS = (
    Refusal(
        _off_exponentials,
        "{method} is for log-domain objectives whose g is a mean of exponentials; {objective} is not one",
    ),
    Refusal(
        _memory_without_outputs,
        "{method} is for objectives with one output per example (fcco.objectives.OutputObjective); "
        "{objective} is not one",
    ),
    Refusal(_memory_without_form, "{method} has no form for groups and bags; {objective} needs a tracker"),
    Refusal(
        _products_of_shards,
        "{method} needs Jacobian-vector products, which parameters sharded by fully_shard do not give; "
        "take the method without -sp",
    ),
)


def check_pair(method: Method, objective: Objective) -> None:
    """Refuse a method and an objective that make no sense together."""
    for refusal in REFUSALS:
        if refusal.applies(method, objective):
            raise ValueError(refusal.sentence.format(method=method.name, objective=type(objective).__name__))
