"""Means over the items of a block's query: the pairs laid out by query, and two means of them as nodes of the graph.

A batch holds items of many queries. A block by item matrix is mostly pairs that do not count; here a row has the items
of its own query alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcco._support.fused import derivative_again


class ItemPairs(NamedTuple):
    """The items that enter the mean of each block.

    Args:
        own: (B,) where the block's own item stands in the batch.
        member: (B, L) where the items of its query stand; its own item fills rows that are shorter.
        weight: (B, L) how much each counts, 0 where a row is filled up.
    """

    own: Tensor
    member: Tensor
    weight: Tensor


class Members(NamedTuple):
    """The items of each block's query among those of a batch.

    Args:
        place: (B, L) where they stand in the batch; rows that are shorter are filled up by the block's own item.
        real: (B, L) bool, which of them are not there to fill up; None: none are.
        length: (B,) how many there are.
        shortest: the least of these.
    """

    place: Tensor
    real: Tensor | None
    length: Tensor
    shortest: int


class BatchPattern(NamedTuple):
    """Which items of a batch belong together, whatever their queries are, and the pairs that follow from it.

    Batches made of whole queries of one length have the same pattern again and again, and to see that takes a fraction
    of the time of laying out their pairs.

    Args:
        group: (K,) which of the batch's queries each item is of.
        example: (Q,) where an item of each query stands.
        size: (B,) how many items the query of each block has in the data.
        pairs: what follows.
    """

    group: Tensor
    example: Tensor
    size: Tensor
    pairs: ItemPairs

    @classmethod
    def of(cls, query: Tensor, size: Tensor, pairs: ItemPairs) -> BatchPattern:
        """The pattern of a batch with items of the queries (K,)."""
        values, group = query.unique(return_inverse=True)
        number = torch.arange(query.shape[0], device=query.device)
        example = torch.empty_like(values).scatter_(0, group, number)
        # Copies: the user may write to what the batch holds.
        return cls(group, example, size, pairs._replace(own=pairs.own.clone()))

    def fits(self, query: Tensor, size: Tensor, own: Tensor, dtype: torch.dtype) -> bool:
        """Whether another batch has it: its items' queries (K,), its blocks' sizes and own items (B,)."""
        if self.pairs.weight.dtype != dtype or query.shape != self.group.shape:
            return False
        if not (torch.equal(own, self.pairs.own) and torch.equal(size, self.size)):
            return False
        queries = query.index_select(0, self.example)  # (Q,)
        if not torch.equal(query, queries.index_select(0, self.group)):
            return False
        return int(queries.unique().numel()) == queries.numel()


def members_of(query: Tensor, wanted: Tensor, own: Tensor, most: int) -> Members | None:
    """The items of each block's query.

    Args:
        query: (K,) of the items of the batch.
        wanted: (B,) of the blocks.
        own: (B,) where the block's own item stands.
        most: the most places that pay; None is the answer where there are more.
    """
    ordered, order = query.sort(stable=True)  # (K,)
    start = torch.searchsorted(ordered, wanted)  # (B,)
    count = torch.searchsorted(ordered, wanted, right=True) - start
    shortest, longest = (int(length) for length in count.aminmax())
    if longest * wanted.shape[0] > most:
        return None
    number = torch.arange(longest, device=query.device)
    inside = start.unsqueeze(1) + number  # (B, L)
    if shortest == longest:
        return Members(order.take(inside), None, count, shortest)
    real = number < count.unsqueeze(1)
    inside = inside.clamp_(max=query.shape[0] - 1)
    return Members(torch.where(real, order.take(inside), own.unsqueeze(1)), real, count, shortest)


class QuadraticMeans(torch.autograd.Function):
    """sum_l w_il scale max(margin + h_l - h_i, 0)^2, or without the maximum: (B, 1).

    Args:
        h: (K,) scores.
        pairs: who is compared with whom.
        margin, scale: of the loss.
        hinge: whether differences below -margin count as 0.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, pairs: ItemPairs, margin: float, scale: float, hinge: bool) -> Tensor:
        inside = _differences(h, pairs).add_(margin)
        if hinge:
            inside = inside.relu_()
        weighted = pairs.weight * inside  # (B, L)
        ctx.save_for_backward(h)  # the one input that a second derivative goes back to
        ctx.inputs = (pairs, margin, scale, hinge)
        ctx.weighted = weighted
        return (weighted * inside).sum(1, keepdim=True).mul_(scale)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        (h,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # this derivative will be differentiated itself
            return *derivative_again(_plain_quadratic_means, (h,), ctx.inputs, slope), None, None, None, None
        pairs, _, scale, _ = ctx.inputs
        return _to_items(ctx.weighted * (2.0 * scale * slope), pairs, h), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, h: Tensor, *_: None) -> Tensor:
        pairs, _, scale, _ = ctx.inputs
        change: Tensor = (2.0 * scale * ctx.weighted * _differences(h, pairs)).sum(1, keepdim=True)
        return change


class LogMeansOfExponentials(torch.autograd.Function):
    """log sum_l w_il exp(h_l - h_i): (B, 1).

    Args:
        h: (K,) scores; their exponentials are taken in double precision.
        pairs: who is compared with whom; in place of weights their logarithms, in double precision.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, pairs: ItemPairs) -> Tensor:
        share = _differences(h.to(pairs.weight.dtype), pairs).add_(pairs.weight)  # (B, L)
        top = share.amax(1, keepdim=True)  # (B, 1)
        top = top.clamp_(min=torch.finfo(top.dtype).min)  # nothing enters: the sum is 0, its log -inf
        total = share.sub_(top).exp_().sum(1, keepdim=True)
        ctx.save_for_backward(h)  # the one input that a second derivative goes back to
        ctx.pairs = pairs
        ctx.share = share.div_(total.clamp(min=1.0))  # below 1 where nothing enters only
        return total.log_().add_(top)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        (h,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # this derivative will be differentiated itself
            return *derivative_again(_plain_log_means, (h,), (ctx.pairs,), slope), None
        return _to_items(ctx.share * slope, ctx.pairs, h), None

    @staticmethod
    def jvp(ctx: Any, h: Tensor, *_: None) -> Tensor:
        change: Tensor = (ctx.share * _differences(h.to(ctx.share.dtype), ctx.pairs)).sum(1, keepdim=True)
        return change


def _differences(h: Tensor, pairs: ItemPairs) -> Tensor:
    """h_l - h_i: (B, L), a tensor of its own."""
    member = pairs.member
    return h.index_select(0, member.flatten()).view_as(member) - h.index_select(0, pairs.own).unsqueeze(1)


def _to_items(of_pairs: Tensor, pairs: ItemPairs, h: Tensor) -> Tensor:
    """The derivative by h (K,) from that by the differences (B, L)."""
    of_h = of_pairs.new_zeros(h.shape).index_add_(0, pairs.member.flatten(), of_pairs.flatten())
    return of_h.index_add_(0, pairs.own, of_pairs.sum(1), alpha=-1).to(h.dtype)


def _plain_quadratic_means(h: Tensor, pairs: ItemPairs, margin: float, scale: float, hinge: bool) -> Tensor:
    inside = _differences(h, pairs) + margin
    if hinge:
        inside = inside.relu()
    return scale * (pairs.weight * inside.square()).sum(1, keepdim=True)


def _plain_log_means(h: Tensor, pairs: ItemPairs) -> Tensor:
    differences = _differences(h.to(pairs.weight.dtype), pairs)
    return (differences + pairs.weight).logsumexp(1, keepdim=True)
