"""fcco.fit: it learns every metric, chooses by the validation part, and refuses what it cannot take."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor, nn

import fcco
from fcco.data import Points, Queries
from fcco.data._source import source_of
from fcco.fitting import METRICS, Goal, Progress, Recipe, Setting
from fcco.fitting._recipe import LabelCounts, recipe_for
from fcco.fitting._scoring import renew_statistics
from fcco.fitting._search import counted_labels

PLAIN = (Setting("plain", 1e-2, 0.1), Setting("plain", 3e-3, 1.0))
QUICK = Recipe(epochs=8, least_examples=1, checks=4, plain=PLAIN)
TINY = Recipe(epochs=1, least_examples=1, checks=2, plain=PLAIN)


def net(features: int = 6, outputs: int = 1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, outputs))


def rare(size: int = 600, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A table with about a tenth of positives."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 6, generator=generator)
    y = (x[:, 0] + x[:, 1] * x[:, 2] + 0.3 * torch.randn(size, generator=generator) > 1.7).long()
    return x, y


def data_for(metric: str) -> Any:
    x, y = rare()
    if metric == "ndcg":
        return fcco.data.Queries(x, torch.arange(len(x)) // 12, y)
    if metric == "concordance":
        return fcco.data.RiskSets(x, torch.exp(-x[:, 0]), torch.arange(len(x)) % 3 > 0)
    if metric == "worst_group":
        return fcco.data.Groups(x, y, (x[:, 3] > 0).long())
    return x, y


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_is_learned(metric: str) -> None:
    data = data_for(metric)
    model = net()
    before = copy.deepcopy(model.state_dict())
    result = fcco.fit(model, data, metric, max_fpr=0.6, min_tpr=0.3, recipe=QUICK, progress=False)
    xv = result.validation.source.take(torch.arange(len(result.validation)))
    untrained = result.goal.value(model.eval()(xv), result.validation)
    assert result.value > untrained + 0.01
    assert result.value >= result.plain_value
    assert result.interval[0] <= result.value <= result.interval[1]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_value_is_that_of_the_returned_model_on_the_validation_part() -> None:
    x, y = rare()
    xv, yv = rare(seed=1)
    result = fcco.fit(net(), (x, y), validation=(xv, yv), recipe=QUICK, progress=False)
    assert result.value == pytest.approx(average_precision_score(yv, result.predict(xv)), abs=1e-9)
    assert result.value == pytest.approx(result.evaluate((xv, yv))[0], abs=1e-9)
    plain = result.plain_model().eval()(xv).detach().squeeze(1)
    assert result.plain_value == pytest.approx(average_precision_score(yv, plain), abs=1e-9)


def test_no_validation_example_is_trained_on() -> None:
    x, y = rare(300)
    xv, yv = rare(100, seed=1)
    seen: set[float] = set()

    class Spy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                seen.update(x[:, 0].tolist())
            return self.net(x)

    fcco.fit(Spy(), (x, y), validation=(xv, yv), recipe=TINY, progress=False)
    assert seen
    assert seen <= set(x[:, 0].tolist())
    assert not seen & set(xv[:, 0].tolist())


def test_same_seed_same_model_and_the_callers_randomness_is_left_alone() -> None:
    x, y = rare(300)

    def run(seed: int) -> Tensor:
        model = net()
        torch.manual_seed(123)
        expected = torch.rand(3)
        torch.manual_seed(123)
        result = fcco.fit(model, (x, y), recipe=TINY, seed=seed, progress=False)
        assert torch.equal(torch.rand(3), expected)
        return result.predict(x)

    first = run(0)
    assert torch.equal(first, run(0))
    assert not torch.equal(first, run(1))


def test_examples_stay_within_the_budget() -> None:
    x, y = rare(400)
    recipe = Recipe(epochs=3, least_examples=1, checks=4, plain=PLAIN)
    for metric in METRICS:
        assert recipe.total_runs(Goal(metric)) <= 12
    result = fcco.fit(net(), (x, y), "roc_auc", recipe=recipe, progress=False)
    run = recipe.run_length(320)
    slack = 64 * len(result.trials) * 4  # a trial goes on to the end of a step
    assert 0 < result.examples <= recipe.total_runs(Goal("roc_auc")) * run + slack
    assert result.examples == sum(row["examples"] for row in result.trials)


class Idle(nn.Module):
    """A network with layers that its outputs do not depend on: nothing but decay moves them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 1)
        self.linear = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(3)
        nn.init.ones_(self.linear.weight)
        nn.init.ones_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        idle = self.norm(self.linear(x[:, :3])).sum(1, keepdim=True)
        outputs: Tensor = self.layer(x) + 0.0 * idle
        return outputs


@pytest.mark.parametrize("l2", [None, 0.1])
def test_norm_layers_do_not_decay(l2: float | None) -> None:
    recipe = replace(TINY, plain=(Setting("plain", 1e-2, 5.0, l2=l2),))
    result = fcco.fit(Idle(), rare(300), "roc_auc", recipe=recipe, progress=False)
    weights = result.model.state_dict()
    assert bool((weights["linear.weight"] < 1.0).all())
    assert bool((weights["linear.bias"] < 1.0).all())
    assert torch.equal(weights["norm.weight"], torch.ones(3))


class Gated(Idle):
    """A layer with a vector and a matrix of its own, and one whose weight is computed, which may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Module()
        self.gate.weight = nn.Parameter(torch.ones(3))
        self.gate.matrix = nn.Parameter(torch.ones(3, 3))

    @property
    def weight(self) -> Tensor:
        raise RuntimeError("this layer has no weight")

    def forward(self, x: Tensor) -> Tensor:
        idle = (x[:, :3] @ self.gate.matrix * self.gate.weight).sum(1, keepdim=True)
        outputs: Tensor = super().forward(x) + 0.0 * idle
        return outputs


def test_a_matrix_beside_a_vector_decays() -> None:
    recipe = replace(TINY, plain=(Setting("plain", 1e-2, 5.0),))
    result = fcco.fit(Gated(), rare(300), "roc_auc", recipe=recipe, progress=False)
    weights = result.model.state_dict()
    assert bool((weights["gate.matrix"] < 1.0).all())
    assert torch.equal(weights["gate.weight"], torch.ones(3))


class Vector(nn.Module):
    """A linear model whose weight is a vector, with one that its outputs do not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))
        self.idle = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = x @ self.weight + 0.0 * self.idle.sum()
        return outputs


def test_a_linear_model_of_vectors_decays() -> None:
    recipe = replace(TINY, plain=(Setting("plain", 1e-2, 5.0),))
    result = fcco.fit(Vector(), rare(300), "roc_auc", recipe=recipe, progress=False)
    assert bool((result.model.state_dict()["idle"] < 1.0).all())


def test_ranking_goes_on_with_the_decay_that_was_best() -> None:
    recipe = Recipe()
    goal = Goal("average_precision")
    labels = LabelCounts(pairs=1e5, rarer_share=0.03)
    usual = recipe.ranking_settings(goal, labels)
    assert usual == recipe.ranking_settings(goal, labels, Setting("plain", 1e-3, 1.0))
    assert all(setting.l2 is None and setting.weight_decay > 0 for setting in usual)
    start = Setting("plain", 1e-3, 0.0, l2=1e-3)
    for before, after in zip(usual, recipe.ranking_settings(goal, labels, start), strict=True):
        assert before.margin is not None
        assert after == replace(before, weight_decay=0.0, l2=pytest.approx(1e-3 * before.margin / 0.03))
    without_margin = recipe.ranking_settings(Goal("ndcg"), LabelCounts(), start)
    assert without_margin == recipe.ranking_settings(Goal("ndcg"), LabelCounts())
    own = (Setting("PartialAUC", 1e-3, 2.0, 10.0, 3.0),)  # somebody's own settings stay as they are
    assert Recipe(ranking=own).ranking_settings(goal, labels, start) == own


def test_positives_are_counted_over_labels_that_have_both_classes() -> None:
    y = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, torch.nan], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    with pytest.warns(UserWarning, match="column 1 has no positives"):
        counts = counted_labels(Points(torch.randn(4, 2), y))
    assert counts.pairs == 1 * 3 + 0 + 2 * 1
    assert counts.rarer_share == pytest.approx((1 / 4 + 1 / 3) / 2)
    assert counted_labels(Queries(torch.randn(4, 2), [0, 0, 1, 1], [0, 1, 0, 1])) == LabelCounts()


def test_adams_own_decay_drops_columns_that_tell_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(2000, 60, generator=generator) < 0.05).float()
    x[:, 40:] = 0.0  # never a 1: the loss gives their weights no gradient
    y = (x[:, 0] + x[:, 1] > 0).long()
    left = {}
    for name, setting in {"l2": Setting("plain", 3e-3, 0.0, l2=1e-3), "decay": Setting("plain", 3e-3, 0.1)}.items():
        torch.manual_seed(0)
        model = nn.Linear(60, 1)
        before = model.weight.detach()[0, 40:].abs().mean()
        recipe = Recipe(epochs=20, least_examples=1, checks=2, plain=(setting,), ranking=())
        result = fcco.fit(model, (x, y), recipe=recipe, progress=False)
        left[name] = float(result.model.weight.detach()[0, 40:].abs().mean() / before)
    assert left["l2"] < 0.05 < 0.8 < left["decay"]


def test_labels_classes_and_missing_ones() -> None:
    x, _ = rare(500)
    y = torch.stack([(x[:, 0] > 1.0), (x[:, 1] > 1.2)], 1).float()
    y[::7, 0] = torch.nan
    result = fcco.fit(net(outputs=2), (x, y), "average_precision", recipe=QUICK, progress=False)
    assert result.predict(x).shape == (500, 2)
    assert result.value > 0.6
    classes = (x[:, 0] > 0).long() + (x[:, 1] > 0.5)
    result = fcco.fit(net(outputs=3), (x, classes), "roc_auc", recipe=QUICK, progress=False)
    assert result.value > 0.75
    assert result.classes == (0, 1, 2)


def test_weights_count() -> None:
    x, y = rare(600)
    turned = y.clone()
    turned[300:] = 1 - turned[300:]  # the second half is wrong, and weighs nothing
    weight = (torch.arange(600) < 300).double()
    result = fcco.fit(net(), fcco.data.Points(x, turned, weight=weight), "roc_auc", recipe=QUICK, progress=False)
    xt, yt = rare(500, seed=5)
    assert result.evaluate((xt, yt))[0] > 0.75


def test_a_data_set_with_workers() -> None:
    x, y = rare(200)

    class Items(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(x)

        def __getitem__(self, place: int) -> Tensor:
            return x[place]

    alone = fcco.fit(net(), fcco.data.Points(Items(), y), "roc_auc", recipe=TINY, progress=False)
    helped = fcco.fit(net(), fcco.data.Points(Items(), y), "roc_auc", recipe=TINY, num_workers=1, progress=False)
    assert helped.history == alone.history
    assert torch.equal(helped.predict(x), alone.predict(Items()))


def test_batch_norm_takes_uniform_statistics() -> None:
    x, y = rare(400)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    result = fcco.fit(model, (x * 5 + 3, y), "roc_auc", recipe=QUICK, progress=False)
    layer = result.model[1]
    inputs = result.model[0](x * 5 + 3).detach()
    assert torch.allclose(layer.running_mean, inputs.mean(0), atol=0.3 * float(inputs.std()))
    assert result.value > 0.6


def test_every_example_counts_the_same_in_the_statistics() -> None:
    generator = torch.Generator().manual_seed(0)
    x = 3.0 * torch.randn(130, 1, generator=generator) + 1.0  # in chunks of 64 two examples would be left over
    for seed in range(20):
        model = nn.BatchNorm1d(1)
        renew_statistics(model, source_of(x), examples=200, chunk=64, precision="fp32", seed=seed)
        assert model.running_mean.item() == pytest.approx(x.mean().item(), abs=0.02)
        assert model.running_var.item() == pytest.approx(x.var().item(), rel=0.1)


class Masked(nn.Module):
    """A network with a mask of -inf among its buffers, as causal attention has one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 4)
        self.last = nn.Linear(4, 1)
        self.register_buffer("mask", torch.tensor([0.0, 0.0, 0.0, -torch.inf]))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.softmax(self.first(x) + self.mask, 1))


def test_buffers_of_minus_infinity_stay() -> None:
    result = fcco.fit(Masked(), rare(), recipe=TINY, progress=False)
    assert result.model.mask.tolist() == [0.0, 0.0, 0.0, -float("inf")]
    assert all(row["failure"] is None for row in result.trials)


def test_labels_of_other_data_are_read_as_the_training_labels_were() -> None:
    x, y = rare()
    xv, yv = rare(seed=1)
    data = fcco.data.Points(x, 1 - y, positive=0)  # the rare ones are the zeros
    result = fcco.fit(net(), data, "roc_auc", validation=(xv, 1 - yv), recipe=QUICK, progress=False)
    assert result.value == pytest.approx(roc_auc_score(yv, result.predict(xv)), abs=1e-9)
    assert result.evaluate((xv, 1 - yv))[0] == pytest.approx(result.value, abs=1e-9)


def test_label_columns_in_another_order_are_refused() -> None:
    x, y = rare()
    labels = pd.DataFrame({"first": y.numpy(), "second": (x[:, 3] > 1).int().numpy()})
    turned = labels[["second", "first"]]
    with pytest.raises(ValueError, match="label columns must equal those of the training data, in the same order"):
        fcco.fit(net(outputs=2), (x, labels), "roc_auc", validation=(x, turned), recipe=TINY, progress=False)


def test_a_backbone_learns_slowly() -> None:
    x, y = rare(300)
    model = net()

    def moved(backbone: nn.Module | None) -> float:
        result = fcco.fit(model, (x, y), "roc_auc", recipe=TINY, backbone=backbone, backbone_lr=1e-6, progress=False)
        return float((result.model[0].weight - model[0].weight).detach().norm())

    assert moved(model[0]) < 0.02 * moved(None)
    with pytest.raises(ValueError, match="backbone must be a part of model"):
        fcco.fit(model, (x, y), backbone=nn.Linear(2, 2), progress=False)


def test_frozen_parameters_stay() -> None:
    x, y = rare(300)
    model = net()
    model[0].requires_grad_(False)
    result = fcco.fit(model, (x, y), "roc_auc", recipe=TINY, progress=False)
    assert torch.equal(result.model[0].weight, model[0].weight)
    assert not torch.equal(result.model[3].weight, model[3].weight)


def test_callbacks_hear_everything_and_may_stop() -> None:
    x, y = rare(300)
    heard: list[Progress] = []
    result = fcco.fit(net(), (x, y), "roc_auc", recipe=TINY, callbacks=[heard.append], progress=False)
    assert len(heard) == len(result.history)
    assert heard[-1].best >= heard[0].best
    assert heard[-1].total >= heard[-1].examples
    calls = []

    def stop(progress: Progress) -> bool:
        calls.append(progress)
        return len(calls) == 3

    result = fcco.fit(net(), (x, y), "roc_auc", recipe=TINY, callbacks=[stop], progress=False)
    assert len(calls) == 3
    assert len(result.history) == 3


def test_of_checks_that_are_all_perfect_the_last_counts() -> None:
    """A few validation positives are on top before much has been learned."""
    x, _ = rare(120)
    y = (x[:, 0] > 1.0).long()
    x[:, 0] = 8.0 * y - 4.0
    recipe = Recipe(epochs=30, least_examples=1, checks=15, patience=2, plain=PLAIN[:1])
    result = fcco.fit(net(), (x, y), "roc_auc", recipe=recipe, progress=False)
    values = [row["value"] for row in result.history if row["trial"] == "plain-1"]
    assert len(values) == 16
    assert values[2:] == [1.0] * 14  # perfect long before the end, and not stopped early
    with torch.no_grad():
        scores = result.plain_model()(x).squeeze(1)
    assert scores[y == 1].min() > scores[y == 0].max() + 2.0  # by the third check it is not 0.5


def test_without_validation_it_trains_the_first_settings() -> None:
    x, y = rare(600)
    result = fcco.fit(net(), (x, y), "roc_auc", validation=None, recipe=QUICK, progress=False)
    assert [row["trial"] for row in result.trials] == ["plain-1", "ranking-1"]
    assert np.isnan(result.value)
    xt, yt = rare(500, seed=5)
    assert result.evaluate((xt, yt))[0] > 0.75


# ------------------------------------------------------------------ careless input


def test_careless_inputs_work() -> None:
    x, y = rare(200)
    frame = pd.DataFrame(x.numpy(), index=range(1000, 800, -1))
    expected = fcco.fit(net(), (x, y), "roc_auc", recipe=TINY, progress=False).predict(x)
    for given in (
        (frame, pd.Series(y.numpy(), index=range(5, 205))),
        (x.numpy().astype(np.float64), y.numpy() * 2 - 1),
        (x.tolist(), y.tolist()),
        (x.double(), y == 1),
    ):
        found = fcco.fit(net(), given, "roc_auc", recipe=TINY, progress=False).predict(x)
        assert torch.equal(found, expected)


def test_a_label_with_three_positives_works() -> None:
    x, _ = rare(200)
    y = torch.zeros(200)
    y[[5, 50, 150]] = 1
    result = fcco.fit(net(), (x, y), "average_precision", recipe=TINY, progress=False)
    assert 0.0 <= result.value <= 1.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("nan", "x must be finite, got nan in row 7, column 2"),
        ("infinite", "x must be finite, got inf in row 7, column 2"),
        ("one class", "y must have positives and negatives|must have positives and negatives"),
        ("two rows", "must have positives and negatives|one part without"),
        ("two logits", "two classes need one score"),
        ("not a model", "model must be a torch.nn.Module, got function"),
        ("share", "validation must be a share in"),
        ("metric", "metric must be one of"),
        ("strings", "name the positive one"),
        ("one array", "data must be"),
    ],
)
def test_what_cannot_work_is_one_sentence(change: str, words: str) -> None:
    x, y = rare(100)
    given: Any = (x, y)
    model: Any = net()
    options: dict[str, Any] = {"metric": "roc_auc"}
    if change in ("nan", "infinite"):
        x = x.clone()
        x[7, 2] = float(change if change == "nan" else "inf")
        given = (x, y)
    elif change == "one class":
        given = (x, torch.zeros(100))
    elif change == "two rows":
        given = (x[:2], torch.tensor([0, 1]))
    elif change == "two logits":
        model = net(outputs=2)
    elif change == "not a model":
        model = net
    elif change == "share":
        options["validation"] = 1.5
    elif change == "metric":
        options["metric"] = "f1"
    elif change == "strings":
        given = (x, ["sick" if label else "well" for label in y])
    elif change == "one array":
        given = x
    with pytest.raises((ValueError, TypeError), match=words) as caught:
        fcco.fit(model, given, progress=False, **options)
    assert "\n" not in str(caught.value)


def test_convolutional_networks_are_trained_longer_within_the_same_budget() -> None:
    usual = recipe_for(net())
    assert usual == Recipe()
    images = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.LazyLinear(1))
    longer = recipe_for(images)
    assert longer.plain_rungs[-1].length > 2 * usual.plain_rungs[-1].length
    assert longer.plain_settings()[0] == Setting("plain", 1e-3, 1.0)
    assert set(longer.plain_settings()) == set(usual.plain_settings())
    for metric in METRICS:
        assert longer.total_runs(Goal(metric)) <= usual.total_runs(Goal(metric)) + 0.5


def test_the_best_plain_trial_of_a_convolutional_network_is_not_stopped() -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 1, 4, 4)
    y = torch.arange(200) % 10 == 0  # nothing can be learned: patience would end every trial
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 1))
    result = fcco.fit(network, (x, y), "roc_auc", epochs=8, progress=False)
    longest = max(row["examples"] for row in result.trials if row["trial"].startswith("plain"))
    assert longest >= 2.5 * 8 * 160


def test_runs_are_neither_too_short_nor_too_long() -> None:
    recipe = Recipe()
    assert recipe.run_length(300) == 100_000
    assert recipe.run_length(28_000) == 560_000
    assert recipe.run_length(10_000_000) == 2_000_000
