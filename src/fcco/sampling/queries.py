"""QueryItemLoader: blocks are (query, item) pairs, for NDCG and ListNet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Unpack, final

import torch
from torch import Tensor

from fcco._support import checks
from fcco.sampling import labels as check
from fcco.sampling.batch import Batch
from fcco.sampling.draws import Lists
from fcco.sampling.loader import Options
from fcco.sampling.pairs import PairLoader, Stratum


@final
class QueryItemLoader(PairLoader):
    """Blocks are (query, item) pairs: B1 pairs a step, drawn uniformly, and up to B2 items of each of their queries.

    Pairs of one query share its items; an item stands in the batch once. ``batch.anchor`` (B,) says where a pair's own
    item stands, ``batch.y`` (K,) holds relevances. ``batch.weight`` (B, K) is for the mean over the N_q items of the
    pair's query: 1/N_q for its own item, (N_q - 1)/(N_q d) for each of the d others drawn, 0 for other queries' items;
    where all are drawn, 1/N_q each. ``full_pass`` gives 1/N_q to each item of the query.

    Args:
        dataset: of items; see :class:`fcco.sampling.Loader`.
        queries: (N,) integers, the query of each item; any numbers, in any order.
        relevance: (N,) of each item.
        blocks_per_step: B1 pairs, over all ranks.
        samples_per_query: B2 >= 2, at most so many items of a query, without replacement; None: all of them.
        relevant_above: blocks are the items with a relevance above this: 0 (NDCG: the others have no gain), or
            ``-math.inf`` for every item (ListNet).
        options: see :class:`fcco.sampling.Options`.

    Attributes:
        block_example: (m,) the item of each block, in the order of the data set.
        block_query: (m,) its query, as 0, 1, ... in the order of the numbers given.
        query_size: (Q,) how many items each query has.

    Example:
        >>> queries, relevance = torch.tensor([7, 7, 7, 9, 9]), torch.tensor([2.0, 0, 1, 0, 1])
        >>> loader = QueryItemLoader(torch.randn(5, 4), queries, relevance, blocks_per_step=2, seed=0)
        >>> loader.block_example, loader.block_query
        (tensor([0, 2, 4]), tensor([0, 0, 1]))
    """

    def __init__(
        self,
        dataset: Any,
        queries: Any,
        relevance: Any,
        blocks_per_step: int,
        samples_per_query: int | None = None,
        *,
        relevant_above: float = 0.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(dataset, options)
        given = check.of_examples("queries", queries, self.num_examples, self.device)
        check.numbers("queries", given - given.min(), None, "query")
        self._query: Tensor = given.unique(return_inverse=True)[1]
        self.relevance = check.finite(
            "relevance", check.of_examples("relevance", relevance, self.num_examples, self.device)
        )
        self._items = Lists.by_label(self._query, int(self._query.max()) + 1)
        self.query_size = self._items.count
        largest = int(self.query_size.max())
        size = largest if samples_per_query is None else checks.positive_int("samples_per_query", samples_per_query)
        if size < 2 <= largest:
            raise ValueError(f"samples_per_query must be at least 2, got {size}")
        self._strata = (Stratum(self._items, min(size, largest), own=True),)
        self.block_example = (self.relevance > relevant_above).nonzero()[:, 0]
        if self.block_example.numel() == 0:
            raise ValueError(f"relevance must be above {relevant_above} for some item, got none")
        self.block_query = self.block_group = self._query[self.block_example]
        items = min(size, max(1, self.num_examples // self.query_size.shape[0]))
        self._start(self.block_example.shape[0], blocks_per_step, blocks_per_step * items)

    def _labels_at(self, id: Tensor) -> Tensor:
        return self.relevance[id]

    def _chunks(self, blocks: Tensor, size: int) -> Iterator[tuple[Tensor, Batch]]:
        query, order = self.block_query[blocks].sort(stable=True)
        blocks = blocks[order]

        def weigh(index: Tensor, samples: Tensor) -> Tensor:
            mine = self.block_query[index]
            share = (self._ones() / self.query_size[mine]).unsqueeze(1)
            return torch.eq(self._query[samples], mine.unsqueeze(1)) * share

        for samples in self._items.flat.split(size):  # by query, so that only the blocks of these queries matter
            first, last = self._query[samples[0]], self._query[samples[-1]]
            low, high = torch.searchsorted(query, first), torch.searchsorted(query, last, right=True)
            yield from self._cross(blocks[int(low) : int(high)], samples, size, weigh)
