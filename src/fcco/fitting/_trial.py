"""Trial: one setting in training, with the average of its weights and what the validation part said of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

import fcco.methods as methods
import fcco.objectives as zoo
from fcco._support.flat import copy_all
from fcco._support.layout import channels_last
from fcco.data import Batch, Groups, Points, Queries, RiskSets, Structure
from fcco.fitting._goal import Goal
from fcco.fitting._plain import PlainObjective
from fcco.fitting._recipe import Recipe, Setting
from fcco.fitting._scoring import device_of, in_precision, renew_statistics, score
from fcco.objectives import OutputObjective
from fcco.solver import NonFiniteError, Solver

Weights = dict[str, Tensor]
MANY = 256  # reports that are kept before their estimates are read
EQUAL = 1e-9  # values of a metric that differ by less are the same but for rounding


@final
@dataclass(frozen=True)
class Problem:
    """What all trials of a fit share.

    Args:
        train: the data that they are trained on.
        valid: the data that judge them; None: nothing does.
        goal: the metric.
        recipe: how long, how often.
        batch_size: examples per step.
        run_length: examples in a run.
        precision: "fp32" or "bf16".
        num_workers: processes that fetch from a data set.
        backbone: names of the parameters that came pretrained.
        backbone_lr: what their learning rate is multiplied by.
        seed: of everything.
    """

    train: Structure
    valid: Structure | None
    goal: Goal
    recipe: Recipe
    batch_size: int
    run_length: int
    precision: str
    num_workers: int
    backbone: frozenset[str]
    backbone_lr: float
    seed: int


class Check(NamedTuple):
    """One look at the validation part.

    Args:
        examples: how many the trial had trained on.
        value: the metric of its averaged weights.
        loss: the mean estimate of its objective since the last check.
    """

    examples: int
    value: float
    loss: float


@final
class Trial:
    """One setting in training.

    Args:
        name: told in histories and checkpoints.
        setting: what it is trained with.
        model: where it starts; a copy is trained.
        problem: what it shares with the others.
        number: of the trial, for its seeds.

    Attributes:
        checks: what the validation part said, in order.
        best: the averaged weights at the best check; None before the first.
        seen: examples trained on.
        renewed: examples that renewed BatchNorm's statistics for the averaged weights.
        failure: why it ended early; None: it did not.
    """

    def __init__(self, name: str, setting: Setting, model: nn.Module, problem: Problem, number: int) -> None:
        self.name = name
        self.setting = setting
        self.problem = problem
        self.number = number
        self.checks: list[Check] = []
        self.best: Weights | None = None
        self.seen = 0
        self.renewed = 0
        self.failure: str | None = None
        self._start: nn.Module | None = model
        self._live: _Live | None = None

    # ------------------------------------------------------------------ training

    def train(self, until: int, told: Callable[[Trial], None], stepped: Callable[[], None]) -> None:
        """Train until ``until`` examples were seen, or until it stops getting better.

        Args:
            until: examples of this trial.
            told: called after each check.
            stepped: called after each step.
        """
        every = max(1, self.problem.run_length // self.problem.recipe.checks)
        # Counted from the last check: an interrupt may have come between the last step and its check.
        while self._checked_at < until and not self.is_done:
            live = self._alive()
            goal = min((self._checked_at // every + 1) * every, until)
            try:
                self._steps(live, goal, stepped)
                self._check(live)
            except NonFiniteError as error:
                self.failure = str(error)
                if self.best is None:
                    self.best = live.averaged_weights()
            told(self)

    def _steps(self, live: _Live, goal: int, stepped: Callable[[], None]) -> None:
        while self.seen < goal:
            self.seen += live.step()
            stepped()
        live.solver.wait()

    def _check(self, live: _Live) -> None:
        problem = self.problem
        averaged, renewed = live.averaged(self.seen)
        self.renewed += renewed
        value = float("nan")
        if problem.valid is not None:
            outputs = score(
                averaged, problem.valid.source, precision=problem.precision, num_workers=problem.num_workers
            )
            if bool(torch.isfinite(outputs).all()):
                value = problem.goal.value(outputs, problem.valid)
            else:
                self.failure = "outputs are not finite"
        # Of equals the later one: a few validation positives may all be on top before much has been learned.
        is_best = problem.valid is None or not self.checks or value >= self.value - EQUAL
        self.checks.append(Check(self.seen, value, live.mean_loss()))
        if is_best or self.best is None:
            self.best = {key: entry.detach().clone() for key, entry in averaged.state_dict().items()}

    @property
    def _checked_at(self) -> int:
        """Examples seen at the last check."""
        if not self.checks:
            return 0
        return self.checks[-1].examples

    @property
    def value(self) -> float:
        """The best that the validation part said; minus infinity where it said nothing."""
        known = [check.value for check in self.checks if check.value == check.value]
        if not known:
            return float("-inf")
        return max(known)

    @property
    def is_done(self) -> bool:
        """Whether there is no use in going on."""
        if self.failure is not None:
            return True
        if self.problem.valid is None or not self.checks:
            return False
        best = [place for place, check in enumerate(self.checks) if check.value >= self.value - EQUAL]
        last_best = max(best, default=0)  # none: all are NaN
        return len(self.checks) - 1 - last_best >= self.problem.recipe.patience

    def release(self) -> None:
        """Let go of what only further training needs."""
        self._live = None
        self._start = None

    def _alive(self) -> _Live:
        if self._live is None:
            assert self._start is not None  # released trials are trained no more
            self._live = _Live(self.setting, self._start, self.problem, self.number)
            self._start = None
        return self._live

    # ------------------------------------------------------------------ resuming

    def state_dict(self) -> dict[str, Any]:
        live = None
        if self._live is not None:
            live = self._live.state_dict()
        return {
            "checks": [list(check) for check in self.checks],
            "best": self.best,
            "seen": self.seen,
            "renewed": self.renewed,
            "failure": self.failure,
            "live": live,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.checks = [Check(*entry) for entry in state["checks"]]
        self.seen = state["seen"]
        self.renewed = state["renewed"]
        self.failure = state["failure"]
        self.best = state["best"]
        if state["live"] is not None:
            live = self._alive()
            live.load_state_dict(state["live"])
            if self.best is not None:
                device = device_of(live.objective)
                self.best = {key: entry.to(device) for key, entry in self.best.items()}


@final
class _Live:
    """What a trial needs while it is trained: objective, solver, loader, and the average of the weights."""

    def __init__(self, setting: Setting, start: nn.Module, problem: Problem, number: int) -> None:
        self.problem = problem
        self.model = copy.deepcopy(start)
        if device_of(self.model).type == "cuda":
            channels_last(self.model)  # tensor cores read that layout
        self.model.train()
        self.objective = make_objective(setting, self.model, problem.train)
        self._seed = problem.seed * 1000 + number
        torch.manual_seed(self._seed)
        self.solver = Solver(
            self.objective, _optimizer(setting, self.objective, problem), _method(setting), capture="auto"
        )
        blocks, samples = batch_shape(setting, problem.train, problem.batch_size)
        self.loader = self.solver.loader(blocks, samples, seed=self._seed, num_workers=problem.num_workers)
        self._batches = self._endless()
        self._average = copy.deepcopy(self.model).eval()
        self._means, self._values = _averaged_parameters(self._average, self.model)
        self._averaged_steps = 0
        steps_per_run = max(1, problem.run_length // self.loader.batch_size)
        self._horizon = max(10.0, problem.recipe.average_share * steps_per_run)
        self._reports: list[Any] = []  # of steps whose estimates were not read yet: that would wait for the device
        self._loss_total = 0.0
        self._loss_steps = 0

    def _endless(self) -> Iterator[Batch]:
        while True:
            yield from self.loader

    def step(self) -> int:
        """Take one step; returns how many examples it took."""
        batch = next(self._batches)
        with in_precision(self.solver.device, self.problem.precision):
            self._reports.append(self.solver.step(batch))
        if len(self._reports) >= MANY:
            self._read_reports()
        self._move_average()
        return self.loader.batch_size

    @torch.no_grad()
    def _move_average(self) -> None:
        self._averaged_steps += 1
        # While it is young the average reaches back over a part of its own life alone.
        reach = min(self._horizon, 1.0 + self._averaged_steps / 5.0)
        torch._foreach_lerp_(self._means, self._values, 1.0 / reach)

    @torch.no_grad()
    def _copy_the_rest(self) -> None:
        """What has no average is as it is in the model: a mask of -inf, say; BatchNorm's statistics are renewed."""
        averaged = {id(mean) for mean in self._means}
        copies: list[Tensor] = []
        originals: list[Tensor] = []
        for copied, original in zip(_tensors(self._average), _tensors(self.model), strict=True):
            if id(copied) not in averaged:
                copies.append(copied)
                originals.append(original)
        copy_all(copies, originals)

    def averaged(self, seen: int) -> tuple[nn.Module, int]:
        """The network with averaged weights, in evaluation mode; and how many examples its statistics took."""
        problem = self.problem
        self._copy_the_rest()
        renewed = renew_statistics(
            self._average,
            problem.train.source,
            examples=16 * problem.batch_size,
            chunk=problem.batch_size,
            precision=problem.precision,
            seed=seen,
        )
        return self._average, renewed

    def averaged_weights(self) -> Weights:
        """A copy of the averaged weights as they are."""
        self._copy_the_rest()
        return {key: entry.detach().clone() for key, entry in self._average.state_dict().items()}

    def _read_reports(self) -> None:
        for report in self._reports:
            if report.f is not None:
                self._loss_total += float(report.f.mean())
                self._loss_steps += 1
        self._reports = []

    def mean_loss(self) -> float:
        """The mean estimate of the objective since the last call; NaN: there is none."""
        self._read_reports()
        if self._loss_steps == 0:
            return float("nan")
        mean = self._loss_total / self._loss_steps
        self._loss_total = 0.0
        self._loss_steps = 0
        return mean

    def state_dict(self) -> dict[str, Any]:
        self._read_reports()
        return {
            "losses": [self._loss_total, self._loss_steps],
            "solver": self.solver.state_dict(),
            "loader": self.loader.state_dict(),
            "average": {key: entry.detach().clone() for key, entry in self._average.state_dict().items()},
            "averaged_steps": self._averaged_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.solver.load_state_dict(state["solver"])
        self.loader.load_state_dict(state["loader"])
        self._average.load_state_dict(state["average"])
        self._averaged_steps = state["averaged_steps"]
        self._loss_total, self._loss_steps = state["losses"]
        self._reports = []
        self._batches = self._endless()


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _averaged_parameters(average: nn.Module, model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters that are averaged, and those that they follow; found once: walking a model takes time."""
    means: list[Tensor] = []
    values: list[Tensor] = []
    for mean, value in zip(average.parameters(), model.parameters(), strict=True):
        if mean.is_floating_point():
            means.append(mean)
            values.append(value)
    return means, values


# ------------------------------------------------------------------ from a setting to what trains


def make_objective(setting: Setting, model: nn.Module, data: Structure) -> OutputObjective:
    """The objective of a setting over the data."""
    if setting.objective == "plain":
        return PlainObjective(model, data)
    if isinstance(data, Queries) and setting.objective == "NDCG":
        return zoo.NDCG(model, data)
    if isinstance(data, Queries):
        return zoo.ListNet(model, data)
    if isinstance(data, RiskSets):
        return zoo.Cox(model, data)
    if isinstance(data, Groups):
        assert setting.strength is not None
        return zoo.GroupDRO(model, data, zoo.KLRisk(setting.strength))
    assert isinstance(data, Points)
    return _pair_objective(setting, model, data)


def _pair_objective(setting: Setting, model: nn.Module, data: Points) -> OutputObjective:
    assert setting.margin is not None
    loss = zoo.SquaredHinge(margin=setting.margin)
    if setting.p is not None:
        return zoo.PNormPush(model, data, p=setting.p, loss=loss)
    assert setting.hardness is not None
    square = setting.margin**2
    positive_temperature = None
    if setting.positive_hardness is not None:
        positive_temperature = square / setting.positive_hardness
    return zoo.PartialAUC(
        model, data, temperature=square / setting.hardness, positive_temperature=positive_temperature, loss=loss
    )


def _method(setting: Setting) -> methods.Method:
    if setting.objective == "plain":
        return methods.bsgd()
    if setting.objective == "GroupDRO":
        return methods.soap(beta=0.5)
    return methods.output_memory()


def _optimizer(setting: Setting, objective: OutputObjective, problem: Problem) -> torch.optim.Optimizer:
    decay = setting.weight_decay
    if setting.l2 is not None:
        decay = setting.l2
    groups = _parameter_groups(setting.lr, decay, objective, problem)
    # On a GPU in one kernel, and captured steps count on the device.
    on_gpu = device_of(objective).type == "cuda"
    if setting.l2 is not None:
        return torch.optim.Adam(groups, lr=setting.lr, fused=on_gpu or None, capturable=on_gpu)
    return torch.optim.AdamW(groups, lr=setting.lr, fused=on_gpu or None, capturable=on_gpu)


def _parameter_groups(lr: float, decay: float, objective: OutputObjective, problem: Problem) -> list[dict[str, Any]]:
    """The parameters by learning rate and decay."""
    undecayed = _norm_parameters(objective.model)
    members: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in objective.named_parameters():
        if not parameter.requires_grad:
            continue
        own_lr = lr
        if name.removeprefix("model.") in problem.backbone:
            own_lr = lr * problem.backbone_lr
        own_decay = decay
        if id(parameter) in undecayed:
            own_decay = 0.0
        members.setdefault((own_lr, own_decay), []).append(parameter)
    return [{"params": some, "lr": own[0], "weight_decay": own[1]} for own, some in members.items()]


def _norm_parameters(model: nn.Module) -> set[int]:
    """Identities of the scales and shifts of norm layers, known by a weight that is a vector.

    Decay would only shrink what the next layer's weights multiply up again, and it is large enough here to win. A model
    that has nothing but such vectors is linear in them: there is no next layer.
    """
    found: set[int] = set()
    for module in model.modules():
        # Not getattr: a weight may be computed, and spectral norm's moves whenever it is read.
        own = dict(module.named_parameters(recurse=False))
        weight = own.get("weight")
        if weight is not None and weight.ndim == 1:
            found.update(id(parameter) for parameter in own.values() if parameter.ndim <= 1)
    if all(id(parameter) in found for parameter in model.parameters() if parameter.requires_grad):
        return set()
    return found


def batch_shape(setting: Setting, data: Structure, batch_size: int) -> tuple[int, int]:
    """Blocks and samples of a loader whose batches have about ``batch_size`` examples."""
    if setting.objective == "plain":
        return 1, min(batch_size, data.num_examples)
    if isinstance(data, Groups):
        groups = min(len(data.group_names), max(1, batch_size // 2))
        return groups, max(2, batch_size // groups)
    if isinstance(data, Queries | RiskSets):
        return max(1, batch_size // 8), 7
    assert isinstance(data, Points)
    # Every block is compared with the whole other class, so few of them keep a step cheap.
    blocks = max(1, batch_size // 8)
    if data.num_tasks == 1:
        return blocks, batch_size - blocks
    return blocks, max(1, (batch_size - blocks) // min(data.num_tasks, blocks))
