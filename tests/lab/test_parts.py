"""What a configuration is built into: precision, optimizers, captured steps, a method of one's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fcco
from fcco.lab import parts
from fcco.lab.config import TrainConfig
from fcco.lab.parts import build
from fcco.lab.train import train
from fcco.lab.weights import load_model

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = TrainConfig(dataset="digits", hidden=(8,), blocks=5, samples=16, steps=3, device="cpu", tensorboard=False)


def test_double_precision_reaches_everything(tmp_path: Path) -> None:
    config = replace(SMALL, precision="fp64")
    outcome = train(config, tmp_path / "run")
    built = build(config)
    report = built.solver.step(next(iter(built.loader)))
    assert {p.dtype for p in built.solver.parameters} == {torch.float64}
    assert report.u is not None
    assert report.u.dtype == torch.float64
    single = train(SMALL, tmp_path / "single").rows[-1]["objective"]
    assert outcome.rows[-1]["objective"] == pytest.approx(single, rel=1e-3)
    model = load_model(outcome.path)
    assert model(built.x_test[:2]).dtype == torch.float64


def test_nadam_takes_the_weight_decay() -> None:
    optimizer = build(replace(SMALL, optimizer="nadam", weight_decay=0.1, lr=0.01)).solver.optimizer
    assert isinstance(optimizer, torch.optim.NAdam)
    assert optimizer.param_groups[0]["weight_decay"] == 0.1
    assert optimizer.param_groups[0]["lr"] == 0.01


def test_a_method_of_ones_own_takes_the_place_of_the_named_one() -> None:
    method = fcco.sox(alpha=0.25, beta=0.75)
    assert build(SMALL, method).solver.method == method
    assert build(SMALL).solver.method.name == "msvr-v2"


@pytest.mark.parametrize(("device", "wanted", "expected"), [
    ("cuda", True, "auto"),
    ("cuda", False, False),
    ("cpu", True, False),
])  # fmt: skip
def test_steps_are_captured_on_cuda(device: str, wanted: bool, expected: str | bool) -> None:
    assert parts._capture(replace(SMALL, capture=wanted), torch.device(device)) == expected
