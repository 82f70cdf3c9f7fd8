"""Means over the items of a block's query: the pairs laid out by query, and two means of them as nodes of the graph.

A batch holds items of many queries. A block by item matrix is mostly pairs that do not count; here a row has the items
of its own query alone.
"""

from __future__ import annotations

import math
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


class QueryShares(NamedTuple):
    """How much the items of its query count in the mean of each block, where all of them but its own count alike.

    Args:
        own: (B,) where the block's own item stands in the batch.
        group: (K,) which of the batch's Q queries each item is of.
        row: (B,) which of them the block is of.
        of_own: (B,) how much its own item counts.
        of_other: (B,) how much each other one does.
        num_queries: Q.
        length: how many items each query has, if they are all in the batch, the queries one after the other and of
            one length; queries are then numbered in that order. None: they are not.
    """

    own: Tensor
    group: Tensor
    row: Tensor
    of_own: Tensor
    of_other: Tensor
    num_queries: int
    length: int | None = None


class BatchPattern(NamedTuple):
    """Which items of a batch belong together, whatever their queries are, and the layout that follows from it.

    Batches made of whole queries of one length have the same pattern again and again, and to see that takes a fraction
    of the time of laying them out.

    Args:
        group: (K,) which of the batch's queries each item is of.
        example: (Q,) where an item of each query stands.
        size: (B,) how many items the query of each block has in the data.
        own: (B,) where the block's own item stands.
        dtype: of the layout's weights.
        layout: what follows: :class:`ItemPairs`, or :class:`QueryShares` of an objective that asks for those.
    """

    group: Tensor
    example: Tensor
    size: Tensor
    own: Tensor
    dtype: torch.dtype
    layout: Any

    @classmethod
    def of(cls, query: Tensor, size: Tensor, own: Tensor, dtype: torch.dtype, layout: Any) -> BatchPattern:
        """The pattern of a batch with items of the queries (K,)."""
        values, group = query.unique(return_inverse=True)
        number = torch.arange(query.shape[0], device=query.device)
        example = torch.empty_like(values).scatter_(0, group, number)
        return cls(group, example, size, own, dtype, layout)

    def fits(self, query: Tensor, size: Tensor, own: Tensor, dtype: torch.dtype) -> bool:
        """Whether another batch has it: its items' queries (K,), its blocks' sizes and own items (B,)."""
        if self.dtype != dtype or query.shape != self.group.shape:
            return False
        if not (torch.equal(own, self.own) and torch.equal(size, self.size)):
            return False
        queries = query.index_select(0, self.example)  # (Q,)
        if not torch.equal(query, queries.index_select(0, self.group)):
            return False
        return len(set(queries.tolist())) == queries.shape[0]


def members_of(query: Tensor, wanted: Tensor, own: Tensor, most: int) -> Members | None:
    """The items of each block's query.

    Args:
        query: (K,) of the items of the batch.
        wanted: (B,) of the blocks.
        own: (B,) where the block's own item stands.
        most: the most places that pay; None is the answer where there are more, and where there are no blocks.
    """
    if wanted.shape[0] == 0:
        return None
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


def common_length(group: Tensor, count: Tensor) -> int | None:
    """How many items each query of a batch has; None: the queries are not of one length, one after the other.

    Args:
        group: (K,) which of the batch's queries each item is of.
        count: (Q,) how many items each of them has.
    """
    length = int(count[0])
    if not bool((count == length).all()):
        return None
    rows = group.view(-1, length)
    if torch.equal(rows, rows[:, :1].expand_as(rows)):
        return length
    return None


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


class LogMeansByQuery(torch.autograd.Function):
    """The same where the items of a query but the block's own count alike: (B, 1) from one sum per query, less the own
    exponential.

    The own exponential is added again, at 1/N_q: where it is the highest, the difference costs g a relative error of
    the order of 1e-16 (N_q - 1) over the number of others present.

    Args:
        h: (K,) scores; their exponentials are taken in double precision.
        shares: how much each item counts, in double precision.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, shares: QueryShares) -> Tensor:
        exact = h.to(shares.of_own.dtype)
        top = exact.new_full((shares.num_queries,), -torch.inf).scatter_reduce_(0, shares.group, exact, "amax")  # (Q,)
        mass = exact.sub(top.index_select(0, shares.group)).exp_()  # (K,), 1 for the highest of each query
        of_query = mass.new_zeros(shares.num_queries).index_add_(0, shares.group, mass).index_select(0, shares.row)
        of_own = mass.index_select(0, shares.own)  # (B,)
        rest = (of_query - of_own).clamp_(min=0.0)
        total = torch.addcmul(shares.of_own * of_own, shares.of_other, rest)  # (B,)
        ctx.save_for_backward(h)  # the one input that a second derivative goes back to
        ctx.shares = shares
        ctx.mass = mass
        ctx.of_query = of_query
        ctx.of_other = shares.of_other / total
        above = top.index_select(0, shares.row).sub_(exact.index_select(0, shares.own))
        return total.log_().add_(above).unsqueeze(1)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        (h,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # this derivative will be differentiated itself
            return *derivative_again(_plain_log_means_by_query, (h,), (ctx.shares,), slope), None
        shares = ctx.shares
        each = slope.squeeze(1) * ctx.of_other  # (B,)
        by_query = each.new_zeros(shares.num_queries).index_add_(0, shares.row, each)
        of_h = ctx.mass * by_query.index_select(0, shares.group)  # (K,)
        # What the own item adds to g is a constant.
        of_h.index_add_(0, shares.own, each * ctx.of_query, alpha=-1)
        return of_h.to(h.dtype), None

    @staticmethod
    def jvp(ctx: Any, h: Tensor, *_: None) -> Tensor:
        shares = ctx.shares
        moved = ctx.mass * h
        by_query = moved.new_zeros(shares.num_queries).index_add_(0, shares.group, moved)
        apart = by_query.index_select(0, shares.row) - ctx.of_query * h.index_select(0, shares.own)  # (B,)
        change: Tensor = (ctx.of_other * apart).unsqueeze(1)
        return change


class LogMeansOfWholeQueries(torch.autograd.Function):
    """The same where a batch holds whole queries of one length L, one after the other: -log(L softmax) of each block's
    own item, (B, 1).

    Args:
        h: (K,) scores; the softmax is taken in double precision.
        shares: who is of which query; ``length`` is L.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, shares: QueryShares) -> Tensor:
        by_query = h.to(shares.of_own.dtype).reshape(shares.num_queries, -1)  # (Q, L)
        log_softmax = by_query.log_softmax(1)
        ctx.save_for_backward(h)  # the one input that a second derivative goes back to
        ctx.shares = shares
        ctx.log_softmax = log_softmax
        of_own = log_softmax.flatten().index_select(0, shares.own)  # (B,)
        return (-math.log(log_softmax.shape[1]) - of_own).unsqueeze(1)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        (h,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # this derivative will be differentiated itself
            return *derivative_again(_plain_log_means_by_query, (h,), (ctx.shares,), slope), None
        shares = ctx.shares
        each = slope.squeeze(1)  # (B,)
        by_query = each.new_zeros(shares.num_queries, 1).index_add_(0, shares.row, slope)  # (Q, 1)
        of_h = ctx.log_softmax.exp().mul_(by_query).flatten()  # (K,)
        return of_h.index_add_(0, shares.own, each, alpha=-1).to(h.dtype), None

    @staticmethod
    def jvp(ctx: Any, h: Tensor, *_: None) -> Tensor:
        shares = ctx.shares
        moved = h.to(ctx.log_softmax.dtype).reshape(ctx.log_softmax.shape)  # (Q, L)
        mean = (ctx.log_softmax.exp() * moved).sum(1)  # (Q,)
        change: Tensor = mean.index_select(0, shares.row) - moved.flatten().index_select(0, shares.own)
        return change.unsqueeze(1)


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


def _plain_log_means_by_query(h: Tensor, shares: QueryShares) -> Tensor:
    exact = h.to(shares.of_own.dtype)
    with torch.no_grad():
        top = exact.new_full((shares.num_queries,), -torch.inf).scatter_reduce(0, shares.group, exact, "amax")
    mass = (exact - top[shares.group]).exp()
    of_query = mass.new_zeros(shares.num_queries).index_add(0, shares.group, mass)[shares.row]
    of_own = mass[shares.own]
    total = shares.of_own * of_own + shares.of_other * (of_query - of_own)
    return (total.log() + top[shares.row] - exact[shares.own]).unsqueeze(1)
