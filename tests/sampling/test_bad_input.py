"""Every error names the class, the block or the argument."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from fcco.sampling import (
    Average,
    BagLoader,
    BlockLoader,
    ExampleLoader,
    GroupLoader,
    MultiLabelPointLoader,
    PointLoader,
    QueryItemLoader,
    QueryLoader,
    RiskSetLoader,
)

X = torch.zeros(6, 2)
Y = torch.tensor([0, 0, 1, 1, 2, 2])
POINTS = torch.tensor([1, 1, 0, 0, 0, 0])
TARGETS = torch.tensor([[1.0, 0], [1, 1], [0, 1], [0, math.nan], [0, 0], [1, 0]])
TIMES = torch.arange(6.0)


def changed(values: torch.Tensor, place: Any, value: float) -> torch.Tensor:
    values = values.clone()
    values[place] = value
    return values


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "an empty class": (lambda: BlockLoader(X, changed(Y, slice(2, 4), 0), 1, 2), "class 1 has no positives"),
    "no negatives": (lambda: BlockLoader(X, torch.zeros(6, dtype=torch.int64), 1, 2), "class 0 has no negatives"),
    "a class beyond": (lambda: BlockLoader(X, changed(Y, 5, 7), 1, 2, num_tasks=3), r"0\.\.2, got class 7"),
    "a negative class": (lambda: BlockLoader(X, changed(Y, 5, -1), 1, 2), "got class -1"),
    "a class not seen": (lambda: BlockLoader(X, Y, 1, 2, num_tasks=4), "class 3 has no positives"),
    "too few positives": (lambda: BlockLoader(X, Y, 1, 6), "class 0 has 2 positives, fewer than the 3 asked"),
    "a task with few": (
        lambda: BlockLoader(X, TARGETS, 1, 6, positive_fraction=0.2),
        "task 0 has 3 negatives, fewer than the 5 .* 1",
    ),
    "a strange target": (lambda: BlockLoader(X, changed(TARGETS, (4, 1), 2.0), 1, 2), "2.0 for task 1 of example 4"),
    "a task without": (
        lambda: BlockLoader(X, changed(TARGETS, (slice(None), 1), math.nan), 1, 2),
        "task 1 has no positives",
    ),
    "one label too few": (lambda: BlockLoader(X, Y[:5], 1, 2), "labels must have one row an example, 6 of them"),
    "one sample": (lambda: BlockLoader(X, Y, 1, 1), "samples_per_block must be at least 2"),
    "too many blocks": (lambda: BlockLoader(X, Y, 4, 2), "blocks_per_step must be at most 3"),
    "a share above 1": (lambda: BlockLoader(X, Y, 1, 2, positive_fraction=1.5), "fraction of positives"),
    "no positives": (
        lambda: PointLoader(X, torch.zeros(6), 1, 1, average=Average.OPPOSITE),
        "class 1 has no examples",
    ),
    "no negatives at all": (
        lambda: PointLoader(X, torch.ones(6), 1, 1, average=Average.OPPOSITE),
        "class 0 has no examples",
    ),
    "few negatives": (
        lambda: PointLoader(X, POINTS, 1, 5, average=Average.OPPOSITE),
        "class 0 has 4 examples, fewer than the 5 negatives",
    ),
    "a lone positive": (lambda: PointLoader(X, POINTS, 1, 2, average=Average.ALL), "at least 2"),
    "three classes": (lambda: PointLoader(X, Y, 1, 2, average=Average.ALL), "got 2 for task 0 of example 4"),
    "a matrix": (lambda: PointLoader(X, TARGETS, 1, 2, average=Average.ALL), "MultiLabelPointLoader"),
    "a third label": (lambda: PointLoader(X, POINTS, 1, 2, average=Average.ALL, block_label=2), "block_label"),
    "few of a task": (
        lambda: MultiLabelPointLoader(X, TARGETS, 2, 8, average=Average.ALL),
        "task 0 has 3 negatives, fewer than the 4",
    ),
    "an empty group": (lambda: GroupLoader(X, Y + (Y == 2), 1, 2), "group 2 has no examples"),
    "a small group": (lambda: GroupLoader(X, changed(Y, 5, 1), 1, 2), "group 2 has 1 examples, fewer than the 2"),
    "a group beyond": (lambda: GroupLoader(X, Y, 1, 2, num_groups=2), "got group 2"),
    "an empty query": (lambda: QueryLoader(X, Y * 2, Y.double(), 1), "query 1, 3 has no examples"),
    "an empty bag": (lambda: BagLoader(X, Y, 1, labels=torch.zeros(4)), "bag 3 has no examples"),
    "nan relevance": (lambda: QueryItemLoader(X, Y, changed(TIMES, 3, math.nan), 1), "nan for example 3"),
    "nothing relevant": (lambda: QueryItemLoader(X, Y, torch.zeros(6), 1), "above 0.0 for some item"),
    "one item": (lambda: QueryItemLoader(X, Y, TIMES, 1, 1), "samples_per_query must be at least 2"),
    "no event": (lambda: RiskSetLoader(X, TIMES, torch.zeros(6), 1, 2), "event must be 1 for some subject"),
    "half an event": (lambda: RiskSetLoader(X, TIMES, changed(TIMES * 0, 2, 0.5), 1, 2), "got 0.5 for example 2"),
    "endless time": (lambda: RiskSetLoader(X, changed(TIMES, 1, math.inf), Y == 1, 1, 2), "inf for example 1"),
    "a block alone": (lambda: ExampleLoader(X, 1), "blocks_per_step must be at least 2"),
    "workers for tensors": (lambda: BlockLoader(X, Y, 1, 2, num_workers=1), "num_workers must be 0 for tensors"),
    "a negative number": (lambda: BlockLoader([X] * 6, Y, 1, 2, num_workers=-1), "num_workers must be an int >= 0"),
    "lengths that differ": (lambda: ExampleLoader((X, X[:5]), 2), "one length on one device"),
    "no steps": (lambda: BlockLoader(X, Y, 1, 2, steps_per_epoch=0), "steps_per_epoch must be >= 1"),
    "no chunk": (lambda: BlockLoader(X, Y, 1, 2, chunk=0), "chunk must be >= 1"),
    "too few parts": (lambda: list(ExampleLoader([(x, 0) for x in X], 2, inputs=3)), "at least 3 parts an item, got 2"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD.keys())
def test_an_error_says_what_is_wrong(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(X)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a stream": (lambda: BlockLoader(Stream(), Y, 1, 2), "map-style data set, got Stream"),
    "a number": (lambda: BlockLoader(3, Y, 1, 2), "map-style data set, got int"),
    "an unknown option": (lambda: BlockLoader(X, Y, 1, 2, shuffle=True), "BlockLoader does not take shuffle"),  # type: ignore[call-arg]
    "a string": (lambda: PointLoader(X, POINTS, 1, 2, average="all"), "Average.ALL or Average.OPPOSITE"),  # type: ignore[arg-type]
    "groups of floats": (lambda: GroupLoader(X, Y.double(), 1, 2), "groups must be integers"),
    "a seed of text": (lambda: BlockLoader(X, Y, 1, 2, seed="0"), "seed must be an int"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("make", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_type_is_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


def test_replacement_lets_small_classes_through() -> None:
    _, batch = next(iter(BlockLoader(X, Y, 3, 20, replacement=True)))
    assert len(batch) == 60


def test_ranks_must_share_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcco.sampling.blocks.rank_and_world", lambda: (1, 2))
    with pytest.raises(ValueError, match="multiple of the 2 ranks"):
        BlockLoader(X, Y, 3, 2)
