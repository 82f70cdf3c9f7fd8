"""One small case of every kind of blocks, with what its weights must add up to, written out in plain loops."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fcco.data import (
    BagBlocks,
    Bags,
    Batch,
    Blocks,
    ExampleBlocks,
    Examples,
    GroupBlocks,
    Groups,
    Loader,
    PointBlocks,
    Points,
    Queries,
    QueryBlocks,
    RiskBlocks,
    RiskSets,
    TaskBlocks,
    Tasks,
)
from fcco.data._batch import serving

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
WEIGHT = torch.rand(N, generator=_draw, dtype=torch.float64) * 3 + 0.1
ONES = torch.ones(N, dtype=torch.float64)

Parts = Callable[[Blocks, Batch], list[Tensor]]


@dataclass(frozen=True)
class Case:
    """Blocks, and the sets that a block's means run over (one, or positives and negatives)."""

    blocks_of: Callable[..., Blocks]  # (x, weight) -> Blocks
    blocks: int
    samples: int
    sets: Callable[[int], list[list[int]]]
    parts: Parts  # (B, K) bool each: who enters which mean

    def make(
        self, x: Any = X, b: int | None = None, s: int | None = None, weight: Any = None, **options: Any
    ) -> Loader:
        """A loader of the case."""
        blocks = self.blocks if b is None else b
        samples = self.samples if s is None else s
        return Loader(self.blocks_of(x, weight), blocks, samples, **options)


def index_of(batch: Batch) -> Tensor:
    assert batch.index is not None
    return batch.index


def everyone(blocks: Blocks, batch: Batch) -> list[Tensor]:
    return [serving(batch, index_of(batch).shape[0])]


def by_task(blocks: Blocks, batch: Batch) -> list[Tensor]:
    assert isinstance(blocks, TaskBlocks)
    serves = serving(batch, index_of(batch).shape[0])
    positive, negative = blocks.tasks.at(blocks.block_task[index_of(batch)], batch.id)
    return [positive & serves, negative & serves]


def _where(mask: Tensor) -> list[int]:
    return mask.nonzero()[:, 0].tolist()


_pairs = [(task, k) for task in range(3) for k in range(N) if TARGETS[k, task] == 1]
_rare_pairs = [(task, k) for task in range(3) for k in range(N) if RARE[k, task] == 1]
_class_pairs = [(c, k) for c in range(3) for k in range(N) if CLASSES[k] != c]
_relevant = _where(RELEVANCE > 0)
_events = _where(EVENT == 1)


def points(y: Tensor, **options: Any) -> Callable[..., Blocks]:
    return lambda x, w: PointBlocks(Points(x, y, weight=w), **options)


CASES: dict[str, Case] = {
    "classes": Case(
        lambda x, w: TaskBlocks(Tasks(x, CLASSES, weight=w)),
        2,
        5,
        lambda i: [_where(i == CLASSES), _where(i != CLASSES)],
        by_task,
    ),
    "targets": Case(
        lambda x, w: TaskBlocks(Tasks(x, TARGETS, weight=w), positive_fraction=0.3),
        2,
        7,
        lambda i: [_where(TARGETS[:, i] == 1), _where(TARGETS[:, i] == 0)],
        by_task,
    ),
    "classes with fewer than asked for": Case(
        lambda x, w: TaskBlocks(Tasks(x, CLASSES, weight=w)),
        3,
        24,
        lambda i: [_where(i == CLASSES), _where(i != CLASSES)],
        by_task,
    ),
    "points, all": Case(points(BINARY, include_own_class=True), 3, 5, lambda i: [list(range(N))], everyone),
    "points, opposite": Case(points(BINARY, include_own_class=False), 3, 5, lambda i: [_where(BINARY == 0)], everyone),
    "points, negative blocks": Case(
        points(BINARY, include_own_class=False, positive=False), 3, 5, lambda i: [_where(BINARY == 1)], everyone
    ),
    "points, one column with missing labels": Case(
        points(TARGETS[:, 0], include_own_class=True), 3, 5, lambda i: [_where(~TARGETS[:, 0].isnan())], everyone
    ),
    "multi-label points, all": Case(
        points(TARGETS, include_own_class=True),
        5,
        6,
        lambda i: [_where(~TARGETS[:, _pairs[i][0]].isnan())],
        everyone,
    ),
    "multi-label points, rare labels": Case(
        points(RARE, include_own_class=True),
        2,
        8,
        lambda i: [_where(~RARE[:, _rare_pairs[i][0]].isnan())],
        everyone,
    ),
    "multi-label points, opposite": Case(
        points(TARGETS, include_own_class=False),
        5,
        4,
        lambda i: [_where(TARGETS[:, _pairs[i][0]] == 0)],
        everyone,
    ),
    "class points, negative blocks": Case(
        points(CLASSES, include_own_class=False, positive=False),
        5,
        3,
        lambda i: [_where(_class_pairs[i][0] == CLASSES)],
        everyone,
    ),
    "examples": Case(
        lambda x, w: ExampleBlocks(Examples(x, CLASSES, weight=w)),
        5,
        0,
        lambda i: [[k for k in range(N) if k != i]],
        everyone,
    ),
    "examples and further ones": Case(
        lambda x, w: ExampleBlocks(Examples(x, CLASSES, weight=w)),
        3,
        4,
        lambda i: [[k for k in range(N) if k != i]],
        everyone,
    ),
    "groups": Case(
        lambda x, w: GroupBlocks(Groups(x, BINARY, CLASSES, weight=w)), 2, 4, lambda i: [_where(i == CLASSES)], everyone
    ),
    "small groups": Case(
        lambda x, w: GroupBlocks(Groups(x, BINARY, CLASSES, weight=w)), 2, 7, lambda i: [_where(i == CLASSES)], everyone
    ),
    "query items": Case(
        lambda x, w: QueryBlocks(Queries(x, QUERIES, RELEVANCE, weight=w), relevant_only=True),
        4,
        3,
        lambda i: [_where(QUERIES[_relevant[i]] == QUERIES)],
        everyone,
    ),
    "all query items": Case(
        lambda x, w: QueryBlocks(Queries(x, QUERIES, RELEVANCE, weight=w), relevant_only=False),
        4,
        6,
        lambda i: [_where(QUERIES[i] == QUERIES)],
        everyone,
    ),
    "risk sets": Case(
        lambda x, w: RiskBlocks(RiskSets(x, TIME, EVENT, weight=w)),
        4,
        4,
        lambda i: [_where(TIME[_events[i]] <= TIME)],
        everyone,
    ),
    "bags": Case(
        lambda x, w: BagBlocks(Bags(x, BAGS, BAG_LABELS, weight=w)), 2, 3, lambda i: [_where(i == BAGS)], everyone
    ),
}


def means(case: Case, blocks: Blocks, batch: Batch, values: Tensor) -> Tensor:
    """(B, parts): what an objective makes of a batch, for block-dependent values (m, N) of the examples."""
    assert batch.weight is not None
    v = values[index_of(batch)][:, batch.id]
    results = [(v * mask * batch.weight).sum(1) for mask in case.parts(blocks, batch)]
    return torch.stack(results, 1)


def exact(case: Case, num_blocks: int, values: Tensor, weight: Tensor = ONES) -> Tensor:
    """(m, parts): the weighted means over everything."""
    rows = []
    for i in range(num_blocks):
        sums = [(values[i, members] * weight[members]).sum() / weight[members].sum() for members in case.sets(i)]
        rows.append([float(value) for value in sums])
    return torch.tensor(rows, dtype=torch.float64)


def same(one: Batch, other: Batch) -> bool:
    """Whether two batches are the same to the last bit."""
    names = ("x", "id", "index", "y", "block_pos", "serves", "weight")
    return all(_equal(getattr(one, name), getattr(other, name)) for name in names)


def _equal(p: Any, q: Any) -> bool:
    if isinstance(p, tuple):
        return len(p) == len(q) and all(_equal(*both) for both in zip(p, q, strict=True))
    return (p is None and q is None) or (p.shape == q.shape and bool((p.isnan() & q.isnan() | (p == q)).all()))
