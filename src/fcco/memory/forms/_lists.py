"""ListForm: F as a function of the table, for objectives that compare an example with the others of its list.

Queries (NDCG, ListNet) and risk sets (Cox). A mean over the exponentials of a list is one sum per list, and risk sets
are the beginnings of one order, so these cost O(n); NDCG costs the pairs within queries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import final

import torch
from torch import Tensor

from fcco.data import QueryBlocks, RiskBlocks
from fcco.data._draws import exact_dtype
from fcco.memory._table import Entries, OutputTable
from fcco.memory.forms._form import (
    BlockShares,
    Evaluation,
    Form,
    TableObjective,
    add_to,
    example_weights,
    joined,
    sent,
)

PAIRS = 1 << 22  # of one piece


class ListMeans(ABC):
    """g of blocks from the outputs of all examples; abstract. ``block_item`` (m,) is each block's own example."""

    block_item: Tensor

    @abstractmethod
    def values(self, blocks: Tensor, h: Tensor, seen: Tensor) -> Tensor:
        """g (B,), log g where the objective has it so: means over the examples of the lists that were seen.

        Args:
            h: (N,) in double precision, with its graph.
            seen: (N,) bool.
        """

    def pieces(self, blocks: Tensor) -> Iterator[Tensor]:
        """The blocks in parts that fit into memory."""
        yield blocks

    def touched(self, id: Tensor) -> Tensor | None:
        """The blocks whose lists the examples (K,) are in; None: all of them, or as good as all."""
        return None

    @abstractmethod
    def cost(self) -> int:
        """What all blocks cost, in pairs."""


class _QueryMeans(ListMeans):
    """Items by query: those of query q are ``items[start[q] : start[q] + size[q]]``; abstract."""

    def __init__(self, blocks: QueryBlocks, device: torch.device) -> None:
        self.query = blocks.item_query.to(device)
        self.block_item = blocks.block_item.to(device)
        self.block_query = self.query[self.block_item]
        self.items = blocks.items.flat.to(device)
        self.start = blocks.items.start.to(device)
        self.size = blocks.items.count.to(device)
        self.weight = example_weights(blocks, device)

    def touched(self, id: Tensor) -> Tensor:
        mark = torch.zeros_like(self.size, dtype=torch.bool)
        mark[self.query[id]] = True
        return mark[self.block_query].nonzero()[:, 0]


@final
class QueryExponentials(_QueryMeans):
    """ListNet: log of the mean of exp(h_j - h_i) over the query of i."""

    def cost(self) -> int:
        return 8 * int(self.items.shape[0] + self.block_item.shape[0])

    def values(self, blocks: Tensor, h: Tensor, seen: Tensor) -> Tensor:
        there = self.items[seen[self.items]]
        query = self.query[there]
        weight = self.weight[there].to(h.dtype)
        score = h[there]
        # Each query from its own largest score, so that no exponential overflows.
        top = h.new_full(self.size.shape, -torch.inf).scatter_reduce(0, query, score.detach(), "amax")
        mass = torch.zeros_like(top).index_add(0, query, weight * (score - top[query]).exp())  # (Q,)
        total = torch.zeros_like(top).index_add(0, query, weight)
        mine = self.block_query[blocks]  # (B,)
        mean: Tensor = (mass[mine] / total[mine]).log() + top[mine]
        return mean - h[self.block_item[blocks]]


@final
class QueryPairs(_QueryMeans):
    """NDCG: the mean of the surrogate of h_j - h_i over the query of i."""

    def __init__(self, blocks: QueryBlocks, surrogate: Callable[[Tensor], Tensor], device: torch.device) -> None:
        super().__init__(blocks, device)
        self._surrogate = surrogate

    def pieces(self, blocks: Tensor) -> Iterator[Tensor]:
        piece = self.size[self.block_query[blocks]].cumsum(0) // PAIRS  # (B,) which piece each block falls into
        yield from blocks.split(piece.unique_consecutive(return_counts=True)[1].tolist())

    def cost(self) -> int:
        return int(self.size[self.block_query].sum())

    def values(self, blocks: Tensor, h: Tensor, seen: Tensor) -> Tensor:
        query = self.block_query[blocks]
        count = self.size[query]
        block = torch.arange(blocks.shape[0], device=h.device).repeat_interleave(count)  # of each pair
        place = torch.arange(block.shape[0], device=h.device) - (count.cumsum(0) - count)[block]
        item = self.items[self.start[query][block] + place]  # (P,), of each pair
        weight = torch.where(seen[item], self.weight[item], 0.0).to(h.dtype)
        # One entry per (block, item of its query).
        loss = self._surrogate(h[item] - h[self.block_item[blocks]][block]) * weight
        sums = h.new_zeros(2, blocks.shape[0]).index_add(1, block, torch.stack([loss, weight]))
        return sums[0] / sums[1]


@final
class RiskExponentials(ListMeans):
    """Cox: log of the mean of exp(h_j - h_i) over those still at risk at the time of event i."""

    def __init__(self, blocks: RiskBlocks, device: torch.device) -> None:
        self.block_item = blocks.block_item.to(device)
        self.order = blocks.order.to(device)
        self.risk_size = blocks.risk_size.to(device)  # a risk set is the beginning of the order, of that length
        self.weight = example_weights(blocks, device)

    def cost(self) -> int:
        return 16 * int(self.order.shape[0])

    def values(self, blocks: Tensor, h: Tensor, seen: Tensor) -> Tensor:
        there = seen[self.order]
        order = self.order[there]
        weight = self.weight[order].to(h.dtype)
        # Running sums over the order: a risk set is read off at its end.
        sums = (h[order] + weight.log()).logcumsumexp(0)
        last = there.cumsum(0)[self.risk_size[blocks] - 1] - 1  # (B,) the end of each risk set among those seen
        return sums[last] - weight.cumsum(0)[last].log() - h[self.block_item[blocks]]


@final
class ListForm(Form):
    """Means over lists put into the objective's own f, and differentiated by autograd.

    Args:
        objective: gives f, its ``outer``; it has no parameters of its own.
        means: gives g.
        table: where the outputs come from, (N,).
    """

    def __init__(self, objective: TableObjective, means: ListMeans, table: OutputTable) -> None:
        self._objective = objective
        self._means = means
        self._table = table
        self._shares = BlockShares(objective.blocks, table.device)
        self.objective_params = []

    def cost(self) -> int:
        return self._means.cost()

    def evaluate_all(self, rows: list[Tensor]) -> Evaluation:
        return self._evaluate(None)

    def evaluate(self, ids: Tensor, rows: list[Tensor], old: Entries | None = None) -> Evaluation:
        id = sent(ids, self._table.device)
        found = self._evaluate(self._means.touched(id))
        return found._replace(c=found.c[id])

    def _evaluate(self, blocks: Tensor | None) -> Evaluation:
        """c of every example, from the blocks named; those never seen take no part, the others stand for them."""
        values = self._table.values
        seen = self._table.seen
        met = seen[self._means.block_item]
        share = torch.zeros(met.shape, dtype=exact_dtype(values.device), device=values.device)
        taking_part = met.nonzero()[:, 0]
        share[taking_part] = self._shares.at(taking_part, complete=not self._table.missing)
        if blocks is None:
            blocks = taking_part
        else:
            blocks = blocks[met[blocks]]
        c = torch.zeros_like(values)
        f: list[Tensor] = []
        if blocks.numel():
            for some in self._means.pieces(blocks):
                add_to([c], [self._gradient(some, share[some], seen, f)])
        return Evaluation(c, joined(f, c), [], [])

    def _gradient(self, blocks: Tensor, share: Tensor, seen: Tensor, f: list[Tensor]) -> Tensor:
        """(N,) what the blocks make of dPhi/ds; their f is put at the end of the list."""
        with torch.enable_grad():
            h = self._table.values.detach().requires_grad_()
            g = self._means.values(blocks, h.to(exact_dtype(h.device)), seen)
            value = self._objective.outer(blocks, g.unsqueeze(1))
            f.append(value.detach())
            (gradient,) = torch.autograd.grad((share.to(value.dtype) * value).sum(), [h])
        return gradient
