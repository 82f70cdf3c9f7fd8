"""Reservoir: one iterate drawn uniformly over the run, without keeping a history."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn


@final
class Reservoir:
    """Keeps w_tau (and the buffers) with tau uniform over the iterates offered so far."""

    def __init__(self, module: nn.Module, seed: int) -> None:
        self._module = module
        self._generator = torch.Generator().manual_seed(seed)
        self.kept: dict[str, Tensor] | None = None
        self.drawn_at = 0

    def offer(self, t: int) -> None:
        """Take the module as it is now in place of the kept one with probability 1/t."""
        if float(torch.rand((), generator=self._generator, dtype=torch.float64)) * t < 1.0:
            self.kept = {name: value.detach().clone() for name, value in self._module.state_dict().items()}
            self.drawn_at = t

    def state_dict(self) -> dict[str, Any]:
        """The kept iterate and the generator."""
        return {"kept": self.kept, "drawn_at": self.drawn_at, "random": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.kept, self.drawn_at = state["kept"], state["drawn_at"]
        self._generator.set_state(state["random"])
