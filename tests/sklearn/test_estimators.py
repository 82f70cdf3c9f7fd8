"""The estimators on data: what they learn, every form of y, and their place in scikit-learn's machinery."""

import pickle

import numpy as np
import pandas
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fcco.fitting._metrics import concordance
from fcco.sklearn import CoxRegressor, QueryRanker, RankingClassifier

ROWS = 240


def quick(epochs=4, **settings):
    return RankingClassifier(epochs=epochs, random_state=0, validation=None, **settings)


def points(rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 4))
    y = (X[:, 0] - X[:, 1] + 0.5 * rng.normal(size=rows) > 1.0).astype(int)
    return X, y


@pytest.fixture(scope="module")
def fitted():
    X, y = points()
    return RankingClassifier(epochs=4, random_state=0).fit(X, y), *points(seed=1)


def test_binary(fitted):
    model, X, y = fitted
    scores = model.decision_function(X)
    assert roc_auc_score(y, scores) > 0.9
    assert model.classes_.tolist() == [0, 1]
    assert model.n_features_in_ == 4
    probability = model.predict_proba(X)
    assert np.allclose(probability.sum(1), 1.0)
    assert np.array_equal(model.predict(X), (probability[:, 1] > 0.5).astype(int))
    assert average_precision_score(y, probability[:, 1]) == average_precision_score(y, scores)  # no order is lost
    assert abs(probability[:, 1].mean() - y.mean()) < 0.1


def test_calibration_by_an_isotonic_function():
    X, y = points()
    model = RankingClassifier(epochs=4, random_state=0, calibration="isotonic").fit(X, y)
    probability = model.predict_proba(X)[:, 1]
    decision = model.decision_function(X)
    assert np.array_equal(model.predict(X), (probability > 0.5).astype(int))
    assert len(np.unique(decision)) > len(np.unique(probability))  # ties are the probabilities' alone
    assert (np.diff(probability[np.argsort(decision)]) >= 0.0).all()


@pytest.mark.parametrize(("metric", "words"), [
    ("ndcg", "got 'ndcg': QueryRanker is for it"),
    ("concordance", "got 'concordance': CoxRegressor is for it"),
    ("auroc", "got 'auroc': did you mean 'roc_auc'"),
])  # fmt: skip
def test_metrics_that_are_not_for_labels(metric, words):
    X, y = points()
    with pytest.raises(ValueError, match=words):
        quick(metric=metric).fit(X, y)


@pytest.mark.parametrize("metric", ["roc_auc", "partial_auc", "two_way_partial_auc"])
def test_other_metrics(metric):
    X, y = points()
    assert roc_auc_score(y, quick(metric=metric).fit(X, y).decision_function(X)) > 0.9


@pytest.mark.parametrize(
    ("names", "positive"), [((-1, 1), 1), (("ham", "spam"), "spam"), ((False, True), True), ((3.0, 7.0), 7.0)]
)
def test_two_classes_by_any_name(names, positive):
    X, y = points()
    model = quick().fit(X, np.array(names)[y])
    assert roc_auc_score(y, model.decision_function(X)) > 0.9
    assert set(model.predict(X)) <= set(names)
    assert model.classes_[1] == positive


def test_several_classes():
    X, _ = points()
    y = np.array(["a", "b", "c"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    model = quick().fit(X, y)
    assert model.decision_function(X).shape == (ROWS, 3)
    assert np.allclose(model.predict_proba(X).sum(1), 1.0)
    assert (model.predict(X) == y).mean() > 0.7


def test_several_labels_some_missing():
    X, y = points()
    Y = np.stack([y, 1 - y, (X[:, 2] > 0).astype(int)], 1).astype(float)
    Y[::3, 1] = np.nan
    model = quick().fit(X, Y)
    assert model.predict_proba(X).shape == (ROWS, 3)
    assert set(np.unique(model.predict(X))) == {0, 1}
    scores = model.decision_function(X)
    for label, wanted in enumerate((y, 1 - y, X[:, 2] > 0)):
        assert roc_auc_score(wanted, scores[:, label]) > 0.85


def test_missing_labels_are_not_negatives():
    X, y = points()
    some = y.astype(float)
    some[y == 1] = np.where(np.arange((y == 1).sum()) % 2 == 0, 1.0, np.nan)
    assert roc_auc_score(y, quick(epochs=15).fit(X, some).decision_function(X)) > 0.9


def test_labels_that_are_all_alike_are_predicted_throughout():
    X, y = points()
    Y = np.stack([np.zeros(ROWS), y, np.ones(ROWS)], 1)
    with pytest.warns(UserWarning, match=r"only one value in column \[0, 2\]"):
        model = quick().fit(X, Y)
    assert model.predict(X)[:, [0, 2]].tolist() == [[0, 1]] * ROWS


def test_weights_count():
    X, _ = points()
    first = X[:, 0] > 0
    second = X[:, 1] > 0
    y = np.concatenate([first, second])
    both = np.concatenate([X, X])
    heavy = np.concatenate([np.full(ROWS, 1.0), np.full(ROWS, 0.01)])
    model = quick().fit(both, y, sample_weight=heavy)
    scores = model.decision_function(X)
    assert roc_auc_score(first, scores) > 0.9
    assert roc_auc_score(second, scores) < 0.7


def test_rows_of_any_kind():
    X, y = points()
    table = pandas.DataFrame(X[:, :2], columns=["a", "b"], index=np.arange(ROWS)[::-1])
    table["town"] = np.where(X[:, 2] > 0, "Bonn", "Kiel")
    table.loc[3, "a"] = np.nan
    labels = pandas.Series(y, index=range(1000, 1000 + ROWS))  # rows belong together by place
    model = quick(epochs=15).fit(table, labels)
    assert model.feature_names_in_.tolist() == ["a", "b", "town"]
    assert roc_auc_score(y, model.decision_function(table)) > 0.9
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(table[["b", "a", "town"]])


def test_a_module_of_ones_own():
    X, y = points()
    line = torch.nn.Linear(4, 1)
    torch.nn.init.zeros_(line.weight)  # few steps: the start must not decide
    own = quick(module=line).fit(X, y)
    assert line.weight.abs().max() == 0.0  # a copy is trained
    assert isinstance(own.network_, torch.nn.Linear)
    assert roc_auc_score(y, own.decision_function(X)) > 0.8
    made = quick(module=lambda encoder, outputs: torch.nn.Linear(encoder.width, outputs)).fit(X, y)
    assert made.network_.weight.shape == (1, 4)
    with pytest.raises(TypeError, match=r"module must return a torch.nn.Module, got int"):
        quick(module=lambda encoder, outputs: 3).fit(X, y)


def test_random_state_decides():
    X, y = points()
    first = quick().fit(X, y).decision_function(X)
    assert np.array_equal(first, quick().fit(X, y).decision_function(X))
    other = quick().set_params(random_state=1).fit(X, y)
    assert not np.array_equal(first, other.decision_function(X))


def test_pickle_and_clone(fitted):
    model, X, _ = fitted
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        clone(model).predict(X)


def test_the_rows_are_not_kept_with_the_model(fitted):
    model = fitted[0]
    assert model.result_.validation is None


def test_pipelines_and_searches():
    X, y = points()
    pipeline = make_pipeline(StandardScaler(), quick().set_params(epochs=10))  # half the rows, half the steps
    assert cross_val_score(pipeline, X, y, cv=2, scoring="roc_auc").min() > 0.85
    search = GridSearchCV(quick(), {"metric": ["roc_auc", "partial_auc"]}, cv=2, scoring="average_precision").fit(X, y)
    assert search.best_params_["metric"] in ("roc_auc", "partial_auc")
    assert search.predict(X).shape == (ROWS,)


# ------------------------------------------------------------------ queries


def items(rows=ROWS, per_query=8, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3))
    relevance = np.clip(np.round(X[:, 0] + 1.0), 0, 3).astype(int)
    return X, relevance, np.arange(rows) // per_query


@pytest.mark.parametrize("name", [lambda query: query, lambda query: [f"q{number}" for number in query]])
def test_a_ranker_learns(name):
    X, relevance, query = items()
    model = QueryRanker(epochs=6, random_state=0).fit(X, relevance, query=name(query))
    other, wanted, numbers = items(seed=1)
    assert model.score(other, wanted, query=numbers) > 0.95
    assert model.score(other, wanted, query=numbers) > QueryRanker(epochs=6, module=torch.nn.Linear(3, 1)).fit(
        X, np.random.default_rng(0).permutation(relevance), query=query
    ).score(other, wanted, query=numbers)


def test_without_queries_there_is_one():
    X, relevance, _ = items()
    model = QueryRanker(epochs=6, random_state=0).fit(X, relevance)
    assert model.result_.value > 0.8  # some of the items were set aside to choose by
    assert model.score(X, relevance) > 0.9


def test_queries_in_a_search():
    X, relevance, query = items()
    search = GridSearchCV(QueryRanker(epochs=2, validation=None), {"k": [5, 10]}, cv=2)
    search.fit(X, relevance, query=query)
    assert search.best_params_["k"] in (5, 10)


@pytest.mark.parametrize(
    ("relevance", "query", "message"),
    [
        ([0, 1, -1, 2], None, "y must be a relevance of at least 0, got -1.0 in row 2"),
        ([0, 1, 1, 2], [0, 0, 1], "inconsistent numbers of samples"),
        ([0, 1, 1, 2], [0, 0, None, 1], "query must be known for every row, but is missing in row 2"),
        ([0, 1, np.nan, 2], None, "Input y contains NaN"),
    ],
)
def test_a_ranker_refuses(relevance, query, message):
    with pytest.raises(ValueError, match=message):
        QueryRanker().fit(np.arange(8.0).reshape(4, 2) ** 2, relevance, query=query)


# ------------------------------------------------------------------ times


def subjects(rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3))
    time = rng.exponential(np.exp(-X[:, 0]))
    return X, time, rng.random(rows) < 0.7


def test_every_form_of_times():
    X, time, event = subjects()
    structured = np.array(list(zip(event, time, strict=True)), dtype=[("event", bool), ("time", float)])
    forms = [np.stack([time, event], 1), structured, pandas.DataFrame({"time": time, "event": event})]
    risks = [CoxRegressor(epochs=4, random_state=0).fit(X, y).predict(X) for y in forms]
    assert np.array_equal(risks[0], risks[1])
    assert np.array_equal(risks[0], risks[2])
    other, later, seen = subjects(seed=1)
    model = CoxRegressor(epochs=4, random_state=0).fit(X, forms[0])
    found = model.score(other, np.stack([later, seen], 1))
    ones = torch.ones(1, ROWS, dtype=torch.float64)
    risk = torch.from_numpy(model.predict(other))
    assert found == float(concordance(risk, torch.from_numpy(later), torch.from_numpy(seen), ones))
    assert found > 0.65


def test_times_alone_are_observed():
    X, time, _ = subjects()
    alone = CoxRegressor(epochs=2, random_state=0).fit(X, time).predict(X)
    observed = CoxRegressor(epochs=2, random_state=0).fit(X, np.stack([time, np.ones(ROWS)], 1)).predict(X)
    assert np.array_equal(alone, observed)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([[1.0, 0], [2.0, 0], [3.0, 0]], "at least one observed event"),
        ([[1.0, 1], [2.0, 5], [3.0, 0]], "got 5.0 in row 1, column 1"),
        ([1.0, np.nan, 2.0], "Input y contains NaN"),
        (np.array([(1.0, 2.0)] * 3, dtype=[("a", float), ("b", float)]), "must have a bool field"),
    ],
)
def test_times_that_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        CoxRegressor().fit([[1.0], [2.0], [4.0]], y)
