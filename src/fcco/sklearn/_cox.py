"""CoxRegressor: a network for the risk in Cox's model."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from sklearn.utils.validation import check_consistent_length

from fcco._support.row_order import warn_of_order
from fcco.data import RiskSets
from fcco.fitting._metrics import concordance
from fcco.sklearn._base import FEWEST, Module, TableEstimator
from fcco.sklearn._targets import times_and_events, weights


class CoxRegressor(TableEstimator):
    """Cox's proportional hazards model with a network for the risk, chosen by its concordance.

    Args:
        module: as in :class:`RankingClassifier`.
        validation: share of the rows held out to choose the settings.
        epochs: passes over the data in one of the fit's runs.
        batch_size: rows per step.
        device: where to train.
        random_state: seed of the initial weights, the split and the draws.
        verbose: whether to show a progress bar.

    Example:
        >>> X = [[number / 40] for number in range(40)]
        >>> y = [(50.0 - number, number % 3 > 0) for number in range(40)]
        >>> CoxRegressor(epochs=1, random_state=0).fit(X, y).predict(X[:3]).shape
        (3,)
    """

    def __init__(
        self,
        module: Module = None,
        *,
        validation: float | None = 0.2,
        epochs: float | None = None,
        batch_size: int | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.module = module
        self.validation = validation
        self.epochs = epochs
        self.batch_size = batch_size
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train.

        Args:
            X: table (N, F) of subjects.
            y: (N, 2) with time and event (1: observed, 0: censored); a structured array of a bool and a number; or (N,)
                times, all observed.
            sample_weight: (N,) how much each subject counts. None: equally.
        """
        columns = self._read(X, reset=True)
        warn_of_order(X, y)
        time, event = times_and_events(self, y)
        check_consistent_length(np.empty(columns.rows), time)
        weight = weights(sample_weight, columns.rows)
        if not event.any():
            raise ValueError("y must have at least one observed event, got only censored times")
        x = self._encode(columns)
        data = RiskSets(x, time, event, weight=weight)
        self._train(data, 1, "concordance", self._seed(), self.validation, split=int(event.sum()) >= FEWEST)
        self.result_.validation = None
        return self

    def predict(self, X: Any) -> Any:
        """Risks (N,) on a logarithmic scale. Higher means an earlier event.

        Args:
            X: a table like that of ``fit``.
        """
        return self._scores(X)[:, 0]

    def score(self, X: Any, y: Any) -> float:
        """Concordance: the share of comparable pairs in which the higher risk has the earlier event.

        Args:
            X: a table like that of ``fit``.
            y: times and events, as of ``fit``.
        """
        risk = torch.from_numpy(self.predict(X))
        time, event = times_and_events(self, y)
        ones = torch.ones(1, len(risk), dtype=torch.float64)
        return float(concordance(risk, torch.from_numpy(time), torch.from_numpy(event), ones))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags
