"""Draws by importance: some by how much an example matters, the others in sweeps over all."""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor


class Drawn(NamedTuple):
    """Example ids (B,), one per draw, and how likely a draw was to give each (B,); an id may be there twice."""

    id: Tensor
    probability: Tensor


@final
class Sweep:
    """Places 0..n-1 in random order, and again in another: none waits longer than two rounds less one.

    Args:
        n: how many, at least one.

    Attributes:
        seed: of the round; ``at``: where in it. The two are all that a resumed run needs.
    """

    def __init__(self, n: int) -> None:
        if n < 1:
            raise ValueError("a stratum must have members to draw from")
        self._n = n
        self._order = torch.empty(0, dtype=torch.int64)
        self.seed = 0
        self.at = 0

    def take(self, k: int, generator: torch.Generator) -> Tensor:
        """The next k places."""
        parts = [self._order[:0]]
        while k > 0:
            if self.at >= self._order.shape[0]:
                self.go_to(int(torch.randint(1, 2**62, (), generator=generator)), 0)
            part = self._order[self.at : self.at + k]  # what is left of the round, at most
            parts.append(part)
            self.at += part.shape[0]
            k -= part.shape[0]
        return torch.cat(parts)

    def go_to(self, seed: int, at: int) -> None:
        """Place ``at`` of the round with that seed; place 0 of seed 0: before the first."""
        self.seed = seed
        self.at = at
        n = self._n
        if seed == 0 and at == 0:
            n = 0
        self._order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))


@final
class ImportanceSampler:
    r"""Draws from one stratum by q_k = (1 - p)/n + p h_k, h_k the share of example k in the sum of \|c\|.

    A draw is made by h with probability p, and else takes the next of a sweep over all. One draw gives example k with
    probability q_k as independent draws would, but no entry of the table grows older than two rounds of the sweep.
    All of it happens on the CPU: a draw there makes no device wait.

    Args:
        members: (n,) example ids, in growing order, on the CPU.
        draws: B, how many per step, over all ranks.
    """

    def __init__(self, members: Tensor, draws: int) -> None:
        self.members = members
        self.draws = draws
        self.sweep = Sweep(members.shape[0])
        self._share = members.new_zeros(0, dtype=torch.float64)
        self._sums = self._share  # of the shares, one after another

    def draw(self, share: Tensor, importance: float, generator: torch.Generator) -> Drawn:
        """B draws; an example may be among them more than once.

        Args:
            share: (n,) h; of none: draw uniformly.
            importance: p.
        """
        if share is not self._share:
            self._share = share
            self._sums = share.cumsum(0)  # (n,), once per refresh, not per draw
        n = self.members.shape[0]
        # Two numbers per draw, used or not: the stream does not depend on the shares.
        u = torch.rand(2, self.draws, generator=generator, dtype=torch.float64)  # (2, B)
        by_importance = u[1, u[0] < importance]
        if not share.numel():
            by_importance = by_importance[:0]
        by_share = torch.searchsorted(self._sums, by_importance * self._sums[-1:], right=True).clamp(max=n - 1)
        swept = self.sweep.take(self.draws - by_importance.shape[0], generator)  # (B - those by importance,)
        place = torch.cat([swept, by_share])  # (B,)
        if not share.numel():
            return Drawn(self.members[place], torch.full(place.shape, 1.0 / n, dtype=torch.float64))
        # Of those drawn alone: a stratum may have millions.
        return Drawn(self.members[place], probability(share[place], self._sums[-1], n, importance))


def probability(share: Tensor, total: Tensor, n: int, importance: float) -> Tensor:
    """q of some members of a stratum of n, from their shares h and what all shares add up to (1, but for rounding)."""
    return (1.0 - importance) / n + importance * share / total


def effective_size(share: Tensor, importance: float) -> float:
    """1 / sum q^2 over n, from h (n,): the share of the members that the draws are spread over; of no h: 1."""
    if not share.numel():
        return 1.0
    n = share.shape[0]
    q = probability(share, share.sum(), n, importance)
    return float(1.0 / (q.square().sum() * n))


def renewed(share: Tensor, size: Tensor, renewal: float) -> Tensor:
    """h (n,) with so much of it renewed from |c| (n,); where all gradients are 0, it stays as it is.

    A running mean, because an example that has just been pushed away has a small c and would be forgotten, while the
    outputs of some come back within a few steps.
    """
    size = size.cpu().double()
    total = size.cumsum(0)[-1]  # one by one: the same bits on every rank, whatever its number of threads
    if not 0.0 < float(total) < torch.inf:
        return share
    fresh = size / total  # (n,)
    if not share.numel():
        return fresh
    return torch.lerp(share, fresh, renewal)


def gradient_sizes(c: Tensor, members: Tensor, seen: Tensor | None) -> Tensor:
    """|c| (n,) of a stratum's members from c (N, ...); those not seen (None: all were) count like the others' mean."""
    mine = c[members]
    size: Tensor = mine.abs().double()
    if mine.dim() > 1:
        size = mine.flatten(1).norm(dim=1).double()
    if seen is None:
        return size
    there = seen[members]
    mean = (size * there).sum() / there.sum().clamp(min=1)
    return torch.where(there, size, mean)
