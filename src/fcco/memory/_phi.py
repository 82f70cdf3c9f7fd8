"""Phi: the objective as a function of the outputs in the table, F(w) = Phi(s_1(w), ..., s_n(w))."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from fcco.memory._table import Entries
from fcco.objectives._base import OutputObjective

STRETCH = 1 / 12  # of most forms, see Phi


class Coefficients(NamedTuple):
    """What an evaluation gives.

    Args:
        c: dPhi/ds of the examples asked for, shaped as their outputs.
        f: f_i of the blocks that took part, at the table.
        own: the gradients of the objective's own variables (a threshold, a temperature), not the network's.
    """

    c: Tensor
    f: Tensor
    own: list[Tensor]


class Phi(Protocol):
    """Evaluates Phi and its derivatives at the table."""

    #: the objective's own variables, not the network's
    own: list[nn.Parameter]
    #: the share of the table that may change between two evaluations of everything
    stretch: float

    def everything(self) -> Coefficients:
        """c of every example (N, ...)."""

    def at(self, id: Tensor, old: Entries | None = None) -> Coefficients:
        """c of the examples (K,) alone, whose outputs have just been written; their ids may be on the CPU.

        Args:
            old: what they had before that, since the last look; None: nothing is known of it.
        """

    def settle(self) -> None:
        """The last look stays: nothing is left to undo."""

    def pairs(self) -> int:
        """What :meth:`everything` costs, in pairs of examples."""

    def undo(self) -> None:
        """Forget what the last :meth:`at` stored: its step failed."""


def add(totals: list[Tensor], parts: Sequence[Tensor | None]) -> None:
    """Add what there is to the totals, in place."""
    for total, part in zip(totals, parts, strict=True):
        if part is not None:
            total += part


def joined(parts: list[Tensor], like: Tensor) -> Tensor:
    """The parts one after another, nothing where there are none."""
    return torch.cat(parts) if parts else like.new_zeros(0)


def own_variables(objective: OutputObjective) -> list[nn.Parameter]:
    """What the objective trains beside the network."""
    network = {id(p) for p in objective.model.parameters()}
    return [p for p in objective.parameters() if p.requires_grad and id(p) not in network]


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on the device; CUDA takes what it needs at once, so nobody must wait for the copy."""
    return tensor.to(device, non_blocking=device.type == "cuda")
