"""What a first user hands to fcco.fit and its result: one sentence, before anything is trained."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fcco
from fcco.fitting import FitResult, Goal, Recipe, Setting

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
    "two rows": (lambda: fit(net(), (x[:2], [0, 1])), "validation=0.2 cannot be split off from 2 examples"),
    "one query": (lambda: fit(net(), (x, y), "ndcg"), "split off from 60 examples in 1 query"),
    "frozen": (lambda: fit(net().requires_grad_(False), (x, y)), "parameters that require a gradient, got none"),
    "half": (lambda: fit(net().half(), (x, y)), "must not have float16 parameters"),
    "precision": (lambda: fit(net(), (x, y), precision="fp16"), "precision must be .*, got 'fp16'"),
    "device": (lambda: fit(net(), (x, y), device="gpu"), "device must be .*, got 'gpu'"),
    "batch of one": (lambda: fit(net(), (x, y), batch_size=1), "batch_size must be at least 2"),
    "seed": (lambda: fit(net(), (x, y), seed=2**70), "seed must fit into 64 bits"),
    "one callback": (lambda: fit(net(), (x, y), callbacks=print), "callbacks must be a list"),
    "no callback": (lambda: fit(net(), (x, y), callbacks=[3]), "callbacks must be functions.*, got 3"),
    "no folder": (lambda: fit(net(), (x, y), checkpoint="/nowhere/fit.pt"), "checkpoint must be in an existing folder"),
    "backbone's name": (lambda: fit(net(), (x, y), backbone="0"), "backbone must be a part of model.*, got '0'"),
    "loader": (lambda: fit(net(), DataLoader(TensorDataset(x, y))), r"got DataLoader: give \(loader\.dataset, y\)"),
    "data set": (lambda: fit(net(), TensorDataset(x, y)), r"got TensorDataset: give \(dataset, y\)"),
    "words": (lambda: fit(net(), (x, ["a", "b"] * 30)), r"fcco\.data\.Points\(x, y, positive='b'\)"),
    "sparse": (lambda: fit(net(), (x.to_sparse(), y)), "x must be dense"),
    "relevance": (lambda: fit(net(), (x, QUERY, y - 1), "ndcg"), "relevance must be at least 0 .*, got -1 in row"),
    "no event": (
        lambda: fit(net(), (x, x[:, 0].exp(), y * 0), "concordance"),
        "event must be 1 for at least one subject",
    ),
    "class 3 of 3": (lambda: fit(net(3), (x, QUERY % 3 + 1, y), "worst_group"), r"y must be 0 \.\.\. 2 for a model"),
    "3 classes, 1 score": (lambda: fit(net(), (x, QUERY % 3, y), "worst_group"), r"y must be 0 \.\.\. 1 for a model"),
    "one class": (lambda: fit(net(), (x, y * 0)), "y must have positives and negatives, got 0 alone in 60 rows"),
    "one class each": (lambda: fit(net(2), (x, torch.stack([y * 0, y * 0 + 1], 1))), "none of 2 labels has both"),
    "no label": (lambda: fit(net(), (x, y * torch.nan)), "got missing values alone in 60 rows"),
    "-1 is no label": (lambda: fit(net(), (x, torch.where(QUERY == 0, -1, y))), r"the 3 classes -1, 0, 1 \(a missing"),
    "a short name": (lambda: fit(net(), (x, y), "ap"), "got 'ap': did you mean 'average_precision'"),
    "capitals": (lambda: fit(net(), (x, y), "AUROC"), "got 'AUROC': did you mean 'roc_auc'"),
    "a slip": (lambda: fit(net(), (x, y), "averge precison"), "did you mean 'average_precision'"),
    "with its k": (lambda: fit(net(), (x, y), "NDCG@10"), "got 'NDCG@10': did you mean 'ndcg'"),
    "no metric": (lambda: fit(net(), (x, y), "f1"), "concordance, worst_group, got 'f1'$"),
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


@pytest.mark.parametrize(("metric", "data", "why"), [
    ("roc_auc", (x, y * 0), "no label has both positives and negatives"),
    ("ndcg", (x, QUERY, y * 0), "no query has a relevant item"),
    ("concordance", (x, y * 0 + 1, y * 0 + 1), "no two subjects can be compared"),
])  # fmt: skip
def test_a_metric_that_is_not_defined_is_told(result: FitResult, metric: str, data: Any, why: str) -> None:
    other = replace(result, goal=Goal(metric))
    with pytest.warns(UserWarning, match=f"is not defined, and NaN: {why}"):
        value, _ = other.evaluate(data)
    assert np.isnan(value)


def test_a_result_is_shown_in_a_line_or_two(result: FitResult) -> None:
    assert len(repr(result)) < 300
    assert repr(result).startswith("FitResult(metric='roc_auc', value=")


@pytest.mark.parametrize("name", ["MLflow", "WandB"])
def test_loggers_that_are_not_installed_say_how(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name.lower(), None)
    with pytest.raises(ImportError, match=rf"fcco\.fitting\.{name} needs .*: pip install 'fcco\[{name.lower()}\]'"):
        getattr(fcco.fitting, name)()


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
    with pytest.raises(ValueError, match="positives and negatives of at least one label to calibrate on"):
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


@pytest.mark.parametrize(
    ("names", "classes"),
    [(np.array(["cat", "dog", "owl"]), None), (np.arange(3), ()), (np.array([1.0, 2.0, 3.0]), (1, 2, 3))],
    ids=["words", "from 0", "from 1"],
)
def test_classes_of_groups_that_validation_lacks_stay_in_their_places(names: Any, classes: Any) -> None:
    """By its own values alone the validation part would have its third class numbered 1."""
    number = torch.arange(60) % 3
    group = torch.arange(60) // 3 % 2
    valid = torch.tensor([0, 2] * 10)
    train = fcco.data.Groups(x, names[number.numpy()], group, classes=classes)
    held = (x[:20], names[valid.numpy()], group[:20])
    result = fit(net(3), train, "worst_group", validation=held)
    assert result.validation is not None
    assert result.validation.labels_at(torch.arange(20)).tolist() == valid.tolist()
    assert result.evaluate(held)[0] == pytest.approx(result.value)


def test_groups_with_other_classes_are_refused() -> None:
    train = fcco.data.Groups(x, ["cat", "dog", "owl"] * 20, QUERY % 2)
    valid = fcco.data.Groups(x[:20], ["cat", "owl"] * 10, QUERY[:20] % 2)
    with pytest.raises(
        ValueError, match="classes must equal those of the training data, in the same order, cat, dog, owl"
    ):
        fit(net(3), train, "worst_group", validation=valid)


def test_numbers_of_groups_stay_as_they_are_in_validation() -> None:
    number = torch.arange(60) % 3
    group = torch.arange(60) // 3 % 2
    valid = torch.tensor([0, 2] * 10)
    result = fit(net(3), (x, number, group), "worst_group", validation=(x[:20], valid, group[:20]))
    assert result.validation is not None
    assert result.validation.labels_at(torch.arange(20)).tolist() == valid.tolist()


def test_two_values_of_groups_are_read_alike_where_one_is_missing() -> None:
    sign = torch.where(y > 0, 3.0, -3.0)
    group = torch.arange(60) % 2
    few = (sign > 0).nonzero()[:, 0][:8]
    result = fit(net(), (x, sign, group), "worst_group", validation=(x[few], sign[few], group[few]))
    assert result.validation is not None
    assert result.validation.labels_at(torch.arange(8)).tolist() == [1.0] * 8
    with pytest.raises(ValueError, match=r"y must be one of classes=\(-3.0, 3.0\), got 0"):
        fit(net(), (x, sign, group), "worst_group", validation=(x[few], torch.zeros(8), group[few]))


def test_classes_of_groups_want_one_column() -> None:
    with pytest.raises(ValueError, match=r"y must have shape \(3,\) with classes=\('a', 'b'\), got \(3, 2\)"):
        fcco.data.Groups(torch.zeros(3, 1), torch.zeros(3, 2), [0, 0, 1], classes=("a", "b"))


def test_another_architecture_is_one_sentence(result: FitResult, tmp_path: Path) -> None:
    result.save(tmp_path)
    with pytest.raises(ValueError, match=r"model must have the architecture of the one in .*size mismatch") as caught:
        fcco.fitting.load_result(tmp_path, nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1)))
    assert "\n" not in str(caught.value)


def test_renewing_statistics_counts_as_examples_too() -> None:
    def network(norm: nn.Module) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 4), norm, nn.Linear(4, 1))

    plain = fit(network(nn.Identity()), rare(200))
    normed = fit(network(nn.BatchNorm1d(4)), rare(200))
    assert plain.examples == sum(row["examples"] for row in plain.trials)
    trained = sum(row["examples"] for row in normed.trials)
    looks = len(normed.history)
    per_look = min(16 * 64, 160)
    assert normed.examples - trained in (looks * per_look, (looks + 1) * per_look)  # one more for an average of trials


@pytest.mark.parametrize("last", [nn.Sigmoid(), nn.LogSigmoid(), nn.Sequential(nn.Sigmoid())])
def test_squashed_scores_are_refused(last: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(6, 1), last)
    with pytest.raises(ValueError, match=r"ends in (Log)?Sigmoid: remove that layer"):
        fcco.fit(model, (torch.randn(60, 6), torch.arange(60) % 6 == 0), progress=False)


def test_columns_that_are_far_from_one_are_told() -> None:
    x, y = rare(200)
    large = x.clone()
    large[:, 4] = 700.0 + 20.0 * large[:, 4]
    with pytest.warns(UserWarning, match="column 4 of x has a root mean square of 699, .*: standardise x"):
        fit(net(), (large, y))
    fit(nn.Sequential(nn.BatchNorm1d(6), net()), (large, y))  # no warning, which would be an error here


def test_yes_and_no_and_a_part_of_one_kind_alone() -> None:
    x, y = rare(200)
    words = np.where(y.numpy() == 1, "yes", "no")
    result = fit(net(), (x, words))
    numbers = fit(net(), (x, y))
    assert result.value == numbers.value
    assert result.evaluate((x[:50], words[:50]))[0] == numbers.evaluate((x[:50], y[:50]))[0]


def test_a_single_positive_is_counted() -> None:
    x, _ = rare(200)
    with pytest.raises(ValueError, match=r"examples do not \(positives among all 200: 1\): .* validation=None"):
        fit(net(), (x, (torch.arange(200) == 7).long()))


def test_labels_in_another_order_than_the_rows_are_told() -> None:
    x, y = rare(200)
    frame = pd.DataFrame(x.numpy(), index=range(500, 700))
    labels = pd.Series(y.numpy(), index=frame.index)
    fit(net(), (frame, labels))
    fit(net(), (frame, labels.reset_index(drop=True)))
    with pytest.warns(UserWarning, match="y has the index of x in another order"):
        fit(net(), (frame, labels.sample(frac=1.0, random_state=0)))
