"""What the arena measures: a problem's metric of scores on one of its parts, larger is better."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from benchmarks.arena.problems import Part, Split
from benchmarks.metrics import concordance, ndcg

SHOWN = {
    "average_precision": "AP",
    "roc_auc": "AUROC",
    "partial_auc": "pAUC",
    "ndcg": "NDCG@10",
    "concordance": "C-index",
}


def score(split: Split, scores: Tensor, part: str = "test") -> float:
    """The problem's metric, macro over labels.

    Args:
        split: of the problem.
        scores: (N,) or (N, T), the larger the more likely positive (relevant, early).
        part: "train", "valid" or "test".
    """
    own: Part = getattr(split, part)
    if scores.ndim == 2 and split.outputs == 1:
        scores = scores[:, 0]
    if split.metric == "ndcg":
        assert own.query is not None
        return ndcg(scores, own.y, own.query)
    if split.metric == "concordance":
        return concordance(scores, own.time, own.event)
    weight = None
    if own.weight is not None:
        weight = own.weight.numpy()
    y = own.y.numpy()
    values = scores.detach().double().numpy()
    if y.ndim == 1:
        return _of_label(split, y, values, weight)
    columns = [_of_label(split, y[:, t], values[:, t], weight) for t in range(y.shape[1])]
    return float(np.nanmean(columns))


def _of_label(split: Split, y: np.ndarray, scores: np.ndarray, weight: np.ndarray | None) -> float:
    """Of one label; NaN where a class is missing."""
    known = ~np.isnan(y)
    y = y[known]
    scores = scores[known]
    if weight is not None:
        weight = weight[known]
    if len(np.unique(y)) < 2:
        return float("nan")
    if split.metric == "average_precision":
        return float(average_precision_score(y, scores, sample_weight=weight))
    return float(roc_auc_score(y, scores, sample_weight=weight, max_fpr=split.max_fpr))
