"""What a first user hands to fcco.fit and its result: one sentence, before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fcco
from fcco.fitting import FitResult, Recipe, Setting

TINY = Recipe(epochs=1, least_examples=1, checks=2, plain=(Setting("plain", 1e-2, 0.1),))


def net(outputs: int = 1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, outputs))


def rare(size: int = 60) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, 6, generator=generator)
    return x, (x[:, 0] > 0.8).long()


def fit(model: nn.Module, data: Any, metric: str = "roc_auc", **options: Any) -> FitResult:
    return fcco.fit(model, data, metric, recipe=TINY, progress=False, **options)


class Named(nn.Module):
    """Takes its inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 1)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.layer(first + second)


@pytest.fixture(scope="module")
def result() -> FitResult:
    return fit(net(), rare(200))


x, y = rare()
QUERY = torch.arange(60) // 6
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "whole numbers": (lambda: fit(net(), ((10 * x).long(), y)), r"first examples of data \(int64 \(2, 6\)\).*x\.float"),
    "too wide": (lambda: fit(net(), (x[:, :3], y)), r"first examples of data \(float32 \(2, 3\)\)"),
    "validation too wide": (lambda: fit(net(), (x, y), validation=(x[:, :3], y)), "first examples of validation"),
    "validation a flag": (lambda: fit(net(), (x, y), validation=True), "validation must be a share in .*, got True"),
    "two rows": (lambda: fit(net(), (x[:2], [0, 1])), "validation=0.2 cannot be set aside of 2 examples"),
    "one query": (lambda: fit(net(), (x, y), "ndcg"), "set aside of 60 examples in 1 query"),
    "frozen": (lambda: fit(net().requires_grad_(False), (x, y)), "parameters that require a gradient, got none"),
    "half": (lambda: fit(net().half(), (x, y)), "must not have float16 parameters"),
    "precision": (lambda: fit(net(), (x, y), precision="fp16"), "precision must be .*, got 'fp16'"),
    "device": (lambda: fit(net(), (x, y), device="gpu"), "device must be .*, got 'gpu'"),
    "batch of one": (lambda: fit(net(), (x, y), batch_size=1), "batch_size must be at least 2"),
    "seed": (lambda: fit(net(), (x, y), seed=2**70), "seed must fit into 64 bits"),
    "one callback": (lambda: fit(net(), (x, y), callbacks=print), "callbacks must be a list"),
    "no callback": (lambda: fit(net(), (x, y), callbacks=[3]), "callbacks must be functions.*, got 3"),
    "no folder": (lambda: fit(net(), (x, y), checkpoint="/nowhere/fit.pt"), "checkpoint must lie in a folder"),
    "backbone's name": (lambda: fit(net(), (x, y), backbone="0"), "backbone must be a part of model.*, got '0'"),
    "loader": (lambda: fit(net(), DataLoader(TensorDataset(x, y))), r"got DataLoader: give \(loader\.dataset, y\)"),
    "data set": (lambda: fit(net(), TensorDataset(x, y)), r"got TensorDataset: give \(dataset, y\)"),
    "words": (lambda: fit(net(), (x, ["a", "b"] * 30)), r"fcco\.data\.Points\(x, y, positive='b'\)"),
    "sparse": (lambda: fit(net(), (x.to_sparse(), y)), "x must be dense"),
    "relevance": (lambda: fit(net(), (x, QUERY, y - 1), "ndcg"), "relevance must be at least 0 .*, got -1 in row"),
    "no event": (lambda: fit(net(), (x, x[:, 0].exp(), y * 0), "concordance"), "event must be 1 for some subject"),
    "class 3 of 3": (lambda: fit(net(3), (x, QUERY % 3 + 1, y), "worst_group"), r"y must be 0 \.\.\. 2 for a model"),
    "3 classes, 1 score": (lambda: fit(net(), (x, QUERY % 3, y), "worst_group"), r"y must be 0 \.\.\. 1 for a model"),
    "class numbers": (lambda: fit(net(3), (x, torch.tensor([0, 7, 10**10]).repeat(20))), "number them 0, 1,"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_one_sentence(case: str) -> None:
    call, words = REFUSED[case]
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_seed_of_numpy_is_a_seed() -> None:
    assert fit(net(), (x, y), seed=np.int64(3)).value == fit(net(), (x, y), seed=3).value


def test_hashes_are_queries_and_groups() -> None:
    relevance = torch.arange(60) % 3
    hashed = fit(net(), (x, QUERY * 10**11, relevance), "ndcg")
    assert hashed.value == fit(net(), (x, QUERY, relevance), "ndcg").value
    assert fcco.data.Groups(x, y, (QUERY % 2) * 10**12).group_names == (0, 10**12)


# ------------------------------------------------------------------ the result


def test_scores_of_what_is_not_finite_are_refused(result: FitResult) -> None:
    broken = x[:4].clone()
    broken[2, 1] = float("nan")
    with pytest.raises(ValueError, match="x must be finite, got nan in row 2, column 1"):
        result.predict(broken)


def test_one_row_without_its_dimension_is_refused(result: FitResult) -> None:
    with pytest.raises(ValueError, match=r"a row per example, 6 of them, got shape \(1,\)"):
        result.predict(x[0])


@pytest.mark.parametrize("labels", [torch.stack([y, 1 - y], 1), torch.arange(60) % 3], ids=["two labels", "3 classes"])
def test_labels_of_another_kind_are_not_evaluated(result: FitResult, labels: Tensor) -> None:
    with pytest.raises(ValueError, match="one score per example and label"):
        result.evaluate((x, labels))


def test_nothing_is_calibrated_on_one_class(result: FitResult) -> None:
    with pytest.raises(ValueError, match="positives and negatives of some label to calibrate on"):
        result.calibrate("platt", data=(x, y * 0))
    assert result.calibration is None


def test_a_fit_without_validation_has_no_values_in_its_summary() -> None:
    summary = fit(net(), (x, y), validation=None).summary()
    assert "without a validation part" in summary
    assert "inf" not in summary.splitlines()[-2]


@pytest.mark.parametrize("given", ["one row", "float64", "by name"])
def test_exports_take_the_examples_that_predict_takes(result: FitResult, given: str, tmp_path: Path) -> None:
    example: Any = x[:1]
    inputs: dict[str, Tensor] = {}
    if given == "float64":
        example = x.numpy().astype(np.float64)
    elif given == "by name":
        inputs = {"first": x, "second": x}
        example = {name: value[:3] for name, value in inputs.items()}
        result = fit(Named(), (inputs, y))
    result.export(tmp_path / "net.pt2", example)
    program = torch.export.load(tmp_path / "net.pt2").module()
    if inputs:
        found = program(**inputs)
        expected = result.predict(inputs)
    else:
        found = program(x)
        expected = result.predict(x)
    assert torch.allclose(found.squeeze(1), expected)
