"""Every error names the argument, and the row and the column, the class or the block."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import IterableDataset

from fcco.data import (
    BagBlocks,
    Bags,
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

X = torch.zeros(6, 2)
Y = torch.tensor([0, 0, 1, 1, 2, 2])
POINTS = torch.tensor([1, 1, 0, 0, 0, 0])
TARGETS = torch.tensor([[1.0, 0], [1, 1], [0, 1], [0, math.nan], [0, 0], [1, 0]])
TIMES = torch.arange(6.0)


def changed(values: torch.Tensor, place: Any, value: float) -> torch.Tensor:
    values = values.clone()
    values[place] = value
    return values


def tasks(y: Any = Y) -> Blocks:
    return TaskBlocks(Tasks(X, y))


def points(y: Any = POINTS, own: bool = True) -> Blocks:
    return PointBlocks(Points(X, y), include_own_class=own)


def queries(y: Any = TIMES) -> Blocks:
    return QueryBlocks(Queries(X, Y, y), relevant_only=True)


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    # labels
    "one class": (lambda: tasks(torch.zeros(6)), "y must have positives and negatives, but y has no positives"),
    "no negatives": (lambda: points(torch.ones(6)), "y has no negatives"),
    "no column is left": (lambda: tasks(torch.zeros(6, 2)), "column 0 has no positives, column 1 has no positives"),
    "three in a column": (
        lambda: Tasks(X, changed(TARGETS, (4, 1), 0.5)),
        r"y must hold two values per column, got 0, 0.5 and 1 in column 1 \(the second in row 4\)",
    ),
    "halves": (lambda: Points(X, changed(TIMES, 3, 2.5)), "integers for three or more classes, got 2.5 in row 3"),
    "an endless label": (lambda: Points(X, changed(TARGETS, (2, 1), math.inf)), "got inf in row 2, column 1"),
    "endless alone": (lambda: Points(X, changed(TIMES, 2, math.inf)), "got inf in row 2"),
    "a cube": (lambda: Points(X, torch.zeros(6, 2, 2)), r"\(N,\) or \(N, T\)"),
    "one label too few": (lambda: Tasks(X, Y[:5]), "y must have one row per example, 6 of them, got shape"),
    "two strings": (lambda: Points(X, list("aababa")), "y holds the strings 'a' and 'b': name the positive one"),
    "strings in columns": (lambda: Points(X, [["a", "b"]] * 6), "y holds strings: name the positive one"),
    "a positive not there": (lambda: Points(X, list("aababa"), positive="c"), "positive must be one of .* y, got 'c'"),
    "a number not there": (lambda: Points(X, POINTS, positive=2), "positive must be one of the values of y, got 2"),
    "a strange class": (lambda: Points(X, list("abcabd"), classes="abc"), "got 'd' in row 5"),
    "a strange number": (lambda: Points(X, Y, classes=[0, 1]), "got 2 in row 4, 5"),
    "both": (lambda: Points(X, Y, classes=[0, 1, 2], positive=1), "positive and classes must not both"),
    "ragged": (lambda: Points(X, [[1, 0], [1], [0, 1], [0, None], [1, 1], [0, 0]]), "rows of one length, got 1, 2"),
    # other facts
    "nan relevance": (lambda: Queries(X, Y, changed(TIMES, 3, math.nan)), "relevance must be finite, got nan in row 3"),
    "nothing relevant": (lambda: queries(torch.zeros(6)), "relevance must be > 0 for at least one item"),
    "a query missing": (lambda: Queries(X, [1, 1, None, 2, 2, 2], TIMES), "query must be known .* row 2"),
    "a name missing": (lambda: Queries(X, ["a", "a", None, "b", "b", "b"], TIMES), "query must be known .* row 2"),
    "short queries": (
        lambda: Queries(X, Y[:4], TIMES),
        r"query must have one entry per example, shape \(6,\), got \(4",
    ),
    "no event": (lambda: RiskBlocks(RiskSets(X, TIMES, torch.zeros(6))), "event must be 1 for at least one subject"),
    "half an event": (lambda: RiskSets(X, TIMES, changed(TIMES * 0, 2, 0.5)), "event must be 0 or 1, got 0.5 in row 2"),
    "few events": (lambda: RiskSets(X, TIMES, [1, 0]), "event must be 0 or 1 for each example"),
    "endless time": (lambda: RiskSets(X, changed(TIMES, 1, math.inf), Y == 1), "time must be finite, got inf in row 1"),
    "an empty group": (lambda: GroupBlocks(Groups(X, Y, Y + (Y == 2))), "group 2 has none"),
    "a group without weight": (
        lambda: GroupBlocks(Groups(X, Y, list("aabbcc"), weight=[1, 1, 0, 0, 1, 1])),
        "group b has none",
    ),
    "a group of one": (lambda: Groups(X, Y, [0, 0, 1, 0, 0, 0]).split(0.5), "group 1 has only one"),
    "an empty bag": (lambda: BagBlocks(Bags(X, Y, [0, 1, 0, 1])), "bag 3 has none"),
    "a bag too many": (lambda: Bags(X, Y, [0, 1]), r"bag must be in 0\.\.1, the rows of y, got 2"),
    "bags by name": (lambda: Bags(X, list("aabbcc"), [0, 1, 0]), "give y as a dict"),
    "a bag without a label": (lambda: Bags(X, list("aabbcc"), {"a": 1, "b": 0}), "got none for bag c"),
    "a label missing": (lambda: Bags(X, Y, [0, math.nan, 1]), "y must be known for every bag, .* row 1"),
    "bags of three kinds": (lambda: Bags(X, Y, [0, 1, 2]), "one label of two values per bag"),
    # weights
    "a negative weight": (
        lambda: Points(X, POINTS, weight=[1, 1, -2, 1, 1, 1]),
        "weight must be >= 0, got -2.0 in row 2",
    ),
    "no weight": (lambda: Points(X, POINTS, weight=torch.zeros(6)), "weight must be > 0 for at least one example"),
    "a weight missing": (
        lambda: Points(X, POINTS, weight=[1, None, 1, 1, 1, 1]),
        "weight must be finite, got nan in row 1",
    ),
    "few weights": (lambda: Points(X, POINTS, weight=[1, 1]), r"weight must have one number per example, shape \(6,\)"),
    # x
    "nothing": (lambda: Points(X[:0], []), "x must hold at least one example"),
    "lengths that differ": (lambda: Examples((X, X[:5])), "x must hold tensors of one length on one device"),
    "ragged rows": (lambda: Examples([[1, 2], [3]]), "x must have rows of one length"),
    "too few parts": (
        lambda: list(Loader(ExampleBlocks(Examples([(x, 0) for x in X], inputs=3)), 2, 0)),
        "at least inputs=3 parts per item, got 2",
    ),
    # sizes
    "one sample": (lambda: Loader(tasks(), 1, 1), "samples must be at least 2 for Tasks, got 1"),
    "no samples": (lambda: Loader(points(), 2, 0), "samples must be at least 1 for Points, got 0"),
    "fewer than none": (lambda: Loader(ExampleBlocks(Examples(X)), 2, -1), "samples must be at least 0 for Examples"),
    "one item": (lambda: Loader(queries(), 1, 1), "samples must be at least 2 for Queries"),
    "two of both classes": (lambda: Loader(points(TARGETS), 2, 2), "samples must be at least 3"),
    "too many blocks": (lambda: Loader(tasks(), 4, 2), "blocks must be at most 3, the number of blocks, got 4"),
    "no blocks": (lambda: Loader(tasks(), 0, 2), "blocks must be >= 1"),
    "no values": (lambda: Examples(X.to("meta")), "x must have values, got a tensor on the device meta"),
    "a lone positive": (lambda: Loader(points(), 1, 2), "blocks must be at least 2"),
    "a block alone": (lambda: Loader(ExampleBlocks(Examples(X)), 1, 0), "blocks must be at least 2"),
    "one example": (lambda: ExampleBlocks(Examples(X[:1])), "at least two examples"),
    "a share above 1": (lambda: TaskBlocks(Tasks(X, Y), positive_fraction=1.5), "positive_fraction must be in"),
    "no steps": (lambda: Loader(tasks(), 1, 2, steps_per_epoch=0), "steps_per_epoch must be >= 1"),
    "too many steps": (lambda: Loader(tasks(), 1, 2, steps_per_epoch=10**30), "steps_per_epoch must be below 2.63"),
    "no chunk": (lambda: Loader(tasks(), 1, 2).full_pass(0), "chunk must be >= 1"),
    "no period": (lambda: Loader(tasks(), 1, 2, large=(0, 2)), "the period of large must be >= 1"),
    "workers for tensors": (lambda: Loader(tasks(), 1, 2, num_workers=1), "num_workers must be 0 for tensors"),
    "a negative number": (
        lambda: Loader(TaskBlocks(Tasks([X] * 6, Y)), 1, 2, num_workers=-1),
        "num_workers must be an int >= 0",
    ),
    # parts
    "a position beyond": (lambda: Points(X, POINTS).subset([0, 6]), r"ids must be in 0\.\.5, got 6"),
    "a position twice": (lambda: Points(X, POINTS).subset([0, 0]), "ids must be distinct"),
    "no position": (lambda: Points(X, POINTS).subset(torch.zeros(6, dtype=torch.bool)), "at least one example"),
    "all of it": (lambda: Points(X, POINTS).split(1.0), r"fraction must be in \(0, 1\)"),
    "x too short": (lambda: Points(X, POINTS).batch([0, 1], X[:1]), "x must have one row per id, 2 of them"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD.keys())
def test_an_error_says_what_is_wrong(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(X)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a stream": (lambda: Tasks(Stream(), Y), "map-style data set, got Stream"),
    "a number": (lambda: Tasks(3, Y), "map-style data set, got int"),
    "words for x": (lambda: Tasks(np.array(list("abcdef")), Y), "x must hold numbers"),
    "a column of words": (
        lambda: Tasks(pd.DataFrame({"age": range(6), "name": list("abcdef")}), Y),
        "x must hold numbers, got .* in column 'name'",
    ),
    "an unknown option": (lambda: Loader(tasks(), 1, 2, shuffle=True), "unexpected keyword argument 'shuffle'"),  # type: ignore[call-arg]
    "data for blocks": (lambda: Loader(Tasks(X, Y), 1, 2), "structure must be the blocks of an objective, got Tasks"),  # type: ignore[arg-type]
    "groups of floats": (lambda: Groups(X, Y, Y + 0.5), "group must be integers or strings, got 0.5 in row 0"),
    "words for times": (lambda: RiskSets(X, list("abcdef"), Y == 1), "time must hold numbers"),
    "numbers and words": (lambda: Points(X, [1, 0, "a", 1, 0, 1]), "y must hold numbers or strings, not both, got 1"),
    "a number for y": (lambda: Points(X, 3), "y must be a tensor, an array or a list, got int"),
    "a seed of text": (lambda: Loader(tasks(), 1, 2, seed="0"), "seed must be an int"),  # type: ignore[arg-type]
    "a fraction of text": (lambda: PointBlocks(Points(X, POINTS), include_own_class="all"), "include_own_class"),  # type: ignore[arg-type]
    "half a position": (lambda: Points(X, POINTS).subset([0.5]), "ids must be integers"),
    "a large number": (lambda: Loader(tasks(), 1, 2, large=4), r"large must be \(period, factor\)"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("make", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_type_is_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


def test_a_class_with_fewer_than_asked_for_gives_what_it_has() -> None:
    batch = next(iter(Loader(tasks(), 3, 20)))
    assert len(batch) == 3 * (2 + 4)
    assert batch.weight is not None
    assert bool((batch.weight > 0).all())


def test_ranks_must_share_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcco.data._share.rank_and_world", lambda: (1, 2))
    with pytest.raises(ValueError, match="blocks must be a multiple of the 2 ranks"):
        Loader(tasks(), 3, 2)
