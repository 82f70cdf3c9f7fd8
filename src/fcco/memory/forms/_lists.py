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
)

PAIRS = 1 << 22  # of one piece
_LEAST = -1.0e30  # stands for log 0: an infinite one has no derivative


class ListMeans(ABC):
    """g of blocks from the outputs of all examples; abstract. ``block_item`` (m,) is each block's own example."""

    block_item: Tensor
    why_not = ""  # why a step's shapes are not fixed, in one sentence; empty: they are

    @abstractmethod
    def values(self, blocks: Tensor, h: Tensor, seen: Tensor) -> Tensor:
        """g (B,), log g where the objective has it so: means over the examples of the lists that were seen.

        Of a block whose own example was not seen any finite number.

        Args:
            h: (N,) in double precision, with its graph.
            seen: (N,) bool.
            blocks: (B,) which means.
        """

    def pieces(self, blocks: Tensor) -> Iterator[Tensor]:
        """The blocks in parts that fit into memory.

        Args:
            blocks: (B,).
        """
        yield blocks

    def touched(self, id: Tensor) -> Tensor | None:
        """The blocks whose lists the examples (K,) are in; None: all of them, or as good as all.

        Args:
            id: positions (K,).
        """
        return None

    @abstractmethod
    def cost(self) -> int:
        """What all blocks cost, in pairs."""


class _QueryMeans(ListMeans):
    """Items by query: those of query q are ``items[start[q] : start[q] + size[q]]``; abstract.

    Args:
        blocks: (query, item) pairs.
        device: of the table.
    """

    def __init__(self, blocks: QueryBlocks, device: torch.device) -> None:
        self.query = blocks.item_query.to(device)
        self.block_item = blocks.block_item.to(device)
        self.block_query = self.query[self.block_item]
        self.items = blocks.items.flat.to(device)
        self.start = blocks.items.start.to(device)
        self.size = blocks.items.count.to(device)
        self.weight = example_weights(blocks, device)


@final
class QueryExponentials(_QueryMeans):
    """ListNet: log of the mean of exp(h_j - h_i) over the query of i."""

    def cost(self) -> int:
        return 8 * int(self.items.shape[0] + self.block_item.shape[0])

    def values(self, blocks: Tensor, h: Tensor, seen: Tensor) -> Tensor:
        query = self.query[self.items]
        there = seen[self.items]
        weight = torch.where(there, self.weight[self.items], 0.0).to(h.dtype)
        score = h[self.items]
        # Each query from its own largest score, so that no exponential overflows.
        counted = torch.where(there, score.detach(), -torch.inf)
        top = h.new_full(self.size.shape, -torch.inf).scatter_reduce(0, query, counted, "amax")  # (Q,)
        score = torch.where(there, score - top[query], _LEAST)
        mass = torch.zeros_like(top).index_add(0, query, weight * score.exp())  # (Q,)
        total = torch.zeros_like(top).index_add(0, query, weight)
        empty = top == -torch.inf
        mean = (mass.masked_fill(empty, 1.0) / total.masked_fill(empty, 1.0)).log() + top.masked_fill(empty, 0.0)
        return mean[self.block_query[blocks]] - h[self.block_item[blocks]]


@final
class QueryPairs(_QueryMeans):
    """NDCG: the mean of the surrogate of h_j - h_i over the query of i.

    Args:
        blocks: (query, item) pairs.
        surrogate: the pair loss.
        device: of the table.
    """

    why_not = "NDCG compares within the queries drawn, and these have as many pairs as their sizes make"

    def __init__(self, blocks: QueryBlocks, surrogate: Callable[[Tensor], Tensor], device: torch.device) -> None:
        super().__init__(blocks, device)
        self._surrogate = surrogate

    def touched(self, id: Tensor) -> Tensor:
        mark = torch.zeros_like(self.size, dtype=torch.bool)
        mark[self.query[id]] = True
        return mark[self.block_query].nonzero()[:, 0]

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
    """Cox: log of the mean of exp(h_j - h_i) over those still at risk at the time of event i.

    Args:
        blocks: events with their risk sets.
        device: of the table.
    """

    def __init__(self, blocks: RiskBlocks, device: torch.device) -> None:
        self.block_item = blocks.block_item.to(device)
        self.order = blocks.order.to(device)
        self.risk_size = blocks.risk_size.to(device)  # a risk set is the beginning of the order, of that length
        self.weight = example_weights(blocks, device)

    def cost(self) -> int:
        return 16 * int(self.order.shape[0])

    def values(self, blocks: Tensor, h: Tensor, seen: Tensor) -> Tensor:
        weight = torch.where(seen, self.weight, 0.0)[self.order].to(h.dtype)  # (n,)
        # Running sums over the order: a risk set is read off at its end.
        sums = (h[self.order] + weight.log().clamp(min=_LEAST)).logcumsumexp(0)
        last = self.risk_size[blocks] - 1  # (B,) the end of each risk set
        total = weight.cumsum(0)[last]
        total = torch.where(total > 0, total, 1.0)  # nobody was seen, the block's own example neither
        return sums[last] - total.log() - h[self.block_item[blocks]]


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
        self._blocks = torch.arange(objective.num_blocks, device=table.device)
        self.why_not = means.why_not
        self.objective_params = []

    def cost(self) -> int:
        return self._means.cost()

    def evaluate_all(self, rows: list[Tensor]) -> Evaluation:
        return self._evaluate(None)

    @property
    def capturable(self) -> bool:
        return not self.why_not

    def evaluate(self, ids: Tensor, rows: list[Tensor], old: Entries | None = None) -> Evaluation:
        found = self._evaluate(self._means.touched(ids))
        return found._replace(c=found.c[ids])

    def _evaluate(self, blocks: Tensor | None) -> Evaluation:
        """c of every example, from the blocks named; those never seen take no part, the others stand for them."""
        values = self._table.values
        seen = self._table.seen
        part = None
        if not self._table.complete:
            part = seen[self._means.block_item]
        share = self._shares.of_all(part)  # (m,)
        if blocks is None:
            blocks = self._blocks
        elif part is not None:
            blocks = blocks[part[blocks]]
            part = None  # all that are left do
        c = torch.zeros_like(values)
        f: list[Tensor] = []
        if blocks.numel():
            for some in self._means.pieces(blocks):
                mask = None
                if part is not None:
                    mask = part[some]
                add_to([c], [self._gradient(some, share[some], seen, mask, f)])
        return Evaluation(c, joined(f, c), [], [], part)

    def _gradient(self, blocks: Tensor, share: Tensor, seen: Tensor, part: Tensor | None, f: list[Tensor]) -> Tensor:
        """(N,) what the blocks make of dPhi/ds; their f is put at the end of the list."""
        with torch.enable_grad():
            h = self._table.values.detach().requires_grad_()
            g = self._means.values(blocks, h.to(exact_dtype(h.device)), seen)
            if part is not None:
                g = torch.where(part, g, 0.0)
            value = self._objective.outer(blocks, g.unsqueeze(1))
            f.append(value.detach())
            (gradient,) = torch.autograd.grad(value, [h], share.to(value.dtype))
        return gradient
