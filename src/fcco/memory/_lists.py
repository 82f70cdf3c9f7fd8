"""ListPhi: F as a function of the table, for objectives that compare an example with the others of its list.

Queries (NDCG, ListNet) and risk sets (Cox). A mean over the exponentials of a list is one sum a list, and risk sets are
the beginnings of one order, so these cost O(n); NDCG costs the pairs within queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, final

import torch
from torch import Tensor, nn

from fcco.memory._phi import STRETCH, Coefficients, add, sent
from fcco.memory._table import Entries, OutputTable
from fcco.objectives._base import OutputObjective, widened
from fcco.objectives._cox import Cox
from fcco.objectives._listnet import ListNet
from fcco.objectives._ndcg import NDCG, PairObjective
from fcco.sampling.loader import Loader
from fcco.sampling.queries import QueryItemLoader
from fcco.sampling.risk_sets import RiskSetLoader

PAIRS = 1 << 22  # of one piece


class Means(Protocol):
    """g of blocks from the outputs of all examples; ``block_item`` (m,) is each block's own example."""

    block_item: Tensor

    def pieces(self, blocks: Tensor) -> Iterator[Tensor]:
        """The blocks in parts that fit into memory."""

    def touched(self, id: Tensor) -> Tensor | None:
        """The blocks whose lists the examples (K,) are in; None: all of them, or as good as all."""

    def __call__(self, blocks: Tensor, h: Tensor, seen: Tensor) -> Tensor:
        """g (B,), log g where the objective has it so: means over the examples of the lists that were seen."""

    def pairs(self) -> int:
        """What all blocks cost, in pairs."""


class _Queries:
    """Items by query: those of query q are ``items[start[q] : start[q] + size[q]]``."""

    def __init__(self, objective: PairObjective, device: torch.device) -> None:
        self.query, self.block_item = objective.item_query.to(device), objective.block_item.to(device)
        self.block_query = self.query[self.block_item]
        self.items = self.query.argsort(stable=True)
        self.size = self.query.bincount()
        self.start = self.size.cumsum(0) - self.size

    def touched(self, id: Tensor) -> Tensor | None:
        mark = torch.zeros_like(self.size, dtype=torch.bool)
        mark[self.query[id]] = True
        return mark[self.block_query].nonzero()[:, 0]


@final
class QuerySums(_Queries):
    """ListNet: log of the mean of exp(h_j - h_i) over the query of i."""

    def pieces(self, blocks: Tensor) -> Iterator[Tensor]:
        yield blocks

    def pairs(self) -> int:
        return 8 * (self.items.shape[0] + self.block_item.shape[0])

    def __call__(self, blocks: Tensor, h: Tensor, seen: Tensor) -> Tensor:
        query, there = self.query[seen], h[seen]
        top = h.new_full(self.size.shape, -torch.inf).scatter_reduce(0, query, there.detach(), "amax")
        mass = torch.zeros_like(top).index_add(0, query, (there - top[query]).exp())
        mine = self.block_query[blocks]
        mean: Tensor = (mass[mine] / query.bincount(minlength=top.shape[0])[mine]).log() + top[mine]
        return mean - h[self.block_item[blocks]]


@final
class QueryPairs(_Queries):
    """NDCG: the mean of the surrogate of h_j - h_i over the query of i."""

    def __init__(self, objective: NDCG, device: torch.device) -> None:
        super().__init__(objective, device)
        self._surrogate = objective.surrogate

    def pieces(self, blocks: Tensor) -> Iterator[Tensor]:
        piece = self.size[self.block_query[blocks]].cumsum(0) // PAIRS
        yield from blocks.split(piece.unique_consecutive(return_counts=True)[1].tolist())

    def pairs(self) -> int:
        return int(self.size[self.block_query].sum())

    def __call__(self, blocks: Tensor, h: Tensor, seen: Tensor) -> Tensor:
        query = self.block_query[blocks]
        count = self.size[query]
        block = torch.arange(blocks.shape[0], device=h.device).repeat_interleave(count)
        place = torch.arange(block.shape[0], device=h.device) - (count.cumsum(0) - count)[block]
        item = self.items[self.start[query][block] + place]
        kept = seen[item].to(h.dtype)
        loss = self._surrogate(h[item] - h[self.block_item[blocks]][block]) * kept
        total = h.new_zeros(2, blocks.shape[0]).index_add(1, block, torch.stack([loss, kept]))
        return total[0] / total[1]


@final
class RiskSums:
    """Cox: log of the mean of exp(h_j - h_i) over those still at risk at the time of event i."""

    def __init__(self, objective: Cox, device: torch.device) -> None:
        self.block_item, moment = objective.block_item.to(device), objective.moment.to(device)
        self.order = moment.argsort(descending=True, stable=True)
        self.risk_size = objective.risk_size.to(device)  # a risk set is the beginning of the order, of that length

    def pieces(self, blocks: Tensor) -> Iterator[Tensor]:
        yield blocks

    def touched(self, id: Tensor) -> Tensor | None:
        return None

    def pairs(self) -> int:
        return 16 * self.order.shape[0]

    def __call__(self, blocks: Tensor, h: Tensor, seen: Tensor) -> Tensor:
        there = seen[self.order]
        sums = h[self.order[there]].logcumsumexp(0)
        count = there.cumsum(0)[self.risk_size[blocks] - 1]
        return sums[count - 1] - count.to(h.dtype).log() - h[self.block_item[blocks]]


@final
class ListPhi:
    """Means over lists put into the objective's own f, and differentiated by autograd.

    Args:
        objective: gives f, its ``outer``.
        means: gives g.
        table: where the outputs come from.
    """

    stretch = STRETCH

    def __init__(self, objective: OutputObjective, means: Means, table: OutputTable) -> None:
        self._objective, self._means, self._table = objective, means, table
        self.own: list[nn.Parameter] = []

    def pairs(self) -> int:
        return self._means.pairs()

    def everything(self) -> Coefficients:
        return self._evaluate(None)

    def at(self, id: Tensor, old: Entries | None = None) -> Coefficients:
        id = sent(id, self._table.values.device)
        result = self._evaluate(self._means.touched(id))
        return result._replace(c=result.c[id])

    def undo(self) -> None:
        """Nothing is stored."""

    def settle(self) -> None:
        """Nothing is stored."""

    def _evaluate(self, blocks: Tensor | None) -> Coefficients:
        """c of every example, from the blocks named; those never seen take no part, the others stand for them."""
        values, seen = self._table.values, self._table.seen
        met = seen[self._means.block_item]
        share = 1.0 / max(1, int(met.sum()))
        blocks = met.nonzero()[:, 0] if blocks is None else blocks[met[blocks]]
        c, f = torch.zeros_like(values), []
        for some in self._means.pieces(blocks) if blocks.numel() else ():
            with torch.enable_grad():
                h = values.detach().requires_grad_()
                g = self._means(some, widened(h), seen)
                f.append(self._objective.outer(some, g.unsqueeze(1)))
                add([c], torch.autograd.grad(share * f[-1].sum(), [h]))
        return Coefficients(c, torch.cat(f).detach() if f else c.new_zeros(0), [])


def list_phi(objective: nn.Module, loader: Loader, table: OutputTable) -> ListPhi | None:
    """The fast form, where there is one for this objective and this loader."""
    device, kind = table.values.device, type(objective)  # a subclass may have values of its own
    if table.values.dim() != 1 or kind not in (NDCG, ListNet, Cox):
        return None
    assert isinstance(objective, PairObjective | Cox)
    if not isinstance(loader, RiskSetLoader if kind is Cox else QueryItemLoader):
        return None
    if not torch.equal(loader.block_example.cpu(), objective.block_item.cpu()):
        return None
    if isinstance(objective, Cox):
        return ListPhi(objective, RiskSums(objective, device), table)
    means = QueryPairs(objective, device) if isinstance(objective, NDCG) else QuerySums(objective, device)
    return ListPhi(objective, means, table)
