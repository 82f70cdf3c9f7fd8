"""What y, queries and weights may look like: arrays, or one sentence that names the row."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import _check_sample_weight, check_array, check_consistent_length, column_or_1d
from torch import Tensor

from fcco._support.words import positive_word
from fcco.tables._columns import is_missing


def required(estimator: Any, y: Any) -> None:
    """Refuse a target that is not there."""
    if y is None:
        raise ValueError(f"requires y to be passed, but the target y is None: {type(estimator).__name__} needs it")


def weights(sample_weight: Any, rows: int) -> Any:
    """Weights (N,), at least 0; None where none are given."""
    if sample_weight is None:
        return None
    return _check_sample_weight(sample_weight, np.empty((rows, 1)), ensure_non_negative=True)


def label_array(y: Any) -> Any:
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


def missing_labels(labels: Any) -> Any:
    """Where an array has NaN, None or pandas' NA."""
    if labels.dtype.kind == "f":
        return np.isnan(labels)
    if labels.dtype.kind == "O":
        return np.array([is_missing(label) for label in labels.tolist()], dtype=bool)
    return np.zeros(len(labels), dtype=bool)


def indicator(labels: Any) -> Any:
    """(N, T) of 0, 1 and NaN from two values per column, the larger of them positive; or one sentence."""
    labels = _without_words(labels)
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
    mixed = np.flatnonzero((numbers == -1).any(0) & (numbers == 0).any(0))
    if len(mixed) > 0:
        column = int(mixed[0])
        row = int(np.flatnonzero(numbers[:, column] == -1)[0])
        raise ValueError(
            f"y must hold two values per column, got -1 and 0 in column {column} (-1 in row {row}): "
            "missing labels are NaN"
        )
    return np.where(np.isnan(numbers), np.nan, (numbers > 0).astype(float))


def _without_words(labels: Any) -> Any:
    """Words such as yes and no as 1 and 0, where all that is known are two of those."""
    known = {label for row in labels.tolist() for label in row if not is_missing(label)}
    if not all(isinstance(label, str) for label in known):
        return labels
    positive = positive_word(sorted(known))
    if positive is None:
        return labels
    return np.array(
        [[np.nan if is_missing(label) else float(label == positive) for label in row] for row in labels.tolist()]
    )


def counted(targets: Any, weight: Any) -> Any:
    if weight is None:
        return targets
    return targets[weight > 0]


def fewest_of_a_class(targets: Any, weight: Any) -> int:
    """Rows on the rarer side of a label or class: of the one that has most, since one rare label must not decide."""
    rows = counted(targets, weight)
    if rows.ndim == 1:
        known = rows[~np.isnan(rows)]
        _, counts = np.unique(known, return_counts=True)
        return int(np.minimum(counts, len(known) - counts).max())
    rarer = np.minimum((rows == 1).sum(0), (rows == 0).sum(0))
    return int(rarer.max())


def numbers(estimator: Any, y: Any) -> Any:
    """Finite numbers (N,) float64."""
    required(estimator, y)
    if isinstance(y, Tensor):
        y = y.detach().cpu().numpy()
    flat = column_or_1d(y, warn=True)
    _known_in_every_row(flat.reshape(-1, 1))
    array = check_array(flat, ensure_2d=False, dtype=np.float64, input_name="y", estimator=estimator)
    return np.ascontiguousarray(array)


def query_numbers(query: Any, rows: int) -> Any:
    """The query of each item as 0, 1, ...; all 0 where there is none."""
    if query is None:
        return np.zeros(rows, dtype=np.int64)
    names = column_or_1d(query)
    check_consistent_length(np.empty(rows), names)
    missing = np.flatnonzero(missing_labels(names))
    if len(missing) > 0:
        raise ValueError(f"query must be known for every row, but is missing in row {int(missing[0])}")
    _, number = np.unique(names, return_inverse=True)
    return number.astype(np.int64)


def times_and_events(estimator: Any, y: Any) -> tuple[Any, Any]:
    """Times (N,) float64 and events (N,) bool."""
    required(estimator, y)
    if isinstance(y, Tensor):
        y = y.detach().cpu().numpy()
    array = np.asarray(_as_structured(y))
    if array.dtype.names is not None:
        time, event = _structured(array)
    elif array.ndim == 2 and array.shape[1] == 2:
        _known_in_every_row(array)
        pairs = check_array(array, dtype=np.float64, input_name="y", estimator=estimator)
        time = pairs[:, 0]
        event = pairs[:, 1]
    else:
        time = numbers(estimator, array)
        event = np.ones(len(time))
    negative = np.flatnonzero(time < 0)
    if len(negative) > 0:
        row = int(negative[0])
        raise ValueError(f"y must hold times of at least 0, got {time[row]:g} in row {row}: censored ones have event 0")
    wrong = np.flatnonzero((event != 0) & (event != 1))
    if len(wrong) > 0:
        row = int(wrong[0])
        raise ValueError(
            f"y must have 0 or 1 in column 1, whether the event was observed, got {event[row]} in row {row}, column 1"
        )
    return np.ascontiguousarray(time, dtype=np.float64), event == 1


def _known_in_every_row(array: Any) -> None:
    """Refuse a missing number by its row and column, in scikit-learn's words."""
    if array.dtype.kind == "f":
        missing = np.argwhere(np.isnan(array)).tolist()
    elif array.dtype.kind == "O":
        missing = [list(place) for place, value in np.ndenumerate(array) if is_missing(value)]
    else:
        missing = []
    if missing:
        row, column = missing[0]
        raise ValueError(f"Input y contains NaN, in row {row}, column {column}")


def _as_structured(y: Any) -> Any:
    """A data frame of a column of truth values (event) and one of numbers (time), in any order, as the like array."""
    dtypes = getattr(y, "dtypes", None)
    if dtypes is None or not hasattr(y, "to_records") or len(dtypes) != 2:
        return y
    if sorted(str(dtype) == "bool" for dtype in dtypes) != [False, True]:
        return y
    return y.to_records(index=False)


def _structured(array: Any) -> tuple[Any, Any]:
    """The bool field is the event, the other one the time, in whatever order and by whatever name."""
    names = array.dtype.names
    kinds = [array.dtype[name].kind for name in names]
    if len(names) != 2 or sorted(kind == "b" for kind in kinds) != [False, True]:
        raise ValueError(f"a structured y must have a bool field (event) and a number (time), got fields {names}")
    event = names[kinds.index("b")]
    time = next(name for name in names if name != event)
    return array[time].astype(np.float64), array[event].astype(np.float64)
