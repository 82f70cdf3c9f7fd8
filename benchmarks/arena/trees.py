"""LightGBM, XGBoost and CatBoost, barely tuned: a few settings, early stopping on validation, one model per label."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from benchmarks.arena.problems import Part, Problem, Split
from benchmarks.arena.scoring import score
from benchmarks.kept import Row

Setting = dict[str, Any]
Predict = Callable[[Any], np.ndarray]  # rows -> scores (N,)
ROUNDS = 1000
PATIENCE = 50


def lightgbm_settings(problem: Problem) -> list[Setting]:
    """Six; none for survival, which LightGBM has no loss for."""
    if problem.metric == "concordance":
        return []
    return [{"num_leaves": leaves, "min_child_samples": least} for leaves in (7, 15, 31) for least in (5, 20)]


def xgboost_settings(problem: Problem) -> list[Setting]:
    return [{"max_depth": depth, "min_child_weight": least} for depth in (3, 6) for least in (1, 5)]


def catboost_settings(problem: Problem) -> list[Setting]:
    return [{"depth": 4}, {"depth": 6}]


def rows_of(part: Part) -> Any:
    """x as the libraries take it: sparse where most of it is 0."""
    from scipy.sparse import csr_matrix

    x = part.x.numpy()
    if (x != 0).mean() < 0.2:
        return csr_matrix(x)
    return x


def group_sizes(part: Part) -> np.ndarray:
    """How many rows each query has, in the order of the rows (a query's rows lie together)."""
    assert part.query is not None
    return torch.unique_consecutive(part.query, return_counts=True)[1].numpy()


def fit_lightgbm(
    split: Split, setting: Setting, y: np.ndarray, y_valid: np.ndarray, rows: Any, valid: Any, seed: int
) -> Predict:
    import lightgbm

    common = {"n_estimators": ROUNDS, "learning_rate": 0.05, "n_jobs": 1, "random_state": seed, "verbose": -1}
    stop = [lightgbm.early_stopping(PATIENCE, verbose=False)]
    if split.metric == "ndcg":
        ranker = lightgbm.LGBMRanker(**common, **setting)
        groups = {"group": group_sizes(split.train), "eval_group": [group_sizes(split.valid)]}
        ranker.fit(rows, y, eval_X=(valid,), eval_y=(y_valid,), eval_at=[10], callbacks=stop, **groups)
        return ranker.predict
    watched = {"average_precision": "average_precision"}.get(split.metric, "auc")
    model = lightgbm.LGBMClassifier(**common, **setting, metric=watched)
    model.fit(rows, y, eval_X=(valid,), eval_y=(y_valid,), callbacks=stop)
    return lambda x: model.predict(x, raw_score=True)


def fit_xgboost(
    split: Split, setting: Setting, y: np.ndarray, y_valid: np.ndarray, rows: Any, valid: Any, seed: int
) -> Predict:
    import xgboost

    parameters = {"learning_rate": 0.1, "tree_method": "hist", "nthread": 1, "seed": seed, "verbosity": 0, **setting}
    if split.metric == "ndcg":
        parameters |= {"objective": "rank:ndcg", "eval_metric": "ndcg@10"}
    elif split.metric == "concordance":
        parameters |= {"objective": "survival:cox", "eval_metric": "cox-nloglik"}
    else:
        watched = {"average_precision": "aucpr"}.get(split.metric, "auc")
        parameters |= {"objective": "binary:logistic", "eval_metric": watched}
    own = xgboost.DMatrix(rows, y)
    other = xgboost.DMatrix(valid, y_valid)
    if split.metric == "ndcg":
        own.set_group(group_sizes(split.train))
        other.set_group(group_sizes(split.valid))
    model = xgboost.train(
        parameters, own, ROUNDS, evals=[(other, "valid")], early_stopping_rounds=PATIENCE, verbose_eval=False
    )
    until = (0, model.best_iteration + 1)
    return lambda x: model.predict(xgboost.DMatrix(x), output_margin=True, iteration_range=until)


def fit_catboost(
    split: Split, setting: Setting, y: np.ndarray, y_valid: np.ndarray, rows: Any, valid: Any, seed: int
) -> Predict:
    import catboost

    loss = {"ndcg": "YetiRank", "concordance": "Cox"}.get(split.metric, "Logloss")
    parameters = {"loss_function": loss, "iterations": ROUNDS, "learning_rate": 0.1, "thread_count": 1, **setting}
    own = catboost.Pool(rows, y)
    other = catboost.Pool(valid, y_valid)
    if split.metric == "ndcg":
        parameters["eval_metric"] = "NDCG:top=10"
        own.set_group_id(split.train.query.numpy())  # type: ignore[union-attr]
        other.set_group_id(split.valid.query.numpy())  # type: ignore[union-attr]
    model = catboost.CatBoost(
        parameters | {"random_seed": seed, "allow_writing_files": False, "logging_level": "Silent"}
    )
    model.fit(own, eval_set=other, early_stopping_rounds=PATIENCE)
    return lambda x: model.predict(x, prediction_type="RawFormulaVal")


FITTERS: dict[str, Callable[..., Predict]] = {
    "lightgbm": fit_lightgbm,
    "xgboost": fit_xgboost,
    "catboost": fit_catboost,
}


def targets(split: Split, part: Part, library: str) -> np.ndarray:
    """(N, labels); survival as the libraries write it: the time, negative where the event was not seen."""
    if split.metric == "concordance":
        return torch.where(part.event == 1, part.time, -part.time).numpy()[:, None]
    y = part.y.numpy()
    if y.ndim == 1:
        return y[:, None]
    return y


def run(library: str, split: Split, setting: Setting, seed: int) -> Row:
    """One model per label, all with one setting; a label without both classes in training gets the score 0."""
    y = targets(split, split.train, library)
    y_valid = targets(split, split.valid, library)
    rows = rows_of(split.train)
    valid = rows_of(split.valid)
    test = rows_of(split.test)
    found = {part: torch.zeros(len(getattr(split, part).x), y.shape[1]) for part in ("valid", "test")}
    for t in range(y.shape[1]):
        known = ~np.isnan(y[:, t])
        known_valid = ~np.isnan(y_valid[:, t])
        if len(np.unique(y[known, t])) < 2 or len(np.unique(y_valid[known_valid, t])) < 2:
            continue
        predict = FITTERS[library](
            split, setting, y[known, t], y_valid[known_valid, t], rows[known], valid[known_valid], seed
        )
        found["valid"][:, t] = torch.from_numpy(np.asarray(predict(valid), dtype="float32"))
        found["test"][:, t] = torch.from_numpy(np.asarray(predict(test), dtype="float32"))
    if split.metric == "concordance":
        found = {part: scores[:, 0] for part, scores in found.items()}
    return {"valid": score(split, found["valid"], "valid"), "test": score(split, found["test"])}


def version_of(library: str) -> str:
    """The version of an installed library."""
    return f"{library} {version(library)}"
