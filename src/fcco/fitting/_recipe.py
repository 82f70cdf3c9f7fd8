"""The recipe: every choice that ``fcco.fit`` makes for its user, in one place.

1. A plain loss first, from the weights that the model came with. A few learning rates and decays start; those that do
   worse on the validation part are dropped early (successive halving), the others go on where they were.
2. The best of them, at its best moment, is where the ranking objective starts. The output memory minimises it; margins,
   hardnesses and learning rates are halved in the same way.
3. Along every run the weights are averaged, and the average is what is judged. At the end the averages of the best runs
   are averaged once more, as long as that helps (they began at one point, so they lie in one valley).
4. The best on the validation part is returned. The plain model is among the candidates.

A *run* is :meth:`Recipe.run_length` examples. All runs together show the network no more than 12 of them
(:meth:`Recipe.total_runs`), as many as a search over 12 settings of a plain loss would.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from fcco.fitting._goal import Goal


@final
@dataclass(frozen=True)
class Setting:
    """What one trial is trained with.

    Args:
        objective: "plain", or the ranking objective by its name in :mod:`fcco.objectives`.
        lr: AdamW's learning rate.
        weight_decay: AdamW's, decoupled: a step shrinks weights by lr times this.
        margin: of the pair loss; None: the objective has none.
        hardness: margin^2 / temperature of the partial AUC: 0 minds all negatives alike, a large one the hardest.
        positive_hardness: the same for the positives of the two-way form; None: one-way.
        strength: of GroupDRO's penalty; None: the objective has none.
    """

    objective: str
    lr: float
    weight_decay: float
    margin: float | None = None
    hardness: float | None = None
    positive_hardness: float | None = None
    strength: float | None = None

    def describe(self) -> str:
        """The setting on one line."""
        words = [self.objective, f"lr {self.lr:g}", f"decay {self.weight_decay:g}"]
        for name in ("margin", "hardness", "positive_hardness", "strength"):
            value = getattr(self, name)
            if value is not None:
                words.append(f"{name.replace('_', ' ')} {value:g}")
        return ", ".join(words)


@final
@dataclass(frozen=True)
class Rung:
    """Train to ``length`` runs, then keep the best ``keep`` trials."""

    length: float
    keep: int


@final
@dataclass(frozen=True)
class Recipe:
    """The numbers behind the steps above.

    Args:
        epochs: passes over the data in one run.
        least_examples: a run has at least this many examples, however small the data.
        checks: validations per run.
        patience: a trial whose best check is this many checks old is stopped.
        plain_rates, plain_decays: the plain loss is tried with all pairs of them.
        plain_rungs, ranking_rungs: how the trials are halved.
        average_share: the average of the weights reaches back over about this share of a run.
        soup: at most this many averages are averaged at the end.
    """

    epochs: float = 20.0
    least_examples: int = 100_000
    checks: int = 20
    patience: int = 10
    plain_rates: tuple[float, ...] = (3e-3, 1e-3)
    plain_decays: tuple[float, ...] = (0.1, 1.0, 5.0)
    plain_rungs: tuple[Rung, ...] = (Rung(0.25, 3), Rung(0.5, 2), Rung(1.0, 1))
    ranking_rungs: tuple[Rung, ...] = (Rung(0.125, 6), Rung(0.25, 3), Rung(0.5, 2), Rung(1.0, 1))
    average_share: float = 0.05
    soup: int = 6

    def plain(self) -> tuple[Setting, ...]:
        """The plain loss's settings."""
        settings = []
        for lr in self.plain_rates:
            for decay in self.plain_decays:
                settings.append(Setting("plain", lr, decay))
        return tuple(settings)

    def ranking(self, goal: Goal) -> tuple[Setting, ...]:
        """The ranking objective's settings for a metric."""
        if goal.metric == "ndcg":
            return _grid(("NDCG", "ListNet"), (3e-4, 1e-3), (0.1, 3.0))
        if goal.metric == "concordance":
            return _grid(("Cox",), (3e-4, 1e-3, 3e-3), (0.1, 3.0))
        if goal.metric == "worst_group":
            strengths = tuple(
                Setting("GroupDRO", lr, decay, strength=strength)
                for lr in (3e-4, 1e-3)
                for decay in (0.1, 3.0)
                for strength in (0.03, 0.3)
            )
            return strengths
        settings = []
        for lr, decay in ((3e-4, 2.0), (1e-3, 0.1)):
            for margin, hardness in _pairs(goal):
                positive_hardness = None
                if goal.metric == "two_way_partial_auc":
                    positive_hardness = max(1.0, hardness / 3.0)
                settings.append(Setting("PartialAUC", lr, decay, margin, hardness, positive_hardness))
        return tuple(settings)

    def run_length(self, num_examples: int) -> int:
        """Examples in one run."""
        return max(round(self.epochs * num_examples), self.least_examples)

    def batch_size(self, num_examples: int) -> int:
        """Examples per step: about a twentieth of the data, a power of two from 32 to 256."""
        size = 32
        while size < 256 and size * 20 < num_examples:
            size *= 2
        return size

    def total_runs(self, goal: Goal) -> float:
        """How many runs the whole search is long, at most."""
        plain = _halving_cost(len(self.plain()), self.plain_rungs)
        ranking = _halving_cost(len(self.ranking(goal)), self.ranking_rungs)
        return plain + ranking


def _grid(objectives: tuple[str, ...], rates: tuple[float, ...], decays: tuple[float, ...]) -> tuple[Setting, ...]:
    return tuple(Setting(name, lr, decay) for name in objectives for lr in rates for decay in decays)


def _pairs(goal: Goal) -> tuple[tuple[float, float], ...]:
    """Margins and hardnesses of the pair loss: scores after a plain loss are logits, and spread over about ten."""
    if goal.metric == "roc_auc":
        return ((10.0, 0.0), (10.0, 1.0), (30.0, 0.0), (3.0, 0.0))
    if goal.metric == "average_precision":
        return ((10.0, 3.0), (10.0, 9.0), (30.0, 3.0), (3.0, 3.0), (10.0, 1.0))
    return ((10.0, 3.0), (10.0, 9.0), (30.0, 9.0), (3.0, 9.0))


def _halving_cost(trials: int, rungs: tuple[Rung, ...]) -> float:
    """Runs that a halving takes, where no trial stops early."""
    cost = 0.0
    before = 0.0
    for rung in rungs:
        cost += trials * (rung.length - before)
        before = rung.length
        trials = min(trials, rung.keep)
    return cost
