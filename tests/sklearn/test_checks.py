"""scikit-learn's own checks of an estimator: all pass but those named, with the reason."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from fcco.sklearn import CoxRegressor, QueryRanker, RankingClassifier

COPIES = "batches and the validation part are drawn by row, so weight 2 equals two copies in the mean, not bit for bit"
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": COPIES,
    "check_sample_weight_equivalence_on_sparse_data": COPIES,
}
# Without a search over settings: fast.
ESTIMATORS = [
    RankingClassifier(epochs=2, validation=None),
    QueryRanker(epochs=1, validation=None),
    CoxRegressor(epochs=1, validation=None),
]
SEARCHING = [RankingClassifier(epochs=2), QueryRanker(epochs=1), CoxRegressor(epochs=1)]

# The checks' own tables: a few rows, columns of zeros, a count of the rows.
pytestmark = [
    pytest.mark.filterwarnings("ignore:too few rows to hold some out"),
    pytest.mark.filterwarnings("ignore::fcco.tables.TableWarning"),
    pytest.mark.filterwarnings("ignore:X does not have valid feature names"),
]


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=lambda estimator: EXPECTED)
def test_check(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(SEARCHING, expected_failed_checks=lambda estimator: EXPECTED)
def test_check_with_a_search(estimator, check):
    check(estimator)
