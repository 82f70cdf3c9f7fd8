"""Careless inputs work, or are one clear sentence that names row and column."""

import numpy as np
import pandas
import pytest

from fcco.sklearn import CoxRegressor, QueryRanker, RankingClassifier
from fcco.tables import TableWarning

FEW = "ignore:too few rows to hold some out"


def fit(X, y, validation=None):
    return RankingClassifier(epochs=1, random_state=0, validation=validation).fit(X, y)


def rows(count=40):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(count, 3))
    return X, (np.arange(count) % 2)


def test_lists():
    X, y = rows()
    assert fit(X.tolist(), y.tolist()).predict(X.tolist()).shape == (40,)


def test_float64_and_missing_cells():
    X, y = rows()
    X[3, 1] = np.nan
    assert np.isfinite(fit(X, y).decision_function(X)).all()


@pytest.mark.filterwarnings(FEW, "ignore:left out")
def test_two_rows():
    assert fit([[0.0, "a"], [1.0, "b"]], ["no", "yes"], validation=0.2).predict([[0.5, "a"]]).shape == (1,)


@pytest.mark.filterwarnings(FEW)
def test_a_label_with_three_positives():
    X, _ = rows(200)
    y = np.zeros(200)
    y[[5, 60, 111]] = 1
    model = fit(X, y, validation=0.2)
    assert model.predict_proba(X)[:, 1].mean() < 0.2


def test_a_class_with_three_rows_among_others():
    X, y = rows(120)
    y = y.copy()
    y[:3] = 2
    assert fit(X, y, validation=0.2).predict_proba(X).shape == (120, 3)


def test_several_labels_of_yes_and_no():
    X, y = rows(60)
    labels = np.array([["yes" if label else "no", "no" if label else "yes"] for label in y], dtype=object)
    labels[4, 1] = None
    numbers = np.column_stack([y, 1.0 - y])
    numbers[4, 1] = np.nan
    assert np.array_equal(fit(X, labels).decision_function(X), fit(X, numbers).decision_function(X))


def test_a_column_of_one_value():
    X, y = rows()
    X[:, 2] = 7.0
    with pytest.warns(TableWarning, match="one value or rare strings alone: column 'x2'"):
        fit(X, y)


def test_a_column_twice():
    X, y = rows()
    table = pandas.DataFrame(X, columns=["a", "y", "y"])
    with pytest.raises(ValueError, match="'y' occurs twice"):
        fit(table, y)


def test_too_few_rows_to_choose_by():
    X, y = rows(12)
    with pytest.warns(UserWarning, match="too few rows to hold some out"):
        fit(X, y, validation=0.2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, y: (np.where(X > 2.0, np.inf, X), y), r"column 'x\d' has inf in row \d+"),
        (lambda X, y: (X, y[:-1]), "inconsistent numbers of samples"),
        (lambda X, y: (X, np.zeros(40)), "y must have two classes or more, got only one class"),
        (lambda X, y: (X, X[:, 0]), "Unknown label type"),
        (lambda X, y: (X, np.full(40, np.nan)), "all of them are missing"),
        (lambda X, y: (X, None), "requires y to be passed"),
        (lambda X, y: (X, np.stack([y, y + 1], 1)), "y must hold 0, 1 or NaN .*, got 2.0 in row 1, column 1"),
        (lambda X, y: (X, np.stack([y, y - 1], 1)), r"two values per column, got -1 and 0 in column 1 \(-1 in row 0\)"),
        (lambda X, y: (X[:, 0], y), "Reshape your data"),
        (lambda X, y: (np.ones_like(X), y), r"no column of the table varies over its 40 sample\(s\)"),
    ],
)
def test_one_sentence(change, message):
    X, y = change(*rows())
    with pytest.raises(ValueError, match=message):
        fit(X, y)


def times(count=40):
    rng = np.random.default_rng(1)
    return np.column_stack([rng.exponential(size=count), rng.integers(0, 2, count)])


def test_survival_in_a_data_frame_of_any_order():
    X, _ = rows()
    pairs = times()
    frame = pandas.DataFrame({"seen": pairs[:, 1] == 1, "days": pairs[:, 0]}, index=range(90, 130))
    models = [CoxRegressor(epochs=1, random_state=0, validation=None).fit(X, y) for y in (pairs, frame)]
    assert np.array_equal(models[0].predict(X), models[1].predict(X))
    assert models[0].score(X, pairs) == models[1].score(X, frame)


def test_labels_in_another_order_than_the_rows_are_told():
    X, y = rows()
    frame = pandas.DataFrame(X, columns=list("abc"))
    with pytest.warns(UserWarning, match="y has the index of x in another order"):
        fit(frame, pandas.Series(y).iloc[::-1])


def test_what_is_missing_or_negative_is_named_by_its_row():
    X, _ = rows()
    pairs = times()
    pairs[5, 0] = np.nan
    with pytest.raises(ValueError, match="Input y contains NaN, in row 5, column 0"):
        CoxRegressor().fit(X, pairs)
    pairs[5, 0] = -2.0
    with pytest.raises(ValueError, match="times of at least 0, got -2 in row 5"):
        CoxRegressor().fit(X, pairs)
    relevance = np.ones(40)
    relevance[7] = np.nan
    with pytest.raises(ValueError, match="Input y contains NaN, in row 7, column 0"):
        QueryRanker().fit(X, relevance)


def test_a_cell_that_is_no_value():
    X, y = rows()
    X = X.astype(object)
    X[4, 2] = "?"
    with pytest.raises(TypeError, match=r"column 'x2' must hold one kind of value, got .* in row 0 and '\?' in row 4"):
        fit(X, y)


def test_weights_that_leave_one_class():
    X, y = rows()
    with pytest.raises(ValueError, match="got only one class"):
        RankingClassifier().fit(X, y, sample_weight=y.astype(float))


def test_a_wrong_calibration_is_told_before_training():
    X, y = rows()
    with pytest.raises(ValueError, match=r"calibration must be .*, got 'sigmoid'"):
        RankingClassifier(calibration="sigmoid", module=3).fit(X, y)
