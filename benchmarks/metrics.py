"""Test metrics of the benchmarks, from scores alone (torch only, so that they run anywhere)."""

from __future__ import annotations

import torch
from torch import Tensor


def _ranks(scores: Tensor) -> Tensor:
    """Ranks from 1, ties sharing their mean."""
    order = scores.argsort()
    _, inverse, count = scores[order].unique_consecutive(return_inverse=True, return_counts=True)
    last = count.cumsum(0).double()
    ranks = torch.empty(len(scores), dtype=torch.float64)
    ranks[order] = (last - (count - 1) / 2)[inverse]
    return ranks


def auroc(scores: Tensor, y: Tensor) -> float:
    """Area under the ROC curve; NaN labels are left out."""
    known = ~torch.isnan(y.float())
    scores, positive = scores[known].cpu(), y[known].cpu() == 1
    count, total = int(positive.sum()), len(positive)
    if count in (0, total):
        return float("nan")
    return float((_ranks(scores)[positive].sum() - count * (count + 1) / 2) / (count * (total - count)))


def partial_auroc(scores: Tensor, y: Tensor, top: float = 0.1) -> float:
    """One-way partial AUC at false positive rates up to ``top``, scaled to [0, 1]: the AUC against the hardest
    ``top`` of the negatives."""
    negative = scores[y == 0]
    hard = negative.topk(max(1, round(top * len(negative)))).values
    both = torch.cat([scores[y == 1], hard])
    return auroc(both, torch.cat([torch.ones(int((y == 1).sum())), torch.zeros(len(hard))]))


def average_precision(scores: Tensor, y: Tensor) -> float:
    """Average precision; NaN labels are left out."""
    known = ~torch.isnan(y.float())
    scores, positive = scores[known].cpu(), y[known].cpu() == 1
    hits = positive[scores.argsort(descending=True, stable=True)].double()
    if not hits.any():
        return float("nan")
    precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)
    return float((precision * hits).sum() / hits.sum())


def macro(metric, scores: Tensor, y: Tensor) -> float:  # type: ignore[no-untyped-def]
    """The mean over tasks (columns) for which the metric is defined."""
    values = torch.tensor([metric(scores[:, t], y[:, t]) for t in range(y.shape[1])])
    return float(values[~values.isnan()].mean())


def concordance(risk: Tensor, time: Tensor, event: Tensor) -> float:
    """Harrell's C: of the pairs whose order is known, how many the risk orders rightly (ties count half)."""
    earlier = (time.unsqueeze(1) < time.unsqueeze(0)) & (event == 1).unsqueeze(1)
    difference = risk.unsqueeze(1) - risk.unsqueeze(0)
    right = (difference > 0).double() + 0.5 * (difference == 0).double()
    return float(right[earlier].mean())


def ndcg(scores: Tensor, relevance: Tensor, query: Tensor, k: int = 10) -> float:
    """NDCG@k, the mean over queries that have a relevant item."""
    values = []
    for q in query.unique():
        own, s = relevance[query == q], scores[query == q]
        gains = 2.0**own - 1
        discount = 1 / torch.log2(torch.arange(2, len(own) + 2).double())
        ideal = (gains.sort(descending=True).values * discount)[:k].sum()
        if ideal > 0:
            values.append(float((gains[s.argsort(descending=True, stable=True)] * discount)[:k].sum() / ideal))
    return sum(values) / len(values)


def neighbours(train: Tensor, train_y: Tensor, test: Tensor, test_y: Tensor, k: int = 10) -> float:
    """Accuracy of the vote of the k nearest training features."""
    train, test = (torch.nn.functional.normalize(part, dim=1) for part in (train, test))
    nearest = (test @ train.T).topk(k, dim=1).indices
    votes = torch.nn.functional.one_hot(train_y[nearest], int(train_y.max()) + 1).sum(1)
    return float((votes.argmax(1) == test_y).double().mean())
