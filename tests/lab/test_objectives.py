"""One objective by one method: every objective that a table can be for, stages, and which weights are kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from fcco.lab.config import TrainConfig
from fcco.lab.evaluate import ranking
from fcco.lab.parts import build
from fcco.lab.texts import OBJECTIVES
from fcco.lab.train import train
from fcco.lab.weights import load_model

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = TrainConfig(
    method="sox", hidden=(16,), samples=16, blocks=8, steps=40, eval_every=20, lr=0.02, optimizer="adam",
    tensorboard=False,
)  # fmt: skip


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table with a column for every role."""
    random = np.random.default_rng(0)
    rows = 200
    frame = pd.DataFrame({"a": random.normal(size=rows), "b": random.choice(["x", "y"], rows)})
    risk = 2.0 * frame["a"] + (frame["b"] == "x") + 0.3 * random.normal(size=rows)
    frame["label"] = (risk > 1.0).astype(int)
    frame["relevance"] = np.clip(np.round(risk), 0, 3).astype(int)
    frame["list"] = np.arange(rows) // 10
    frame["time"] = random.exponential(np.exp(-risk))
    frame["event"] = (random.random(rows) < 0.8).astype(int)
    frame["site"] = random.choice(["north", "south"], rows)
    path = tmp_path_factory.mktemp("table") / "mine.csv"
    frame.to_csv(path, index=False)
    return str(path)


ROLES = ("label", "relevance", "list", "time", "event", "site")
FLAGS: dict[str, dict[str, Any]] = {
    "--target": {"target": ("label",)},
    "--target --query": {"target": ("relevance",), "query": "list"},
    "--time --event": {"time": "time", "event": "event"},
    "--target --group": {"target": ("label",), "group": "site"},
}


def on(table: str, objective: str) -> TrainConfig:
    """A run of an objective with the columns that it needs."""
    flags = FLAGS[OBJECTIVES[objective].flags or ""]
    used = {*flags.get("target", ()), *(value for name, value in flags.items() if name != "target")}
    drop = tuple(name for name in ROLES if name not in used)
    config = replace(SMALL, dataset=table, objective=objective, drop=drop, **flags)
    if objective in ("MultiTaskAUC", "GroupDRO"):
        config = replace(config, blocks=None)
    return config


@pytest.mark.parametrize("objective", sorted(name for name, text in OBJECTIVES.items() if text.flags is not None))
def test_every_objective_of_a_table_is_trained(objective: str, table: str, tmp_path: Path) -> None:
    outcome = train(on(table, objective), tmp_path / "run")
    first, last = outcome.rows[0], outcome.rows[-1]
    assert last["objective"] < first["objective"]
    if objective == "NCA":
        assert last["auroc"] is None  # embeddings rank nothing
    elif OBJECTIVES[objective].flags == "--target":
        assert last["auroc"] > 0.8
    else:
        assert last["metric"] > 0.6
    model = load_model(tmp_path / "run")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_other_methods_train_other_objectives(table: str, tmp_path: Path) -> None:
    for method in ("msvr-v2", "output-memory"):
        config = replace(on(table, "PartialAUC"), method=method, validation=0.2)
        last = train(config, tmp_path / method).rows[-1]
        assert last["auroc"] > 0.8
        assert last["validation_auroc"] > 0.8
        assert last["validation_auroc"] != last["auroc"]


def test_the_ap_of_one_label_is_that_of_its_positives() -> None:
    random = np.random.default_rng(0)
    labels = (random.random(200) < 0.1).astype(float)
    scores = random.normal(size=200) + labels
    found = ranking(torch.tensor(scores).unsqueeze(1), torch.tensor(labels, dtype=torch.float32).unsqueeze(1))
    assert found.ap == pytest.approx(average_precision_score(labels, scores), abs=1e-6)
    assert found.auroc == pytest.approx(roc_auc_score(labels, scores), abs=1e-6)


def test_stages_set_the_rates(table: str, tmp_path: Path) -> None:
    stages = tmp_path / "stages.toml"
    stages.write_text(
        "[[stage]]\nsteps = 10\nlr = 0.1\nalpha = 0.5\nbeta = 0.5\n"
        "[[stage]]\nsteps = 5\nlr = 0.01\nalpha = 0.25\nbeta = 0.125\n"
    )
    config = replace(on(table, "MultiTaskAUC"), method="msvr-v2", steps=None, stages=stages, optimizer="sgd")
    rows = train(config, tmp_path / "run").rows
    assert rows[-1]["step"] == 15
    parts = build(config)
    assert parts.stages is not None
    batches = iter(parts.loader)
    for _ in range(11):
        parts.stages.step(next(batches, None) or next(batches := iter(parts.loader)))
    assert parts.solver.optimizer.param_groups[0]["lr"] == 0.01
    assert parts.solver.method.estimator.alpha == 0.25  # type: ignore[attr-defined]


def test_which_weights_are_kept(table: str, tmp_path: Path) -> None:
    config = on(table, "MultiTaskAUC")
    train(config, tmp_path / "last")
    train(replace(config, keep="uniform", seed=config.seed), tmp_path / "uniform")
    last = load_model(tmp_path / "last").state_dict()
    uniform = load_model(tmp_path / "uniform").state_dict()
    assert any(not torch.equal(last[name], uniform[name]) for name in last)


def test_amsgrad_reaches_the_optimizer(table: str) -> None:
    config = replace(on(table, "MultiTaskAUC"), amsgrad=True)
    assert build(config).solver.optimizer.param_groups[0]["amsgrad"] is True
    adaptive = build(replace(config, optimizer="adaptive", lr=0.01)).solver.optimizer
    assert adaptive.param_groups[0]["amsgrad"] is True


def test_two_classes_of_images_are_one_task(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(80, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    np.savez(tmp_path / "two.npz", x_train=x[:60], y_train=y[:60], x_test=x[60:], y_test=y[60:])
    parts = build(replace(SMALL, dataset=str(tmp_path / "two.npz"), blocks=None))
    assert parts.data.num_classes == 1
    assert parts.solver.objective.num_blocks == 1
    assert json.dumps(parts.data.outputs) == '["1"]'
