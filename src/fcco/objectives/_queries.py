"""What objectives over queries share: blocks are (query, item) pairs, means run over the items of the query."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from fcco._support.distinct import Distinct
from fcco._support.remembered import Remembered, Slot
from fcco.data import Batch, Queries, QueryBlocks
from fcco.data._batch import served
from fcco.objectives._anchored import own_position, with_own
from fcco.objectives._base import OutputObjective, check_data, checked_weight, fingerprint, scores
from fcco.objectives._means import check_not_empty
from fcco.objectives._precision import at_least_float32, like_parameters, to_float64
from fcco.objectives._query_pairs import BatchPattern, ItemPairs, Members, members_of


class QueryObjective(OutputObjective):
    r"""Block i is a (query, item) pair, and :math:`g_i` a mean over the items of its query, itself among them.

    An item of weight w counts as w copies of it: :math:`N_q` is the weight of the query's items together, and queries
    count equally.

    Args:
        model: (K, ...) -> (K,) or (K, 1) scores.
        data: the queries.
        relevant_only: whether only items with a relevance above 0 are blocks.
        log_domain: as in :class:`fcco.Objective`.
        block_weight: (m,) what the user gives; None: as the objective has it.

    Attributes:
        item_query: (n,) the query of each item, as 0, 1, ...
        block_item: (m,) the item of each block.
        block_count: (m,) how many items the block's query has.
        block_size: (m,) :math:`N_q`, what they weigh together: the same number, without weights.
        num_queries: Q, how many queries have a block.
    """

    shift_invariant = True
    shift_per_query: ClassVar[bool] = True
    blocks: QueryBlocks
    data: Queries
    item_query: Tensor
    block_item: Tensor
    block_count: Tensor
    block_size: Tensor

    def __init__(
        self,
        model: nn.Module,
        data: Queries,
        *,
        relevant_only: bool,
        log_domain: bool,
        block_weight: Tensor | None,
    ) -> None:
        check_data(type(self).__name__, data, Queries)
        blocks = QueryBlocks(data, relevant_only=relevant_only)
        super().__init__(model, blocks, log_domain=log_domain)
        self._pairs: Remembered[ItemPairs | None] = Remembered()
        self._pattern: Slot[BatchPattern] = Slot()  # of the last batch, where it may come again
        self._distinct = Distinct(data.num_examples)
        self.given_weight = checked_weight("block_weight", block_weight, self.num_blocks)
        self.num_queries = blocks.num_queries
        self.register_table("item_query", blocks.item_query)
        self.register_table("block_item", blocks.block_item)
        self.register_table("block_count", blocks.query_size[blocks.block_query])
        self.register_table("block_size", like_parameters(model, blocks.query_weight[blocks.block_query]))

    def item_weight(self) -> Tensor:
        """(n,) what the items weigh, in double precision."""
        if self.data.weight is None:
            return torch.ones(self.data.num_examples, dtype=torch.float64, device=self.data.device)
        return self.data.weight

    def weight_constant(self) -> str | None:
        """``block_weight`` for :meth:`constants`."""
        return fingerprint(self.given_weight)

    def pairs(self, index: Tensor, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """h_j - h_i (B, K), which j enter the mean of block i (B, K), and how much each counts."""
        h = scores(outputs, batch)
        if self.log_domain[0]:  # exponentials of scores
            h = to_float64(h)
        else:
            h = at_least_float32(h)
        item = self.block_item[index]
        own = own_position(batch, index, item)
        same_query = self.item_query[batch.id] == self.item_query[item].unsqueeze(1)  # (B, K)
        among = served(same_query, batch)
        count = self.block_count[index].to(h.dtype)
        # Who does not belong to the query has no weight anyway; a batch made by hand has no weights.
        entering, weight = with_own(batch, index, among, own, count, "other items of its query")
        return h - h[own].unsqueeze(1), entering, weight

    def pairs_by_query(
        self, index: Tensor, batch: Batch, dtype: torch.dtype, most: int | None = None
    ) -> ItemPairs | None:
        """The pairs that count, laid out by query, with logarithms of weights where the objective is in the log domain;
        None: that is not known on the host, or does not pay.

        Args:
            index: (B,) the blocks.
            batch: the items.
            dtype: of the weights.
            most: places for pairs that pay; None: half of all pairs.
        """
        if not batch.id.is_cpu or batch.serves is not None:
            return None
        if most is None:
            most = max(index.shape[0] * len(batch) // 2, 1)
        room = most
        source = (index, batch.id, batch.block_pos, batch.weight, self.item_query, self.block_item, dtype)
        return self._pairs.get(source, lambda: self._pairs_of(index, batch, dtype, room))

    def _pairs_of(self, index: Tensor, batch: Batch, dtype: torch.dtype, most: int) -> ItemPairs | None:
        item_query = self.item_query
        item = self.block_item.index_select(0, index)
        own = own_position(batch, index, item)
        # An item that stands in the batch twice is still no other: told by id, over all pairs.
        if batch.weight is None and not self._distinct.are(batch.id):
            return None
        query = item_query.index_select(0, batch.id)  # (K,)
        size = self.block_count.index_select(0, index)  # (B,)
        pattern = self._pattern.last
        if pattern is not None and batch.weight is None and pattern.fits(query, size, own, dtype):
            known: ItemPairs = pattern.layout
            return known
        found = members_of(query, item_query.index_select(0, item), own, most)
        if found is None:
            return None
        if batch.weight is None:
            pairs = ItemPairs(own, found.place, self._equal_weight(index, size, own, found, dtype))
            # Lengths that differ hardly come again; and what is made in inference mode cannot serve a graph.
            if found.real is None and not torch.is_inference_mode_enabled():
                # A copy: the user may write to what the batch holds.
                pairs = pairs._replace(own=own.clone())
                self._pattern.last = BatchPattern.of(query, size, pairs.own, dtype, pairs)
            return pairs
        weight = batch.weight.to(dtype)
        if weight.dim() == 1:
            weight = weight.take(found.place)
        else:
            weight = weight.gather(1, found.place)
        if found.real is not None:
            weight = weight.masked_fill(~found.real, 0.0)
        if self.log_domain[0]:
            weight = weight.log()
        return ItemPairs(own, found.place, weight)

    def _equal_weight(self, index: Tensor, count: Tensor, own: Tensor, found: Members, dtype: torch.dtype) -> Tensor:
        """As :func:`with_own` has it: the own item counts 1/N_q, the others present share the rest; (B, L), or the
        logarithms."""
        size = count.to(dtype)  # (B,)
        others = found.length - 1
        if found.shortest == 1:
            check_not_empty(torch.where(size == 1, 1, others), index, "other items of its query")
            others = others.clamp(min=1)
        share = (size - 1) / (size * others)
        of_own = size.reciprocal()
        nothing = 0.0
        if self.log_domain[0]:  # of B numbers each, not of all B L
            share = share.log()
            of_own = of_own.log()
            nothing = -torch.inf
        weight = torch.where(found.place == own.unsqueeze(1), of_own.unsqueeze(1), share.unsqueeze(1))
        if found.real is None:
            return weight
        return weight.masked_fill_(~found.real, nothing)
