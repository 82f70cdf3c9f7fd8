"""Strata and the draws from them: some by importance, the others in sweeps over everyone."""

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
class Sweep:
    """Places 0..n-1 in random order, and again in another: nobody waits longer than two rounds less one.

    Args:
        n: how many, at least one.
    """

    def __init__(self, n: int) -> None:
        if n < 1:
            raise ValueError("a stratum must have members to draw from")
        self._n, self._order = n, torch.empty(0, dtype=torch.int64)
        self.seed = self.at = 0  # of the round, and where in it: all that a resumed run needs

    def take(self, k: int, generator: torch.Generator) -> Tensor:
        """The next k places."""
        parts = []
        while k > 0:
            if self.at >= self._order.shape[0]:
                self.go_to(int(torch.randint(1, 2**62, (), generator=generator)), 0)
            parts.append(self._order[self.at : self.at + k])
            self.at += parts[-1].shape[0]
            k -= parts[-1].shape[0]
        return torch.cat(parts) if parts else self._order[:0]

    def go_to(self, seed: int, at: int) -> None:
        """Place ``at`` of the round with that seed; place 0 of seed 0: before the first."""
        self.seed, self.at = seed, at
        n = self._n if seed or at else 0
        self._order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))


@final
class Chances:
    r"""q_k = (1 - p)/n + p h_k over one stratum, h_k = |c_k| / sum |c|, a running mean over the refreshes.

    The mean, because an example that has just been pushed away has a small c and would be forgotten, while the outputs
    of some come back within a few steps. A draw is made by h with probability p, and else takes the next of a sweep
    over everyone. One draw gives example k with probability q_k as independent draws would, but no entry of the table
    grows older than two rounds of the sweep. The sums are kept on the CPU: a draw there makes no device wait.

    Args:
        stratum: whose members are drawn.
        device: where the table is.
    """

    def __init__(self, stratum: Stratum, device: torch.device) -> None:
        self.members, self.draws = stratum.members.to(device), stratum.draws
        self._ids = stratum.members.cpu()
        self.share = self._sums = torch.zeros(0, dtype=torch.float64)  # h of the members, none yet: draw uniformly
        self.sweep = Sweep(self._ids.shape[0])

    def update(self, push: Tensor, renewal: float) -> None:
        """Renew so much of h from |c| (n,) of the members; where nobody pushes, it stays as it is."""
        push = push.cpu().double()
        total = push.cumsum(0)[-1]  # one by one: the same bits on every rank, whatever its number of threads
        if 0.0 < float(total) < torch.inf:
            share = push / total
            self.set(torch.lerp(self.share, share, renewal) if self.share.numel() else share)

    def set(self, share: Tensor) -> None:
        """Take h (n,) as it is; of none: draw uniformly."""
        self.share, self._sums = share, share.cumsum(0)

    def draw(self, importance: float, generator: torch.Generator) -> Drawn:
        """B draws; an example may be among them more than once."""
        n = self._ids.shape[0]
        u = torch.rand(2, self.draws, generator=generator, dtype=torch.float64)
        chosen = u[1, u[0] < importance] if self._sums.numel() else u[1, :0]
        by_share = torch.searchsorted(self._sums, chosen * self._sums[-1:], right=True).clamp(max=n - 1)
        place = torch.cat([self.sweep.take(self.draws - chosen.shape[0], generator), by_share])
        place, times = place.unique(return_counts=True)
        return Drawn(self._ids[place], self.probability(place, importance), times.double() / self.draws)

    def probability(self, place: Tensor, importance: float) -> Tensor:
        """q of the members at the places (K,)."""
        n = self._ids.shape[0]
        if not self._sums.numel():
            return torch.full(place.shape, 1.0 / n, dtype=torch.float64)
        return (1.0 - importance) / n + importance * self.share[place] / self._sums[-1]

    def effective_size(self, importance: float) -> float:
        """1 / sum q^2 over n: the share of the members that the draws are spread over."""
        q = self.probability(torch.arange(self._ids.shape[0]), importance)
        return float(1.0 / (q.square().sum() * q.shape[0]))


def pushes(c: Tensor, chances: Chances, seen: Tensor | None) -> Tensor:
    """|c| (n,) of a stratum's members from c (N, ...); those not seen (None: all were) count like the others' mean."""
    c = c[chances.members]
    size = (c.abs() if c.dim() == 1 else c.flatten(1).norm(dim=1)).double()
    if seen is None:
        return size
    there = seen[chances.members]
    mean = (size * there).sum() / there.sum().clamp(min=1)
    return torch.where(there, size, mean)


GROWTH = 3.0  # balance makes no push larger than so many times what it was


def capped(
    v: Tensor, times: Tensor, cap: float, by_sign: bool = False, strata: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Pushes (K, ...), each draw's cut at cap times the mean |push| a draw of its stratum; and how many were cut.

    Args:
        times: (K,) how often each was drawn, up to a factor a stratum.
        by_sign: upward and downward pushes have a mean each, of those that are not zero: for strata that hold examples
            of both classes, of which one may be rare.
        strata: (S, K) bool, who is of which stratum; None: all are of one.
    """
    after = [1] * (v.dim() - 1)
    times, size = times.to(v.dtype).reshape(-1, *after), v.abs()
    if by_sign:
        parts = torch.stack([v > 0, v < 0])  # (S, K, ...)
    else:
        parts = v.new_ones(1, 1, *after) if strata is None else strata.reshape(*strata.shape, *after)
    mean = (size * parts).sum(1, keepdim=True) / (times * parts).sum(1, keepdim=True).clamp(min=1e-9)
    most = cap * times * (mean * parts).sum(0)
    return v.clamp(-most, most), (size > most).mean(dtype=v.dtype)


def balanced(v: Tensor, total: Tensor | None = None) -> Tensor:
    """Pushes (K, ...) with the upward and the downward ones rescaled so that they cancel, in each column.

    Args:
        total: what each side adds up to in the whole table: both sides of the batch are brought to it, as far as
            neither grows more than ``GROWTH`` times. None: to the geometric mean of the two.
    """
    parts = torch.stack([v, -v]).clamp_(min=0)  # (2, K, ...): upward, downward
    sides = parts.sum(1, keepdim=True)
    target = sides.sqrt().prod(0) if total is None else total.to(v.dtype)
    target = torch.minimum(target, GROWTH * sides.amin(0))
    parts *= target / sides.clamp(min=torch.finfo(v.dtype).tiny)  # a side of nothing stays so
    return parts[0] - parts[1]
