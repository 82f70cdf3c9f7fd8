"""What a fit returns: predictions, probabilities, files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.isotonic import IsotonicRegression
from torch import Tensor, nn

import fcco
from fcco.fitting import FitResult, Recipe, Setting, load_result
from fcco.fitting._calibration import Calibration, calibrated

PLAIN = (Setting("plain", 1e-2, 0.1), Setting("plain", 3e-3, 1.0))
QUICK = Recipe(epochs=6, least_examples=1, checks=4, plain=PLAIN)
TINY = Recipe(epochs=1, least_examples=1, checks=2, plain=PLAIN)


def net(outputs: int = 1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, outputs))


def rare(size: int = 800, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 6, generator=generator)
    return x, (x[:, 0] + 0.5 * torch.randn(size, generator=generator) > 0.8).long()


@pytest.fixture(scope="module")
def result() -> FitResult:
    return fcco.fit(net(), rare(), "average_precision", recipe=QUICK, progress=False)


@pytest.mark.parametrize("method", ["isotonic", "platt"])
def test_probabilities_are_calibrated_and_keep_the_order(result: FitResult, method: str) -> None:
    x, y = rare(4000, seed=1)
    result.calibrate(method)
    probability = result.predict_proba(x)
    assert probability.shape == (4000,)
    assert float(probability.mean()) == pytest.approx(float(y.double().mean()), abs=0.05)
    # In the upper and the lower half of the predictions, too.
    high = probability > 0.5
    assert float(probability[high].mean()) == pytest.approx(float(y[high].double().mean()), abs=0.12)
    order = result.predict(x).argsort()
    assert bool((probability[order].diff() >= -1e-12).all())


def test_isotonic_equals_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(200, generator=generator)
    y = (scores + torch.randn(200, generator=generator) > 0).long()
    data = fcco.data.Points(torch.zeros(200, 1), y)
    found = calibrated(scores, data, "isotonic")
    regression = IsotonicRegression(out_of_bounds="clip").fit(scores.double().numpy(), y.numpy())
    new = torch.linspace(-4, 4, 101)
    np.testing.assert_allclose(found(new).numpy(), regression.predict(new.double().numpy()), atol=1e-12)
    again = Calibration.from_description(json.loads(json.dumps(found.describe())))
    assert torch.equal(again(new), found(new))


def test_class_probabilities_add_up_to_one() -> None:
    x, _ = rare()
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5)
    found = fcco.fit(net(3), (x, y), "roc_auc", recipe=QUICK, progress=False).calibrate().predict_proba(x)
    assert torch.allclose(found.sum(1), torch.ones(len(x)).double())


def test_probabilities_need_calibration() -> None:
    fresh = fcco.fit(net(), rare(200), recipe=TINY, progress=False)
    with pytest.raises(RuntimeError, match="calibrate"):
        fresh.predict_proba(rare(5)[0])
    with pytest.raises(ValueError, match="isotonic"):
        fresh.calibrate("sigmoid")  # type: ignore[arg-type]


def test_saved_results_predict_the_same(result: FitResult, tmp_path: Path) -> None:
    x, _ = rare(50, seed=2)
    result.calibrate("platt")
    result.save(tmp_path / "run", columns=["a", "b"])
    loaded = load_result(tmp_path / "run", net())
    assert torch.equal(loaded.predict(x), result.predict(x))
    assert torch.equal(loaded.predict_proba(x), result.predict_proba(x))
    assert loaded.trials == result.trials
    assert loaded.value == result.value
    assert json.loads((tmp_path / "run" / "fit.json").read_text())["columns"] == ["a", "b"]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["fit.json", "model.safetensors"]


def test_a_loaded_result_reads_labels_as_the_training_labels(tmp_path: Path) -> None:
    x, _ = rare(300)
    y = 1 + x[:, :3].argmax(1)  # classes 1, 2, 3
    first = fcco.fit(net(3), (x, y), "roc_auc", recipe=TINY, progress=False)
    first.save(tmp_path)
    second = load_result(tmp_path, net(3))
    two = y != 2  # by itself these would be one label of two values
    assert second.evaluate((x[two], y[two])) == first.evaluate((x[two], y[two]))


def test_a_loaded_result_without_validation_has_a_summary(tmp_path: Path) -> None:
    result = fcco.fit(net(), rare(300), validation=None, recipe=TINY, progress=False)
    result.save(tmp_path)
    assert result.chosen in load_result(tmp_path, net()).summary()


def test_platt_does_not_depend_on_the_unit_of_small_weights() -> None:
    scores = torch.linspace(-4.0, 4.0, 400)
    y = torch.rand(400, generator=torch.Generator().manual_seed(0)) < torch.sigmoid(scores)
    curves = []
    for unit in (1.0, 1.0 / 400):  # scikit-learn's own boosting hands over weights that add up to 1
        data = fcco.data.Points(torch.zeros(400, 1), y, weight=torch.full((400,), unit))
        curves.append(calibrated(scores, data, "platt")(scores))
    assert torch.allclose(curves[0], curves[1], atol=1e-9)
    assert float(curves[0][-1]) > 0.95


def test_summary_names_every_trial_and_the_choice(result: FitResult) -> None:
    text = result.summary()
    for row in result.trials:
        assert row["trial"] in text
    assert "<- chosen" in text
    assert result.chosen in text
    assert ("why: no single trial" in text) == result.chosen.startswith("average")


def test_export_without_fcco(result: FitResult, tmp_path: Path) -> None:
    x, _ = rare(5, seed=3)
    result.export(tmp_path / "net.pt2", x)
    program = torch.export.load(tmp_path / "net.pt2").module()
    assert torch.allclose(program(x).squeeze(1), result.predict(x))
    assert torch.allclose(program(x[:3]).squeeze(1), result.predict(x[:3]))
    with pytest.raises(ValueError, match=r"\.onnx or \.pt2"):
        result.export(tmp_path / "net.bin", x)


def test_export_to_onnx(result: FitResult, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    onnx = pytest.importorskip("onnx")
    x, _ = rare(5, seed=3)
    result.export(tmp_path / "net.onnx", x)
    reference = pytest.importorskip("onnx.reference")
    session = reference.ReferenceEvaluator(onnx.load(tmp_path / "net.onnx"))
    outputs = session.run(None, {session.input_names[0]: x.numpy()})[0]
    np.testing.assert_allclose(outputs[:, 0], result.predict(x).numpy(), atol=1e-5)
