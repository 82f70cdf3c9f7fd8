"""What a graph has baked in: where any of it changes, the step is captured anew."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from fcco.solver._inputs import PLAIN
from fcco.solver._program import Works

_LONG = 64  # entries: a longer table is told by its identity, since it is looked at in every step
_OF_TORCH = frozenset(vars(nn.Module()))  # a dozen tables per module, which are looked at by name
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@final
class Fingerprint:
    """Everything outside of its inputs that a captured step depends on, as something that can be compared.

    The modules with their train flags and constants, the method and its rates, the optimizer's settings, autocast, and
    the addresses of weights, buffers and the optimizer's state.

    Args:
        works: the solver's parts.
    """

    def __init__(self, works: Works) -> None:
        self._works = works
        self._modules = list(works.evaluator.objective.modules())

    def take(self) -> Any:
        """The fingerprint as of now."""
        works = self._works
        return (
            works.engine.method,
            works.bounds,
            works.engine.fingerprint(),
            tuple(_mark(module) for module in self._modules),
            self._precision(),
            tuple(tensor.data_ptr() for tensor in works.optimizer_tensors()),
            tuple(_settings(group) for group in works.optimizer.param_groups),
        )

    def _precision(self) -> tuple[Any, ...]:
        kind = self._works.evaluator.device.type
        return (
            torch.is_autocast_enabled(kind),
            torch.get_autocast_dtype(kind),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
            torch.backends.cudnn.allow_tf32,  # of convolutions, which go by a switch of their own
        )


def _mark(module: nn.Module) -> tuple[Any, ...]:
    """A module's parts and constants: tensors by their addresses, modules by what they are."""
    found: list[Any] = [module.training]
    found += [_address(part) for part in module._parameters.values()]
    found += [_address(part) for part in module._buffers.values()]
    found += [id(part) for part in module._modules.values()]
    found += [len(getattr(module, name)) for name in _HOOKS]
    for name, value in vars(module).items():
        if name in _OF_TORCH:
            continue
        if isinstance(value, PLAIN):
            found.append((name, type(value), value))
        elif isinstance(value, Tensor | list | tuple | dict) or is_dataclass(value):
            found.append((name, frozen(value)))
    return tuple(found)


def _address(tensor: Tensor | None) -> int | None:
    if tensor is None:
        return None
    return tensor.data_ptr()


def frozen(value: Any, depth: int = 3) -> Any:
    """A value as something that can be compared and hashed: tensors by their addresses, other objects by identity."""
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, Tensor):
        return value.data_ptr()
    if depth == 0 or (isinstance(value, list | tuple | dict) and len(value) > _LONG):
        return id(value)
    if isinstance(value, list | tuple):
        return type(value), tuple(frozen(item, depth - 1) for item in value)
    if isinstance(value, dict):
        return tuple((str(name), frozen(item, depth - 1)) for name, item in value.items())
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), tuple(frozen(getattr(value, item.name), depth - 1) for item in fields(value))
    return id(value)


def _settings(group: dict[str, Any]) -> tuple[Any, ...]:
    """The numbers and the parameters of a group; of a number in a tensor, which may change freely, its address."""
    found: list[Any] = []
    for name, value in group.items():
        if name == "params":
            found.append(tuple(id(p) for p in value))
        else:
            found.append((name, frozen(value)))
    return tuple(found)
