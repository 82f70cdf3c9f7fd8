"""NDCG: a smooth surrogate of the normalised discounted cumulative gain."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fcco._support.fused import fused
from fcco.data import Batch, Queries
from fcco.objectives._base import scores
from fcco.objectives._means import mean_over
from fcco.objectives._precision import at_least_float32, like_parameters
from fcco.objectives._queries import QueryObjective
from fcco.objectives._query_pairs import QuadraticMeans
from fcco.objectives._surrogates import Square, SquaredHinge, Surrogate, loss_or_default

if TYPE_CHECKING:
    from fcco.memory._table import OutputTable
    from fcco.memory.forms import Form

_LONGEST = 10_000_000  # places that a query's items may take together: one discount is stored per place


class NDCG(QueryObjective):
    r"""Minus the NDCG surrogate of SONG, averaged over queries.

    .. math::
        F(w) = -\frac1Q \sum_q \frac1{Z_q} \sum_{i \in q,\, y_i > 0} \frac{2^{y_i} - 1}{\log_2(1 + N_q\, g_i(w))},
        \qquad g_i(w) = \frac1{N_q} \sum_{j \in q} \ell(h_j - h_i)

    Block i is a (query, relevant item) pair; :math:`N_q g_i` is a smooth rank (the item itself counts
    :math:`\ell(0)`, 1 at margin 1), :math:`Z_q` the ideal DCG and
    :math:`f_i(u) = -\frac{m}{Q} \frac{2^{y_i} - 1}{Z_q \log_2(1 + N_q u)}`. Since :math:`N_q g_i \ge \ell(0)`
    always, f is continued by its tangent below :math:`N_q u = \ell(0)`: a tracker that steps out of the range of
    g meets finite weights. An item of weight 2 takes two places, as two copies of it would, and counts twice.

    Args:
        model: (K, ...) -> (K,) or (K, 1) scores h.
        data: the queries, with relevances y >= 0.
        surrogate: l, with l(0) > 0; None: ``SquaredHinge(margin=1)``, the paper's.
        block_weight: (m,) in place of m/Q, one number per relevant item, in order. None: every query counts the
            same.

    A batch of the loader has, for each block, its own item and items of its query. Items of other queries do not count.

    Example:
        >>> from fcco.data import Queries
        >>> data = Queries(torch.randn(5, 4), torch.tensor([0, 0, 0, 1, 1]), torch.tensor([2, 0, 1, 0, 1]))
        >>> objective = NDCG(nn.Linear(4, 1), data)
        >>> objective.block_item
        tensor([0, 2, 4])
        >>> batch = next(iter(objective.loader(blocks=2, samples=2)))
        >>> objective(batch.index, batch).shape
        torch.Size([2, 1])

    Reference: Qiu et al., Large-scale stochastic optimization of NDCG surrogates, ICML 2022 (SONG).
    """

    block_least: Tensor

    def __init__(
        self,
        model: nn.Module,
        data: Queries,
        *,
        surrogate: Surrogate | None = None,
        block_weight: Tensor | None = None,
    ) -> None:
        super().__init__(model, data, relevant_only=True, log_domain=False, block_weight=block_weight)
        self.surrogate: Surrogate = loss_or_default("surrogate", surrogate, SquaredHinge(margin=1.0))
        least = float(self.surrogate(torch.zeros(())))  # what an item adds to its own rank
        if least <= 0.0:
            raise ValueError(f"surrogate must be > 0 at 0, so give it a margin, got {self.surrogate}")
        lowest = float(data.relevance.min())
        if lowest < 0.0:
            raise ValueError(f"relevance must be >= 0 for NDCG, got {lowest:g}")
        item = self.blocks.block_item
        weight = self.item_weight()
        # An item of weight w meets w copies of itself, so its rank is at least w l(0).
        self.register_table("block_least", like_parameters(model, least * weight[item]))
        gain = torch.exp2(data.relevance.double()) - 1
        if not bool(torch.isfinite(gain).all()):
            raise ValueError(f"relevance must be below 1024, so that 2^y is finite, got {data.relevance.max().item()}")
        ideal = ideal_dcg(gain, self.blocks.item_query, weight)[self.blocks.block_query]
        share = weight[item] * gain[item] / ideal
        # The solver takes the mean over m blocks; F is the mean over Q queries of sums over their blocks.
        factor: Tensor | float = self.num_blocks / self.num_queries
        if self.given_weight is not None:
            factor = self.given_weight.to(share.device)
        self.register_scale(factor * share)

    def constants(self) -> dict[str, Any]:
        return {"surrogate": repr(self.surrogate), "block_weight": self.weight_constant()}

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        loss = self.surrogate
        if isinstance(loss, SquaredHinge | Square):
            h = at_least_float32(scores(outputs, batch))
            pairs = self.pairs_by_query(index, batch, h.dtype)
            if pairs is not None:
                return fused(QuadraticMeans, h, pairs, loss.margin, loss.scale, loss.hinge)
        x, entering, weight = self.pairs(index, outputs, batch)
        return mean_over(self.surrogate(x), entering, weight, index, "items").unsqueeze(1)

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        rank = self.block_size[index] * u.squeeze(1)  # a mean over the query times its size
        return self.weighted(index, -inverse_discount(rank, self.block_least[index]))

    def outer_and_slope(self, index: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        size = self.block_size[index]
        value, slope = inverse_discount_and_slope(size * u.squeeze(1), self.block_least[index])
        assert self.block_scale is not None
        scale = -self.block_scale[index].to(value.dtype)
        return scale * value, (scale * size * slope).unsqueeze(1)

    def table_form(self, table: OutputTable) -> Form | None:
        from fcco.memory.forms import ListForm, QueryPairs

        if table.shape:
            return None
        return ListForm(self, QueryPairs(self.blocks, self.surrogate, table.device), table)


def inverse_discount(rank: Tensor, least: Tensor) -> Tensor:
    """1 / log2(1 + rank), continued below ``least`` by its tangent there.

    Example:
        >>> inverse_discount(torch.tensor([1.0, 3.0]), torch.ones(2))
        tensor([1.0000, 0.5000])
    """
    return inverse_discount_and_slope(rank, least)[0]


def inverse_discount_and_slope(rank: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
    """1 / log2(1 + rank), continued below ``least`` by its tangent there, and its derivative."""
    inside = torch.maximum(rank, least.to(rank.dtype))
    log = inside.log1p()
    at_inside = math.log(2.0) / log
    slope = at_inside / (log * (-1.0 - inside))  # of 1/log2(1 + r) at r = inside
    return torch.addcmul(at_inside, slope, rank - inside), slope


def ideal_dcg(gain: Tensor, query: Tensor, weight: Tensor | None = None) -> Tensor:
    """The DCG of each query (Q,) in the best order.

    An item of weight w takes w places, one after the other (parts of a place count in proportion).

    Args:
        gain: (n,) of each item.
        query: (n,) its query, numbered from 0.
        weight: (n,) what it weighs; None: 1.

    Example:
        >>> ideal_dcg(torch.tensor([1.0, 3.0, 2.0]), torch.tensor([0, 0, 1]))
        tensor([3.6309, 2.0000])
        >>> ideal_dcg(torch.tensor([1.0, 2.0]), torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
        tensor([3.7619])
    """
    if weight is None:
        weight = torch.ones_like(gain)
    # Best first within each query: a sort by gain, then a stable one by query.
    order = gain.argsort(descending=True)
    order = order[query[order].argsort(stable=True)]
    gain = gain[order]
    query = query[order]
    weight = weight[order]
    total = weight.new_zeros(int(query.max()) + 1).index_add(0, query, weight)
    if float(total.max()) > _LONGEST:
        raise ValueError(f"the weights of the items of a query must not add up to more than {_LONGEST:g} for NDCG")
    # Items take the places from start to end, counted from the top of their own query.
    before_query = (total.cumsum(0) - total)[query]
    end = weight.cumsum(0) - before_query
    start = (end - weight).clamp(min=0.0)  # below 0 by rounding only
    places = _sum_of_discounts(end) - _sum_of_discounts(start)
    return gain.new_zeros(total.shape[0]).index_add(0, query, gain * places)


def _sum_of_discounts(x: Tensor) -> Tensor:
    """The sum of 1/log2(2 + k) over the first x places k = 0, 1, ..., linear between whole numbers."""
    whole = x.floor()
    place = torch.arange(int(whole.max()) + 1, dtype=x.dtype, device=x.device)
    discount = 1.0 / (place + 2.0).log2()
    before = discount.cumsum(0) - discount
    k = whole.to(torch.int64)
    return before[k] + (x - whole) * discount[k]
