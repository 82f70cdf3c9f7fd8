"""scikit-learn's face of :func:`fcco.fit`: estimators that take tables and name a ranking metric.

Example:
    >>> from sklearn.datasets import make_classification
    >>> X, y = make_classification(300, 6, weights=[0.9], random_state=0)
    >>> model = RankingClassifier(metric="average_precision", epochs=1, random_state=0).fit(X, y)
    >>> model.decision_function(X[:3]).shape
    (3,)
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from fcco.data import Points, Queries, RiskSets
from fcco.fitting import FitResult, fit
from fcco.fitting._scoring import score as scores_of
from fcco.data._source import source_of
from fcco.fitting._metrics import concordance, ndcg_per_query
from fcco.tables import TableEncoder, TableNetwork
from fcco.tables._columns import Columns, is_missing, read_columns

try:
    import numpy as np
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        _check_sample_weight,
        check_array,
        check_consistent_length,
        check_is_fitted,
        column_or_1d,
        validate_data,
    )
except ImportError as error:  # pragma: no cover - part of the extra
    raise ImportError("fcco.sklearn needs scikit-learn: pip install 'fcco[sklearn]'") from error

__all__ = ["CoxRegressor", "QueryRanker", "RankingClassifier"]

Module = nn.Module | Callable[[TableEncoder, int], nn.Module] | None
_FEWEST = 10  # of the rarer class, or rows, below which nothing can be set aside to choose by
_FLATTEST = 1e-6  # slope of a calibration that learnt nothing: the order of the scores stays


class _TableEstimator(BaseEstimator):
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

    def _train(self, data: Any, outputs: int, metric: str, *, split: bool, **settings: Any) -> FitResult:
        """Fit a network to the data; without a validation part where there is too little of it."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        validation = self.validation
        if isinstance(validation, float) and not split:
            warnings.warn("too few rows to set some aside: nothing is chosen by a validation part", stacklevel=3)
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
            raise TypeError(f"module must make a torch.nn.Module, got {type(made).__name__}")
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


class RankingClassifier(ClassifierMixin, _TableEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A classifier of tables that is trained for a ranking metric by :func:`fcco.fit`.

    Binary, multi-class (one against the rest) and multi-label targets; in a multi-label target, and in a binary one of numbers, NaN is
    a missing label. X may hold strings, dates, missing values: see :class:`fcco.tables.TableEncoder`.

    Args:
        metric: average_precision, roc_auc, partial_auc or two_way_partial_auc; of several labels or classes the mean.
        module: the network; None: :class:`fcco.tables.TableNetwork`; or a torch.nn.Module that takes the encoded table; or a function
            of the encoder and the number of scores that makes one.
        max_fpr: up to where the partial AUCs go.
        min_tpr: from where on the two-way partial AUC counts.
        validation: share of the rows that chooses the settings and calibrates; None: all rows are trained on.
        calibration: "platt" or "isotonic": how scores become probabilities.
        epochs: passes over the data in one of the fit's runs, of which there are 12 at most; None: as :func:`fcco.fit` chooses.
        batch_size: rows per step; None: as :func:`fcco.fit` chooses.
        device: where to train.
        random_state: of the start, the split and the draws.
        verbose: whether a progress bar is shown.

    Attributes:
        classes_: of the target; in a multi-label target the numbers of its columns.
        encoder_: what was learnt about the table's columns.
        network_: the trained network.
        result_: what :func:`fcco.fit` returned.

    Example:
        >>> X = [[0.1, "a"], [0.9, "b"], [0.2, "a"], [0.8, "b"]] * 10
        >>> y = ["no", "yes", "no", "yes"] * 10
        >>> model = RankingClassifier(epochs=1, random_state=0).fit(X, y)
        >>> model.classes_.tolist(), model.predict_proba(X).shape
        (['no', 'yes'], (40, 2))
    """

    def __init__(
        self,
        metric: str = "average_precision",
        module: Module = None,
        *,
        max_fpr: float = 0.3,
        min_tpr: float = 0.7,
        validation: float | None = 0.2,
        calibration: Literal["platt", "isotonic"] = "platt",
        epochs: float | None = None,
        batch_size: int | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.metric = metric
        self.module = module
        self.max_fpr = max_fpr
        self.min_tpr = min_tpr
        self.validation = validation
        self.calibration = calibration
        self.epochs = epochs
        self.batch_size = batch_size
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train.

        Args:
            X: table (N, F).
            y: (N,) classes, or (N, T) of two values per column; NaN: missing.
            sample_weight: (N,) how much each row counts; None: all alike.
        """
        columns = self._read(X, reset=True)
        targets = self._targets(y)  # (N,) codes or NaN, or (N, T) of 0, 1, NaN
        check_consistent_length(np.empty(columns.rows), targets)
        weight = None
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, np.empty((columns.rows, 1)), ensure_non_negative=True)
        self._check_both_classes(targets, weight)
        x = self._encode(columns)
        outputs = self._outputs(targets)
        data = self._points(x, targets, weight)
        split = _fewest_of_a_class(targets, weight) >= _FEWEST
        result = self._train(data, outputs, self.metric, split=split, max_fpr=self.max_fpr, min_tpr=self.min_tpr)
        if result.validation is None:
            result.calibrate(self.calibration, data=data)
        else:
            result.calibrate(self.calibration)
        result.validation = None  # the table need not be kept, or pickled, with the model
        return self

    def decision_function(self, X: Any) -> Any:
        """Scores (N,), or (N, T): the higher, the more likely; above 0 the positive class is the more likely one."""
        decisions = self._decisions(X)
        if self._is_binary:
            return decisions[:, 0]
        return decisions

    def predict_proba(self, X: Any) -> Any:
        """Calibrated probabilities: of both classes (N, 2), of each class (N, C), or of each label (N, T)."""
        decisions = self._decisions(X)
        probabilities = self._probabilities(decisions)
        if self._is_binary:
            return np.concatenate([1.0 - probabilities, probabilities], axis=1)
        if self._is_multilabel:
            return probabilities
        total = probabilities.sum(1, keepdims=True)
        return np.where(total > 0.0, probabilities / np.where(total > 0.0, total, 1.0), 1.0 / probabilities.shape[1])

    def predict(self, X: Any) -> Any:
        """Classes (N,), or labels (N, T) of 0 and 1: the more likely ones."""
        decisions = self._decisions(X)
        if self._is_binary:
            return self.classes_[(decisions[:, 0] > 0.0).astype(int)]
        if self._is_multilabel:
            return (decisions > 0.0).astype(int)
        return self.classes_[decisions.argmax(1)]

    # ------------------------------------------------------------------ labels

    def _targets(self, y: Any) -> Any:
        """Codes (N,), NaN where missing; or (N, T) of 0, 1 and NaN."""
        if y is None:
            raise ValueError(
                f"requires y to be passed, but the target y is None: {type(self).__name__} needs labels"
            )
        labels = _label_array(y)
        if labels.ndim == 2 and labels.shape[1] > 1:
            self._is_multilabel = True
            self.classes_ = np.arange(labels.shape[1])
            self._is_binary = False
            return _indicator(labels)
        self._is_multilabel = False
        flat = column_or_1d(labels, warn=True)
        missing = _missing(flat)
        known = flat[~missing]
        if flat.dtype.kind == "O" and len(known) > 0:
            known = np.array(known.tolist())
        if len(known) == 0:
            raise ValueError("y must have labels, got none that is not missing")
        check_classification_targets(known)
        self.classes_, codes = np.unique(known, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must have two classes or more, got one class alone, {self.classes_[0]!r}")
        self._is_binary = len(self.classes_) == 2
        targets = np.full(len(flat), np.nan)
        targets[~missing] = codes
        return targets

    def _check_both_classes(self, targets: Any, weight: Any) -> None:
        """What is left after rows of no weight must have two classes, too."""
        counted = _counted(targets, weight)
        if self._is_multilabel:
            both = ((counted == 1).any(0) & (counted == 0).any(0)).any()
        else:
            both = len(np.unique(counted[~np.isnan(counted)])) > 1
        if not both:
            raise ValueError("y must have two classes or more among the rows with sample_weight > 0, got one class")

    def _outputs(self, targets: Any) -> int:
        """How many scores a row gets; labels that are all alike get none."""
        if not self._is_multilabel:
            self._learnt = np.arange(1 if self._is_binary else len(self.classes_))
            return len(self._learnt)
        varies = (targets == 1).any(0) & (targets == 0).any(0)
        self._learnt = np.flatnonzero(varies)
        self._constant = (targets == 1).any(0)
        alike = np.flatnonzero(~varies).tolist()
        if alike:
            warnings.warn(f"y has one value alone in column {alike}: it is predicted throughout", stacklevel=3)
        return len(self._learnt)

    def _points(self, x: Tensor, targets: Any, weight: Any) -> Points:
        if self._is_multilabel:
            return Points(x, torch.from_numpy(targets[:, self._learnt]), weight=weight)
        if self._is_binary:
            return Points(x, torch.from_numpy(targets), weight=weight, positive=1)
        known = ~np.isnan(targets)
        rows = torch.from_numpy(np.flatnonzero(known))
        if weight is not None:
            weight = weight[known]
        return Points(x[rows], torch.from_numpy(targets[known].astype(np.int64)), weight=weight)

    # ------------------------------------------------------------------ scores to probabilities

    def _decisions(self, X: Any) -> Any:
        """(N, T): of each label the log-odds (Platt), or the score beyond which it is the more likely (isotonic)."""
        raw = self._scores(X)
        calibration = self.result_.calibration
        assert calibration is not None
        decisions = np.empty((len(raw), self._width))
        if self._is_multilabel:
            decisions[:] = np.where(self._constant, 1.0, -1.0) * 30.0  # labels that are all alike: certain
        for place, label in enumerate(calibration.labels):
            column = self._learnt[place]
            if label is None:
                decisions[:, column] = raw[:, place]
            elif label.method == "platt":
                decisions[:, column] = max(label.slope, _FLATTEST) * raw[:, place] + label.shift
            else:
                decisions[:, column] = _log_odds(label(torch.from_numpy(raw[:, place])).numpy())
        return decisions

    @property
    def _width(self) -> int:
        return 1 if self._is_binary else len(self.classes_)

    @staticmethod
    def _probabilities(decisions: Any) -> Any:
        return 1.0 / (1.0 + np.exp(-np.clip(decisions, -500.0, 500.0)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class QueryRanker(_TableEstimator):
    """Ranks the items of queries by NDCG.

    Args:
        k: how far down the list NDCG looks; None: to its end.
        module: as in :class:`RankingClassifier`.
        validation: share of the queries (of the items, where there is one query) that chooses the settings.
        epochs: passes over the data in one of the fit's runs.
        batch_size: rows per step.
        device: where to train.
        random_state: of the start, the split and the draws.
        verbose: whether a progress bar is shown.

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
            query: (N,) the query of each item, numbers or strings; None: all items are of one query.
            sample_weight: (N,) how much each item counts; None: all alike.
        """
        columns = self._read(X, reset=True)
        relevance = _numbers(self, y)
        check_consistent_length(np.empty(columns.rows), relevance)
        if relevance.min() < 0.0:
            row = int(relevance.argmin())
            raise ValueError(f"y must be a relevance of at least 0, got {relevance[row]} in row {row}")
        number = _query_numbers(query, columns.rows)
        weight = None
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, np.empty((columns.rows, 1)), ensure_non_negative=True)
        x = self._encode(columns)
        data = Queries(x, number, relevance, weight=weight)
        self._train(data, 1, "ndcg", split=len(data.query_names) >= 5, k=self.k)
        self.result_.validation = None
        return self

    def predict(self, X: Any) -> Any:
        """Scores (N,): the higher, the more relevant."""
        return self._scores(X)[:, 0]

    def score(self, X: Any, y: Any, query: Any = None) -> float:
        """NDCG, the mean over the queries."""
        scores = torch.from_numpy(self.predict(X))
        relevance = torch.from_numpy(_numbers(self, y))
        number = torch.from_numpy(_query_numbers(query, len(scores)))
        return float(ndcg_per_query(scores, relevance, number, self.k).nanmean())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


class CoxRegressor(_TableEstimator):
    """Cox's proportional hazards with a network for the risk, by its concordance.

    Args:
        module: as in :class:`RankingClassifier`.
        validation: share of the rows that chooses the settings.
        epochs: passes over the data in one of the fit's runs.
        batch_size: rows per step.
        device: where to train.
        random_state: of the start, the split and the draws.
        verbose: whether a progress bar is shown.

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
            y: (N, 2) of time and event (1: observed, 0: censored); a structured array of a bool and a number; or (N,) times, all
                observed.
            sample_weight: (N,) how much each subject counts; None: all alike.
        """
        columns = self._read(X, reset=True)
        time, event = _times_and_events(self, y)
        check_consistent_length(np.empty(columns.rows), time)
        weight = None
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, np.empty((columns.rows, 1)), ensure_non_negative=True)
        if not event.any():
            raise ValueError("y must have at least one observed event, got censored times alone")
        x = self._encode(columns)
        data = RiskSets(x, time, event, weight=weight)
        self._train(data, 1, "concordance", split=int(event.sum()) >= _FEWEST)
        self.result_.validation = None
        return self

    def predict(self, X: Any) -> Any:
        """Risks (N,), on a logarithmic scale: the higher, the earlier the event."""
        return self._scores(X)[:, 0]

    def score(self, X: Any, y: Any) -> float:
        """Concordance: the share of comparable pairs in which the higher risk has the earlier event."""
        risk = torch.from_numpy(self.predict(X))
        time, event = _times_and_events(self, y)
        ones = torch.ones(1, len(risk), dtype=torch.float64)
        return float(concordance(risk, torch.from_numpy(time), torch.from_numpy(event), ones))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


# ------------------------------------------------------------------ what y may look like


def _label_array(y: Any) -> Any:
    """y as an array (N,) or (N, T), of whatever it holds."""
    if isinstance(y, Tensor):
        y = y.detach().cpu().numpy()
    if hasattr(y, "toarray"):  # a sparse indicator matrix
        y = y.toarray()
    labels = np.asarray(y)
    if labels.dtype.kind == "f" and np.isinf(labels).any():
        row = int(np.argwhere(np.isinf(labels))[0, 0])
        raise ValueError(f"Input y contains infinity, in row {row}")
    if labels.ndim not in (1, 2):
        raise ValueError(f"y must be (N,) or (N, T), got shape {labels.shape}")
    if labels.dtype.kind == "c":
        raise ValueError("Complex data not supported: y must hold classes")
    return labels


def _missing(labels: Any) -> Any:
    """Where an array has NaN, None or pandas' NA."""
    if labels.dtype.kind == "f":
        return np.isnan(labels)
    if labels.dtype.kind == "O":
        return np.array([is_missing(label) for label in labels.tolist()], dtype=bool)
    return np.zeros(len(labels), dtype=bool)


def _indicator(labels: Any) -> Any:
    """(N, T) of 0, 1 and NaN from two values per column, the larger of them positive; or one sentence."""
    try:
        numbers = np.array(
            [[np.nan if is_missing(label) else float(label) for label in row] for row in labels.tolist()]
        )
    except (TypeError, ValueError) as error:
        raise ValueError("y must hold 0, 1 or NaN (missing) in each column of a multi-label target") from error
    wrong = ~np.isnan(numbers) & (numbers != 0) & (numbers != 1) & (numbers != -1)
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        raise ValueError(f"y must hold 0, 1 or NaN (missing), got {numbers[row, column]} in row {row}, column {column}")
    return np.where(np.isnan(numbers), np.nan, (numbers > 0).astype(float))


def _counted(targets: Any, weight: Any) -> Any:
    if weight is None:
        return targets
    return targets[weight > 0]


def _fewest_of_a_class(targets: Any, weight: Any) -> int:
    """Rows of the rarest class; of several labels, of the label with most."""
    counted = _counted(targets, weight)
    if counted.ndim == 1:
        _, counts = np.unique(counted[~np.isnan(counted)], return_counts=True)
        return int(counts.min())
    rarer = np.minimum((counted == 1).sum(0), (counted == 0).sum(0))
    return int(rarer.max())


def _log_odds(probability: Any) -> Any:
    """log(p / (1 - p)), finite."""
    inside = np.clip(probability, 1e-12, 1.0 - 1e-12)
    return np.log(inside) - np.log1p(-inside)


def _numbers(estimator: Any, y: Any) -> Any:
    """Finite numbers (N,) float64."""
    if y is None:
        raise ValueError(f"requires y to be passed, but the target y is None: {type(estimator).__name__} needs it")
    if isinstance(y, Tensor):
        y = y.detach().cpu().numpy()
    flat = column_or_1d(y, warn=True)
    array = check_array(flat, ensure_2d=False, dtype=np.float64, input_name="y", estimator=estimator)
    return np.ascontiguousarray(array)


def _query_numbers(query: Any, rows: int) -> Any:
    """The query of each item as 0, 1, ...; all 0 where there is none."""
    if query is None:
        return np.zeros(rows, dtype=np.int64)
    names = column_or_1d(query)
    check_consistent_length(np.empty(rows), names)
    missing = np.flatnonzero(_missing(names))
    if len(missing) > 0:
        raise ValueError(f"query must be known for every row, but is missing in row {int(missing[0])}")
    _, number = np.unique(names, return_inverse=True)
    return number.astype(np.int64)


def _times_and_events(estimator: Any, y: Any) -> tuple[Any, Any]:
    """Times (N,) float64 and events (N,) bool."""
    if y is None:
        raise ValueError(f"requires y to be passed, but the target y is None: {type(estimator).__name__} needs it")
    if isinstance(y, Tensor):
        y = y.detach().cpu().numpy()
    array = np.asarray(y)
    if array.dtype.names is not None:
        time, event = _structured(array)
    elif array.ndim == 2 and array.shape[1] == 2:
        pairs = check_array(array, dtype=np.float64, input_name="y", estimator=estimator)
        time = pairs[:, 0]
        event = pairs[:, 1]
    else:
        time = _numbers(estimator, array)
        event = np.ones(len(time))
    wrong = np.flatnonzero((event != 0) & (event != 1))
    if len(wrong) > 0:
        row = int(wrong[0])
        raise ValueError(f"y must say by 0 or 1 whether the event was observed, got {event[row]} in row {row}, column 1")
    return np.ascontiguousarray(time, dtype=np.float64), event == 1


def _structured(array: Any) -> tuple[Any, Any]:
    """The bool field is the event, the other one the time, in whatever order and by whatever name."""
    names = array.dtype.names
    kinds = [array.dtype[name].kind for name in names]
    if len(names) != 2 or sorted(kind == "b" for kind in kinds) != [False, True]:
        raise ValueError(f"a structured y must have a bool field (event) and a number (time), got fields {names}")
    event = names[kinds.index("b")]
    time = next(name for name in names if name != event)
    return array[time].astype(np.float64), array[event].astype(np.float64)
