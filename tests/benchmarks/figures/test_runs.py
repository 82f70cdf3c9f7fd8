"""One run: its key, its curve (the lab's own numbers), baselines, and the closed form of the linear optimum."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.figures import runs as runs_module
from benchmarks.figures.runs import Run, carry_out, linear_optimum, macro_auroc, marks
from benchmarks.figures.studies import Study
from benchmarks.figures.timing import measure, read_times, with_alone_seconds
from fcco.lab.config import TrainConfig
from fcco.lab.datasets import Dataset
from fcco.lab.evaluate import ranking
from fcco.lab.train import train

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = TrainConfig(
    dataset="digits", model="mlp", hidden=(16,), method="sox", lr=0.1, alpha=0.5, beta=0.5, blocks=5, samples=16,
    steps=40, eval_every=10, tensorboard=False,
)  # fmt: skip


def test_the_key_is_of_what_changes_the_numbers() -> None:
    run = Run(SMALL)
    assert run.key == Run(replace(SMALL, device="cuda", capture=False, threads=3)).key
    others = [replace(SMALL, seed=1), replace(SMALL, lr=0.2), replace(SMALL, steps=41)]
    keys = {
        run.key,
        *(Run(config).key for config in others),
        Run(replace(SMALL, zeta=0.1)).key,
        Run(SMALL, points=3).key,
    }
    assert len(keys) == 6


@pytest.mark.parametrize("method", ["msvr-v2", "msvr-v3"])
def test_the_curve_is_that_of_the_lab(method: str, tmp_path: Path) -> None:
    config = replace(SMALL, method=method, threads=1, device="cpu")
    if method == "msvr-v3":
        config = replace(config, period=20)
    theirs = train(config, tmp_path / "run").rows
    row = carry_out(Run(config, points=4), "cpu")
    curve = row["curve"]
    assert row["status"] == "finished"
    by_step = {line["step"]: line for line in theirs}
    assert curve["step"][0] == 0
    assert curve["step"][-1] == 40
    for number, step in enumerate(curve["step"]):
        line = by_step[step]
        assert curve["f"][number] == pytest.approx(line["objective"], rel=1e-5)
        assert curve["samples"][number] == line["samples"]
        assert curve["oracle"][number] == line["oracle_g"] + line["oracle_j"]
        assert curve["network"][number] == line["evaluations"]
    passes = 2 if method == "msvr-v3" else 0
    assert curve["charged_n"][-1] == 40 * 80 + passes * 1442
    assert row["auroc"] == pytest.approx(theirs[-1]["auroc"])
    assert row["environment"]["fcco"]


def test_a_run_that_diverges_has_a_row(tmp_path: Path) -> None:
    row = carry_out(Run(replace(SMALL, lr=1e9), points=4), "cpu")
    assert row["status"] == "diverged"
    assert row["message"]
    assert row["f"] is None


def test_whole_data_are_evaluated_at_the_end_where_asked() -> None:
    part = replace(SMALL, eval_examples=500)
    assert carry_out(Run(part, points=1), "cpu")["f_whole"] is None
    row = carry_out(Run(part, points=1, whole=True), "cpu")
    whole = carry_out(Run(SMALL, points=1), "cpu")
    assert row["f_whole"] == pytest.approx(whole["f"], rel=1e-5)
    assert row["f_eval"] == pytest.approx(row["f"], rel=1e-5)  # there is no BatchNorm
    assert row["f"] != whole["f"]


def test_every_method_starts_at_the_same_warmed_up_weights() -> None:
    rows = [
        carry_out(Run(replace(SMALL, method=method, lr=0.001, steps=2), points=2, warm_up=30), "cpu")
        for method in ("sox", "msvr-v2")
    ]
    assert rows[0]["curve"]["f"][0] == rows[1]["curve"]["f"][0]
    cold = carry_out(Run(replace(SMALL, lr=0.001, steps=2), points=2), "cpu")
    assert rows[0]["curve"]["f"][0] < 0.8 * cold["curve"]["f"][0]


def test_a_warm_up_is_made_once_per_seed() -> None:
    runs_module._after_steps.cache_clear()
    for method, seed in (("sox", 0), ("msvr-v2", 0), ("msvr-v1", 1)):
        config = replace(SMALL, method=method, lr=0.001, steps=2, seed=seed)
        carry_out(Run(config, points=1, warm_up=3), "cpu")
    assert runs_module._after_steps.cache_info().misses == 2


def test_a_cpu_is_timed_by_what_the_process_had() -> None:
    assert runs_module.clock(torch.device("cpu")) is time.process_time
    assert runs_module.clock(torch.device("cuda")) is time.perf_counter


def test_cross_entropy_learns() -> None:
    row = carry_out(Run(replace(SMALL, alpha=0.1), points=4, trainer="cross-entropy"), "cpu")
    f = row["curve"]["f"]
    assert row["status"] == "finished"
    assert f[-1] < 0.5 * f[0]
    assert row["auroc"] > 0.9
    assert row["curve"]["samples"][-1] == 40 * 80


def test_a_scaled_correction_lies_between_momentum_and_storm() -> None:
    def curve(config: TrainConfig) -> list[float]:
        found: list[float] = carry_out(Run(config, points=4), "cpu")["curve"]["f"]
        return found

    v2 = replace(SMALL, method="msvr-v2")
    assert curve(replace(v2, zeta=1.0)) == curve(v2)
    assert curve(replace(v2, zeta=0.0)) == curve(replace(SMALL, method="msvr-v1"))
    assert curve(replace(v2, zeta=0.5)) not in (curve(v2), curve(replace(SMALL, method="msvr-v1")))


def test_macro_auroc_is_that_of_the_lab() -> None:
    y = torch.randint(0, 5, (300,))
    h = torch.randn(300, 5).round(decimals=1)  # with ties
    assert macro_auroc(h, y) == pytest.approx(ranking(h, y).auroc, abs=1e-6)


def test_the_linear_optimum_is_what_a_minimiser_finds() -> None:
    torch.manual_seed(0)
    y = torch.arange(90) % 3
    x = torch.randn(90, 4) + torch.randn(3, 4)[y]
    data = Dataset("own", x, y, x, y, 3, "embedded")
    found = linear_optimum(SimpleNamespace(data=data, config=SimpleNamespace(margin=1.0)))
    w = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([w], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-16)

    def f() -> torch.Tensor:
        values = []
        for k in range(3):
            h = x.double() @ w[k]
            positive, negative = h[y == k], h[y != k]
            gap = (1.0 + negative.mean() - positive.mean()).clamp(min=0)
            values.append(positive.var(correction=0) + negative.var(correction=0) + 0.5 * gap.square())
        return torch.stack(values).mean()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = f()
        value.backward()
        return value

    optimizer.step(closure)
    assert found == pytest.approx(float(f().detach()), rel=1e-8)


def test_evaluations_are_spread_and_stand_around_full_passes() -> None:
    assert marks(100, 4, None) == [25, 50, 75, 100]
    assert marks(100, 1, None) == [100]
    assert marks(3, 12, None) == [1, 2, 3]
    assert marks(100, 8, 60) == [1, 12, 25, 38, 50, 60, 61, 62, 75, 88, 100]
    assert marks(100, 4, 10) == [25, 50, 75, 100]  # too many passes


def test_seconds_alone_go_by_the_steps_and_full_passes(tmp_path: Path) -> None:
    study = Study(
        "figure1/digits/v3", Run(replace(SMALL, method="msvr-v3", period=20), points=4), (0,), ((("lr", 0.1),),)
    )
    times = measure([study], "cpu", tmp_path)
    assert read_times(tmp_path) == times
    assert measure([study], "none", tmp_path) == times  # what is timed is not timed again
    row = carry_out(study.base, "cpu")
    found = next(iter(times.values()))
    seconds = with_alone_seconds({"a": row}, times)["a"]["curve"]["alone"]
    assert seconds[0] == 0.0
    assert seconds[-1] == pytest.approx(40 * found["step"] + 2 * found["pass"])
    assert found["step"] > 0
    other = carry_out(Run(SMALL, points=1), "cpu")
    assert "alone" not in with_alone_seconds({"a": other}, times)["a"]["curve"]
