"""The recipe: every choice that ``fcco.fit`` makes for its user, in one place.

1. A plain loss comes first, from the weights that the model came with. A few learning rates and decays start. Those
   that do worse on the validation data are dropped early (successive halving), and the others continue where they
   were. Some use AdamW's decay, some Adam's, which is inside the normalised gradient. The second drops uninformative
   inputs, which helps most with hundreds of rare 0/1 columns; pair losses then keep that kind of decay. Scales and
   shifts of norm layers do not decay, as usual.
2. Ranking objectives start from the best of these models, at its best moment. They are a few that stress the top of the
   list in different ways, and the output memory minimises them.
3. The weights are averaged along every run, and the average is what is evaluated. At the end, the averages of all
   ranking trials are averaged once more; they started from one point, so they lie in one valley.
4. That average is returned, unless the validation data say that a single trial, or the plain model, is better by more
   than a standard error. The very best of many candidates on a few validation positives would often be best by luck.

A *run* is :meth:`Recipe.run_length` examples. All trials together show the network about six of them
(:meth:`Recipe.total_runs`), half as many as a search over 12 settings of a plain loss would.

A convolutional network (:func:`recipe_for`) spends these six runs differently. It keeps improving long after a network
on a table has begun to overfit, so the plain trials are thinned out sooner, and the best of them is trained for two and
a half runs. No trial is stopped for want of patience there, since the validation data may have few positives.

Where the numbers come from: they were chosen only on a9a (500 positives of 23,000 rows), yeast and emotions, with an
MLP of two layers. Adam's own decay was chosen on generated tables of 300 rare 0/1 columns, on the whole of a9a, and on
the digits of the demo, whose pixels in [0, 1] need the largest learning rate. The lengths for convolutional networks
were chosen on CIFAR-10 with 2 % positives. There the plain loss of a ResNet18 with a learning rate of 1e-3 had a test
AP of 0.71 after 20 passes over the data and 0.76 after 60; with 3e-3 it had 0.59 and 0.62
(results/arena/image-lengths.jsonl). Margins are large because scores after a plain loss are logits that spread over
about ten. A margin of 1 would leave most pairs without a gradient and overfit the few that are left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, final

from torch import nn

from fcco.fitting._goal import Goal

_FOR_EVER = 10**6  # checks: more than any trial has


@final
@dataclass(frozen=True)
class Setting:
    """What one trial is trained with.

    Args:
        objective: "plain", or the ranking objective by its name in :mod:`fcco.objectives`.
        lr: AdamW's learning rate.
        weight_decay: AdamW's, decoupled: a step shrinks weights by lr times this.
        margin: margin of the pair loss. None: the objective has none.
        hardness: margin^2 / temperature of PartialAUC. A small one counts all negatives alike, a large one the hardest.
        positive_hardness: the same for the positives of its two-way form; None: one-way.
        p: power of PNormPush. 1 is the AUC, a large one stresses the highest negatives.
        strength: strength of GroupDRO's penalty. None: the objective has none.
        l2: Adam's decay, added to the gradient before that is normalised, in place of AdamW's. A weight that hardly
            affects the loss shrinks by up to lr per step, so uninformative columns drop out. None: AdamW's.
    """

    objective: str
    lr: float
    weight_decay: float
    margin: float | None = None
    hardness: float | None = None
    positive_hardness: float | None = None
    p: float | None = None
    strength: float | None = None
    l2: float | None = None

    def describe(self) -> str:
        """The setting on one line."""
        words = [self.objective, f"lr {self.lr:g}"]
        if self.l2 is None:
            words.append(f"decay {self.weight_decay:g}")
        else:
            words.append(f"l2 {self.l2:g}")
        for name in ("margin", "hardness", "positive_hardness", "p", "strength"):
            value = getattr(self, name)
            if value is not None:
                words.append(f"{name.replace('_', ' ')} {value:g}")
        return ", ".join(words)


class LabelCounts(NamedTuple):
    """What the recipe needs to know about the labels.

    Args:
        pairs: of a positive and a negative, over all labels; 0 for data without labels.
        rarer_share: of the examples with a label those of the rarer class, in the mean over labels; 1 without labels.
    """

    pairs: float = 0.0
    rarer_share: float = 1.0


@final
@dataclass(frozen=True)
class Rung:
    """One step of the halving.

    Args:
        length: the length of the trials, in runs.
        keep: how many of the best continue.
    """

    length: float
    keep: int


@final
@dataclass(frozen=True)
class Recipe:
    """The numbers behind the steps above.

    Args:
        epochs: passes over the data in one run.
        least_examples: the smallest number of examples in a run, however small the data.
        most_examples: the largest number, however large the data. None: as many as the epochs have.
        checks: validations per run.
        patience: a trial whose best check is this many checks old is stopped.
        plain: settings of the plain loss. None: :meth:`plain_settings`.
        plain_rungs: how they are halved.
        ranking: the ranking settings. None: by the metric, :meth:`ranking_settings`.
        ranking_length: the length of each of them, in runs.
        average_share: the average of the weights reaches back over about this share of a run.
        most_pairs: beyond this many pairs of a positive and a negative, objectives whose cost grows with them are left
            out.
    """

    epochs: float = 20.0
    least_examples: int = 100_000
    most_examples: int | None = 2_000_000
    checks: int = 20
    patience: int = 8
    plain: tuple[Setting, ...] | None = None
    plain_rungs: tuple[Rung, ...] = (Rung(0.25, 4), Rung(0.5, 2), Rung(1.0, 1))
    ranking: tuple[Setting, ...] | None = None
    ranking_length: float = 0.5
    average_share: float = 0.05
    most_pairs: float = 1.5e7

    def plain_settings(self) -> tuple[Setting, ...]:
        """The plain loss's settings."""
        if self.plain is not None:
            return self.plain
        decays = ((3e-3, 1.0), (3e-3, 5.0), (1e-3, 1.0), (3e-4, 1.0))
        l2s = ((3e-3, 1e-3), (1e-3, 1e-3), (3e-3, 2e-4), (1e-2, 2e-4))
        decoupled = [Setting("plain", lr, decay) for lr, decay in decays]
        coupled = [Setting("plain", lr, 0.0, l2=l2) for lr, l2 in l2s]
        return (*decoupled, *coupled)

    def ranking_settings(self, goal: Goal, labels: LabelCounts, start: Setting | None = None) -> tuple[Setting, ...]:
        """The ranking settings for a metric.

        Args:
            goal: the metric.
            labels: how many positives and pairs there are.
            start: what the weights that ranking starts from were trained with; its kind of decay is kept.
        """
        if self.ranking is not None:
            return self.ranking
        settings = self._ranking_settings(goal, labels.pairs)
        if start is None or start.l2 is None:
            return settings
        return tuple(_with_l2(setting, start.l2, labels.rarer_share) for setting in settings)

    def _ranking_settings(self, goal: Goal, pairs: float) -> tuple[Setting, ...]:
        if goal.metric == "ndcg":
            return _grid(("NDCG", "ListNet"), (3e-4, 1e-3), 3.0)
        if goal.metric == "concordance":
            return _grid(("Cox",), (3e-4, 1e-3, 3e-3), 3.0)
        if goal.metric == "worst_group":
            return tuple(
                Setting("GroupDRO", lr, 2.0, strength=strength) for lr in (3e-4, 1e-3) for strength in (0.03, 0.3)
            )
        if goal.metric == "roc_auc":
            return _pushes((1.0, 10.0, 2.0), (1.0, 30.0, 10.0), (1.0, 3.0, 2.0), (2.0, 10.0, 2.0))
        if pairs > self.most_pairs:
            return _pushes((1.0, 10.0, 2.0), (2.0, 10.0, 2.0), (4.0, 10.0, 2.0), (2.0, 30.0, 10.0))
        return _partial_aucs(goal)

    def run_length(self, num_examples: int) -> int:
        """Examples in one run.

        Args:
            num_examples: of the training part.
        """
        length = max(round(self.epochs * num_examples), self.least_examples)
        if self.most_examples is None:
            return length
        return min(length, self.most_examples)

    def batch_size(self, num_examples: int) -> int:
        """Examples per step: a power of two from 64 to 256, about a tenth of small data.

        Args:
            num_examples: of the training part.
        """
        size = 64
        while size < 256 and size * 10 < num_examples:
            size *= 2
        return size

    def total_runs(self, goal: Goal) -> float:
        """How many runs the whole search is long, at most.

        Args:
            goal: the metric.
        """
        plain = _halving_cost(len(self.plain_settings()), self.plain_rungs)
        return plain + len(self.ranking_settings(goal, LabelCounts())) * self.ranking_length


def recipe_for(model: nn.Module) -> Recipe:
    """The usual recipe for a network.

    Args:
        model: whether it has convolutions is all that counts.
    """
    usual = Recipe()
    if not any(isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) for module in model.modules()):
        return usual
    by_rate = sorted(usual.plain_settings(), key=lambda setting: setting.lr != 1e-3)  # 1e-3 first, the rest as it was
    rungs = (Rung(0.1, 4), Rung(0.3, 2), Rung(0.75, 1), Rung(2.5, 1))
    return replace(usual, plain=tuple(by_rate), plain_rungs=rungs, patience=_FOR_EVER)


def _with_l2(setting: Setting, l2: float, rarer_share: float) -> Setting:
    """A pair loss's setting with the plain loss's l2 in place of its decay, at the scale of its own gradients.

    By the scores, cross-entropy's gradient adds up to about the share of the rarer class, a pair loss's to its margin.
    Of other objectives no such scale is known, so they keep their decay.
    """
    if setting.margin is None:
        return setting
    return replace(setting, weight_decay=0.0, l2=l2 * setting.margin / rarer_share)


def _grid(objectives: tuple[str, ...], rates: tuple[float, ...], decay: float) -> tuple[Setting, ...]:
    return tuple(Setting(name, lr, decay) for name in objectives for lr in rates)


def _pushes(*choices: tuple[float, float, float]) -> tuple[Setting, ...]:
    """p-norm pushes of (p, margin, decay): sorted sums, whose cost does not depend on the number of pairs."""
    return tuple(Setting("PNormPush", 3e-4, decay, margin, p=p) for p, margin, decay in choices)


def _partial_aucs(goal: Goal) -> tuple[Setting, ...]:
    """Partial AUCs that mind the top of the list more and less; for average precision the AUC itself, too."""
    choices = [(30.0, 3.0, 2.0), (10.0, 3.0, 10.0), (100.0, 3.0, 2.0)]  # margin, hardness, decay
    if goal.metric != "average_precision":
        choices.append((10.0, 9.0, 2.0))
    settings = []
    for margin, hardness, decay in choices:
        positive_hardness = None
        if goal.metric == "two_way_partial_auc":
            positive_hardness = max(1.0, hardness / 3.0)
        settings.append(Setting("PartialAUC", 3e-4, decay, margin, hardness, positive_hardness))
    if goal.metric == "average_precision":
        settings.extend(_pushes((1.0, 10.0, 2.0)))
    return tuple(settings)


def _halving_cost(trials: int, rungs: tuple[Rung, ...]) -> float:
    """Runs that a halving takes, where no trial stops early."""
    cost = 0.0
    before = 0.0
    for rung in rungs:
        cost += trials * (rung.length - before)
        before = rung.length
        trials = min(trials, rung.keep)
    return cost
