"""ListNet: the cross-entropy between the top-one distributions of relevances and of scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fcco._support.fused import fused
from fcco._support.remembered import Remembered
from fcco.data import Batch, Queries
from fcco.data._draws import exact_dtype
from fcco.objectives._anchored import own_position
from fcco.objectives._base import scores
from fcco.objectives._means import check_not_empty, log_mean_exp_over
from fcco.objectives._queries import QueryObjective
from fcco.objectives._query_pairs import (
    BatchPattern,
    LogMeansByQuery,
    LogMeansOfExponentials,
    LogMeansOfWholeQueries,
    QueryShares,
    common_length,
)

if TYPE_CHECKING:
    from fcco.memory._table import OutputTable
    from fcco.memory.forms import Form

MANY = 2**24  # pairs: in double precision a few of these matrices fill a gigabyte


class ListNet(QueryObjective):
    r"""Listwise cross-entropy over whole queries, averaged over queries.

    .. math::
        F(w) = -\frac1Q \sum_q \sum_{i \in q} P_y(i) \log \frac{e^{h_i}}{\sum_{j \in q} e^{h_j}}
        \qquad P_y(i) = \frac{e^{y_i}}{\sum_{j \in q} e^{y_j}}

    Block i is a (query, item) pair, :math:`g_i(w) = \frac1{N_q} \sum_{j \in q} e^{h_j - h_i}` (in the log domain)
    and :math:`f_i(u) = \frac{m}{Q} P_y(i) (\log u + \log N_q)`. The data's weights multiply the items in both
    distributions, and :math:`N_q` is what they add up to.

    Args:
        model: (K, ...) -> (K,) or (K, 1) scores h.
        data: the queries, with relevances y; P_y is their softmax over the query.
        block_weight: (m,) in place of P_y(i), for example y_i/N_q as in Qiu et al.
        relevant_only: whether only items with y > 0 are blocks (in order). The others must then have no weight.

    A batch of the loader is as for :class:`NDCG`: each block's own item, and items of its query.

    Example:
        >>> from fcco.data import Queries
        >>> data = Queries(torch.randn(5, 4), torch.tensor([0, 0, 0, 1, 1]), torch.tensor([2, 0, 1, 0, 1]))
        >>> objective = ListNet(nn.Linear(4, 1), data)
        >>> batch = next(iter(objective.loader(blocks=2, samples=2)))
        >>> objective(batch.index, batch).shape
        torch.Size([2, 1])

    Reference: Cao et al., Learning to rank: from pairwise approach to listwise approach, ICML 2007; Qiu et al.,
    Large-scale stochastic optimization of NDCG surrogates, ICML 2022 (its compositional form).
    """

    def __init__(
        self,
        model: nn.Module,
        data: Queries,
        *,
        block_weight: Tensor | None = None,
        relevant_only: bool = False,
    ) -> None:
        super().__init__(model, data, relevant_only=relevant_only, log_domain=True, block_weight=block_weight)
        self.relevant_only = relevant_only
        self._shares: Remembered[QueryShares | None] = Remembered()
        item = self.blocks.block_item
        weight = self.item_weight()  # (n,)
        if self.given_weight is None:
            share = top_one(data.relevance.double(), self.blocks.item_query, weight)[item]
        else:
            share = self.given_weight.to(weight.device) * weight[item]
        # The solver takes the mean over m blocks; F is the mean over Q queries of sums over their blocks.
        scale = share * (self.num_blocks / self.num_queries)
        self.register_scale(scale)

    def constants(self) -> dict[str, Any]:
        return {"block_weight": self.weight_constant(), "relevant_only": self.relevant_only}

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        shares = self._shares_by_query(index, outputs, batch)
        if shares is not None and shares.length is not None:
            return fused(LogMeansOfWholeQueries, scores(outputs, batch), shares)
        if shares is not None:
            return fused(LogMeansByQuery, scores(outputs, batch), shares)
        pairs = self.pairs_by_query(index, batch, exact_dtype(outputs.device))
        if pairs is not None:
            return fused(LogMeansOfExponentials, scores(outputs, batch), pairs)
        x, entering, weight = self.pairs(index, outputs, batch)
        return log_mean_exp_over(x.unsqueeze(1), entering, weight, index, "items")

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        return self.weighted(index, u.squeeze(1) + self.block_size[index].to(u.dtype).log())

    def outer_and_slope(self, index: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        scale = self.block_scale
        assert scale is not None
        slope = scale.index_select(0, index).to(u.dtype)  # (B,), f is linear in log u
        log_size = self.block_size.index_select(0, index).to(u.dtype).log()
        return slope * (u.squeeze(1) + log_size), slope.unsqueeze(1)

    def table_form(self, table: OutputTable) -> Form | None:
        from fcco.memory.forms import ListForm, QueryExponentials

        if table.shape:
            return None
        return ListForm(self, QueryExponentials(self.blocks, table.device), table)

    def _shares_by_query(self, index: Tensor, outputs: Tensor, batch: Batch) -> QueryShares | None:
        """What one sum per query needs; None: it will not do, or does not pay."""
        if batch.weight is not None or batch.serves is not None:
            return None
        # An accelerator has to wait for it and adds in any order: only where the pairs would fill its memory.
        if not batch.id.is_cpu and index.shape[0] * len(batch) <= MANY:
            return None
        dtype = exact_dtype(outputs.device)
        source = (index, batch.id, batch.block_pos, self.item_query, self.block_item, dtype)
        return self._shares.get(source, lambda: self._shares_of(index, batch, dtype))

    def _shares_of(self, index: Tensor, batch: Batch, dtype: torch.dtype) -> QueryShares | None:
        own = own_position(batch, index, self.block_item.index_select(0, index))
        # An item that stands in the batch twice is still no other.
        if not self._distinct.are(batch.id):
            return None
        query = self.item_query.index_select(0, batch.id)  # (K,)
        size = self.block_count.index_select(0, index)  # (B,)
        pattern = self._pattern.last
        if pattern is not None and query.is_cpu and pattern.fits(query, size, own, dtype):
            known: QueryShares = pattern.layout
            return known
        found, group, count = query.unique(return_inverse=True, return_counts=True)
        own = own.clone()  # the user may write to what the batch holds
        row = group.index_select(0, own)  # (B,)
        others = count.index_select(0, row) - 1
        check_not_empty(torch.where(size == 1, 1, others), index, "other items of its query")
        # As with_own has it: the own item counts 1/N_q, the others present share what is left.
        exact = size.to(dtype)
        of_other = (exact - 1) / (exact * others.clamp(min=1))
        length = None
        if query.is_cpu and torch.equal(others + 1, size):  # an accelerator would have to wait for the answer
            length = common_length(group, count)
        if length is not None:
            # Numbered as they stand in the batch; `unique` numbers queries by their values.
            group = torch.arange(query.shape[0]) // length
            row = own // length
        shares = QueryShares(own, group, row, exact.reciprocal(), of_other, found.shape[0], length)
        if query.is_cpu and not torch.is_inference_mode_enabled():
            self._pattern.last = BatchPattern.of(query, size, own, dtype, shares)
        return shares


def top_one(relevance: Tensor, query: Tensor, weight: Tensor | None = None) -> Tensor:
    """The softmax of relevances (n,) over the items of each query (n,), queries numbered from 0.

    Args:
        relevance: (n,).
        query: (n,).
        weight: (n,) what multiplies an item's exponential; None: 1.

    Example:
        >>> top_one(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 0, 1]))
        tensor([0.5000, 0.5000, 1.0000])
    """
    queries = int(query.max()) + 1
    if weight is None:
        weight = torch.ones_like(relevance)
    counted = weight > 0  # an item that does not count must not set the scale either
    known = torch.where(counted, relevance, -torch.inf)
    top = known.new_full((queries,), -torch.inf).scatter_reduce(0, query, known, "amax")
    mass = torch.where(counted, (known - top[query]).exp() * weight, 0.0)
    total = mass.new_zeros(queries).index_add(0, query, mass)[query]
    return torch.where(counted, mass / total, 0.0)
