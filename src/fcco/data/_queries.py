"""Queries, and QueryBlocks: a block is a (query, item) pair, compared with the items of its query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Self, final

import torch
from torch import Tensor

from fcco._support import checks
from fcco.data._batch import Batch
from fcco.data._blocks import SlotBlocks, kept
from fcco.data._convert import numbered, reals
from fcco.data._draws import Lists, Pool, spread
from fcco.data._share import Share
from fcco.data._structure import Structure


@final
class Queries(Structure):
    """Items of queries, with their relevance. Blocks are (query, item) pairs (:class:`fcco.objectives.NDCG`, ListNet).

    Args:
        x: of the items; see :class:`Structure`.
        query: (N,) the query of each item: integers or strings, in any order.
        relevance: (N,) finite numbers.
        weight: (N,) how much each item counts. None: equally.
        inputs: the number of leading parts of a data set's items that make up x.

    Attributes:
        query: (N,) the query of each item as 0, 1, ...
        query_names: the name of each query as given.
        relevance: (N,).

    Example:
        >>> data = Queries(torch.randn(5, 4), [7, 7, 7, 9, 9], [2, 0, 1, 0, 1])
        >>> data.query, data.query_names
        (tensor([0, 0, 0, 1, 1]), (7, 9))
    """

    per_example: ClassVar[tuple[str, ...]] = ("weight", "query", "relevance")

    def __init__(self, x: Any, query: Any, relevance: Any, *, weight: Any = None, inputs: int = 1) -> None:
        super().__init__(x, weight, inputs)
        number, names = numbered("query", query, self.num_examples, self.device)
        self.query, self.query_names = without_empty(number, names)
        self.relevance = reals("relevance", relevance, self.num_examples, self.device)

    def labels_at(self, id: Tensor) -> Tensor:
        return self.relevance[id]

    def _taken(self, rows: Tensor) -> Self:
        check_whole(self.query, rows, self.query_names, "query", "items")
        part = super()._taken(rows)
        part.query, part.query_names = without_empty(part.query, part.query_names)
        return part

    def _split_units(self) -> tuple[Tensor, Tensor]:
        return self.query, torch.zeros(len(self.query_names), dtype=torch.int64)


def without_empty(number: Tensor, names: tuple[Any, ...]) -> tuple[Tensor, tuple[Any, ...]]:
    """Those that have examples, numbered 0, 1, ..."""
    present, number = number.unique(return_inverse=True)
    return number, tuple(names[place] for place in present.tolist())


def check_whole(unit: Tensor, rows: Tensor, names: tuple[Any, ...], kind: str, what: str) -> None:
    """Refuse positions (n,) that hold a part of a unit alone (a query or a bag)."""
    inside = unit[rows].bincount(minlength=len(names))  # how many of each unit the positions hold
    size = unit.bincount(minlength=len(names))
    is_split = (inside > 0) & (inside < size)
    split_units = is_split.nonzero()[:, 0].tolist()
    if split_units:
        first = split_units[0]
        raise ValueError(
            f"ids must not split a {kind}, but hold {int(inside[first])} of the {int(size[first])} {what} of "
            f"{kind} {names[first]!r}"
        )


@final
class QueryBlocks(SlotBlocks):
    """Blocks are (query, item) pairs: for each query that a batch meets, up to ``samples`` of its items.

    K = B1 + min(Q, B1) * B2: the blocks' own items, then a slot of B2 items per query, shared by the query's pairs.
    ``weight`` (B, K) is for the mean over the items of the pair's query: the own item counts what it is worth there,
    the others drawn stand for the rest. Repeats and slots that no block has count 0.

    Args:
        data: the items.
        relevant_only: whether blocks are the items with relevance > 0 alone (NDCG: the others have no gain), or all.

    Attributes:
        item_query: (N,) the query of each item.
        block_item: (m,) the item of each block, in the order of the data.
        query_size: (Q,) how many items each query has; those of weight 0 do not count.
        query_weight: (Q,) float64, what their weights add up to.
        relevance: (N,).
    """

    least_samples: ClassVar[int] = 2

    def __init__(self, data: Queries, *, relevant_only: bool) -> None:
        super().__init__(data)
        self.relevant_only = checks.flag("relevant_only", relevant_only)
        self.relevance = data.relevance
        self.item_query = data.query
        queries = len(data.query_names)
        alive = self.alive()
        self.items = Lists.by_label(data.query.masked_fill(~alive, -1), queries)
        chosen = alive
        if relevant_only:
            chosen = alive & (data.relevance > 0)
        self.block_example = chosen.nonzero()[:, 0]
        self.block_item = self.block_example
        self.num_blocks = int(self.block_item.shape[0])
        if self.num_blocks == 0:
            raise ValueError("relevance must be > 0 for at least one item, got none")
        self.block_query = data.query[self.block_item]
        used = self.block_query.unique()  # a query without relevant items has no blocks
        self.num_queries = int(used.shape[0])
        self.pool = Pool(self.items, data.weight, used)
        self.query_size = self.pool.count
        self.query_weight = self.pool.total
        self.block_weight = self.mean_one()

    def touched(self, id: Tensor) -> Tensor:
        is_touched = torch.zeros_like(self.query_size, dtype=torch.bool)  # (Q,)
        is_touched[self.item_query[id]] = True
        return is_touched[self.block_query].nonzero()[:, 0]

    def batch_size_of(self, share: Share, samples: int) -> int:
        return share.size + min(self.num_queries, share.size) * min(samples, self.pool.longest)

    def draw(self, index: Tensor, samples: int, share: Share, generator: torch.Generator) -> Batch:
        blocks = index.shape[0]
        query = self.block_query[index]  # (B,)
        queries_met, block_slot = self.slots(query, min(self.num_queries, blocks))  # (slots,) and (B,)
        slot_id, is_drawn = self.pool.draw(queries_met, min(samples, self.pool.longest), generator)  # (slots, size)
        own_item = self.block_item[index]
        sample_id = slot_id[block_slot]  # (B, size), those of the block's query
        # The own item is in every batch with its block, so it must not stand for others.
        member = is_drawn[block_slot] & (sample_id != own_item.unsqueeze(1))
        total = self.query_weight[query]
        own_weight = torch.diag(self.worth(own_item) / total)  # (B, B)
        sample_weight = spread(member, self.query_size[query] - 1, total, self.weight_at(sample_id))
        weight = torch.cat([own_weight, self.into_slots(sample_weight, block_slot, queries_met.shape[0])], 1)
        id = torch.cat([own_item, slot_id.flatten()])  # (K,)
        return Batch(None, id, index, self.labels_at(id), self.arange(blocks), weight=weight)

    def chunks(self, blocks: Tensor, size: int) -> Iterator[Batch]:
        growing_query, order = self.block_query[blocks].sort(stable=True)
        blocks = blocks[order]

        def weigh(index: Tensor, samples: Tensor) -> Tensor:
            query = self.block_query[index].unsqueeze(1)  # (B, 1)
            is_same_query = self.item_query[samples] == query
            return is_same_query * (self.worth(samples) / self.query_weight[query])

        for samples in self.items.flat.split(size):  # by query, so that only the blocks of these queries matter
            first = int(torch.searchsorted(growing_query, self.item_query[samples[0]]))
            end = int(torch.searchsorted(growing_query, self.item_query[samples[-1]], right=True))
            yield from self.cross(blocks[first:end], samples, size, weigh)

    def complete(self, batch: Batch, *, all_ranks: bool = False) -> Batch:
        id = batch.id.to(self.device)
        index, position = self.present_blocks(id, all_ranks)
        own_item = self.block_item[index].unsqueeze(1)  # (B, 1)
        is_same_query = self.item_query[id] == self.block_query[index].unsqueeze(1)  # (B, K)
        member = is_same_query & (id != own_item) & self.alive()[id]
        size = self.query_size[self.block_query[index]]  # (B,)
        has_enough = member.any(1) | (size == 1)
        index, position, member, size = kept(has_enough, index, position, member, size)
        total = self.query_weight[self.block_query[index]]
        weight = spread(member, size - 1, total, self.weight_at(id))
        weight = self.with_own_weight(weight, index, position, total)
        return self.completed(batch, index, position, None, weight)
