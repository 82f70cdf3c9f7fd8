"""Search: the recipe carried out: plain trials, ranking trials from the best of them, and the average of the best."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from fcco.checkpoint import CheckpointError, load, save
from fcco.data import Points, Structure
from fcco.data._labelled import TaskLists
from fcco.fitting._callbacks import Callback, Progress
from fcco.fitting._recipe import LabelCounts, Rung, Setting
from fcco.fitting._scoring import renew_statistics, score
from fcco.fitting._trial import Problem, Trial, Weights

CHECKPOINT_SECONDS = 30.0
RESAMPLES = 200


class Stopped(Exception):
    """A callback asked to stop."""


@final
@dataclass(frozen=True)
class Choice:
    """What the search settled on.

    Args:
        name: the trial, or "average of ..." several.
        setting: its setting; of an average, that of the best trial in it.
        value: what the validation part said of it; NaN: there was none.
        weights: a state_dict of the network.
    """

    name: str
    setting: Setting
    value: float
    weights: Weights


@final
class Search:
    """The recipe on one problem.

    It is written as if it were never interrupted. A checkpoint holds the trials' states; a resumed search goes
    through the same lines, and a trial that has been trained far enough returns at once.

    Args:
        model: where all plain trials start; it is not changed.
        problem: data, metric, recipe.
        identity: what a checkpoint must be of, as plain values.
        checkpoint: where the state is kept; None: nowhere.
        callbacks: told after each check; one that returns True ends the search.
        interrupted: whether somebody wants it to stop; asked after each step.
    """

    def __init__(
        self,
        model: nn.Module,
        problem: Problem,
        *,
        identity: dict[str, Any],
        checkpoint: Path | None,
        callbacks: Iterable[Callback],
        interrupted: Callable[[], bool],
    ) -> None:
        self.problem = problem
        self.trials: dict[str, Trial] = {}
        self._renewed = 0  # examples that renewed statistics, besides the trials' own
        self._model = model
        self._identity = identity
        self._checkpoint = checkpoint
        self._callbacks = list(callbacks)
        self._interrupted = interrupted
        self._saved: dict[str, Any] = {}  # states of trials that have not been made again yet
        self._saved_at = time.monotonic()
        self._began = time.monotonic()
        self._total = problem.recipe.total_runs(problem.goal) * problem.run_length
        self._labels = counted_labels(problem.train)

    # ------------------------------------------------------------------ the recipe, step by step

    def run(self) -> Choice:
        """Carry it out."""
        if self._checkpoint is not None and self._checkpoint.exists():
            load(self._checkpoint, solver=self)
        stopped = False
        try:
            plain = self._plain_trials()
            best_plain = best_of(plain)
            self._ranking_trials(best_plain)
        except Stopped:
            stopped = True
        self._save()
        if not stopped or any(trial.best is not None for trial in self.trials.values()):
            return self._choose()
        raise RuntimeError("a callback stopped the fit before the first validation")

    def _plain_trials(self) -> list[Trial]:
        recipe = self.problem.recipe
        settings = recipe.plain_settings()
        rungs = recipe.plain_rungs
        if self.problem.valid is None:
            settings = settings[:1]
            rungs = (Rung(rungs[-1].length, 1),)
        return self._halved("plain", settings, self._model, rungs)

    def _ranking_trials(self, start: Trial) -> list[Trial]:
        recipe = self.problem.recipe
        settings = recipe.ranking_settings(self.problem.goal, self._labels, start.setting)
        if self.problem.valid is None:
            settings = settings[:1]
        rungs = (Rung(recipe.ranking_length, len(settings)),)
        return self._halved("ranking", settings, self.network(start), rungs)

    def _halved(
        self, stage: str, settings: tuple[Setting, ...], model: nn.Module, rungs: tuple[Rung, ...]
    ) -> list[Trial]:
        """Successive halving: all trials a little way, the better ones further."""
        trials = [self._trial(f"{stage}-{number + 1}", setting, model) for number, setting in enumerate(settings)]
        alive = trials
        for rung in rungs:
            until = round(rung.length * self.problem.run_length)
            for trial in alive:
                trial.train(until, self._checked, self._stepped)
            ranked = sorted(alive, key=lambda trial: -trial.value)  # stable: of equals the earlier setting
            for trial in ranked[rung.keep :]:
                trial.release()
            alive = ranked[: rung.keep]
        for trial in alive:
            trial.release()
        return trials

    def _trial(self, name: str, setting: Setting, model: nn.Module) -> Trial:
        trial = Trial(name, setting, model, self.problem, number=len(self.trials))
        state = self._saved.pop(name, None)
        if state is not None:
            trial.load_state_dict(state)
        self.trials[name] = trial
        return trial

    # ------------------------------------------------------------------ the end

    def _choose(self) -> Choice:
        """The best trial, or the average of several where that is better."""
        if self.problem.valid is None:
            last = list(self.trials.values())[-1]
            if last.failure is not None or last.best is None:
                last = best_of(self.trials.values())
            assert last.best is not None
            return Choice(last.name, last.setting, float("nan"), last.best)
        best = best_of(self.trials.values())
        assert best.best is not None
        if best.value == float("-inf"):
            raise RuntimeError(f"no trial could be validated: {best.failure}")
        single = Choice(best.name, best.setting, best.value, best.best)
        average = self._average_of_ranking_trials()
        if average is None or self._is_clearly_better(single, average):
            return single
        return average

    def _average_of_ranking_trials(self) -> Choice | None:
        """The mean of their weights; None: fewer than two of them are sound."""
        ranking = [trial for trial in self.trials.values() if trial.setting.objective != "plain"]
        sound = [trial for trial in ranking if trial.best is not None and trial.failure is None]
        if len(sound) < 2:
            return None
        weights = averaged_weights([trial.best for trial in sound if trial.best is not None])
        self._renew_statistics(weights)
        outputs = self._outputs(weights)
        assert self.problem.valid is not None
        value = self.problem.goal.value(outputs, self.problem.valid)
        names = " ".join(trial.name for trial in sound)
        return Choice(f"average of {names}", best_of(sound).setting, value, weights)

    def _is_clearly_better(self, one: Choice, other: Choice) -> bool:
        """Whether it is better on the validation part by more than a standard error of the difference."""
        goal = self.problem.goal
        valid = self.problem.valid
        assert valid is not None
        if math.isnan(other.value):
            return True
        first = goal.bootstrap(self._outputs(one.weights), valid, resamples=RESAMPLES)
        second = goal.bootstrap(self._outputs(other.weights), valid, resamples=RESAMPLES)
        difference = first - second
        known = difference[~difference.isnan()]
        if known.numel() < 2:
            return one.value > other.value
        return one.value - other.value > float(known.std())

    def _renew_statistics(self, weights: Weights) -> None:
        """Give averaged weights the BatchNorm statistics that belong to them."""
        problem = self.problem
        model = self.network(weights)
        taken = renew_statistics(
            model,
            problem.train.source,
            examples=16 * problem.batch_size,
            chunk=problem.batch_size,
            precision=problem.precision,
            seed=0,
        )
        self._renewed += taken
        if taken:
            weights.update({name: value.detach().clone() for name, value in model.state_dict().items()})

    def _outputs(self, weights: Weights) -> Tensor:
        """What the network with these weights says of the validation part."""
        problem = self.problem
        assert problem.valid is not None
        model = self.network(weights)
        return score(model, problem.valid.source, precision=problem.precision, num_workers=problem.num_workers)

    def network(self, of: Trial | Weights) -> nn.Module:
        """A copy of the model with other weights."""
        if isinstance(of, Trial):
            assert of.best is not None
            weights = of.best
        else:
            weights = of
        model = copy.deepcopy(self._model)
        model.load_state_dict(weights)
        return model

    # ------------------------------------------------------------------ on the way

    @property
    def examples(self) -> int:
        """How many examples went through the network, in training and to renew statistics."""
        return self._renewed + sum(trial.seen + trial.renewed for trial in self.trials.values())

    def _stepped(self) -> None:
        if self._interrupted():
            self._save()
            raise KeyboardInterrupt

    def _checked(self, trial: Trial) -> None:
        if time.monotonic() - self._saved_at > CHECKPOINT_SECONDS:
            self._save()
        trained_on = sum(other.seen for other in self.trials.values())
        progress = Progress(
            trial=trial.name,
            setting=trial.setting.describe(),
            examples=trained_on,
            total=max(round(self._total), trained_on),  # a trial goes on to the end of a step
            value=trial.checks[-1].value if trial.checks else float("nan"),
            best=max(other.value for other in self.trials.values()),
            loss=trial.checks[-1].loss if trial.checks else float("nan"),
            seconds=time.monotonic() - self._began,
        )
        wanted = [callback(progress) for callback in self._callbacks]
        if any(answer is True for answer in wanted):
            raise Stopped

    # ------------------------------------------------------------------ checkpoints

    def _save(self) -> None:
        if self._checkpoint is not None:
            save(self._checkpoint, solver=self)
        self._saved_at = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        trials = {name: trial.state_dict() for name, trial in self.trials.items()}
        return {"identity": self._identity, "trials": {**self._saved, **trials}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        theirs = state["identity"]
        for name, mine in self._identity.items():
            if theirs.get(name) != mine:
                raise CheckpointError(
                    f"it belongs to another fit: its {name} is {theirs.get(name)!r}, but here it is {mine!r}"
                )
        self._saved = dict(state["trials"])


def best_of(trials: Iterable[Trial]) -> Trial:
    """The trial with the best value; of equals the first."""
    known = [trial for trial in trials if trial.best is not None]
    return max(known, key=lambda trial: trial.value)


def counted_labels(data: Structure) -> LabelCounts:
    """Positives and pairs of the data; the default for data without labels."""
    if not isinstance(data, Points):
        return LabelCounts()
    lists = TaskLists.of(data)
    positive = lists.positive.count[lists.used].double()
    negative = lists.negative.count[lists.used].double()
    share = torch.minimum(positive, negative) / (positive + negative)
    return LabelCounts(pairs=float((positive * negative).sum()), rarer_share=float(share.mean()))


def averaged_weights(parts: list[Weights]) -> Weights:
    """The mean of several state_dicts; what is not floating point is taken from the first."""
    mean = {}
    for name, first in parts[0].items():
        mean[name] = first.clone()
        if first.is_floating_point():
            mean[name] = torch.stack([part[name] for part in parts]).mean(0)
    return mean
