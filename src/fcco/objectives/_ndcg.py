"""NDCG: a smooth surrogate of the normalised discounted cumulative gain; and what blocks that are items share."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fcco._support import checks
from fcco.objectives._base import OutputObjective, mean_over, need, refuse_empty, scores, single_at_least, widened
from fcco.objectives._surrogates import SquaredHinge, Surrogate
from fcco.sampling.batch import Batch, served


def working_dtype(model: nn.Module) -> torch.dtype:
    """The dtype of variables and constants beside a model: that of its parameters, single precision at least."""
    first = next(model.parameters(), None)
    return torch.get_default_dtype() if first is None else torch.promote_types(first.dtype, torch.float32)


def own_place(batch: Batch, index: Tensor, item: Tensor) -> Tensor:
    """Where each block's own example stands in the batch: ``batch.anchor`` (B,), checked against ``item``.

    Args:
        batch: the batch.
        index: (B,) the blocks, for the error message.
        item: (B,) the position in the data set of each block's own example.
    """
    anchor = need(batch.anchor, "anchor")
    if anchor.shape != index.shape:
        raise ValueError(f"batch.anchor must have shape {tuple(index.shape)}, got {tuple(anchor.shape)}")
    if anchor.device.type == "cpu":  # elsewhere this look would make the device wait
        wrong = index[batch.id[anchor] != item].tolist()
        if wrong:
            raise ValueError(f"batch.anchor must point at each block's own example, not so for {checks.some(wrong)}")
    return anchor


def with_own(
    batch: Batch, index: Tensor, among: Tensor, anchor: Tensor, size: Tensor, what: str
) -> tuple[Tensor, Tensor]:
    """Who enters a mean over a set that holds the block's own example, and how much each counts.

    The own example is in every batch by design, so it counts 1/size, what it is worth in the whole set, and
    the others that are present share the rest: unbiased however few they are, the plain mean over a whole set.
    Where the batch carries weights these are taken as they are.

    Args:
        batch: the batch.
        index: (B,) the blocks.
        among: (B, K) bool, which examples belong to the block's set.
        anchor: (B,) from :func:`own_place`.
        size: (B,) how many examples the whole set has, in the dtype wanted.
        what: what the others are, for the error message.

    Returns:
        (B, K) bool and the weights, (K,) or (B, K).
    """
    if batch.weight is not None:
        return among, batch.weight
    others = among & (batch.id != batch.id[anchor].unsqueeze(1))
    count = others.sum(1)
    refuse_empty(torch.where(size == 1, 1, count), index, what)
    share = (size - 1) / (size * count.clamp(min=1))
    place = anchor.unsqueeze(1)
    weight = (others * share.unsqueeze(1)).scatter_(1, place, size.reciprocal().unsqueeze(1))
    return others.scatter_(1, place, True), weight


class PairObjective(OutputObjective):
    """What NDCG and ListNet share: block i is a (query, item) pair, g_i a mean over the items of its query.

    Args:
        model: (K, ...) -> (K,) or (K, 1) scores.
        query: (n,) ints, the query of each item of the data set; any numbers, in any order.
        block_item: (m,) ints, the item of each block (its position in the data set).
        log: as in :class:`fcco.Objective`.

    Attributes:
        item_query: (n,) the query of each item, as 0, 1, ...
        block_item: (m,).
        block_size: (m,) N_q, how many items the block's query has.
        num_queries: Q, how many queries have a block.
    """

    shift_invariant = True
    item_query: Tensor
    block_item: Tensor
    block_size: Tensor

    def __init__(self, model: nn.Module, query: Tensor, block_item: Tensor, *, log: bool = False) -> None:
        super().__init__(model, block_item.numel(), log=log)
        _, number, size = query.unique(return_inverse=True, return_counts=True)
        self.register_constant("item_query", number)
        self.register_constant("block_item", block_item)
        self.register_constant("block_size", size[number[block_item]])
        self.num_queries = int(number[block_item].unique().numel())

    def pairs(self, index: Tensor, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """h_j - h_i (B, K), which j enter the mean of block i (B, K), and how much each counts."""
        h, item = scores(outputs, batch), self.block_item[index]
        h = widened(h) if self.log_domain[0] else single_at_least(h)
        anchor = own_place(batch, index, item)
        same = self.item_query[batch.id] == self.item_query[item].unsqueeze(1)
        size = self.block_size[index].to(h.dtype)
        among = served(same, batch)
        entering, weight = with_own(batch, index, among, anchor, size, "other items of its query")
        return h - h[anchor].unsqueeze(1), entering, weight


class NDCG(PairObjective):
    r"""The NDCG surrogate of SONG, averaged over queries (minus it, to be minimised).

    .. math::
        F(w) = -\frac1Q \sum_q \frac1{Z_q} \sum_{i \in q,\, y_i > 0} \frac{2^{y_i} - 1}{\log_2(1 + N_q\, g_i(w))},
        \qquad g_i(w) = \frac1{N_q} \sum_{j \in q} \ell(h_j - h_i)

    Block i is a (query, relevant item) pair; :math:`N_q g_i` is a smooth rank (the item itself counts
    :math:`\ell(0)`, 1 at margin 1), :math:`Z_q` the ideal DCG and
    :math:`f_i(u) = -\frac{m}{Q} \frac{2^{y_i} - 1}{Z_q \log_2(1 + N_q u)}`. Since :math:`N_q g_i \ge \ell(0)`
    always, f is continued by its tangent below :math:`N_q u = \ell(0)`: a tracker that steps out of the range of
    g meets finite weights.

    Args:
        model: (K, ...) -> (K,) or (K, 1) scores h.
        query: (n,) ints, the query of each item of the data set.
        relevance: (n,) y >= 0, of each item.
        block_item: (m,) ints, the item of each block; None: all items with y > 0, in their order.
        surrogate: l, with l(0) > 0; None: ``SquaredHinge(margin=1)``, the paper's.
        block_weight: (m,) in place of m/Q, None: every query counts the same.

    A batch carries ``anchor``, where each block's own item stands, and items of the blocks' queries; items of
    other queries may be there too and do not count. Without weights the item itself counts 1/N_q and the others
    present share the rest.

    Example:
        >>> from fcco.sampling.batch import Batch
        >>> query, y = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([2, 0, 1, 0, 1])
        >>> objective = NDCG(nn.Linear(4, 1), query, y)
        >>> objective.block_item
        tensor([0, 2, 4])
        >>> batch = Batch(torch.randn(5, 4), torch.arange(5), anchor=torch.tensor([0, 4]))
        >>> objective(torch.tensor([0, 2]), batch).shape
        torch.Size([2, 1])

    Reference: Qiu et al., Large-scale stochastic optimization of NDCG surrogates, ICML 2022 (SONG).
    """

    block_scale: Tensor

    def __init__(
        self,
        model: nn.Module,
        query: Tensor,
        relevance: Tensor,
        *,
        block_item: Tensor | None = None,
        surrogate: Surrogate | None = None,
        block_weight: Tensor | None = None,
    ) -> None:
        check_items(query, relevance, block_item)
        if bool((relevance < 0).any()):
            raise ValueError(f"relevance must be >= 0, got {relevance.min().item()}")
        if block_item is None:
            block_item = (relevance > 0).nonzero().squeeze(1)
            if block_item.numel() == 0:
                raise ValueError("relevance must be > 0 for some item, got none")
        super().__init__(model, query, block_item)
        self.surrogate = SquaredHinge(margin=1.0) if surrogate is None else surrogate
        self.least = float(self.surrogate(torch.zeros(())))
        if self.least <= 0.0:
            raise ValueError(f"surrogate must be > 0 at 0 (give it a margin), got {self.surrogate}")
        gain = torch.exp2(relevance.double()) - 1
        ideal = ideal_dcg(gain, self.item_query)[self.item_query[block_item]]
        if bool((ideal == 0).any()):
            raise ValueError(f"block_item names items of query {query[block_item[ideal == 0]][0]}: none is relevant")
        weight = block_weights(block_weight, self.num_blocks, self.num_blocks / self.num_queries)
        self.register_constant("block_scale", (weight * gain[block_item] / ideal).to(working_dtype(model)))

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        x, entering, weight = self.pairs(index, outputs, batch)
        return mean_over(self.surrogate(x), entering, weight, index, "items").unsqueeze(1)

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        rank = self.block_size[index] * u.squeeze(1)
        return -self.block_scale[index] * inverse_discount(rank, self.least)


def inverse_discount(rank: Tensor, least: float) -> Tensor:
    """1 / log2(1 + rank), continued below ``least`` by its tangent there.

    Example:
        >>> inverse_discount(torch.tensor([1.0, 3.0]), 1.0)
        tensor([1.0000, 0.5000])
    """
    inside = rank.clamp(min=least)
    discount = inside.log1p() / math.log(2.0)
    slope = -1.0 / (discount.square() * (1 + inside) * math.log(2.0))
    return 1.0 / discount + slope * (rank - inside)


def ideal_dcg(gain: Tensor, query: Tensor) -> Tensor:
    """The DCG of each query (Q,) in the best order, from the gains (n,) and queries (n,) numbered from 0.

    Example:
        >>> ideal_dcg(torch.tensor([1.0, 3.0, 2.0]), torch.tensor([0, 0, 1]))
        tensor([3.6309, 2.0000])
    """
    order = gain.argsort(descending=True)
    order = order[query[order].argsort(stable=True)]
    size = query.bincount()
    place = torch.arange(query.numel(), device=query.device) - (size.cumsum(0) - size)[query[order]]  # 0 is the top
    return gain.new_zeros(size.numel()).index_add(0, query[order], gain[order] / (place + 2).to(gain.dtype).log2())


def check_items(query: Tensor, value: Tensor, block_item: Tensor | None) -> None:
    """Refuse maps of the data set that do not fit together."""
    if query.dim() != 1 or query.is_floating_point() or query.numel() == 0:
        raise ValueError(f"query must be (n,) ints, got shape {tuple(query.shape)} of {query.dtype}")
    if value.shape != query.shape:
        raise ValueError(f"relevance must have shape {tuple(query.shape)}, got {tuple(value.shape)}")
    if not bool(torch.isfinite(value).all()):
        raise ValueError("relevance must be finite")
    if block_item is None:
        return
    if block_item.dim() != 1 or block_item.is_floating_point() or block_item.numel() == 0:
        raise ValueError(f"block_item must be (m,) ints, got shape {tuple(block_item.shape)} of {block_item.dtype}")
    low, high = int(block_item.min()), int(block_item.max())
    if low < 0 or high >= query.numel():
        raise ValueError(f"block_item must be in 0..{query.numel() - 1}, got {low if low < 0 else high}")


def block_weights(given: Tensor | None, num_blocks: int, default: float) -> Tensor:
    """(m,) in double: what the user gave, or the default everywhere."""
    if given is None:
        return torch.full((num_blocks,), default, dtype=torch.float64)
    if given.shape != (num_blocks,):
        raise ValueError(f"block_weight must have shape ({num_blocks},), got {tuple(given.shape)}")
    if bool((given < 0).any()) or not bool(torch.isfinite(given).all()):
        raise ValueError("block_weight must be finite and >= 0")
    return given.double()
