"""Ranking metrics of scores, with weights, so that a bootstrap is one call with many rows of weights.

All are "higher is better". A weight of 2 counts like two copies of an example, one of 0 as if it were not there. Ties
are taken as scikit-learn takes them. Shapes: n examples, R rows of weights, k distinct scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


@final
@dataclass(frozen=True)
class Curve:
    r"""What lies at or above each distinct score :math:`t_1 > \dots > t_k`.

    .. math:: P_j = \sum_{i \text{ positive},\, s_i \ge t_j} w_i \qquad
              N_j = \sum_{i \text{ negative},\, s_i \ge t_j} w_i

    Args:
        cumulative_positives: (R, k), P.
        cumulative_negatives: (R, k), N.
    """

    cumulative_positives: Tensor
    cumulative_negatives: Tensor

    @classmethod
    def of(cls, scores: Tensor, positive: Tensor, weight: Tensor) -> Curve:
        """The curve of scores (n,) with positives (n,) bool and weights (R, n)."""
        order = scores.argsort(descending=True)
        falling_scores = scores[order]  # (n,)
        # Equal scores enter together, so that the sums are read off at the last of them alone.
        is_last_of_tied = torch.ones_like(falling_scores, dtype=torch.bool)
        is_last_of_tied[:-1] = falling_scores[1:] != falling_scores[:-1]
        weight = weight[:, order]  # (R, n)
        is_positive = positive[order]  # (n,)
        # Thousands of rows of weights may be large: what is not read again gets no name that would keep it.
        cumulative_positives = (weight * is_positive).cumsum(1)[:, is_last_of_tied]
        cumulative_negatives = (weight * ~is_positive).cumsum(1)[:, is_last_of_tied]
        return cls(cumulative_positives, cumulative_negatives)

    @property
    def true_rate(self) -> Tensor:
        """TPR_j = P_j / P_k, (R, k + 1) with TPR_0 = 0; NaN where there are no positives."""
        all_positives = self.cumulative_positives[:, -1:]
        return _from_zero(self.cumulative_positives / all_positives)

    @property
    def false_rate(self) -> Tensor:
        """FPR_j = N_j / N_k, (R, k + 1) with FPR_0 = 0; NaN where there are no negatives."""
        all_negatives = self.cumulative_negatives[:, -1:]
        return _from_zero(self.cumulative_negatives / all_negatives)


def roc_auc(scores: Tensor, positive: Tensor, weight: Tensor) -> Tensor:
    r"""(R,) the area under the ROC curve; NaN where a class is missing.

    .. math:: \sum_j (FPR_j - FPR_{j-1}) \, \tfrac12 (TPR_j + TPR_{j-1})

    Args:
        scores: (n,).
        positive: (n,) bool.
        weight: (R, n).
    """
    curve = Curve.of(scores, positive, weight)
    return _area(curve.false_rate, curve.true_rate)


def average_precision(scores: Tensor, positive: Tensor, weight: Tensor) -> Tensor:
    r"""(R,) average precision: the mean precision at the positives; NaN where there are none.

    .. math:: \sum_j \frac{P_j}{P_j + N_j} (TPR_j - TPR_{j-1})

    Args:
        scores: (n,).
        positive: (n,) bool.
        weight: (R, n).
    """
    curve = Curve.of(scores, positive, weight)
    cumulative_weight = curve.cumulative_positives + curve.cumulative_negatives  # (R, k)
    # The first examples may all have weight 0; no recall is gained there, and 0/0 must not spoil the sum.
    divisor = torch.where(cumulative_weight > 0, cumulative_weight, 1.0)
    precision_at = curve.cumulative_positives / divisor
    recall_gained_at = curve.true_rate.diff(dim=1)  # (R, k): recall is the true positive rate
    return (precision_at * recall_gained_at).sum(1)


def partial_auc(scores: Tensor, positive: Tensor, weight: Tensor, max_fpr: float) -> Tensor:
    r"""(R,) the area A under the ROC curve up to ``max_fpr`` (b), in McClish's scale: 0.5 is chance, 1 is perfect.

    .. math:: \frac12 \Big(1 + \frac{A - b^2 / 2}{b - b^2 / 2}\Big)

    Args:
        scores: (n,).
        positive: (n,) bool.
        weight: (R, n).
        max_fpr: b, above 0 and at most 1.
    """
    curve = Curve.of(scores, positive, weight)
    false_rate, true_rate = _cut(curve.false_rate, curve.true_rate, max_fpr)
    area = _area(false_rate, true_rate)
    area_of_chance = 0.5 * max_fpr**2  # under the diagonal
    area_of_perfect = max_fpr
    return 0.5 * (1.0 + (area - area_of_chance) / (area_of_perfect - area_of_chance))


def two_way_partial_auc(scores: Tensor, positive: Tensor, weight: Tensor, max_fpr: float, min_tpr: float) -> Tensor:
    r"""(R,) the ROC area with FPR <= ``max_fpr`` (b) and TPR >= ``min_tpr`` (a), as a share of that rectangle.

    .. math:: \frac{1}{b (1 - a)} \int_0^b \max(TPR(x) - a, 0) \, dx

    It is the AUC of the hardest 1 - a of the positives against the hardest b of the negatives.

    Args:
        scores: (n,).
        positive: (n,) bool.
        weight: (R, n).
        max_fpr: b, above 0 and at most 1.
        min_tpr: a, at least 0 and below 1.
    """
    curve = Curve.of(scores, positive, weight)
    false_rate, true_rate = _cut(curve.false_rate, curve.true_rate, max_fpr)
    # Seen from the corner (b, 1), the curve runs over 1 - TPR, and the line TPR = a is where it is cut.
    miss_rate = 1.0 - true_rate.flip(1)
    left_of_end = max_fpr - false_rate.flip(1)
    miss_rate, left_of_end = _cut(miss_rate, left_of_end, 1.0 - min_tpr)
    rectangle = max_fpr * (1.0 - min_tpr)
    return _area(miss_rate, left_of_end) / rectangle


def ndcg_per_query(
    scores: Tensor, relevance: Tensor, query: Tensor, k: int | None, queries: int | None = None
) -> Tensor:
    r"""(Q,) NDCG at k of each query with gains 2^relevance - 1; NaN where nothing is relevant.

    .. math:: \frac{DCG(scores)}{DCG(relevance)} \qquad DCG = \sum_{rank = 1}^{k} \frac{gain}{\log_2(1 + rank)}

    Items of equal score share their ranks, each with the mean gain of them: no order of the data counts.

    Args:
        scores: (n,).
        relevance: (n,) >= 0.
        query: (n,) 0, 1, ...
        k: how far down the list; None: all of it.
        queries: Q, those without items among them; None: as many as the items name.
    """
    gain = torch.exp2(relevance.double()) - 1.0  # (n,)
    dcg = _discounted_gain(scores, gain, query, k, queries)
    ideal_dcg = _discounted_gain(relevance, gain, query, k, queries)
    return torch.where(ideal_dcg > 0, dcg / ideal_dcg, torch.nan)


def _discounted_gain(scores: Tensor, gain: Tensor, query: Tensor, k: int | None, queries: int | None) -> Tensor:
    """DCG (Q,): the sum of gains (n,) over log2(1 + rank), ranks 1, 2, ... by falling score within the query."""
    by_score = scores.argsort(descending=True, stable=True)
    by_query_and_score = by_score[query[by_score].argsort(stable=True)]
    scores = scores[by_query_and_score]
    gain = gain[by_query_and_score]
    query = query[by_query_and_score]
    items = query.bincount(minlength=queries or 0)  # (Q,)
    first = items.cumsum(0) - items  # (Q,) where each query begins
    rank_from_zero = torch.arange(query.shape[0], device=query.device) - first[query]  # (n,)
    discount = torch.log2(rank_from_zero.double() + 2.0)
    discounted = _mean_of_tied(gain, scores, query) / discount
    if k is not None:
        discounted = torch.where(rank_from_zero < k, discounted, 0.0)
    return discounted.new_zeros(items.shape[0]).index_add_(0, query, discounted)


def _mean_of_tied(gain: Tensor, scores: Tensor, query: Tensor) -> Tensor:
    """(n,) for each item the mean gain of the items in its query with its score; given in order of query and score."""
    is_first_of_tied = torch.ones_like(query, dtype=torch.bool)
    is_first_of_tied[1:] = (scores[1:] != scores[:-1]) | (query[1:] != query[:-1])
    tied = is_first_of_tied.cumsum(0) - 1  # (n,) the number of the run of tied items
    runs = gain.shape[0]  # at most; those beyond the last stay empty, and nothing reads them
    total_gain = gain.new_zeros(runs).index_add_(0, tied, gain)
    mean_gain = total_gain / tied.bincount(minlength=runs)
    return mean_gain[tied]


def concordance(scores: Tensor, time: Tensor, event: Tensor, weight: Tensor, chunk: int = 2048) -> Tensor:
    r"""(R,) Harrell's C: of the pairs whose order is known, how many the risk scores order rightly, ties half.

    .. math:: \frac{\sum_{(i, j) \text{ known}} w_i w_j \, \tfrac12 (\operatorname{sign}(s_i - s_j) + 1)}
                   {\sum_{(i, j) \text{ known}} w_i w_j}

    A pair is known where the earlier time, that of i, is an event; of equal times, where i is an event and j is not.

    Args:
        scores: (n,) risks: the higher, the earlier the event.
        time: (n,).
        event: (n,) bool.
        weight: (R, n).
        chunk: rows of the table of pairs at a time.
    """
    weight = weight.double()
    concordant_weight = weight.new_zeros(weight.shape[0])
    known_weight = weight.new_zeros(weight.shape[0])
    for first in torch.arange(scores.shape[0], device=scores.device).split(chunk):  # i, c of them
        is_earlier = time[first, None] < time  # (c, n)
        is_censored_then = (time[first, None] == time) & ~event
        is_known = (event[first, None] & (is_earlier | is_censored_then)).double()
        score_difference = scores[first, None] - scores
        is_concordant = (torch.sign(score_difference) + 1.0) / 2.0  # 1 right, 0.5 tied, 0 wrong
        weight_of_first = weight[:, first]  # (R, c)
        concordant_weight += ((weight_of_first @ (is_known * is_concordant)) * weight).sum(1)
        known_weight += ((weight_of_first @ is_known) * weight).sum(1)
    return concordant_weight / known_weight


def worst_group_accuracy(correct: Tensor, group: Tensor, weight: Tensor) -> Tensor:
    r"""(R,) the accuracy of the group that has the lowest.

    .. math:: \min_c \; \frac{\sum_{i \in c,\, \text{correct}} w_i}{\sum_{i \in c} w_i}

    A group without weight is left out.

    Args:
        correct: (n,) bool.
        group: (n,) 0, 1, ...
        weight: (R, n).
    """
    groups = int(group.max()) + 1
    no_weight = weight.new_zeros(weight.shape[0], groups)
    group_weight = no_weight.index_add(1, group, weight)  # (R, groups)
    correct_weight = no_weight.index_add(1, group, weight * correct)
    accuracy = torch.where(group_weight > 0, correct_weight / group_weight, torch.inf)
    return accuracy.amin(1)


# ------------------------------------------------------------------ areas


def _from_zero(rate: Tensor) -> Tensor:
    """The rates (R, k) with a 0 before them."""
    return torch.cat([torch.zeros_like(rate[:, :1]), rate], 1)


def _area(x: Tensor, y: Tensor) -> Tensor:
    """(R,) by the trapezoidal rule: sum_j (x_j - x_{j-1}) (y_j + y_{j-1}) / 2."""
    return torch.trapezoid(y, x, dim=1)


def _cut(x: Tensor, y: Tensor, end: float) -> tuple[Tensor, Tensor]:
    """The curve (R, k) up to x = ``end``, its last point by interpolation.

    Each piece keeps a share of its two steps, min(max(end - x_{j-1}, 0) / (x_j - x_{j-1}), 1).
    """
    start = x[:, :-1]  # (R, k - 1), where each piece begins
    width = x.diff(dim=1)
    height = y.diff(dim=1)
    is_vertical = ~(width > 0)  # a width of NaN counts as vertical: its class is missing, and x is NaN with it
    room = (end - start).clamp(min=0.0)
    share = (room / torch.where(is_vertical, 1.0, width)).clamp(max=1.0)
    # A vertical piece counts where it stands before the end, or on it.
    share = torch.where(is_vertical, 1.0, share)
    share = torch.where(start > end, 0.0, share)
    return _running(x[:, :1], width * share), _running(y[:, :1], height * share)


def _running(first: Tensor, steps: Tensor) -> Tensor:
    """(R, k) from the first value (R, 1) and the steps after it (R, k - 1)."""
    return torch.cat([first, first + steps.cumsum(1)], 1)
