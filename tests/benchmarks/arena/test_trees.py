"""benchmarks/arena/trees.py and survival.py, where their libraries are installed."""

from __future__ import annotations

import pytest
import torch

from benchmarks.arena import survival, trees
from benchmarks.arena.problems import Problem, Split, make_split
from benchmarks.arena.tables import Whole

pytestmark = pytest.mark.usefixtures("one_thread")


def small(metric: str) -> Split:
    x = torch.randn(500, 5)
    signal = x[:, 0] - x[:, 1]
    query = None
    if metric == "ndcg":
        y = (signal > 0).float() + (signal > 1).float()
        query = torch.arange(500) // 10
    elif metric == "concordance":
        time = torch.exp(-signal) * torch.empty(500).exponential_()
        y = torch.stack([time, (torch.rand(500) < 0.7).float()], 1)
    else:
        y = torch.stack([(signal > 1).float(), (x[:, 2] > 0.5).float()], 1)
        y[:40, 1] = float("nan")
    return make_split("p", Problem("t", metric), Whole(x, y, query), seed=0)


@pytest.mark.filterwarnings("ignore")  # the libraries' own
@pytest.mark.parametrize("metric", ["average_precision", "roc_auc", "ndcg", "concordance"])
@pytest.mark.parametrize("library", ["lightgbm", "xgboost", "catboost"])
def test_trees_learn(library: str, metric: str) -> None:
    pytest.importorskip(library)
    offered = {
        "lightgbm": trees.lightgbm_settings,
        "xgboost": trees.xgboost_settings,
        "catboost": trees.catboost_settings,
    }
    settings = offered[library](Problem("t", metric))
    if not settings:
        assert (library, metric) == ("lightgbm", "concordance")
        return
    row = trees.run(library, small(metric), settings[0], 0)
    assert row["test"] > 0.65


@pytest.mark.filterwarnings("ignore")
def test_the_linear_cox_model_learns() -> None:
    pytest.importorskip("lifelines")
    row = survival.run_lifelines(small("concordance"), {"penalizer": 0.01}, 0)
    assert row["test"] > 0.7


@pytest.mark.filterwarnings("ignore")
def test_torchsurv_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchsurv")
    monkeypatch.setattr(survival, "run_length", lambda split: 6000)
    row = survival.run_torchsurv(small("concordance"), {"lr": 1e-3, "decay": 0.0}, 0)
    assert row["test"] > 0.7


def test_others_are_for_survival_alone() -> None:
    for settings in (survival.lifelines_settings, survival.torchsurv_settings):
        assert settings(Problem("t", "roc_auc")) == []
        assert settings(Problem("t", "concordance"))
