"""benchmarks/arena/problems.py and scoring.py: parts are disjoint and everybody's; metrics are scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from benchmarks.arena import tables
from benchmarks.arena.problems import PARTS, PROBLEMS, Part, Problem, Split, make_split
from benchmarks.arena.scoring import score


def numbered(rows: int = 1000, columns: int = 5) -> torch.Tensor:
    """x whose first column is the row's number, so that a part tells which rows it has."""
    x = torch.randn(rows, columns)
    x[:, 0] = torch.arange(rows).float()
    return x


def numbers(split: Split) -> dict[str, set[int]]:
    """Row numbers of the parts, read back through the standardisation."""
    values = torch.cat([split.x_train[:, 0], split.x_valid[:, 0], split.x_test[:, 0]])
    gap = (values.max() - values.min()) / (len(values) - 1)
    found = {}
    for part in PARTS:
        places = (getattr(split, part).x[:, 0] - values.min()) / gap
        found[part] = {round(float(place)) for place in places}
    return found


def binary(rows: int = 1000) -> tables.Whole:
    y = (torch.rand(rows) < 0.3).float()
    return tables.Whole(numbered(rows), y)


@pytest.mark.parametrize("kind", ["one label", "labels", "queries"])
def test_parts_are_disjoint_and_together_the_table(kind: str) -> None:
    x = numbered()
    y = (torch.rand(1000) < 0.3).float()
    query = None
    metric = "average_precision"
    if kind == "labels":
        y = (torch.rand(1000, 3) < 0.3).float()
    if kind == "queries":
        query = torch.arange(1000) // 10
        metric = "ndcg"
    split = make_split("p", Problem("t", metric), tables.Whole(x, y, query), seed=0)
    found = numbers(split)
    assert [len(found[part]) for part in PARTS] == [600, 200, 200]
    assert not found["train"] & found["valid"]
    assert not found["train"] & found["test"]
    assert not found["valid"] & found["test"]
    if kind == "queries":
        held = {part: set(getattr(split, part).query.tolist()) for part in PARTS}
        assert not held["train"] & (held["valid"] | held["test"])
        assert not held["valid"] & held["test"]


def test_the_seed_alone_decides_the_split() -> None:
    whole = binary()
    problem = Problem("t", "roc_auc")
    first = make_split("p", problem, whole, seed=1)
    again = make_split("p", problem, whole, seed=1)
    other = make_split("p", problem, whole, seed=2)
    for part in PARTS:
        assert torch.equal(getattr(first, part).x, getattr(again, part).x)
    assert not torch.equal(first.x_test, other.x_test)


def test_two_metrics_of_one_table_share_their_split() -> None:
    whole = binary()
    first = make_split("p", Problem("t", "roc_auc"), whole, seed=1)
    second = make_split("q", Problem("t", "average_precision"), whole, seed=1)
    assert torch.equal(first.x_test, second.x_test)


def test_one_label_is_shared_out_by_class() -> None:
    split = make_split("p", Problem("t", "roc_auc"), binary(), seed=0)
    shares = [float(part.y.mean()) for part in (split.train, split.valid, split.test)]
    assert max(shares) - min(shares) < 0.01


def test_rare_positives_are_as_rare_in_the_test_metric() -> None:
    split = make_split("p", Problem("t", "average_precision", positives=30), binary(), seed=0)
    share = 30 / len(split.y_train)
    assert int(split.y_train.sum()) == 30
    assert int(split.y_valid.sum()) == 10
    assert split.test.weight is not None
    weighted = (split.test.weight * split.y_test).sum() / split.test.weight.sum()
    assert float(weighted) == pytest.approx(share)


def test_numbers_are_standardised_by_training_rows_and_zero_one_columns_left() -> None:
    whole = binary()
    whole.x[:, 1] = (whole.x[:, 1] > 1.5).float()
    split = make_split("p", Problem("t", "roc_auc"), whole, seed=0)
    assert torch.allclose(split.x_train[:, 2].mean(), torch.tensor(0.0), atol=1e-5)
    assert torch.allclose(split.x_train[:, 2].std(), torch.tensor(1.0), atol=1e-5)
    assert set(split.x_test[:, 1].tolist()) == {0.0, 1.0}


def scored(metric: str, y: torch.Tensor, max_fpr: float | None = None, **more: torch.Tensor) -> Split:
    part = Part(torch.zeros(len(y), 1), y, **more)
    return Split("p", metric, max_fpr, part, part, part)


def test_metrics_are_those_of_scikit_learn() -> None:
    y = (torch.rand(300) < 0.2).float()
    s = torch.randn(300) + y
    values = s.double().numpy()
    assert score(scored("roc_auc", y), s) == roc_auc_score(y, values)
    assert score(scored("average_precision", y), s) == average_precision_score(y, values)
    assert score(scored("partial_auc", y, 0.1), s) == roc_auc_score(y, values, max_fpr=0.1)


def test_missing_labels_and_labels_of_one_class_are_left_out_of_the_mean() -> None:
    y = (torch.rand(300, 3) < 0.3).float()
    y[:, 2] = 0.0
    y[:50, 0] = float("nan")
    s = torch.randn(300, 3)
    expected = [
        average_precision_score(y[50:, 0], s[50:, 0].double()),
        average_precision_score(y[:, 1], s[:, 1].double()),
    ]
    assert score(scored("average_precision", y), s) == pytest.approx(np.mean(expected))


def test_a_weight_counts_like_copies() -> None:
    y = (torch.rand(100) < 0.3).float()
    s = torch.randn(100) + y
    weight = torch.where(y == 1, 1.0, 3.0).double()
    copies = torch.cat([torch.arange(100), (y == 0).nonzero()[:, 0].repeat(2)])
    whole = score(scored("average_precision", y, weight=weight), s)
    assert whole == pytest.approx(average_precision_score(y[copies], s[copies].double()))


def test_rankings_and_survival_have_their_own() -> None:
    relevance = torch.tensor([2.0, 0.0, 1.0, 0.0, 1.0])
    query = torch.tensor([0, 0, 0, 1, 1])
    ranking = scored("ndcg", relevance, query=query)
    assert score(ranking, relevance) == pytest.approx(1.0)
    assert score(ranking, -relevance) < 1.0
    survival = scored("concordance", torch.tensor([[1.0, 1.0], [2.0, 0.0], [3.0, 1.0]]))
    assert survival.outputs == 1
    assert score(survival, torch.tensor([[3.0], [2.0], [1.0]])) == 1.0


def test_recipes_are_chosen_on_the_named_tables_alone() -> None:
    assert {p.table for p in PROBLEMS.values() if p.chooses_recipe} == {"a9a", "yeast", "emotions"}


def test_a_table_is_made_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FCCO_ARENA_CACHE", str(tmp_path))
    made = []

    def make() -> tables.Whole:
        made.append(1)
        return tables.Whole((torch.rand(4, 2) < 0.5).float(), torch.ones(4), torch.arange(4))

    monkeypatch.setitem(tables.MAKERS, "mine", make)
    first = tables.table("mine")
    second = tables.table("mine")
    assert len(made) == 1
    assert torch.equal(first.x, second.x)
    assert second.query is not None


@pytest.mark.parametrize(("name", "share"), [("sparse", 0.03), ("labels27", 0.088)])
def test_generated_tables_are_as_described(name: str, share: float) -> None:
    whole = tables.MAKERS[name]()
    assert float(whole.y.mean()) == pytest.approx(share, abs=0.001)
    if name == "sparse":
        assert whole.x.shape == (28_000, 300)
        rates = whole.x.mean(0)
        assert float(((1 - rates) / (rates * (1 - rates)).sqrt()).nan_to_num().max()) > 50  # rare columns reach far
    else:
        assert whole.y.shape == (6_000, 27)
