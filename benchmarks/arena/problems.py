"""The arena's problems: a table, a metric, and the same split for every method.

    split = load("a9a-rare-ap", seed=0)
    split.x_train, split.y_train, split.x_valid, split.y_valid, split.x_test, split.y_test, split.metric
    score(split, scores)                                     # of the test part

60 % of the rows train, 20 % choose, 20 % test, drawn by the seed: per class where there is one label, whole queries where
there are queries. Numerical columns are standardised by the training rows; columns of 0 and 1 stay as they are.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from benchmarks.arena.tables import Whole, table

PARTS = ("train", "valid", "test")
SHARES = (0.6, 0.2, 0.2)


@dataclass(frozen=True)
class Part:
    """Rows of one part.

    Args:
        x: (N, F) float32.
        y: (N,) or (N, T) float32, NaN where missing; relevances of a ranking; (N, 2) time and event of survival.
        query: (N,) int64, of a ranking.
        weight: (N,) float64, what a row counts in the metric; None: all alike.
    """

    x: Tensor
    y: Tensor
    query: Tensor | None = None
    weight: Tensor | None = None

    @property
    def time(self) -> Tensor:
        """(N,), of survival data."""
        return self.y[:, 0]

    @property
    def event(self) -> Tensor:
        """(N,), of survival data: 1 where the event was seen."""
        return self.y[:, 1]


@dataclass(frozen=True)
class Split:
    """A problem's three parts, and how it is measured: ``metric`` in the words of ``fcco.fit``."""

    problem: str
    metric: str
    max_fpr: float | None
    train: Part
    valid: Part
    test: Part

    @property
    def x_train(self) -> Tensor:
        return self.train.x

    @property
    def y_train(self) -> Tensor:
        return self.train.y

    @property
    def x_valid(self) -> Tensor:
        return self.valid.x

    @property
    def y_valid(self) -> Tensor:
        return self.valid.y

    @property
    def x_test(self) -> Tensor:
        return self.test.x

    @property
    def y_test(self) -> Tensor:
        return self.test.y

    @property
    def outputs(self) -> int:
        """How many scores a network gives per row."""
        if self.metric == "concordance" or self.y_train.ndim == 1:
            return 1
        return self.y_train.shape[1]


@dataclass(frozen=True)
class Problem:
    """A table and what counts there.

    Args:
        table: its name in ``tables.MAKERS``.
        metric: in the words of ``fcco.fit``.
        max_fpr: of a partial AUC.
        positives: how many of the training rows' positives are kept (None: all). The validation part keeps the same share.
            The test part keeps all, each with a weight that makes the share of positives that of the training rows.
        chooses_recipe: whether settings of ``fcco.fit`` may be chosen here.
    """

    table: str
    metric: str
    max_fpr: float | None = None
    positives: int | None = None
    chooses_recipe: bool = False


PROBLEMS: dict[str, Problem] = {
    "a9a-rare-ap": Problem("a9a", "average_precision", positives=500, chooses_recipe=True),
    "a9a-rare-pauc": Problem("a9a", "partial_auc", max_fpr=0.1, positives=500, chooses_recipe=True),
    "a9a-auroc": Problem("a9a", "roc_auc", chooses_recipe=True),
    "yeast-ap": Problem("yeast", "average_precision", chooses_recipe=True),
    "emotions-ap": Problem("emotions", "average_precision", chooses_recipe=True),
    "tox21-ap": Problem("tox21", "average_precision"),
    "tox21-auroc": Problem("tox21", "roc_auc"),
    "hiv-ap": Problem("hiv", "average_precision"),
    "hiv-auroc": Problem("hiv", "roc_auc"),
    "scene-ap": Problem("scene", "average_precision"),
    "phishing-rare-ap": Problem("phishing", "average_precision", positives=70),
    "sparse-ap": Problem("sparse", "average_precision"),
    "labels27-ap": Problem("labels27", "average_precision"),
    "ltr-ndcg": Problem("ltr", "ndcg"),
    "metabric-c": Problem("metabric", "concordance"),
}


@cache
def _whole(name: str) -> Whole:
    return table(name)


@cache
def load(problem: str, seed: int) -> Split:
    """The parts of a problem; the same for every method that asks with the same seed.

    Args:
        problem: one of ``PROBLEMS``.
        seed: of the split.
    """
    chosen = PROBLEMS[problem]
    return make_split(problem, chosen, _whole(chosen.table), seed)


def make_split(name: str, problem: Problem, whole: Whole, seed: int) -> Split:
    """Cut a table into the parts of a problem."""
    generator = torch.Generator().manual_seed(1000 * seed + zlib.crc32(problem.table.encode()) % 1000)
    rows = _rows(problem, whole, generator)
    share = None
    if problem.positives is not None:
        rows, share = _thin(whole.y, rows, problem.positives)
    x = _standardise(whole.x, rows["train"])
    parts = {}
    for part in PARTS:
        own = rows[part]
        query = None
        if whole.query is not None:
            query = whole.query[own]
        weight = None
        if share is not None and part == "test":
            weight = _weight(whole.y[own], share)
        parts[part] = Part(x[own], whole.y[own], query, weight)
    return Split(name, problem.metric, problem.max_fpr, parts["train"], parts["valid"], parts["test"])


def _rows(problem: Problem, whole: Whole, generator: torch.Generator) -> dict[str, Tensor]:
    """Row numbers of the parts, each part in the order of the table."""
    if whole.query is not None:
        cut = _cut(whole.query.unique(), generator)
        return {part: torch.isin(whole.query, ids).nonzero()[:, 0] for part, ids in cut.items()}
    if whole.y.ndim == 2:
        return {part: ids.sort().values for part, ids in _cut(torch.arange(len(whole.y)), generator).items()}
    pools = [_cut((whole.y == value).nonzero()[:, 0], generator) for value in (0, 1)]
    return {part: torch.cat([pool[part] for pool in pools]).sort().values for part in PARTS}


def _cut(ids: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """The ids in random order, dealt out by ``SHARES``."""
    order = ids[torch.randperm(len(ids), generator=generator)]
    first = round(SHARES[0] * len(ids))
    second = round((SHARES[0] + SHARES[1]) * len(ids))
    return {"train": order[:first], "valid": order[first:second], "test": order[second:]}


def _thin(y: Tensor, rows: dict[str, Tensor], positives: int) -> tuple[dict[str, Tensor], float]:
    """Rows with fewer positives in training and validation, and the share of positives among the training rows."""
    generator = torch.Generator().manual_seed(int(rows["train"].sum()) % 2**31)
    before = int((y[rows["train"]] == 1).sum())
    thinned = dict(rows)
    for part in ("train", "valid"):
        own = rows[part]
        positive = own[y[own] == 1]
        count = round(positives * len(positive) / before)
        kept = positive[torch.randperm(len(positive), generator=generator)[:count]]
        thinned[part] = torch.cat([own[y[own] != 1], kept]).sort().values
    share = positives / len(thinned["train"])
    return thinned, share


def _weight(y: Tensor, share: float) -> Tensor:
    """Weights with which the positives are this share of all."""
    positive = y == 1
    negatives = int((~positive).sum())
    each = share / (1 - share) * negatives / int(positive.sum())
    return torch.where(positive, each, 1.0).double()


def _standardise(x: Tensor, rows: Tensor) -> Tensor:
    """Columns that hold more than two values, by mean and deviation of the training rows."""
    own = x[rows]
    binary = ((x == 0) | (x == 1)).all(0)  # (F,)
    mean = torch.where(binary, 0.0, own.mean(0))
    deviation = own.std(0)
    scale = torch.where(binary | (deviation < 1e-6), 1.0, deviation)
    return (x - mean) / scale
