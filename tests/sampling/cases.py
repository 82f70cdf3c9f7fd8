"""One small case of every loader, with what its weights must add up to, written out in plain loops."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fcco.sampling import (
    Average,
    BagLoader,
    Batch,
    BlockLoader,
    ExampleLoader,
    GroupLoader,
    Loader,
    MultiLabelPointLoader,
    PointLoader,
    QueryItemLoader,
    QueryLoader,
    RiskSetLoader,
)
from fcco.sampling.batch import serving

N = 31
_draw = torch.Generator().manual_seed(7)
X = torch.arange(N, dtype=torch.float64).unsqueeze(1)  # an example says its own position
CLASSES = torch.tensor([0] * 4 + [1] * 9 + [2] * 18)[torch.randperm(N, generator=_draw)]
BINARY = (CLASSES == 1).long()
TARGETS = (torch.rand(N, 3, generator=_draw) < 0.4).double()
TARGETS[torch.rand(N, 3, generator=_draw) < 0.2] = math.nan
RARE = torch.zeros(N, 3, dtype=torch.float64)  # labels with one, two and six positives
RARE[3, 0] = RARE[[5, 9], 1] = RARE[10:16, 2] = 1.0
RARE[20:23, 1] = math.nan
QUERIES = torch.randint(0, 5, (N,), generator=_draw)
RELEVANCE = torch.randint(0, 3, (N,), generator=_draw).double()
TIME = (torch.rand(N, generator=_draw) * 12).round().double()  # with ties
EVENT = (torch.rand(N, generator=_draw) < 0.6).long()
BAGS = torch.tensor([0] * 2 + [1] * 12 + [2] * 1 + [3] * 16)
BAG_LABELS = torch.tensor([1, 0, 0, 1])


@dataclass(frozen=True)
class Case:
    """A loader, and the sets that its block's means run over (one, or positives and negatives)."""

    make: Callable[..., Loader]
    sets: Callable[[int], list[list[int]]]
    parts: Callable[[Tensor, Batch], list[Tensor]]  # (B, K) bool each: who enters which mean


def everyone(index: Tensor, batch: Batch) -> list[Tensor]:
    return [serving(batch, index.shape[0])]


def others(index: Tensor, batch: Batch) -> list[Tensor]:
    return [serving(batch, index.shape[0]) & (batch.id != index.unsqueeze(1))]


def by_class(index: Tensor, batch: Batch) -> list[Tensor]:
    positive = CLASSES[batch.id] == index.unsqueeze(1)
    return [positive & serving(batch, index.shape[0]), ~positive & serving(batch, index.shape[0])]


def by_target(index: Tensor, batch: Batch) -> list[Tensor]:
    y = TARGETS[batch.id][:, index].T
    return [(y == 1) & serving(batch, index.shape[0]), (y == 0) & serving(batch, index.shape[0])]


def _where(mask: Tensor) -> list[int]:
    return mask.nonzero()[:, 0].tolist()


_pairs = [(task, k) for task in range(3) for k in range(N) if TARGETS[k, task] == 1]
_rare_pairs = [(task, k) for task in range(3) for k in range(N) if RARE[k, task] == 1]
_class_pairs = [(c, k) for c in range(3) for k in range(N) if CLASSES[k] != c]
_relevant = _where(RELEVANCE > 0)
_events = _where(EVENT == 1)

CASES: dict[str, Case] = {
    "classes": Case(
        lambda x=X, b=2, **o: BlockLoader(x, CLASSES, b, 5, **o),
        lambda i: [_where(i == CLASSES), _where(i != CLASSES)],
        by_class,
    ),
    "targets": Case(
        lambda x=X, b=2, **o: BlockLoader(x, TARGETS, b, 7, positive_fraction=0.3, **o),
        lambda i: [_where(TARGETS[:, i] == 1), _where(TARGETS[:, i] == 0)],
        by_target,
    ),
    "replacement": Case(
        lambda x=X, b=3, **o: BlockLoader(x, CLASSES, b, 12, replacement=True, **o),
        lambda i: [_where(i == CLASSES), _where(i != CLASSES)],
        by_class,
    ),
    "points, all": Case(
        lambda x=X, b=3, **o: PointLoader(x, BINARY, b, 5, average=Average.ALL, **o),
        lambda i: [list(range(N))],
        everyone,
    ),
    "points, opposite": Case(
        lambda x=X, b=3, **o: PointLoader(x, BINARY, b, 5, average=Average.OPPOSITE, **o),
        lambda i: [_where(BINARY == 0)],
        everyone,
    ),
    "points, negative blocks": Case(
        lambda x=X, b=3, **o: PointLoader(x, BINARY, b, 5, average=Average.OPPOSITE, block_label=0, **o),
        lambda i: [_where(BINARY == 1)],
        everyone,
    ),
    "multi-label points, all": Case(
        lambda x=X, b=5, **o: MultiLabelPointLoader(x, TARGETS, b, 6, average=Average.ALL, **o),
        lambda i: [_where(~TARGETS[:, _pairs[i][0]].isnan())],
        everyone,
    ),
    "multi-label points, rare labels": Case(
        lambda x=X, b=2, **o: MultiLabelPointLoader(x, RARE, b, 8, average=Average.ALL, **o),
        lambda i: [_where(~RARE[:, _rare_pairs[i][0]].isnan())],
        everyone,
    ),
    "multi-label points, opposite": Case(
        lambda x=X, b=5, **o: MultiLabelPointLoader(x, TARGETS, b, 4, average=Average.OPPOSITE, **o),
        lambda i: [_where(TARGETS[:, _pairs[i][0]] == 0)],
        everyone,
    ),
    "class points, negative blocks": Case(
        lambda x=X, b=5, **o: MultiLabelPointLoader(x, CLASSES, b, 3, average=Average.OPPOSITE, block_label=0, **o),
        lambda i: [_where(_class_pairs[i][0] == CLASSES)],
        everyone,
    ),
    "examples": Case(
        lambda x=X, b=5, **o: ExampleLoader(x, b, labels=CLASSES, **o),
        lambda i: [[k for k in range(N) if k != i]],
        others,
    ),
    "groups": Case(
        lambda x=X, b=2, **o: GroupLoader(x, CLASSES, b, 4, labels=BINARY, **o),
        lambda i: [_where(i == CLASSES)],
        everyone,
    ),
    "queries": Case(
        lambda x=X, b=3, **o: QueryLoader(x, QUERIES, RELEVANCE, b, 4, **o),
        lambda i: [_where(i == QUERIES)],
        everyone,
    ),
    "query items": Case(
        lambda x=X, b=4, **o: QueryItemLoader(x, QUERIES, RELEVANCE, b, 3, **o),
        lambda i: [_where(QUERIES[_relevant[i]] == QUERIES)],
        everyone,
    ),
    "risk sets": Case(
        lambda x=X, b=4, **o: RiskSetLoader(x, TIME, EVENT, b, 4, **o),
        lambda i: [_where(TIME[_events[i]] <= TIME)],
        everyone,
    ),
    "bags": Case(
        lambda x=X, b=2, **o: BagLoader(x, BAGS, b, 3, labels=BAG_LABELS, **o),
        lambda i: [_where(i == BAGS)],
        everyone,
    ),
}


def means(case: Case, index: Tensor, batch: Batch, values: Tensor) -> Tensor:
    """(B, parts): what an objective makes of a batch, for block-dependent values (m, N) of the examples."""
    v = values[index][:, batch.id]
    results = []
    for mask in case.parts(index, batch):
        if batch.weight is None:
            results.append((v * mask).sum(1) / mask.sum(1))
        else:
            results.append((v * mask * batch.weight).sum(1))
    return torch.stack(results, 1)


def exact(case: Case, num_blocks: int, values: Tensor) -> Tensor:
    """(m, parts): the means over everything."""
    rows = [[float(values[i, members].mean()) for members in case.sets(i)] for i in range(num_blocks)]
    return torch.tensor(rows, dtype=torch.float64)


def same(one: Any, other: Any) -> bool:
    """Whether two (index, Batch) are the same to the last bit."""
    (i, a), (j, b) = one, other
    pairs = [(i, j), *((getattr(a, name), getattr(b, name)) for name in ("x", "id", "y", "anchor", "serves", "weight"))]
    return all(_equal(p, q) for p, q in pairs)


def _equal(p: Any, q: Any) -> bool:
    if isinstance(p, tuple):
        return len(p) == len(q) and all(_equal(*both) for both in zip(p, q, strict=True))
    return (p is None and q is None) or (p.shape == q.shape and bool((p.isnan() & q.isnan() | (p == q)).all()))
