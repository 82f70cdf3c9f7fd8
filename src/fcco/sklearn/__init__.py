"""scikit-learn's face of :func:`fcco.fit`: estimators that take tables and name a ranking metric.

Example:
    >>> from sklearn.datasets import make_classification
    >>> X, y = make_classification(300, 6, weights=[0.9], random_state=0)
    >>> model = RankingClassifier(metric="average_precision", epochs=1, random_state=0).fit(X, y)
    >>> model.decision_function(X[:3]).shape
    (3,)
"""

try:
    import sklearn as _sklearn  # noqa: F401  # absent: one sentence, before anything else fails
except ImportError as error:  # pragma: no cover - part of the extra
    raise ImportError("fcco.sklearn needs scikit-learn: pip install 'fcco[sklearn]'") from error

from fcco.sklearn._classifier import RankingClassifier
from fcco.sklearn._cox import CoxRegressor
from fcco.sklearn._ranker import QueryRanker

__all__ = ["CoxRegressor", "QueryRanker", "RankingClassifier"]
