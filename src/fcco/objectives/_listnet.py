"""ListNet: the cross-entropy between the top-one distributions of relevances and of scores."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fcco.objectives._base import log_mean_exp_over, refuse_empty, scores, widened
from fcco.objectives._ndcg import PairObjective, block_weights, check_items, own_place, working_dtype
from fcco.sampling.batch import Batch

MANY = 2**24  # pairs: in double precision a few of these matrices fill a gigabyte


class ListNet(PairObjective):
    r"""Listwise cross-entropy over whole queries, averaged over queries.

    .. math::
        F(w) = -\frac1Q \sum_q \sum_{i \in q} P_y(i) \log \frac{e^{h_i}}{\sum_{j \in q} e^{h_j}}
        \qquad P_y(i) = \frac{e^{y_i}}{\sum_{j \in q} e^{y_j}}

    Block i is a (query, item) pair, :math:`g_i(w) = \frac1{N_q} \sum_{j \in q} e^{h_j - h_i}` (in the log domain)
    and :math:`f_i(u) = \frac{m}{Q} P_y(i) (\log u + \log N_q)`.

    Args:
        model: (K, ...) -> (K,) or (K, 1) scores h.
        query: (n,) ints, the query of each item of the data set.
        relevance: (n,) y, of each item; P_y is their softmax over the query.
        block_item: (m,) ints, the item of each block; None: every item of the data set.
        block_weight: (m,) in place of P_y(i): for example y_i/N_q over the relevant items, as Qiu et al. have it.

    A batch is as for :class:`NDCG`: ``anchor``, and items of the blocks' queries. Without weights the item itself
    counts 1/N_q and the others present share the rest.

    Example:
        >>> from fcco.sampling.batch import Batch
        >>> query, y = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([2, 0, 1, 0, 1])
        >>> objective = ListNet(nn.Linear(4, 1), query, y)
        >>> batch = Batch(torch.randn(5, 4), torch.arange(5), anchor=torch.tensor([0, 4]))
        >>> objective(torch.tensor([0, 4]), batch).shape
        torch.Size([2, 1])

    Reference: Cao et al., Learning to rank: from pairwise approach to listwise approach, ICML 2007; Qiu et al.,
    Large-scale stochastic optimization of NDCG surrogates, ICML 2022 (its compositional form).
    """

    block_scale: Tensor

    def __init__(
        self,
        model: nn.Module,
        query: Tensor,
        relevance: Tensor,
        *,
        block_item: Tensor | None = None,
        block_weight: Tensor | None = None,
    ) -> None:
        check_items(query, relevance, block_item)
        if block_item is None:
            block_item = torch.arange(query.numel(), device=query.device)
        super().__init__(model, query, block_item, log_domain=True)
        if block_weight is None:
            block_weight = top_one(relevance.double(), self.item_query)[block_item]
        weight = block_weights(block_weight, self.num_blocks, 0.0)
        scale = weight * (self.num_blocks / self.num_queries)
        self.register_constant("block_scale", scale.to(working_dtype(model)))

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        # on an accelerator it waits for the device and adds in any order, so only where the pairs would fill its memory
        pays = batch.id.device.type == "cpu" or index.shape[0] * len(batch) > MANY
        if pays and batch.weight is None and batch.serves is None and batch.id.unique().numel() == len(batch):
            return self._by_query(index, outputs, batch).unsqueeze(1)
        x, entering, weight = self.pairs(index, outputs, batch)
        return log_mean_exp_over(x, entering, weight, index, "items").unsqueeze(1)

    def _by_query(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        """The same in O(K) where every item is there once and serves all blocks: one sum a query, less the item's own.

        That difference loses nothing: the item itself, which is added again, is no smaller than what was taken off.
        """
        h, item = widened(scores(outputs, batch)), self.block_item[index]
        anchor = own_place(batch, index, item)
        _, place, count = self.item_query[batch.id].unique(return_inverse=True, return_counts=True)
        top = h.new_full(count.shape, -torch.inf).scatter_reduce(0, place, h.detach(), "amax")
        mass = (h - top[place]).exp()
        mine, own, others = place[anchor], mass[anchor], count[place[anchor]] - 1
        size = self.block_size[index].to(h.dtype)
        refuse_empty(torch.where(size == 1, 1, others), index, "other items of its query")
        share = (size - 1) / (size * others.clamp(min=1))
        rest = (torch.zeros_like(top).index_add(0, place, mass)[mine] - own).clamp(min=0)
        log_g: Tensor = (own / size + share * rest).log() + top[mine] - h[anchor]
        return log_g

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        return self.block_scale[index] * (u.squeeze(1) + self.block_size[index].to(u.dtype).log())


def top_one(relevance: Tensor, query: Tensor) -> Tensor:
    """The softmax of relevances (n,) over the items of each query (n,), queries numbered from 0.

    Example:
        >>> top_one(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 0, 1]))
        tensor([0.5000, 0.5000, 1.0000])
    """
    queries = int(query.max()) + 1
    top = relevance.new_full((queries,), -torch.inf).scatter_reduce(0, query, relevance, "amax")
    mass = (relevance - top[query]).exp()
    return mass / relevance.new_zeros(queries).index_add(0, query, mass)[query]
