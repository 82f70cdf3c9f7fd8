"""Calibration: from scores to probabilities, by an isotonic function or by Platt's sigmoid, per label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor

from fcco.data._labelled import Labelled, of_task

Method = Literal["isotonic", "platt"]


@final
@dataclass(frozen=True)
class LabelCalibration:
    """A growing function of one label's score.

    Args:
        method: "isotonic": through the points (x, y), flat outside of them; "platt": sigmoid(slope score + shift).
        x, y: the points; ``slope``, ``shift``: the sigmoid.
    """

    method: str
    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()
    slope: float = 1.0
    shift: float = 0.0

    def __call__(self, scores: Tensor) -> Tensor:
        """Probabilities (n,) of scores (n,), in double precision."""
        scores = scores.double()
        if self.method == "platt":
            return torch.sigmoid(self.slope * scores + self.shift)
        x = torch.tensor(self.x, dtype=torch.float64)
        y = torch.tensor(self.y, dtype=torch.float64)
        inside = scores.clamp(float(x[0]), float(x[-1]))
        right = torch.searchsorted(x, inside).clamp(1, max(1, len(x) - 1))
        if len(x) == 1:
            return y.expand_as(scores).clone()
        left = right - 1
        share = (inside - x[left]) / (x[right] - x[left])
        return y[left] + share * (y[right] - y[left])


@final
@dataclass(frozen=True)
class Calibration:
    """One function per label; of classes, probabilities are brought to add up to 1.

    Args:
        labels: the functions; None where a label has no positives or no negatives to learn from.
        is_classes: whether the labels are classes, of which each example has one.
    """

    labels: tuple[LabelCalibration | None, ...]
    is_classes: bool

    def __call__(self, scores: Tensor) -> Tensor:
        """Probabilities, in the shape of the scores."""
        columns = scores
        if scores.dim() == 1:
            columns = scores.unsqueeze(1)
        parts = []
        for label, column in zip(self.labels, columns.unbind(1), strict=True):
            if label is None:
                parts.append(torch.full(column.shape, torch.nan, dtype=torch.float64))
            else:
                parts.append(label(column))
        probabilities = torch.stack(parts, 1)
        if self.is_classes:
            probabilities = probabilities.nan_to_num()
            total = probabilities.sum(1, keepdim=True)
            even = 1.0 / probabilities.shape[1]
            probabilities = torch.where(total > 0, probabilities / total, even)
        return probabilities.reshape(scores.shape)

    def describe(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        labels = []
        for label in self.labels:
            entry = None
            if label is not None:
                entry = {
                    "method": label.method,
                    "x": list(label.x),
                    "y": list(label.y),
                    "slope": label.slope,
                    "shift": label.shift,
                }
            labels.append(entry)
        return {"labels": labels, "is_classes": self.is_classes}

    @classmethod
    def from_description(cls, values: dict[str, Any]) -> Calibration:
        """From what :meth:`describe` gave."""
        labels: list[LabelCalibration | None] = []
        for entry in values["labels"]:
            if entry is None:
                labels.append(None)
            else:
                labels.append(
                    LabelCalibration(
                        entry["method"],
                        tuple(entry["x"]),
                        tuple(entry["y"]),
                        float(entry["slope"]),
                        float(entry["shift"]),
                    )
                )
        return cls(tuple(labels), bool(values["is_classes"]))


def calibrated(scores: Tensor, data: Labelled, method: Method) -> Calibration:
    """Learn the functions from scores (N,) or (N, T) and the labels of the data."""
    if method not in ("isotonic", "platt"):
        raise ValueError(f'method must be "isotonic" or "platt", got {method!r}')
    columns = scores.double().cpu()
    if columns.dim() == 1:
        columns = columns.unsqueeze(1)
    y = data.y.cpu()
    weight = torch.ones(data.num_examples, dtype=torch.float64)
    if data.weight is not None:
        weight = data.weight.cpu()
    labels = []
    for task in range(columns.shape[1]):
        known, positive = of_task(y, task, has_classes=data.classes is not None)
        known = known & (weight > 0)
        labels.append(_one_label(columns[known, task], positive[known], weight[known], method))
    return Calibration(tuple(labels), data.classes is not None)


def _one_label(scores: Tensor, positive: Tensor, weight: Tensor, method: Method) -> LabelCalibration | None:
    if not bool(positive.any()) or bool(positive.all()):
        return None
    if method == "isotonic":
        return _isotonic(scores, positive, weight)
    return _platt(scores, positive, weight)


def _isotonic(scores: Tensor, positive: Tensor, weight: Tensor) -> LabelCalibration:
    from sklearn.isotonic import IsotonicRegression

    regression = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
    regression.fit(scores.numpy(), positive.double().numpy(), sample_weight=weight.numpy())
    x = tuple(float(value) for value in regression.X_thresholds_)
    y = tuple(float(value) for value in regression.y_thresholds_)
    return LabelCalibration("isotonic", x=x, y=y)


def _platt(scores: Tensor, positive: Tensor, weight: Tensor) -> LabelCalibration:
    """Platt's sigmoid with his softened targets, so that separable scores do not give 0 and 1."""
    from sklearn.linear_model import LogisticRegression

    rows = weight.shape[0]
    total = float(weight.sum())
    if total < rows:  # shares, not counts: the two examples that the softened targets add would outweigh the data
        weight = weight * (rows / total)
    positives = float(weight[positive].sum())
    negatives = float(weight[~positive].sum())
    high = (positives + 1.0) / (positives + 2.0)
    low = 1.0 / (negatives + 2.0)
    target = torch.where(positive, high, low).double()
    center = float(scores.mean())
    spread = float(scores.std(correction=0))
    if spread == 0.0:
        spread = 1.0
    inputs = ((scores - center) / spread).unsqueeze(1)
    # A soft target is the example twice, once with each label.
    regression = LogisticRegression(C=1e6, tol=1e-8, max_iter=1000)
    regression.fit(
        torch.cat([inputs, inputs]).numpy(),
        torch.cat([torch.ones_like(target), torch.zeros_like(target)]).numpy(),
        sample_weight=torch.cat([weight * target, weight * (1.0 - target)]).numpy(),
    )
    # Never falling: a score that ranks must not be turned around.
    slope = max(float(regression.coef_[0, 0]), 0.0) / spread
    shift = float(regression.intercept_[0]) - slope * center
    return LabelCalibration("platt", slope=slope, shift=shift)
