"""Losses over lists: NDCG and ListNet over the items of queries, Cox over subjects at risk."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor

from fcco import objectives
from fcco.data import Queries, RiskSets
from fcco.losses._base import Given, Loss, no_inputs
from fcco.methods import OutputMemory
from fcco.methods.schedules import Schedule
from fcco.objectives import Surrogate


@final
class NDCG(Loss):
    """:class:`fcco.objectives.NDCG` as a loss; the call's y are the relevances.

    Args:
        query: (N,) the query of each training item.
        relevance: (N,) its relevance, >= 0.
        beta: see :class:`Loss`.
        surrogate: loss of a pair's difference of scores. The default is ``SquaredHinge(margin=1)``.
        block_weight: (m,) one number per relevant item. None: every query counts the same.
        weight: (N,) how much each item counts. None: equally.
        memory: True, or settings, to use the output memory in place of u, with batches of :meth:`sampler`.
    """

    def __init__(
        self,
        query: Any,
        relevance: Any,
        *,
        beta: Schedule = 0.1,
        surrogate: Surrogate | None = None,
        block_weight: Tensor | None = None,
        weight: Any = None,
        memory: bool | OutputMemory = False,
    ) -> None:
        data = Queries(no_inputs(relevance), query, relevance, weight=weight)
        objective = objectives.NDCG(Given(), data, surrogate=surrogate, block_weight=block_weight)
        super().__init__(objective, relevance, beta=beta, memory=memory)


@final
class ListNet(Loss):
    """:class:`fcco.objectives.ListNet` as a loss; the call's y are the relevances.

    Args:
        query: (N,) the query of each training item.
        relevance: (N,) its relevance.
        beta: see :class:`Loss`.
        block_weight: (m,) in place of the softmax of the relevances.
        relevant_only: whether only items with a relevance above 0 are blocks.
        weight, memory: as for :class:`NDCG`.
    """

    def __init__(
        self,
        query: Any,
        relevance: Any,
        *,
        beta: Schedule = 0.1,
        block_weight: Tensor | None = None,
        relevant_only: bool = False,
        weight: Any = None,
        memory: bool | OutputMemory = False,
    ) -> None:
        data = Queries(no_inputs(relevance), query, relevance, weight=weight)
        objective = objectives.ListNet(Given(), data, block_weight=block_weight, relevant_only=relevant_only)
        super().__init__(objective, relevance, beta=beta, memory=memory)


@final
class Cox(Loss):
    """:class:`fcco.objectives.Cox` as a loss; the call's y is (time, event), as a pair of (K,) or as (K, 2).

    Args:
        time: (N,) the time of the event, or when the training subject was last seen.
        event: (N,) 0/1 or bool: whether the event was observed.
        beta: see :class:`Loss`.
        weight, memory: as for :class:`NDCG`.
    """

    def __init__(
        self,
        time: Any,
        event: Any,
        *,
        beta: Schedule = 0.1,
        weight: Any = None,
        memory: bool | OutputMemory = False,
    ) -> None:
        data = RiskSets(no_inputs(time), time, event, weight=weight)
        super().__init__(objectives.Cox(Given(), data), (time, event), beta=beta, memory=memory)
