"""What a graph has baked in: where any of it changes, the step is captured anew."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from operator import is_
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
    the addresses of weights, buffers and the optimizer's state. It is taken in every step, so modules are remembered
    and looked at by identity (:class:`_ModuleMark`).

    Args:
        works: the solver's parts.
    """

    def __init__(self, works: Works) -> None:
        self._works = works
        self._modules = [_ModuleMark(module) for module in works.evaluator.objective.modules()]
        self._marks: list[_Hashed] = []
        self._all = _Hashed(())

    def take(self) -> Any:
        """The fingerprint as of now."""
        works = self._works
        return (
            works.engine.method,
            works.bounds,
            works.engine.fingerprint(),
            self._of_modules(),
            self._precision(),
            tuple([tensor.data_ptr() for tensor in works.optimizer_tensors()]),
            tuple([_settings(group) for group in works.optimizer.param_groups]),
        )

    def _of_modules(self) -> _Hashed:
        """All modules' marks; the very object of the last step where none has changed."""
        marks = [module.take() for module in self._modules]
        if not _are_same(marks, self._marks):
            self._marks = marks
            self._all = _Hashed(tuple(marks))
        return self._all

    def _precision(self) -> tuple[Any, ...]:
        kind = self._works.evaluator.device.type
        return (
            torch.is_autocast_enabled(kind),
            torch.get_autocast_dtype(kind),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
            torch.backends.cudnn.allow_tf32,  # of convolutions, which go by a switch of their own
        )


@final
class _Hashed:
    """A long value whose hash is taken once."""

    __slots__ = ("_hash", "value")

    def __init__(self, value: tuple[Any, ...]) -> None:
        self.value = value
        self._hash = hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, _Hashed) and self._hash == other._hash and self.value == other.value


@final
class _ModuleMark:
    """The mark of one module: its parts and constants, tensors by their addresses, modules by what they are.

    Numbers, strings and tuples of them cannot change in place: where an attribute is the very object that it was, so is
    its value. What can change in place (lists, dicts, tensors, dataclasses) is looked at each time.

    Args:
        module: one of the objective's.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._values: list[Any] = []
        self._constants: tuple[Any, ...] = ()
        self._changing: list[str] = []
        self._mark = _Hashed(())

    def take(self) -> _Hashed:
        """The mark as of now; the very object of the last time where nothing has changed."""
        table = vars(self._module)
        values = list(table.values())
        if not _are_same(values, self._values):
            self._sort_out(table)
            self._values = values
        mark = (*self._of_tables(table), *self._constants, *[frozen(table[name]) for name in self._changing])
        if mark != self._mark.value:
            self._mark = _Hashed(mark)
        return self._mark

    def _sort_out(self, table: dict[str, Any]) -> None:
        """Tell constants from what may change in place."""
        constants: list[Any] = []
        self._changing = []
        for name, value in table.items():
            if name in _OF_TORCH:
                continue
            if _is_constant(value):
                constants.append((name, frozen(value)))
            elif isinstance(value, Tensor | list | tuple | dict) or is_dataclass(value):
                constants.append(name)
                self._changing.append(name)
        self._constants = tuple(constants)

    @staticmethod
    def _of_tables(table: dict[str, Any]) -> list[Any]:
        """What torch keeps of every module."""
        return [
            table["training"],
            *map(_address, table["_parameters"].values()),
            *map(_address, table["_buffers"].values()),
            *map(id, table["_modules"].values()),
            *[len(table[name]) for name in _HOOKS],
        ]


def _are_same(first: list[Any], second: list[Any]) -> bool:
    """Whether two lists hold the very same objects."""
    return len(first) == len(second) and all(map(is_, first, second))


def _is_constant(value: Any) -> bool:
    """Whether nothing about the value can change in place."""
    if isinstance(value, PLAIN):
        return True
    return type(value) is tuple and len(value) <= _LONG and all(isinstance(item, PLAIN) for item in value)


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
            found.append(tuple([id(p) for p in value]))
        else:
            found.append((name, frozen(value)))
    return tuple(found)
