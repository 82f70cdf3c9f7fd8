"""What the estimators share: the encoder of the table, the network, and the call of :func:`fcco.fit`."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from fcco.data._source import source_of
from fcco.fitting import FitResult, fit
from fcco.fitting._scoring import score as scores_of
from fcco.tables import TableEncoder, TableNetwork
from fcco.tables._columns import Columns, read_columns

Module = nn.Module | Callable[[TableEncoder, int], nn.Module] | None
FEWEST = 10  # events, or rows of a class, below which nothing can be set aside to choose by


class TableEstimator(BaseEstimator):
    """What the three share: the encoder of the table, the network, and the call of :func:`fcco.fit`."""

    module: Module
    validation: Any
    epochs: float | None
    batch_size: int | None
    device: str
    random_state: Any
    verbose: int

    def _read(self, X: Any, *, reset: bool) -> Columns:
        """The table, its number of columns and their names checked in scikit-learn's manner."""
        columns = read_columns(X)
        validate_data(self, X, reset=reset, skip_check_array=True)
        return columns

    def _encode(self, columns: Columns) -> Tensor:
        self.encoder_ = TableEncoder()
        return self.encoder_.fit_transform(columns)

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _train(
        self, data: Any, outputs: int, metric: str, seed: int, validation: Any, *, split: bool, **settings: Any
    ) -> FitResult:
        """Fit a network to the data; without a validation part where there is too little of it (not `split`)."""
        if isinstance(validation, float) and not split:
            warnings.warn("too few rows to hold some out: no settings are chosen by validation", stacklevel=3)
            validation = None
        network = self._network(outputs, seed)
        result = fit(
            network,
            data,
            metric,
            validation=validation,
            epochs=self.epochs,
            batch_size=self.batch_size,
            seed=seed,
            device=self.device,
            progress=bool(self.verbose),
            **settings,
        )
        self.result_ = result
        self.network_ = result.model
        if self.module is None:
            # In double precision a row's score is the same whatever rows stand beside it, to scikit-learn's 1e-7.
            self.network_ = copy.deepcopy(result.model).cpu().double()
        return result

    def _network(self, outputs: int, seed: int) -> nn.Module:
        if isinstance(self.module, nn.Module):
            return self.module
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            if self.module is None:
                return TableNetwork(self.encoder_, outputs)
            made = self.module(self.encoder_, outputs)
        if not isinstance(made, nn.Module):
            raise TypeError(f"module must return a torch.nn.Module, got {type(made).__name__}")
        return made

    def _scores(self, X: Any) -> Any:
        """Scores (N, T), float64."""
        check_is_fitted(self, "network_")
        x = self.encoder_.transform(self._read(X, reset=False))
        return self._score_encoded(x).numpy()

    def _score_encoded(self, x: Tensor) -> Tensor:
        if self.module is None:
            x = x.double()
        outputs = scores_of(self.network_, source_of(x)).cpu().double()
        return outputs.reshape(len(x), -1)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        tags.target_tags.required = True
        return tags
