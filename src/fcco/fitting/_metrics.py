"""Ranking metrics of scores, with weights, so that a bootstrap is one call with many rows of weights.

All are "higher is better". A weight of 2 counts like two copies of an example, one of 0 as if it were not there. Ties
are taken as scikit-learn takes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


@final
@dataclass(frozen=True)
class Curve:
    """What lies above each distinct score, from the highest on: (R, k) each, for R rows of weights.

    Args:
        true: the weight of positives at or above the score.
        false: the weight of negatives there.
    """

    true: Tensor
    false: Tensor

    @classmethod
    def of(cls, scores: Tensor, positive: Tensor, weight: Tensor) -> Curve:
        """The curve of scores (n,) with positives (n,) bool and weights (R, n)."""
        order = scores.argsort(descending=True)
        ordered = scores[order]
        last = torch.ones_like(ordered, dtype=torch.bool)  # (n,) the last of several equal scores
        last[:-1] = ordered[1:] != ordered[:-1]
        weight = weight[:, order]  # (R, n)
        is_positive = positive[order]
        true = (weight * is_positive).cumsum(1)[:, last]
        false = (weight * ~is_positive).cumsum(1)[:, last]
        return cls(true, false)

    @property
    def true_rate(self) -> Tensor:
        """(R, k + 1) from 0 on; NaN where there are no positives."""
        return _from_zero(self.true / self.true[:, -1:])

    @property
    def false_rate(self) -> Tensor:
        """(R, k + 1) from 0 on; NaN where there are no negatives."""
        return _from_zero(self.false / self.false[:, -1:])


def roc_auc(scores: Tensor, positive: Tensor, weight: Tensor) -> Tensor:
    """(R,) the area under the ROC curve; NaN where a class is missing.

    Args:
        scores: (n,).
        positive: (n,) bool.
        weight: (R, n).
    """
    curve = Curve.of(scores, positive, weight)
    return _area(curve.false_rate, curve.true_rate)


def average_precision(scores: Tensor, positive: Tensor, weight: Tensor) -> Tensor:
    """(R,) average precision: the mean precision at the positives; NaN where there are none."""
    curve = Curve.of(scores, positive, weight)
    above = curve.true + curve.false
    precision = curve.true / torch.where(above > 0, above, 1.0)
    recall_steps = curve.true_rate.diff(dim=1)
    return (precision * recall_steps).sum(1)


def partial_auc(scores: Tensor, positive: Tensor, weight: Tensor, max_fpr: float) -> Tensor:
    """(R,) the area under the ROC curve up to ``max_fpr``, in McClish's scale: 0.5 is chance, 1 is perfect."""
    curve = Curve.of(scores, positive, weight)
    area = _area(*_cut(curve.false_rate, curve.true_rate, max_fpr))
    least = 0.5 * max_fpr**2
    return 0.5 * (1.0 + (area - least) / (max_fpr - least))


def two_way_partial_auc(scores: Tensor, positive: Tensor, weight: Tensor, max_fpr: float, min_tpr: float) -> Tensor:
    """(R,) the ROC area with FPR <= ``max_fpr`` and TPR >= ``min_tpr``, as a share of that rectangle.

    It is the AUC of the hardest 1 - min_tpr of the positives against the hardest max_fpr of the negatives.
    """
    curve = Curve.of(scores, positive, weight)
    false_rate, true_rate = _cut(curve.false_rate, curve.true_rate, max_fpr)
    # The area above the line TPR = min_tpr: what FPR runs over, beyond where the curve crosses it.
    true_rate, false_rate = _cut(1.0 - true_rate.flip(1), max_fpr - false_rate.flip(1), 1.0 - min_tpr)
    return _area(true_rate, false_rate) / (max_fpr * (1.0 - min_tpr))


def ndcg_per_query(
    scores: Tensor, relevance: Tensor, query: Tensor, k: int | None, queries: int | None = None
) -> Tensor:
    """(Q,) NDCG at k of each query with gains 2^relevance - 1; NaN where nothing is relevant.

    Items of equal score share their places, each with the mean gain of them: no order of the data counts.

    Args:
        scores: (n,).
        relevance: (n,) >= 0.
        query: (n,) 0, 1, ...
        k: how far down the list; None: all of it.
        queries: Q, those without items among them; None: as many as the items name.
    """
    gain = torch.exp2(relevance.double()) - 1.0
    found = _discounted(scores, gain, query, k, queries)
    best = _discounted(relevance, gain, query, k, queries)
    return torch.where(best > 0, found / best, torch.nan)


def _discounted(scores: Tensor, gain: Tensor, query: Tensor, k: int | None, queries: int | None) -> Tensor:
    """(Q,) the sum of gains (n,) over log2(1 + place), places by falling score within the query."""
    order = scores.argsort(descending=True, stable=True)
    order = order[query[order].argsort(stable=True)]  # query by query, each by falling score
    of = query[order]
    count = query.bincount(minlength=queries or 0)  # (Q,)
    start = count.cumsum(0) - count
    place = torch.arange(of.shape[0], device=of.device) - start[of]
    worth = _mean_of_ties(gain[order], scores[order], of) / torch.log2(place.double() + 2.0)
    if k is not None:
        worth = torch.where(place < k, worth, 0.0)
    return worth.new_zeros(count.shape[0]).index_add_(0, of, worth)


def _mean_of_ties(gain: Tensor, scores: Tensor, of: Tensor) -> Tensor:
    """(n,) gains in the place of which items of equal score in one query have their mean; all in order."""
    is_new = torch.ones_like(of, dtype=torch.bool)
    is_new[1:] = (scores[1:] != scores[:-1]) | (of[1:] != of[:-1])
    tie = is_new.cumsum(0) - 1  # (n,) the number of the run of equal scores
    total = gain.new_zeros(gain.shape[0]).index_add_(0, tie, gain)
    return (total / tie.bincount(minlength=gain.shape[0]))[tie]


def concordance(scores: Tensor, time: Tensor, event: Tensor, weight: Tensor, chunk: int = 2048) -> Tensor:
    """(R,) Harrell's C: of the pairs whose order is known, how many the risk scores order rightly, ties half.

    A pair is known where the earlier time is an event; of equal times, where one is an event and the other is not.

    Args:
        scores: (n,) risks: the higher, the earlier the event.
        time: (n,).
        event: (n,) bool.
        weight: (R, n).
        chunk: rows of the table of pairs at a time.
    """
    weight = weight.double()
    right = weight.new_zeros(weight.shape[0])
    known = weight.new_zeros(weight.shape[0])
    for rows in torch.arange(scores.shape[0], device=scores.device).split(chunk):
        earlier = time[rows, None] < time
        censored_at_once = (time[rows, None] == time) & ~event
        pair = (event[rows, None] & (earlier | censored_at_once)).double()  # (c, n)
        difference = scores[rows, None] - scores
        order = (torch.sign(difference) + 1.0) / 2.0  # 1 right, 0.5 tied, 0 wrong
        of_row = weight[:, rows]
        right += ((of_row @ (pair * order)) * weight).sum(1)
        known += ((of_row @ pair) * weight).sum(1)
    return right / known


def worst_group_accuracy(correct: Tensor, group: Tensor, weight: Tensor) -> Tensor:
    """(R,) the accuracy of the group that has the lowest.

    Args:
        correct: (n,) bool.
        group: (n,) 0, 1, ...
        weight: (R, n).
    """
    groups = int(group.max()) + 1
    total = weight.new_zeros(weight.shape[0], groups).index_add_(1, group, weight)
    right = weight.new_zeros(weight.shape[0], groups).index_add_(1, group, weight * correct)
    accuracy = torch.where(total > 0, right / total, torch.inf)
    return accuracy.amin(1)


# ------------------------------------------------------------------ areas


def _from_zero(rate: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(rate[:, :1]), rate], 1)


def _area(x: Tensor, y: Tensor) -> Tensor:
    """(R,) by the trapezoidal rule."""
    return torch.trapezoid(y, x, dim=1)


def _cut(x: Tensor, y: Tensor, end: float) -> tuple[Tensor, Tensor]:
    """The curve (R, k) up to x = ``end``, its last point by interpolation."""
    width = x.diff(dim=1)
    inside = (end - x[:, :-1]).clamp(min=0.0)  # what is left before the end, where a piece begins
    share = torch.where(width > 0, (inside / torch.where(width > 0, width, 1.0)).clamp(max=1.0), 1.0)
    # A vertical piece counts where it stands before the end, or on it.
    share = torch.where(x[:, :-1] > end, 0.0, share)
    steps_x = width * share
    steps_y = y.diff(dim=1) * share
    cut_x = torch.cat([x[:, :1], x[:, :1] + steps_x.cumsum(1)], 1)
    cut_y = torch.cat([y[:, :1], y[:, :1] + steps_y.cumsum(1)], 1)
    return cut_x, cut_y
