"""What a graph has baked in: where any of it changes, the step is captured anew."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from fcco.solver._program import Works

_PLAIN = (bool, int, float, str, type(None))


@final
class Fingerprint:
    """Everything outside of its inputs that a captured step depends on, as something that can be compared.

    Train flags, the objective's constants, the method and its rates, the optimizer's settings, autocast, and the
    addresses of weights, buffers and the optimizer's state.

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
            tuple(module.training for module in self._modules),
            self._constants(),
            self._precision(),
            self._addresses(),
            tuple(_settings(group) for group in works.optimizer.param_groups),
        )

    def _constants(self) -> tuple[Any, ...]:
        found = []
        for name, value in vars(self._works.evaluator.objective).items():
            if isinstance(value, _PLAIN) or hasattr(type(value), "__dataclass_fields__"):
                found.append((name, value))
        return tuple(found)

    def _precision(self) -> tuple[Any, ...]:
        kind = self._works.evaluator.device.type
        return (
            torch.is_autocast_enabled(kind),
            torch.get_autocast_dtype(kind),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
        )

    def _addresses(self) -> tuple[int, ...]:
        works = self._works
        tensors: list[Tensor] = [*works.parameters, *works.optimizer_tensors()]
        tensors += [place.value for place in works.evaluator.module_state.buffers()]
        return tuple(tensor.data_ptr() for tensor in tensors)


def _settings(group: dict[str, Any]) -> tuple[Any, ...]:
    """The numbers of a parameter group; of one in a tensor, which may change freely, its address."""
    found = []
    for name, value in group.items():
        if name == "params":
            value = len(value)
        if isinstance(value, Tensor):
            value = value.data_ptr()
        found.append((name, value))
    return tuple(found)
