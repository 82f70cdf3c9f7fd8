"""One small problem per objective, in float64, for what holds for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fcco import data, objectives
from fcco.objectives import OutputObjective

N = 12
_RANDOM = torch.Generator().manual_seed(0)
X = torch.randn(N, 3, generator=_RANDOM, dtype=torch.float64)
VIEW = X + 0.3 * torch.randn(N, 3, generator=_RANDOM, dtype=torch.float64)
LABEL = torch.tensor([1, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 1])
CLASS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2])
TARGETS = torch.stack([LABEL, LABEL.roll(2), LABEL.roll(5)], 1).double()
TARGETS[4, 0] = TARGETS[7, 2] = torch.nan
QUERY = torch.tensor([7, 3, 3, 7, 3, 7, 7, 3, 5, 5, 7, 3])
RELEVANCE = torch.tensor([2, 0, 1, 0, 3, 1, 0, 0, 1, 0, 2, 1])
TIME = torch.tensor([4.0, 1.0, 3.0, 3.0, 2.0, 5.0, 1.0, 6.0, 2.0, 7.0, 5.0, 4.0])
EVENT = torch.tensor([1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0])
GROUP = torch.tensor([0, 2, 1, 1, 2, 2, 3, 0, 2, 3, 1, 2])
BAG_LABEL = torch.tensor([0, 1, 1, 0])


def network(outputs: int) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


class Case(NamedTuple):
    """How an objective and its data are made.

    Attributes:
        kind: of the data.
        facts: what is known of the examples, a tensor (N, ...) each, by the names of the data's arguments.
        make: the objective from a model and data.
        outputs: how many outputs the model has.
        views: whether x is two views.
        whole: facts that are not per example.
    """

    kind: type[Any]
    facts: dict[str, Tensor]
    make: Callable[..., OutputObjective]
    outputs: int = 1
    views: bool = False
    whole: dict[str, Any] = {}  # noqa: RUF012

    def data(self, rows: Tensor | None = None, weight: Tensor | None = None) -> Any:
        """The data, or the rows (n,) of it, each as often as it is named."""
        if rows is None:
            rows = torch.arange(N)
        x: Any = X[rows]
        if self.views:
            x = (X[rows], VIEW[rows])
        facts = {name: value[rows] for name, value in self.facts.items()}
        return self.kind(x, **facts, **self.whole, weight=weight)

    def objective(self, rows: Tensor | None = None, weight: Tensor | None = None, **options: Any) -> OutputObjective:
        """The objective over these data, its own variables away from where they start."""
        made = self.make(network(self.outputs), self.data(rows, weight), **options)
        with torch.no_grad():
            for name, parameter in made.named_parameters():
                if not name.startswith("model."):
                    parameter.add_(0.2)
        return made


def _group_dro(risk: objectives.KLRisk | objectives.CVaRRisk) -> Callable[..., OutputObjective]:
    def make(model: nn.Module, data: Any, **options: Any) -> OutputObjective:
        return objectives.GroupDRO(model, data, options.pop("risk", risk), **options)

    return make


def _with(kind: Callable[..., OutputObjective], **fixed: Any) -> Callable[..., OutputObjective]:
    def make(model: nn.Module, data: Any, **options: Any) -> OutputObjective:
        return kind(model, data, **(fixed | options))

    return make


_LEARNED = objectives.LearnedTemperature(start=0.4, rho=0.2, minimum=0.1)
CASES = {
    "multi-task AUC": Case(data.Tasks, {"y": TARGETS}, objectives.MultiTaskAUC, 3),
    "multi-task AUC, exact centers": Case(
        data.Tasks, {"y": TARGETS}, _with(objectives.MultiTaskAUC, trained_centers=False), 3
    ),
    "AP": Case(data.Points, {"y": LABEL}, objectives.AveragePrecision),
    "AP, several tasks": Case(data.Points, {"y": TARGETS}, objectives.AveragePrecision, 3),
    "pAUC": Case(data.Points, {"y": LABEL}, _with(objectives.PartialAUC, temperature=0.5)),
    "pAUC, several tasks": Case(data.Points, {"y": CLASS}, _with(objectives.PartialAUC, temperature=0.5), 3),
    "pAUC, two-way": Case(
        data.Points, {"y": TARGETS}, _with(objectives.PartialAUC, temperature=0.5, positive_temperature=0.7), 3
    ),
    "p-norm push": Case(data.Points, {"y": LABEL}, objectives.PNormPush),
    "p-norm push, logarithm": Case(data.Points, {"y": TARGETS}, _with(objectives.PNormPush, logarithm=True), 3),
    "NDCG": Case(data.Queries, {"query": QUERY, "relevance": RELEVANCE}, objectives.NDCG),
    "ListNet": Case(data.Queries, {"query": QUERY, "relevance": RELEVANCE}, objectives.ListNet),
    "Cox": Case(data.RiskSets, {"time": TIME, "event": EVENT}, objectives.Cox),
    "Group DRO, KL": Case(data.Groups, {"y": CLASS, "group": GROUP}, _group_dro(objectives.KLRisk(0.5)), 3),
    "Group DRO, CVaR": Case(data.Groups, {"y": LABEL, "group": GROUP}, _group_dro(objectives.CVaRRisk(0.5))),
    "multi-instance": Case(
        data.Bags, {"bag": GROUP}, _with(objectives.MultiInstance, temperature=0.5), whole={"y": BAG_LABEL}
    ),
    "contrastive": Case(data.Examples, {}, _with(objectives.GlobalContrastive, temperature=0.5), 2, views=True),
    "contrastive, learned": Case(
        data.Examples, {}, _with(objectives.GlobalContrastive, temperature=_LEARNED), 2, views=True
    ),
    "NCA": Case(data.Examples, {"y": CLASS}, objectives.NCA, 2),
}
