"""Output gradients v_k = c_k / (q_k B): capped within each stratum, and balanced where F is invariant to a shift."""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from fcco.memory._strata import Strata
from fcco.memory._table import OutputTable
from fcco.memory.forms import Evaluation
from fcco.methods import OutputMemory
from fcco.methods.estimators import Weight

GROWTH = 3.0  # balance makes no output gradient more than this many times larger


class Capped(NamedTuple):
    """Output gradients (K, ...), and the share of them that was cut."""

    v: Tensor
    share: Tensor


@final
class Weigher:
    """The rules that make output gradients of coefficients.

    Args:
        settings: cap and balance.
        strata: which examples are of which kind.
        balances: whether the upward and the downward ones of a batch may be set off against each other.
        by_length: whether an output is a feature, whose length counts, not each number.
    """

    def __init__(self, settings: OutputMemory, strata: Strata, *, balances: bool, by_length: bool) -> None:
        self._cap = settings.cap
        self._strata = strata
        self.balances = balances and settings.balance
        self._by_length = by_length

    def weigh(
        self, table: OutputTable, id: Tensor, probability: Tensor, weight: Tensor, c: Tensor, total: Tensor | None
    ) -> Capped:
        """v = c weight/q (K, ...), capped and balanced.

        With examples missing, Phi is a mean over those seen, and c is of the order of 1 over their number; q is over
        all of them, so c is brought to their scale first. Else the first steps would be far too large.

        Args:
            id: (K,) the examples, one per draw.
            probability: (K,) q; ``weight``: (K,) 1/B.
            total: what the upward gradients add up to in the whole table; None: not known.
        """
        strata = self._strata.mask[:, id]  # (S, K)
        ratio = weight / probability  # (K,)
        if not table.complete:
            ratio = ratio * (self._strata.shares_seen(table).unsqueeze(1) * strata).sum(0)
        v = c * _like(ratio.to(c.dtype), c)
        found = self._capped(v, weight, strata)
        if self.balances:
            return Capped(balanced(found.v, total), found.share)
        return found

    def _capped(self, v: Tensor, weight: Tensor, strata: Tensor) -> Capped:
        if self._cap is None:
            return Capped(v, v.new_zeros(()))
        if self._by_length:
            length = v.flatten(1).norm(dim=1)  # (K,)
            shorter = capped(length, weight, self._cap, strata=strata)
            # Scaled as a whole: a feature keeps its direction.
            return Capped(v * _like(shorter.v / length.clamp(min=1e-30), v), shorter.share)
        return capped(v, weight, self._cap, by_sign=len(self._strata) == 1, strata=strata)


def capped(v: Tensor, times: Tensor, cap: float, by_sign: bool = False, strata: Tensor | None = None) -> Capped:
    """Output gradients (K, ...), each draw's cut at cap times the mean size per draw of its stratum.

    Args:
        times: (K,) how often each was drawn, up to a factor per stratum.
        by_sign: upward and downward ones have a mean each, of those that are not zero: for strata that hold examples
            of both classes, of which one may be rare.
        strata: (S, K) bool, which draws are of which stratum; None: all are of one.
    """
    times = _like(times.to(v.dtype), v)
    size = v.abs()
    if by_sign:
        parts = torch.stack([v > 0, v < 0])  # (S, K, ...)
    elif strata is None:
        parts = torch.ones_like(times, dtype=torch.bool).unsqueeze(0)
    else:
        parts = strata.reshape(*strata.shape, *[1] * (v.dim() - 1))
    # (S, 1, ...), then back to each draw by its stratum
    mean = (size * parts).sum(1, keepdim=True) / (times * parts).sum(1, keepdim=True).clamp(min=1e-9)
    most = cap * times * (mean * parts).sum(0)
    return Capped(v.clamp(-most, most), (size > most).mean(dtype=v.dtype))


def balanced(v: Tensor, total: Tensor | None = None) -> Tensor:
    """Output gradients (K, ...) with the upward and the downward ones rescaled so that they cancel, in each column.

    Args:
        total: what each side adds up to in the whole table: both sides of the batch are brought to it, as far as
            neither grows more than ``GROWTH`` times. None: to the geometric mean of the two.
    """
    parts = torch.stack([v, -v]).clamp_(min=0)  # (2, K, ...): upward, downward
    sides = parts.sum(1, keepdim=True)  # (2, 1, ...)
    if total is None:
        target = sides.sqrt().prod(0)
    else:
        target = total.to(v.dtype)
    # A side with a single small gradient would be blown up to outweigh everything else.
    target = torch.minimum(target, GROWTH * sides.amin(0))
    parts *= target / sides.clamp(min=torch.finfo(v.dtype).tiny)  # a side of nothing stays so
    return parts[0] - parts[1]


def add_param_gradients(params: list[nn.Parameter], found: Evaluation, weight: Weight, num_blocks: int) -> None:
    """Add ``weight`` times the gradients of the objective's own parameters to ``p.grad``."""
    for p, gradient in zip(params, scaled_gradients(params, found, num_blocks), strict=True):
        scaled = weight * gradient
        if p.grad is not None:
            scaled = scaled + p.grad
        p.grad = scaled


def scaled_gradients(params: list[nn.Parameter], found: Evaluation, num_blocks: int) -> list[Tensor]:
    """The gradients of the objective's own parameters, one each.

    A parameter that each block has for itself matters to one of those seen, not to the mean over them: it is brought
    to the scale that it has once all were seen, like the output gradients.
    """
    gradients = []
    for p, gradient in zip(params, found.param_gradients, strict=True):
        scaled = gradient.to(p.dtype)
        if p.dim() and p.shape[0] == num_blocks:
            scaled = scaled * (found.f.shape[0] / num_blocks)
            if found.part is not None:
                scaled = scaled * found.part.to(p.dtype).mean()
        gradients.append(scaled)
    return gradients


def _like(value: Tensor, v: Tensor) -> Tensor:
    """(K, 1, ...) beside v (K, ...)."""
    return value.reshape(-1, *[1] * (v.dim() - 1))
