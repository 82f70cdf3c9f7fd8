"""RankingClassifier: binary, multi-class and multi-label tables, trained for a ranking metric."""

from __future__ import annotations

import warnings
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d
from torch import Tensor

from fcco._support.row_order import warn_of_order
from fcco.data import Points
from fcco.fitting._calibration import LabelCalibration
from fcco.sklearn._base import FEWEST, Module, TableEstimator
from fcco.sklearn._targets import counted, fewest_of_a_class, indicator, label_array, missing_labels, required, weights

_FLATTEST = 1e-6  # slope of a calibration that learnt nothing: the order of the scores stays
_CERTAIN = 30.0  # log-odds of a label that never varied
_OTHERS = {
    "ndcg": "QueryRanker is for it",
    "concordance": "CoxRegressor is for it",
    "worst_group": "fcco.fit(model, (x, y, group)) is for it",
}


class RankingClassifier(ClassifierMixin, TableEstimator):
    """A classifier for tables, trained for a ranking metric by :func:`fcco.fit`.

    Targets may be binary, multi-class (one against the rest) or multi-label; NaN is a missing label. X may hold
    strings, dates and missing values; see :class:`fcco.tables.TableEncoder`.

    Args:
        metric: average_precision, roc_auc, partial_auc or two_way_partial_auc, averaged over labels or classes.
        module: the network. None: :class:`fcco.tables.TableNetwork`. Or a torch.nn.Module that takes the encoded
            table, or a function of the encoder and the number of scores that returns one.
        max_fpr: the highest false-positive rate that partial AUCs count.
        min_tpr: the lowest true-positive rate that the two-way partial AUC counts.
        validation: share of the rows held out to choose the settings and to calibrate. None: train on all rows.
        calibration: how scores become probabilities, "platt" or "isotonic".
        epochs: passes over the data in one of the fit's runs, of which there are 12 at most; None: as
            :func:`fcco.fit` chooses.
        batch_size: rows per step; None: as :func:`fcco.fit` chooses.
        device: where to train.
        random_state: seed of the initial weights, the split and the draws.
        verbose: whether to show a progress bar.

    Attributes:
        classes_: the classes of the target; for a multi-label target, the numbers of its columns.
        encoder_: the fitted encoder of the table's columns.
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
            y: (N,) classes, or (N, T) with two values per column. NaN is a missing label.
            sample_weight: (N,) how much each row counts. None: equally.
        """
        if self.calibration not in ("platt", "isotonic"):
            raise ValueError(f'calibration must be "platt" or "isotonic", got {self.calibration!r}')
        if self.metric in _OTHERS:
            raise ValueError(f"metric must be a metric of labels, got {self.metric!r}: {_OTHERS[self.metric]}")
        columns = self._read(X, reset=True)
        warn_of_order(X, y)
        targets = self._targets(y)  # (N,) codes or NaN, or (N, T) of 0, 1, NaN
        check_consistent_length(np.empty(columns.rows), targets)
        weight = weights(sample_weight, columns.rows)
        self._check_both_classes(targets, weight)
        x = self._encode(columns)
        outputs = self._outputs(targets)
        data = self._points(x, targets, weight)
        split = fewest_of_a_class(targets, weight) >= FEWEST
        result = self._train(
            data,
            outputs,
            self.metric,
            self._seed(),
            self.validation,
            split=split,
            max_fpr=self.max_fpr,
            min_tpr=self.min_tpr,
        )
        if result.validation is None:
            result.calibrate(self.calibration, data=data)
        else:
            result.calibrate(self.calibration)
        result.validation = None  # the table need not be kept, or pickled, with the model
        return self

    def decision_function(self, X: Any) -> Any:
        """Scores (N,) or (N, T). Above 0, the positive class is more likely than not.

        Args:
            X: a table like that of ``fit``.
        """
        decisions, _ = self._decisions(X)
        if self._is_binary:
            return decisions[:, 0]
        return decisions

    def predict_proba(self, X: Any) -> Any:
        """Calibrated probabilities of both classes (N, 2), of each class (N, C), or of each label (N, T).

        Args:
            X: a table like that of ``fit``.
        """
        _, probabilities = self._decisions(X)
        if self._is_binary:
            return np.concatenate([1.0 - probabilities, probabilities], axis=1)
        if self._is_multilabel:
            return probabilities
        total = probabilities.sum(1, keepdims=True)
        even = 1.0 / probabilities.shape[1]
        return np.where(total > 0.0, probabilities / np.where(total > 0.0, total, 1.0), even)

    def predict(self, X: Any) -> Any:
        """The most likely classes (N,), or labels (N, T) of 0 and 1.

        Args:
            X: a table like that of ``fit``.
        """
        decisions, probabilities = self._decisions(X)
        if self._is_binary:
            return self.classes_[(decisions[:, 0] > 0.0).astype(int)]
        if self._is_multilabel:
            return (decisions > 0.0).astype(int)
        return self.classes_[probabilities.argmax(1)]

    # ------------------------------------------------------------------ labels

    def _targets(self, y: Any) -> Any:
        """Codes (N,), NaN where missing; or (N, T) of 0, 1 and NaN."""
        required(self, y)
        labels = label_array(y)
        if labels.ndim == 2 and labels.shape[1] > 1:
            self._is_multilabel = True
            self.classes_ = np.arange(labels.shape[1])
            self._is_binary = False
            return indicator(labels)
        self._is_multilabel = False
        flat = column_or_1d(labels, warn=True)
        missing = missing_labels(flat)
        known = flat[~missing]
        if flat.dtype.kind == "O" and len(known) > 0:
            known = np.array(known.tolist())
        if len(known) == 0:
            raise ValueError("y must have labels, but all of them are missing")
        check_classification_targets(known)
        self.classes_, codes = np.unique(known, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must have two classes or more, got only one class, {self.classes_.tolist()[0]!r}")
        self._is_binary = len(self.classes_) == 2
        targets = np.full(len(flat), np.nan)
        targets[~missing] = codes
        return targets

    def _check_both_classes(self, targets: Any, weight: Any) -> None:
        """What is left after rows of no weight must have two classes, too."""
        rows = counted(targets, weight)
        if self._is_multilabel:
            both = bool(((rows == 1).any(0) & (rows == 0).any(0)).any())
        else:
            both = len(np.unique(rows[~np.isnan(rows)])) > 1
        if not both:
            raise ValueError(
                "y must have two classes or more among the rows with sample_weight > 0, got only one class"
            )

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
            warnings.warn(f"y has only one value in column {alike}, which is predicted for every row", stacklevel=3)
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

    def _decisions(self, X: Any) -> tuple[Any, Any]:
        """Decisions and probabilities, (N, T) each: of the one label, of each label or of each class."""
        raw = self._scores(X)
        calibration = self.result_.calibration
        assert calibration is not None  # fit calibrates
        decisions = np.full((len(raw), self._width), -_CERTAIN)
        if self._is_multilabel:
            decisions[:, self._constant] = _CERTAIN  # labels that were all alike
        probabilities = _sigmoid(decisions)
        for place, label in enumerate(calibration.labels):
            column = self._learnt[place]
            decisions[:, column], probabilities[:, column] = _calibrate(raw[:, place], label)
        return decisions, probabilities

    @property
    def _width(self) -> int:
        if self._is_binary:
            return 1
        return len(self.classes_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


def _sigmoid(decisions: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-np.clip(decisions, -500.0, 500.0)))


def _calibrate(raw: Any, label: LabelCalibration | None) -> tuple[Any, Any]:
    """Decisions (N,) that keep the scores' order and are above 0 where the probability is above 1/2, and those."""
    if label is None:  # nothing to learn it from: the score is taken for the log-odds
        return raw, _sigmoid(raw)
    if label.method == "platt":
        decisions = max(label.slope, _FLATTEST) * raw + label.shift
        return decisions, _sigmoid(decisions)
    return raw - _threshold(label), label(torch.from_numpy(raw)).numpy()


def _threshold(label: LabelCalibration) -> float:
    """The score at which an isotonic function passes 1/2; far beyond all of them where it never does."""
    far = 1e3 * (1.0 + max(abs(label.x[0]), abs(label.x[-1])))
    above = [place for place, value in enumerate(label.y) if value > 0.5]
    if not above:
        return far
    first = above[0]
    if first == 0:
        return -far
    share = (0.5 - label.y[first - 1]) / (label.y[first] - label.y[first - 1])
    return label.x[first - 1] + share * (label.x[first] - label.x[first - 1])
