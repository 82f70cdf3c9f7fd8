"""The rules for labels: two values, missing ones, classes, strings, columns; labels that are left out."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fcco.data import PointBlocks, Points, TaskBlocks, Tasks

X = torch.zeros(6, 2)
TWO: dict[str, Any] = {
    "bools": [False, True, True, False, True, False],
    "0/1": [0, 1, 1, 0, 1, 0],
    "-1/1": [-1, 1, 1, -1, 1, -1],
    "other integers": [3, 7, 7, 3, 7, 3],
    "floats": [0.5, 1.5, 1.5, 0.5, 1.5, 0.5],
}


@pytest.mark.parametrize("y", TWO.values(), ids=TWO.keys())
@pytest.mark.parametrize(
    "of", [torch.tensor, np.array, pd.Series, list, lambda y: pd.Series(y, index=[9, 9, 5, 4, 3, 0])],
    ids=["tensor", "numpy", "pandas", "list", "odd index"],
)  # fmt: skip
def test_two_values_are_one_task_whose_positive_is_the_larger(y: list[Any], of: Any) -> None:
    data = Points(X, of(y))
    assert data.y.tolist() == [0, 1, 1, 0, 1, 0]
    assert data.y.dtype == torch.float32
    assert data.num_tasks == 1
    assert data.classes is None
    assert Tasks(X, of(y)).y.tolist() == [0, 1, 1, 0, 1, 0]


MISSING: dict[str, Any] = {
    "NaN": torch.tensor([1, 0, math.nan, 1, 0, math.nan]),
    "numpy": np.array([1, -1, math.nan, 1, -1, math.nan]),
    "None": [1, 0, None, 1, 0, None],
    "bools and None": [True, False, None, True, False, None],
    "pandas NA": pd.Series([1, 0, None, 1, 0, None], dtype="Int64"),
    "pandas boolean": pd.Series([True, False, None, True, False, None], dtype="boolean"),
    "objects": np.array([1, 0, None, 1, 0, float("nan")], dtype=object),
}


@pytest.mark.parametrize("y", MISSING.values(), ids=MISSING.keys())
def test_missing_labels(y: Any) -> None:
    data = Points(X, y)
    assert data.y[[0, 1, 3, 4]].tolist() == [1, 0, 1, 0]
    assert data.y[[2, 5]].isnan().all()
    blocks = PointBlocks(data, include_own_class=True)
    assert blocks.block_example.tolist() == [0, 3]
    assert blocks.total.tolist() == [4.0]


TEXT: dict[str, Any] = {
    "list": ["no", "yes", None, "no", "yes", "no"],
    "numpy": np.array(["no", "yes", "maybe", "no", "yes", "no"]),
    "pandas": pd.Series(["no", "yes", None, "no", "yes", "no"]),
    "category": pd.Series(["no", "yes", None, "no", "yes", "no"], dtype="category"),
}


@pytest.mark.parametrize("y", TEXT.values(), ids=TEXT.keys())
def test_strings_say_which_is_positive(y: Any) -> None:
    assert Points(X, y, positive="yes").y[[0, 1, 3, 4, 5]].tolist() == [0, 1, 0, 1, 0]


EVIDENT: dict[str, tuple[list[Any], str]] = {
    "yes": (["no", "yes", None, "no", "yes", "no"], "yes"),
    "small and large": (["No", "YES", "No", "No", "YES", "No"], "YES"),
    "true": (["false", "true", None, "false", "true", "false"], "true"),
    "positive": (["negative", "positive", "negative", "negative", "positive", "negative"], "positive"),
    "numbers in quotes": (["9", "10", "9", "9", "10", "9"], "10"),
}


@pytest.mark.parametrize(("y", "positive"), EVIDENT.values(), ids=EVIDENT.keys())
def test_of_yes_and_no_the_positive_one_is_evident(y: list[Any], positive: str) -> None:
    data = Points(X, pd.Series(y))
    assert data.y[[0, 1, 3, 4, 5]].tolist() == [0, 1, 0, 1, 0]
    assert data.positive == positive
    columns = Tasks(X, [[value, y[0]] for value in y])
    assert columns.y[[0, 1, 3, 4, 5], 0].tolist() == [0, 1, 0, 1, 0]
    assert columns.positive == positive
    assert Points(X, y, positive=y[0]).y[[0, 1, 3, 4, 5]].tolist() == [1, 0, 1, 0, 1]


def test_positive_makes_one_task_of_many_values() -> None:
    assert Points(X, [3, 1, 2, 3, 1, 2], positive=1).y.tolist() == [0, 1, 0, 0, 1, 0]
    assert Points(X, [0, 1, 0, 1, 0, 1], positive=0).y.tolist() == [1, 0, 1, 0, 1, 0]
    both = Tasks(X, torch.tensor([[0, 1], [1, 0], [0, 0], [1, 1], [0, 1], [1, 0]]), positive=0)
    assert both.y[:, 1].tolist() == [0, 1, 1, 0, 0, 1]
    words = Tasks(X, [["a", "b"], ["b", "a"], ["a", None], ["b", "b"], ["a", "a"], ["b", "b"]], positive="a")
    assert words.y[:, 0].tolist() == [1, 0, 1, 0, 1, 0]
    assert bool(words.y[2, 1].isnan())


CLASSES: dict[str, tuple[Any, list[int], tuple[Any, ...]]] = {
    "from 0": ([0, 1, 2, 0, 1, 2], [0, 1, 2, 0, 1, 2], (0, 1, 2)),
    "from 1": ([1, 2, 3, 1, 2, 3], [0, 1, 2, 0, 1, 2], (1, 2, 3)),
    "years": ([1990, 2010, 2000, 1990, 2010, 2000], [0, 2, 1, 0, 2, 1], (1990, 2000, 2010)),
    "below 0": ([-1, 0, 1, -1, 0, 1], [0, 1, 2, 0, 1, 2], (-1, 0, 1)),
    "whole floats": ([0.0, 1.0, 2.0, 0.0, math.nan, 2.0], [0, 1, 2, 0, -1, 2], (0, 1, 2)),
    "strings": (["c", "a", "b", "c", None, "b"], [2, 0, 1, 2, -1, 1], ("a", "b", "c")),
}


@pytest.mark.parametrize(("y", "number", "names"), CLASSES.values(), ids=CLASSES.keys())
def test_three_or_more_are_classes(y: list[Any], number: list[int], names: tuple[Any, ...]) -> None:
    data = Tasks(X, y)
    assert data.y.tolist() == number
    assert data.classes == names
    assert data.num_tasks == 3
    positive, negative = TaskBlocks(data).tasks.at(torch.arange(3), torch.arange(6))
    for task in range(3):
        assert positive[task].tolist() == [n == task for n in number]
        assert negative[task].tolist() == [n not in (task, -1) for n in number]


def test_classes_in_an_order_of_ones_own() -> None:
    data = Points(X, ["b", "a", "c", "b", "a", "c"], classes=["c", "b", "a"])
    assert data.y.tolist() == [1, 2, 0, 1, 2, 0]
    numbers = Points(X, [5, 2, 9, 5, 2, 9], classes=(9, 5, 2))
    assert numbers.y.tolist() == [1, 2, 0, 1, 2, 0]


def test_columns_follow_the_rule_one_by_one() -> None:
    frame = pd.DataFrame({"a": [0, 1, 0, 1, 0, 1], "b": [-1, -1, 1, 1, None, 1], "c": [2, 5, 5, 5, 2, 2]})
    data = Tasks(X, frame)
    assert data.y.shape == (6, 3)
    assert data.y[:, 0].tolist() == [0, 1, 0, 1, 0, 1]
    assert data.y[:4, 1].tolist() == [0, 0, 1, 1]
    assert bool(data.y[4, 1].isnan())
    assert data.y[:, 2].tolist() == [0, 1, 1, 1, 0, 0]
    assert data.columns == ("a", "b", "c")
    assert data.labels.name(1) == "column 'b'"


# ---------------------------------------------------------------------- left out


def test_a_column_without_positives_is_left_out_and_keeps_its_number() -> None:
    y = torch.tensor([[1, 0, 0, 1], [0, 0, 1, 1], [1, 0, 1, 1], [0, 0, 0, 1], [1, 0, 0, 1], [0, 0, 1, 1]])
    with pytest.warns(UserWarning, match="column 1 has no positives, column 3 has no negatives: left out") as seen:
        tasks = TaskBlocks(Tasks(X, y))
    assert len(seen) == 1
    assert tasks.num_blocks == 2
    assert tasks.num_tasks == 4
    assert tasks.block_task.tolist() == [0, 2]
    with pytest.warns(UserWarning, match="column 1 has no positives"):
        points = PointBlocks(Points(X, y), include_own_class=True)
    assert points.num_tasks == 4
    assert points.block_task.tolist() == [0, 0, 0, 2, 2, 2]
    assert points.block_example.tolist() == [0, 2, 4, 1, 2, 5]
    assert points.block_size.tolist() == [3] * 6


def test_a_class_that_nobody_has_is_left_out_and_keeps_its_number() -> None:
    with pytest.warns(UserWarning, match="class 1 has no positives"):
        blocks = TaskBlocks(Tasks(X, [0, 2, 3, 0, 2, 3]))
    assert blocks.num_tasks == 4
    assert blocks.block_task.tolist() == [0, 2, 3]
    with pytest.warns(UserWarning, match="class 'z' has no positives"):
        TaskBlocks(Tasks(X, ["a", "b", "c", "a", "b", "c"], classes="abcz"))


def test_a_subset_keeps_the_columns() -> None:
    data = Points(X, [0, 1, 2, 0, 1, 2]).subset([0, 2, 3, 5])
    assert data.num_tasks == 3
    with pytest.warns(UserWarning, match="class 1 has no positives"):
        blocks = PointBlocks(data, include_own_class=False)
    assert blocks.block_task.tolist() == [0, 0, 2, 2]
    flipped = Points(X, [-1, 1, -1, 1, -1, 1]).subset([0, 1, 3])
    assert flipped.y.tolist() == [0, 1, 1]


def test_examples_without_weight_are_no_positives() -> None:
    y = torch.tensor([[1, 1], [0, 1], [0, 0], [0, 0], [1, 0], [0, 1]])
    with pytest.warns(UserWarning, match="column 0 has no positives"):
        blocks = TaskBlocks(Tasks(X, y, weight=[0, 1, 1, 1, 0, 1]))
    assert blocks.block_task.tolist() == [1]


def test_one_task_that_is_left_is_drawn_like_one() -> None:
    """Its lists, not those of the columns that were left out, say how many there are."""
    y = torch.tensor([[1, 0], [0, 0], [1, 0], [0, 0], [1, 0], [math.nan, 0]])
    with pytest.warns(UserWarning, match="column 1"):
        blocks = PointBlocks(Points(X, y), include_own_class=True)
    assert blocks.batch_size(3, 10) == 5
    with pytest.warns(UserWarning, match="column 1"):
        other = PointBlocks(Points(X, y), include_own_class=False, positive=False)
    assert other.block_example.tolist() == [1, 3]
