"""Part 1 of the demo: a rare class, a tuned plain loss beside ``fcco.fit``.

Each of scikit-learn's ten digits is the rare class once, thinned to four in a hundred. Both models see the same parts
and begin with the same weights. No digit is left out and no setting was searched for here; the demo prints whatever
comes out. With 28 positives to learn from and 6 to choose by a single digit says little, so the lesson is over all ten.
"""

from __future__ import annotations

import copy
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional

import fcco
from fcco.data import Points
from fcco.fitting import Goal, Recipe
from fcco.lab.datasets import load

SHARE = 0.04  # of the images that are left, how many are positive
GOAL = Goal("average_precision")
EQUAL = 1e-9
RECALLS = torch.linspace(0.0, 1.0, 101, dtype=torch.float64)


@final
@dataclass(frozen=True)
class Plan:
    """Sizes of part 1.

    Args:
        digits: how many digits, from 0 on, are the rare class in turn; each has a random split of its own.
        examples: of one training run; the baseline has one run per setting, ``fcco.fit`` about six.
        rates: learning rates of the baseline; each is tried without and with a weight for the rare class.
    """

    digits: int = 10
    examples: int = 60_000
    rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3, 1e-2)
    checks: int = 20
    batch_size: int = 64


class Part(NamedTuple):
    """Images (N, 64) and whether each is positive (N,)."""

    x: Tensor
    y: Tensor

    def points(self) -> Points:
        """The same as metrics read it."""
        return Points(self.x, self.y)

    def sizes(self) -> tuple[int, int]:
        """Examples, and how many are positive."""
        return len(self.y), int(self.y.sum())


class Split(NamedTuple):
    """The parts of one digit's problem; each has the same share of positives."""

    train: Part
    valid: Part
    test: Part


@final
@dataclass(frozen=True)
class Scored:
    """A model on the test part of one digit's problem.

    Attributes:
        ap: average precision.
        low, high: its 95 % bootstrap interval over the test examples.
        precision: (101,) the best precision at a recall of at least 0, 0.01, ..., 1.
        shown: examples that training took, all settings together.
        chosen: what the validation part chose.
    """

    ap: float
    low: float
    high: float
    precision: list[float]
    shown: int
    chosen: str


@final
@dataclass(frozen=True)
class Found:
    """Part 1's result, digit by digit."""

    plain: list[Scored]
    fit: list[Scored]
    train: tuple[int, int]  # examples, positives
    valid: tuple[int, int]
    test: tuple[int, int]

    def difference(self) -> tuple[float, float, float]:
        """Mean test AP of fcco.fit minus the baseline's, and its 95 % interval (Student's t over digits)."""
        gains = [one.ap - other.ap for one, other in zip(self.fit, self.plain, strict=True)]
        mean = statistics.fmean(gains)

        from scipy.stats import t as student  # scikit-learn, which has the digits, brings it

        if len(gains) < 2:
            return mean, math.nan, math.nan
        reach = float(student.ppf(0.975, len(gains) - 1)) * statistics.stdev(gains) / math.sqrt(len(gains))
        return mean, mean - reach, mean + reach


def network(seed: int) -> nn.Module:
    """A small MLP, 64-64-1."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))


def split(digit: int) -> Split:
    """Half of the images to train with, a fifth of which validates, half to test; of the digit a few of each."""
    data = load("digits")
    x = torch.cat([data.x_train, data.x_test]).flatten(1) / 255.0
    y = torch.cat([data.y_train, data.y_test]) == digit
    generator = torch.Generator().manual_seed(digit)
    positive = _shuffled(y.nonzero().squeeze(1), generator)
    negative = _shuffled((~y).nonzero().squeeze(1), generator)
    half = len(negative) // 2
    few = round(half * SHARE / (1.0 - SHARE))
    valid_negative = half // 5
    valid_positive = few // 5

    train = torch.cat([negative[valid_negative:half], positive[valid_positive:few]])
    valid = torch.cat([negative[:valid_negative], positive[:valid_positive]])
    test = torch.cat([negative[half:], positive[few : 2 * few]])

    # Standardised by the training part, as StandardScaler does; pixels that never change stay as they are.
    spread = x[train].std(0, unbiased=False)
    x = (x - x[train].mean(0)) / torch.where(spread > 0, spread, 1.0)
    return Split(*(Part(x[index], y[index].long()) for index in (train, valid, test)))


def _shuffled(index: Tensor, generator: torch.Generator) -> Tensor:
    return index[torch.randperm(len(index), generator=generator)]


def run(plan: Plan, told: Callable[[str], None]) -> Found:
    """Both models on every digit."""
    plain: list[Scored] = []
    fitted: list[Scored] = []
    for digit in range(plan.digits):
        parts = split(digit)
        told(f"digit {digit}: cross-entropy")
        plain.append(_baseline(plan, parts, digit))
        told(f"digit {digit}: fcco.fit")
        fitted.append(_fit(plan, parts, digit))
    return Found(plain, fitted, parts.train.sizes(), parts.valid.sizes(), parts.test.sizes())


def _fit(plan: Plan, parts: Split, seed: int) -> Scored:
    recipe = Recipe(epochs=1.0, least_examples=plan.examples)
    result = fcco.fit(
        network(seed),
        parts.train,
        metric="average_precision",
        validation=parts.valid,
        recipe=recipe,
        seed=seed,
        device="cpu",
        progress=False,
    )
    return _scored(result.predict(parts.test.x), parts.test, result.examples, f"{result.chosen}: {result.setting}")


def _baseline(plan: Plan, parts: Split, seed: int) -> Scored:
    """Cross-entropy with AdamW as one would tune it: learning rate, class weight and stopping by validation AP."""
    best_ap = -1.0
    best = network(seed)
    chosen = ""
    for lr, weighted in itertools.product(plan.rates, (False, True)):
        model = network(seed)
        found, ap = _train(plan, model, parts, lr, weighted, seed)
        if ap > best_ap:
            best_ap = ap
            best = found
            chosen = f"lr {lr:g}"
            if weighted:
                chosen += ", rare class weighted up"
    with torch.no_grad():
        scores = best(parts.test.x).squeeze(1)
    shown = 2 * len(plan.rates) * (plan.examples // plan.batch_size) * plan.batch_size
    return _scored(scores, parts.test, shown, chosen)


def _train(plan: Plan, model: nn.Module, parts: Split, lr: float, weighted: bool, seed: int) -> tuple[nn.Module, float]:
    """One run; the model as it was at its best check, and the validation AP there."""
    x = parts.train.x
    y = parts.train.y.float()
    valid = parts.valid.points()
    weight = torch.ones(())
    if weighted:
        weight = (1.0 - y).sum() / y.sum()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    generator = torch.Generator().manual_seed(seed)
    steps = plan.examples // plan.batch_size
    every = max(1, steps // plan.checks)
    best = copy.deepcopy(model)
    best_ap = -1.0
    order = torch.empty(0, dtype=torch.int64)
    for step in range(1, steps + 1):
        if len(order) < plan.batch_size:
            order = torch.cat([order, torch.randperm(len(y), generator=generator)])
        index = order[: plan.batch_size]
        order = order[plan.batch_size :]
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(model(x[index]).squeeze(1), y[index], pos_weight=weight)
        loss.backward()
        optimizer.step()
        if step % every == 0:
            with torch.no_grad():
                ap = GOAL.value(model(parts.valid.x), valid)
            if ap >= best_ap - EQUAL:  # of equals the later, as in fcco.fit
                best_ap = max(ap, best_ap)
                best = copy.deepcopy(model)
    return best, best_ap


def _scored(scores: Tensor, test: Part, shown: int, chosen: str) -> Scored:
    points = test.points()
    low, high = GOAL.interval(scores, points)
    return Scored(GOAL.value(scores, points), low, high, _precision(scores, test.y).tolist(), shown, chosen)


def _precision(scores: Tensor, y: Tensor) -> Tensor:
    """(101,) the best precision at each recall or above."""
    from sklearn.metrics import precision_recall_curve

    precision, recall, _ = precision_recall_curve(y.numpy(), scores.numpy())  # recall falls
    best = torch.as_tensor(precision.copy()).cummax(0).values.flip(0)
    reached = torch.searchsorted(torch.as_tensor(recall[::-1].copy()), RECALLS - 1e-12)
    return best[reached]


def mean_ap(scored: Sequence[Scored]) -> float:
    """Over digits."""
    return statistics.fmean(one.ap for one in scored)
