"""The metrics against scikit-learn and against their definitions, with weights and ties."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, ndcg_score, roc_auc_score

from fcco.data import Groups, Points, Queries, RiskSets
from fcco.fitting import Goal, _metrics


def cases(decimals: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Scores with ties (few decimals), labels, and whole weights, some of them 0."""
    rng = np.random.default_rng(decimals)
    found = []
    while len(found) < 40:
        size = int(rng.integers(5, 60))
        scores = np.round(rng.normal(size=size), decimals)
        y = rng.random(size) < 0.4
        weight = rng.integers(0, 4, size).astype(float)
        if (weight * y).sum() > 0 and (weight * ~y).sum() > 0:
            found.append((scores, y, weight))
    return found


@pytest.mark.parametrize("decimals", [0, 1, 9])
def test_equal_scikit_learn(decimals: int) -> None:
    for scores, y, weight in cases(decimals):
        given = (torch.tensor(scores), torch.tensor(y), torch.tensor(weight).unsqueeze(0))
        auc = roc_auc_score(y, scores, sample_weight=weight)
        assert _metrics.roc_auc(*given).item() == pytest.approx(auc, abs=1e-12)
        precision = average_precision_score(y, scores, sample_weight=weight)
        assert _metrics.average_precision(*given).item() == pytest.approx(precision, abs=1e-12)
        for max_fpr in (0.05, 0.3, 0.9):
            partial = roc_auc_score(y, scores, sample_weight=weight, max_fpr=max_fpr)
            assert _metrics.partial_auc(*given, max_fpr).item() == pytest.approx(partial, abs=1e-12)


def test_two_way_is_the_auc_of_the_hardest() -> None:
    rng = np.random.default_rng(0)
    positive = rng.normal(1.5, 1.0, 40)
    negative = rng.normal(0.0, 1.0, 60)
    hard_positive = np.sort(positive)[: round(0.7 * 40)]
    hard_negative = -np.sort(-negative)[: round(0.4 * 60)]
    expected = (hard_positive[:, None] > hard_negative).mean()
    scores = torch.tensor(np.concatenate([positive, negative]))
    y = torch.arange(100) < 40
    found = _metrics.two_way_partial_auc(scores, y, torch.ones(1, 100).double(), max_fpr=0.4, min_tpr=0.3)
    assert found.item() == pytest.approx(expected, abs=1e-9)
    assert 0.0 < expected < 1.0


def test_a_weight_of_two_is_two_copies() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(20, generator=generator).double()
    positive = torch.rand(20, generator=generator) < 0.5
    weight = torch.randint(0, 3, (1, 20), generator=generator).double()
    copies = torch.arange(20).repeat_interleave(weight[0].long())
    ones = torch.ones(1, len(copies)).double()
    for metric in (_metrics.roc_auc, _metrics.average_precision):
        assert metric(scores, positive, weight) == pytest.approx(metric(scores[copies], positive[copies], ones))
    time = torch.randint(0, 9, (20,), generator=generator)
    found = _metrics.concordance(scores, time, positive, weight, chunk=7)
    assert found == pytest.approx(_metrics.concordance(scores[copies], time[copies], positive[copies], ones))


def test_concordance_pair_by_pair() -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(30, generator=generator).round(decimals=1)
    time = torch.randint(0, 12, (30,), generator=generator)
    event = torch.rand(30, generator=generator) < 0.6
    right = 0.0
    known = 0
    for i in range(30):
        for j in range(30):
            if event[i] and (time[i] < time[j] or (time[i] == time[j] and not event[j])):
                known += 1
                right += float(scores[i] > scores[j]) + 0.5 * float(scores[i] == scores[j])
    found = _metrics.concordance(scores.double(), time, event, torch.ones(1, 30).double())
    assert found.item() == pytest.approx(right / known, abs=1e-12)


@pytest.mark.parametrize("decimals", [0, 9])
def test_ndcg_equals_scikit_learn_query_by_query(decimals: int) -> None:
    generator = torch.Generator().manual_seed(2)
    query = torch.tensor([0] * 7 + [1] * 9 + [2] * 4)
    scores = torch.randn(20, generator=generator).double().round(decimals=decimals)
    relevance = torch.randint(0, 4, (20,), generator=generator)
    relevance[query == 2] = 0  # nothing relevant: not defined
    found = _metrics.ndcg_per_query(scores, relevance, query, k=5)
    for number in (0, 1):
        mine = query == number
        gain = (2.0 ** relevance[mine].double().numpy() - 1.0)[None]
        assert found[number].item() == pytest.approx(ndcg_score(gain, scores[mine].numpy()[None], k=5), abs=1e-12)
    assert found[2].isnan()


def test_ndcg_of_equal_scores_does_not_depend_on_the_order_of_the_items() -> None:
    relevance = torch.tensor([3, 2, 1, 0, 0, 0])  # the best order, as data are often sorted
    scores = torch.zeros(6, dtype=torch.float64)
    query = torch.zeros(6, dtype=torch.int64)
    found = _metrics.ndcg_per_query(scores, relevance, query, k=3)
    backwards = _metrics.ndcg_per_query(scores, relevance.flip(0), query, k=3)
    assert found.item() == pytest.approx(backwards.item(), abs=1e-12)
    assert found.item() < 0.5


def test_goal_takes_the_mean_over_labels_and_leaves_missing_ones_out() -> None:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(50, 3, generator=generator)
    y = (torch.rand(50, 3, generator=generator) < 0.3).float()
    y[::5, 1] = torch.nan
    data = Points(torch.zeros(50, 1), y)
    expected = []
    for task in range(3):
        known = ~y[:, task].isnan()
        expected.append(average_precision_score(y[known, task], scores[known, task]))
    assert Goal("average_precision").value(scores, data) == pytest.approx(np.mean(expected))
    assert Goal("average_precision").per_label(scores, data) == pytest.approx(expected)


def test_goal_of_classes_is_one_versus_rest() -> None:
    generator = torch.Generator().manual_seed(4)
    scores = torch.randn(60, 3, generator=generator)
    y = torch.randint(3, (60,), generator=generator)
    expected = np.mean([roc_auc_score(y == task, scores[:, task]) for task in range(3)])
    assert Goal("roc_auc").value(scores, Points(torch.zeros(60, 1), y)) == pytest.approx(expected)


def test_worst_group_is_the_lowest_accuracy() -> None:
    data = Groups(torch.zeros(6, 1), [0, 1, 1, 0, 1, 0], ["a", "a", "a", "b", "b", "b"])
    scores = torch.tensor([-1.0, 2.0, -3.0, -1.0, 4.0, -2.0])  # one wrong, in a
    assert Goal("worst_group").value(scores, data) == pytest.approx(2 / 3)


def test_interval_covers_and_narrows() -> None:
    generator = torch.Generator().manual_seed(5)

    def width(size: int) -> float:
        y = torch.arange(size) % 3 == 0
        scores = torch.randn(size, generator=generator) + y
        data = Points(torch.zeros(size, 1), y)
        goal = Goal("roc_auc")
        low, high = goal.interval(scores, data, resamples=300)
        assert low < goal.value(scores, data) < high
        return high - low

    # Sixteen times the data: a quarter of the width.
    assert width(200) / width(3200) == pytest.approx(4.0, rel=0.35)


def test_interval_of_ndcg_draws_queries() -> None:
    query = torch.arange(40) // 4
    relevance = torch.tensor([1, 0, 0, 0] * 10)
    data = Queries(torch.zeros(40, 1), query, relevance)
    perfect = relevance.float()
    assert Goal("ndcg").interval(perfect, data, resamples=50) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("metric", "words"),
    [("accuracy", "metric must be one of"), ("ndcg", "needs fcco.data.Queries"), ("concordance", "fcco.data.RiskSets")],
)
def test_wrong_metrics_are_named(metric: str, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        Goal(metric).check(Points(torch.zeros(2, 1), [0, 1]))


def test_risk_sets_have_their_metric() -> None:
    data = RiskSets(torch.zeros(3, 1), [1.0, 2.0, 3.0], [1, 1, 0])
    assert Goal("concordance").value(torch.tensor([3.0, 2.0, 1.0]), data) == 1.0


def test_a_label_whose_negatives_weigh_nothing_is_left_out_of_the_mean() -> None:
    y = torch.tensor([[1, 1], [1, 0], [0, 1]])
    scores = torch.tensor([[0.1, 0.2], [0.5, 0.9], [0.3, 0.4]])
    with_all = Goal("average_precision").per_label(scores, Points(torch.zeros(3, 1), y, weight=[1, 1, 0]))
    assert with_all == pytest.approx([np.nan, 0.5], nan_ok=True)
    assert Goal("average_precision").value(scores, Points(torch.zeros(3, 1), y, weight=[1, 1, 0])) == 0.5


def test_items_of_weight_zero_are_not_in_the_list() -> None:
    scores = torch.tensor([3.0, 2.0, 1.0, 0.5])
    query = [0, 0, 0, 1]
    relevance = [0.0, 2.0, 1.0, 1.0]
    data = Queries(torch.zeros(4, 1), query, relevance, weight=[0, 1, 1, 0])
    assert Goal("ndcg").value(scores, data) == 1.0
    low, high = Goal("ndcg").interval(scores, data, resamples=50)
    assert (low, high) == (1.0, 1.0)


def test_scores_must_have_a_column_per_label() -> None:
    with pytest.raises(ValueError, match="scores must have 1 columns, one per label or class, got 3"):
        Goal("roc_auc").value(torch.zeros(4, 3), Points(torch.zeros(4, 1), [0, 1, 0, 1]))
