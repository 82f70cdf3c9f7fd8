"""Reservoir: one iterate drawn uniformly over the run, without keeping a history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from fcco.solver._state import Layout, saved


@final
@dataclass
class Reservoir:
    """Keeps w_tau (and the buffers) with tau uniform over the iterates offered so far.

    Args:
        random: the state of the generator behind the draws.
        kept: the objective's state_dict at step ``drawn_at``.
    """

    random: Tensor = saved()
    kept: dict[str, Tensor] | None = saved(Layout.MODULE, default=None)
    drawn_at: int = saved(default=0)

    @classmethod
    def seeded(cls, seed: int) -> Reservoir:
        """An empty one."""
        return cls(random=torch.Generator().manual_seed(seed % 2**63).get_state())

    @classmethod
    def blank(cls) -> Reservoir:
        """One to load a state into."""
        return cls.seeded(0)

    def after_load(self) -> None:
        self.random = self.random.cpu()

    def offer(self, module: nn.Module, t: int) -> None:
        """Take the module as it is now in place of the kept one with probability 1/t."""
        generator = torch.Generator()
        generator.set_state(self.random)
        drawn = float(torch.rand((), generator=generator, dtype=torch.float64))
        self.random = generator.get_state()
        # Kept with probability 1/t: by induction every iterate so far is as likely as any other.
        if drawn * t < 1.0:
            self.kept = {name: value.detach().clone() for name, value in module.state_dict().items()}
            self.drawn_at = t
