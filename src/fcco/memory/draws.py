"""Strata and the draws from them: by importance, with replacement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor


@final
@dataclass(frozen=True)
class Stratum:
    """Examples of one kind, of which a fixed number is drawn a step.

    Args:
        members: (n,) example ids, in growing order.
        draws: B, how many a step, over all ranks.
    """

    members: Tensor
    draws: int


class Drawn(NamedTuple):
    """Draws merged: example ids (K,), how likely one draw was to give each (K,), and (times drawn) / B (K,)."""

    id: Tensor
    probability: Tensor
    weight: Tensor


@final
class Chances:
    r"""q_k = (1 - p)/n + p |c_k| / sum |c| over one stratum, as it stood at the last refresh.

    The sums are kept on the CPU: a draw there makes no device wait.

    Args:
        stratum: whose members are drawn.
        device: where the table is.
    """

    def __init__(self, stratum: Stratum, device: torch.device) -> None:
        self.members, self.draws = stratum.members.to(device), stratum.draws
        self._ids = stratum.members.cpu()
        self.push = torch.zeros(0, dtype=torch.float64)  # |c| of the members, none: uniform
        self._sums = self.push

    def update(self, push: Tensor) -> None:
        """Take over |c| (n,) of the members; of none, or none but zeros: draw uniformly."""
        self.push = push.cpu().double()
        self._sums = self.push.cumsum(0)
        if not self.push.numel() or not bool(self._sums[-1] > 0.0):
            self.push = self._sums = self.push[:0]

    def draw(self, importance: float, generator: torch.Generator) -> Drawn:
        """B draws with replacement."""
        n = self._ids.shape[0]
        u = torch.rand(3, self.draws, generator=generator, dtype=torch.float64)
        place = (u[1] * n).long().clamp(max=n - 1)
        if self._sums.numel():
            by_push = torch.searchsorted(self._sums, u[2] * self._sums[-1], right=True).clamp(max=n - 1)
            place = torch.where(u[0] < importance, by_push, place)
        place, times = place.unique(return_counts=True)
        return Drawn(self._ids[place], self.probability(place, importance), times.double() / self.draws)

    def probability(self, place: Tensor, importance: float) -> Tensor:
        """q of the members at the places (K,)."""
        n = self._ids.shape[0]
        if not self._sums.numel():
            return torch.full(place.shape, 1.0 / n, dtype=torch.float64)
        return (1.0 - importance) / n + importance * self.push[place] / self._sums[-1]

    def effective_size(self, importance: float) -> float:
        """1 / sum q^2 over n: the share of the members that the draws are spread over."""
        q = self.probability(torch.arange(self._ids.shape[0]), importance)
        return float(1.0 / (q.square().sum() * q.shape[0]))


def pushes(c: Tensor, chances: Chances, seen: Tensor) -> Tensor:
    """|c| (n,) of a stratum's members from c (N, ...); those never seen count like the mean of the others."""
    size = c.abs() if c.dim() == 1 else c.flatten(1).norm(dim=1)
    size, there = size[chances.members].double(), seen[chances.members]
    mean = (size * there).sum() / there.sum().clamp(min=1)
    return torch.where(there, size, mean)


def capped(v: Tensor, weight: Tensor, cap: float | None) -> tuple[Tensor, Tensor]:
    """Pushes (K, ...) of one stratum, each draw's cut at cap times the mean |push| a draw; and how many were cut."""
    if cap is None or not v.numel():
        return v, v.new_zeros(())
    times = (weight / weight.min()).round().to(v.dtype).reshape(-1, *[1] * (v.dim() - 1))  # draws merged into one
    most = cap * v.abs().sum(0) / times.sum(0) * times
    return torch.minimum(torch.maximum(v, -most), most), (v.abs() > most).to(v.dtype).mean()


def balanced(v: Tensor, groups: Tensor | None, total: Tensor | None = None) -> Tensor:
    """Pushes (K, ...) with the upward and the downward ones rescaled so that they cancel, in each group and column.

    Args:
        groups: (K,) the group of each; None: one group.
        total: what each side adds up to in the whole table, for one group; both sides of the batch are brought to it.
            None: to the geometric mean of the two.
    """
    flat = v.reshape(v.shape[0], -1)
    place = torch.zeros_like(flat[:, 0], dtype=torch.int64) if groups is None else groups.unique(return_inverse=True)[1]
    zero = flat.new_zeros(1 if groups is None else int(place.max()) + 1, flat.shape[1])
    up, down = zero.index_add(0, place, flat.clamp(min=0)), zero.index_add(0, place, flat.clamp(max=0).neg())
    target = torch.sqrt(up * down) if total is None else total.to(v.dtype).reshape(1, -1) * ((up > 0) & (down > 0))
    scale = torch.where(flat > 0, _ratio(target, up)[place], _ratio(target, down)[place])
    return (flat * scale).reshape(v.shape)


def _ratio(target: Tensor, total: Tensor) -> Tensor:
    return torch.where(total > 0, target / torch.where(total > 0, total, 1.0), 0.0)
