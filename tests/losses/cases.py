"""The losses beside the objectives that they stand for, on the small problems of the objectives' tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fcco import losses, objectives
from tests.objectives.cases import (
    BAG_LABEL,
    CASES,
    CLASS,
    EVENT,
    GROUP,
    LABEL,
    QUERY,
    RELEVANCE,
    TARGETS,
    TIME,
    VIEW,
    N,
    X,
    network,
)

_LEARNED = objectives.LearnedTemperature(start=0.4, rho=0.2, minimum=0.1)

#: how the loss of each case is made
LOSSES: dict[str, Callable[..., losses.Loss]] = {
    "multi-task AUC": lambda **o: losses.MultiTaskAUC(TARGETS, **o),
    "multi-task AUC, exact centers": lambda **o: losses.MultiTaskAUC(TARGETS, trained_centers=False, **o),
    "AP": lambda **o: losses.AveragePrecision(LABEL, **o),
    "AP, several tasks": lambda **o: losses.AveragePrecision(TARGETS, **o),
    "pAUC": lambda **o: losses.PartialAUC(LABEL, temperature=0.5, **o),
    "pAUC, several tasks": lambda **o: losses.PartialAUC(CLASS, temperature=0.5, **o),
    "pAUC, two-way": lambda **o: losses.PartialAUC(TARGETS, temperature=0.5, positive_temperature=0.7, **o),
    "p-norm push": lambda **o: losses.PNormPush(LABEL, **o),
    "p-norm push, logarithm": lambda **o: losses.PNormPush(TARGETS, logarithm=True, **o),
    "NDCG": lambda **o: losses.NDCG(QUERY, RELEVANCE, **o),
    "ListNet": lambda **o: losses.ListNet(QUERY, RELEVANCE, **o),
    "Cox": lambda **o: losses.Cox(TIME, EVENT, **o),
    "Group DRO, KL": lambda **o: losses.GroupDRO(CLASS, GROUP, objectives.KLRisk(0.5), **o),
    "Group DRO, CVaR": lambda **o: losses.GroupDRO(LABEL, GROUP, objectives.CVaRRisk(0.5), **o),
    "multi-instance": lambda **o: losses.MultiInstance(GROUP, BAG_LABEL, temperature=0.5, **o),
    "contrastive": lambda **o: losses.GlobalContrastive(N, temperature=0.5, **o),
    "contrastive, learned": lambda **o: losses.GlobalContrastive(N, temperature=_LEARNED, **o),
    "NCA": lambda **o: losses.NCA(CLASS, **o),
}

#: what the call's y is, where it is not among the case's facts
LABELS: dict[str, Any] = {
    "NDCG": RELEVANCE,
    "ListNet": RELEVANCE,
    "Cox": torch.stack([TIME, EVENT.to(TIME.dtype)], 1),
    "multi-instance": BAG_LABEL[GROUP],
}


def labels(name: str, id: Tensor) -> Tensor | None:
    """y of the examples (K,)."""
    known = LABELS.get(name, CASES[name].facts.get("y"))
    if known is None:
        return None
    return known[id]


def inputs(name: str, id: Tensor) -> Any:
    """x of the examples (K,)."""
    if CASES[name].views:
        return (X[id], VIEW[id])
    return X[id]


def scores(name: str, model: nn.Module, id: Tensor) -> Any:
    """What a user hands over."""
    x = inputs(name, id)
    if isinstance(x, tuple):
        return tuple(model(view) for view in x)
    return model(x)


def make_loss(name: str, **options: Any) -> losses.Loss:
    """In double precision, its own variables where those of the case's objective are."""
    loss = LOSSES[name](**options).double()
    with torch.no_grad():
        for parameter in loss.parameters():
            parameter.add_(0.2)
    return loss


class Loop:
    """A loop of one's own: network, loss and optimizer.

    Args:
        name: of the case.
        lr: of SGD with momentum.
        options: of the loss.
    """

    def __init__(self, name: str, lr: float = 0.05, **options: Any) -> None:
        self.name = name
        self.model = network(CASES[name].outputs)
        self.loss = make_loss(name, **options)
        self.optimizer = torch.optim.SGD([*self.model.parameters(), *self.loss.parameters()], lr=lr, momentum=0.5)

    def step(self, id: Tensor) -> float:
        self.optimizer.zero_grad()
        value = self.loss(scores(self.name, self.model, id), labels(self.name, id), id)
        value.backward()
        self.optimizer.step()
        return value.item()

    def outcome(self) -> list[Tensor]:
        """Everything that a step moves."""
        weights = [p.detach().clone() for p in [*self.model.parameters(), *self.loss.parameters()]]
        return [*weights, self.loss.u.clone(), self.loss.visited.clone()]


def batches(steps: int, size: int = 8, seed: int = 0) -> list[Tensor]:
    """Ids of uniform draws without replacement, two positives at least; one of them holds an example twice."""
    draws = torch.Generator().manual_seed(seed)
    ids: list[Tensor] = []
    while len(ids) < steps:
        id = torch.randperm(N, generator=draws)[:size]
        if int(LABEL[id].sum()) >= 2:
            ids.append(id)
    ids[steps // 2] = torch.cat([ids[steps // 2], ids[steps // 2][:1]])
    return ids
