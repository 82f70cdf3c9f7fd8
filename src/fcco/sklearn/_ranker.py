"""QueryRanker: items of queries, ranked by NDCG."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from sklearn.utils.validation import check_consistent_length

from fcco._support.row_order import warn_of_order
from fcco.data import Queries
from fcco.fitting._metrics import ndcg_per_query
from fcco.sklearn._base import Module, TableEstimator
from fcco.sklearn._targets import numbers, query_numbers, weights

_FEWEST_QUERIES = 5  # below which none can be set aside to choose by
_FEWEST_ITEMS = 50  # of one query, below which it is not cut in two


class QueryRanker(TableEstimator):
    """A ranker of the items of queries, trained for NDCG.

    Args:
        k: the number of items at the top of the list that NDCG counts. None: all.
        module: as in :class:`RankingClassifier`.
        validation: share of the queries (of the items, if there is one query) held out to choose the settings.
        epochs: passes over the data in one of the fit's runs.
        batch_size: rows per step.
        device: where to train.
        random_state: seed of the initial weights, the split and the draws.
        verbose: whether to show a progress bar.

    Example:
        >>> X = [[0.1, 1.0], [0.9, 0.5], [0.5, 0.3], [0.7, 0.2]] * 10
        >>> relevance = [0, 2, 1, 1] * 10
        >>> query = [number // 4 for number in range(40)]
        >>> ranker = QueryRanker(epochs=1, random_state=0).fit(X, relevance, query=query)
        >>> ranker.predict(X[:4]).shape
        (4,)
    """

    def __init__(
        self,
        k: int | None = 10,
        module: Module = None,
        *,
        validation: float | None = 0.2,
        epochs: float | None = None,
        batch_size: int | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.k = k
        self.module = module
        self.validation = validation
        self.epochs = epochs
        self.batch_size = batch_size
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, query: Any = None, sample_weight: Any = None) -> Self:
        """Train.

        Args:
            X: table (N, F) of items.
            y: (N,) relevance, at least 0.
            query: (N,) the query of each item, numbers or strings. None: all items belong to one query.
            sample_weight: (N,) how much each item counts. None: equally.
        """
        columns = self._read(X, reset=True)
        warn_of_order(X, y)
        relevance = numbers(self, y)
        check_consistent_length(np.empty(columns.rows), relevance)
        if relevance.min() < 0.0:
            row = int(relevance.argmin())
            raise ValueError(f"y must be a relevance of at least 0, got {relevance[row]} in row {row}")
        number = query_numbers(query, columns.rows)
        weight = weights(sample_weight, columns.rows)
        x = self._encode(columns)
        data = Queries(x, number, relevance, weight=weight)
        seed = self._seed()
        validation: Any = self.validation
        if isinstance(validation, float) and len(data.query_names) == 1 and columns.rows >= _FEWEST_ITEMS:
            data, validation = _parts_of_one_query(data, validation, seed)
        split = len(data.query_names) >= _FEWEST_QUERIES
        self._train(data, 1, "ndcg", seed, validation, split=split, k=self.k)
        self.result_.validation = None
        return self

    def predict(self, X: Any) -> Any:
        """Scores (N,). Higher means more relevant.

        Args:
            X: a table like that of ``fit``.
        """
        return self._scores(X)[:, 0]

    def score(self, X: Any, y: Any, query: Any = None) -> float:
        """NDCG, the mean over the queries.

        Args:
            X: a table like that of ``fit``.
            y: relevances (N,).
            query: (N,) the query of each row. None: one query.
        """
        scores = torch.from_numpy(self.predict(X))
        relevance = torch.from_numpy(numbers(self, y))
        number = torch.from_numpy(query_numbers(query, len(scores)))
        return float(ndcg_per_query(scores, relevance, number, self.k).nanmean())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


def _parts_of_one_query(data: Queries, share: float, seed: int) -> tuple[Queries, Queries]:
    """A list of items as two, to train on and to choose by; fcco.data itself never cuts a query."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(data.num_examples, generator=generator)
    count = max(1, round(share * data.num_examples))
    parts = []
    for rows in (order[count:].sort().values, order[:count].sort().values):
        weight = None
        if data.weight is not None:
            weight = data.weight[rows]
        x = data.source.take(rows)
        parts.append(Queries(x, torch.zeros(len(rows), dtype=torch.int64), data.relevance[rows], weight=weight))
    return parts[0], parts[1]
