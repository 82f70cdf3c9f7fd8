"""Goal: the metric that a fit is judged by, and what of the data it is about."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fcco._support import checks
from fcco.data import Groups, Points, Queries, RiskSets, Structure
from fcco.data._labelled import Labelled, of_task
from fcco.fitting import _metrics

METRICS = (
    "roc_auc",
    "average_precision",
    "partial_auc",
    "two_way_partial_auc",
    "ndcg",
    "concordance",
    "worst_group",
)

#: What the metrics are called elsewhere: they have one name here, and an error tells it.
_ELSEWHERE = {
    "ap": "average_precision",
    "auprc": "average_precision",
    "aucpr": "average_precision",
    "prauc": "average_precision",
    "map": "average_precision",
    "auc": "roc_auc",
    "auroc": "roc_auc",
    "pauc": "partial_auc",
    "tpauc": "two_way_partial_auc",
    "cindex": "concordance",
    "worstgroupaccuracy": "worst_group",
}

_NEEDS: dict[str, type[Structure]] = {"ndcg": Queries, "concordance": RiskSets, "worst_group": Groups}


def meant(metric: object) -> str:
    """': did you mean ...?', or nothing where no metric is near.

    Args:
        metric: an unknown name.
    """
    letters = "".join(letter for letter in str(metric).lower() if letter.isalpha())
    names = {name.replace("_", ""): name for name in METRICS} | _ELSEWHERE
    close = difflib.get_close_matches(letters, list(names), 1)
    if not close:
        return ""
    return f": did you mean {names[close[0]]!r}?"


@final
@dataclass(frozen=True)
class Goal:
    """A metric with its settings; higher is better. Of several labels or classes it is the mean (macro).

    Args:
        metric: a name of ``METRICS``.
        max_fpr: up to which false positive rate the partial AUCs go.
        min_tpr: from which true positive rate on the two-way partial AUC counts.
        k: how far down the list NDCG looks; None: all of it.

    Example:
        >>> goal = Goal("average_precision")
        >>> goal.value(torch.tensor([0.9, 0.1, 0.5]), Points(torch.zeros(3, 1), [1, 0, 0]))
        1.0
    """

    metric: str
    max_fpr: float = 0.3
    min_tpr: float = 0.7
    k: int | None = 10

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {self.metric!r}{meant(self.metric)}")
        for name in ("max_fpr", "min_tpr"):
            if not 0.0 < checks.number(name, getattr(self, name)) < 1.0:
                raise ValueError(f"{name} must be in (0, 1), got {getattr(self, name)}")
        if self.k is not None:
            checks.positive_int("k", self.k)

    def describe(self) -> str:
        """The metric in words, with the settings that it has."""
        if self.metric == "partial_auc":
            return f"partial_auc(max_fpr={self.max_fpr:g})"
        if self.metric == "two_way_partial_auc":
            return f"two_way_partial_auc(max_fpr={self.max_fpr:g}, min_tpr={self.min_tpr:g})"
        if self.metric == "ndcg" and self.k is not None:
            return f"ndcg@{self.k}"
        return self.metric

    def check(self, data: Structure) -> None:
        """Refuse data of a kind that the metric is not about.

        Args:
            data: of the metric.
        """
        wanted = _NEEDS.get(self.metric, Points)
        if not isinstance(data, wanted):
            raise TypeError(
                f"metric={self.metric!r} needs fcco.data.{wanted.__name__}, got fcco.data.{type(data).__name__}"
            )

    def undefined(self, data: Structure) -> str:
        """Why the metric is NaN on data where it is.

        Args:
            data: of the metric.
        """
        what = "no group has an example that counts"
        if isinstance(data, Labelled):
            what = "no label has both positives and negatives"
        elif isinstance(data, Queries):
            what = "no query has a relevant item"
        elif isinstance(data, RiskSets):
            what = "no two subjects can be compared"
        return f"{self.describe()} of these data is not defined, and NaN: {what}"

    def value(self, scores: Tensor, data: Structure) -> float:
        """The metric of scores (N,) or (N, T) on the data.

        Args:
            scores: (N,) or (N, T).
            data: labels, weights, queries, times or groups.
        """
        scores = scores.detach().cpu()
        return float(self._values(scores, data, _ones(self._units(data)).unsqueeze(0))[0])

    def interval(
        self, scores: Tensor, data: Structure, *, level: float = 0.95, resamples: int = 1000, seed: int = 0
    ) -> tuple[float, float]:
        """A bootstrap interval: the data (for NDCG the queries) are drawn anew, with replacement.

        Args:
            scores: (N,) or (N, T).
            data: what they are scores of.
            level: how much of the bootstrap's values it holds.
            resamples: how many.
            seed: of the draws.
        """
        values = self.bootstrap(scores, data, resamples=resamples, seed=seed)
        known = values[~values.isnan()]
        if known.numel() == 0:
            return float("nan"), float("nan")
        ends = torch.tensor([(1.0 - level) / 2.0, (1.0 + level) / 2.0], dtype=torch.float64)
        low, high = known.quantile(ends).tolist()
        return low, high

    def bootstrap(self, scores: Tensor, data: Structure, *, resamples: int, seed: int = 0) -> Tensor:
        """(resamples,) the metric on data drawn anew; one seed, one set of draws, so that differences are paired.

        Args:
            scores: (N,) or (N, T).
            data: as of :meth:`value`.
            resamples: how often.
            seed: of the draws.
        """
        scores = scores.detach().cpu()
        units = self._units(data)
        generator = torch.Generator().manual_seed(seed)
        found = []
        # In parts: a row of weights is as long as the data.
        for part in torch.arange(resamples).split(max(1, 2_000_000 // units)):
            drawn = torch.randint(units, (len(part), units), generator=generator)
            counts = torch.zeros(len(part), units, dtype=torch.float64)
            counts.scatter_add_(1, drawn, torch.ones_like(counts))
            found.append(self._values(scores, data, counts))
        return torch.cat(found)

    def per_label(self, scores: Tensor, data: Structure) -> list[float]:
        """The metric of each label; of data without labels, the one that there is.

        Args:
            scores: (N,) or (N, T).
            data: as of :meth:`value`.
        """
        if not isinstance(data, Labelled):
            return [self.value(scores, data)]
        scores = scores.detach().cpu()
        rows = self._label_values(scores, data, _ones(data.num_examples).unsqueeze(0))
        return [float(value) for value in rows[:, 0]]

    # ------------------------------------------------------------------ by kinds of data

    def _units(self, data: Structure) -> int:
        """How many things a bootstrap draws from."""
        if isinstance(data, Queries):
            return len(data.query_names)
        return data.num_examples

    def _values(self, scores: Tensor, data: Structure, counts: Tensor) -> Tensor:
        """(R,) of counts (R, units)."""
        if isinstance(data, Queries):
            return self._query_values(scores, data, counts)
        weight = _weighed(counts, data)
        if isinstance(data, RiskSets):
            return _metrics.concordance(_flat(scores).double(), data.time.cpu(), data.event.cpu(), weight)
        if isinstance(data, Groups):
            return _metrics.worst_group_accuracy(_correct(scores, data), data.group.cpu(), weight)
        assert isinstance(data, Labelled)
        return self._label_values(scores, data, counts).nanmean(0)

    def _query_values(self, scores: Tensor, data: Queries, counts: Tensor) -> Tensor:
        relevance = data.relevance.cpu()
        query = data.query.cpu()
        scores = _flat(scores).double()
        if data.weight is not None:
            # NDCG has no weights; items of weight 0 are as if they were not there.
            here = data.weight.cpu() > 0
            relevance = relevance[here]
            query = query[here]
            scores = scores[here]
        of_query = _metrics.ndcg_per_query(scores, relevance, query, self.k, counts.shape[1])
        known = ~of_query.isnan()  # a query without relevant items tells nothing
        counts = counts[:, known]
        return (counts * of_query[known]).sum(1) / counts.sum(1)

    def _label_values(self, scores: Tensor, data: Labelled, counts: Tensor) -> Tensor:
        """(T, R)."""
        columns = scores.double()
        if columns.dim() == 1:
            columns = columns.unsqueeze(1)
        if columns.shape[1] != data.num_tasks:
            raise ValueError(
                f"scores must have {data.num_tasks} columns, one per label or class, got {columns.shape[1]}"
            )
        weight = _weighed(counts, data)
        y = data.y.cpu()
        rows = []
        for task in range(columns.shape[1]):
            known, positive = of_task(y, task, has_classes=data.classes is not None)
            rows.append(self._one_label(columns[known, task], positive[known], weight[:, known]))
        return torch.stack(rows)

    def _one_label(self, scores: Tensor, positive: Tensor, weight: Tensor) -> Tensor:
        """(R,); NaN where the weights leave no positives or no negatives."""
        if not bool(positive.any()) or bool(positive.all()):
            return torch.full((weight.shape[0],), torch.nan, dtype=torch.float64)
        has_both = (weight[:, positive] > 0).any(1) & (weight[:, ~positive] > 0).any(1)
        return torch.where(has_both, self._of_curve(scores, positive, weight), torch.nan)

    def _of_curve(self, scores: Tensor, positive: Tensor, weight: Tensor) -> Tensor:
        if self.metric == "roc_auc":
            return _metrics.roc_auc(scores, positive, weight)
        if self.metric == "average_precision":
            return _metrics.average_precision(scores, positive, weight)
        if self.metric == "partial_auc":
            return _metrics.partial_auc(scores, positive, weight, self.max_fpr)
        return _metrics.two_way_partial_auc(scores, positive, weight, self.max_fpr, self.min_tpr)


def _ones(size: int) -> Tensor:
    return torch.ones(size, dtype=torch.float64)


def _weighed(counts: Tensor, data: Structure) -> Tensor:
    """Counts (R, N) times the data's own weights."""
    if data.weight is None:
        return counts
    return counts * data.weight.cpu()


def _flat(scores: Tensor) -> Tensor:
    if scores.dim() == 2 and scores.shape[1] == 1:
        return scores.squeeze(1)
    return scores


def _correct(scores: Tensor, data: Groups) -> Tensor:
    """(N,) bool: whether the predicted class is the right one."""
    flat = _flat(scores)
    if flat.dim() == 1:
        predicted = (flat > 0).to(data.y.dtype)
    else:
        predicted = flat.argmax(1).to(data.y.dtype)
    return predicted.cpu() == data.y.cpu()
