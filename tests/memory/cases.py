"""Small problems for the output memory: data, objectives with fast forms, objectives without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import fcco
from fcco.memory import MemoryLoader
from fcco.objectives._average_precision import AveragePrecision
from fcco.objectives._base import OutputObjective
from fcco.objectives._cox import Cox
from fcco.objectives._global_contrastive import GlobalContrastive, LearnedTemperature
from fcco.objectives._listnet import ListNet
from fcco.objectives._multitask_auc import MultiTaskAUC
from fcco.objectives._nca import NCA
from fcco.objectives._ndcg import NDCG
from fcco.objectives._partial_auc import PartialAUC
from fcco.objectives._pnorm_push import PNormPush
from fcco.objectives._surrogates import Logistic, Square, SquaredHinge
from fcco.sampling import (
    Average,
    BlockLoader,
    ExampleLoader,
    MultiLabelPointLoader,
    PointLoader,
    QueryItemLoader,
    RiskSetLoader,
)
from fcco.sampling.loader import Loader

N, TASKS = 40, 3


class Case(NamedTuple):
    """An objective and its loader."""

    objective: OutputObjective
    loader: Loader


def inputs() -> Tensor:
    return torch.randn(N, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def labels() -> Tensor:
    return (torch.rand(N, generator=torch.Generator().manual_seed(2)) < 0.3).long()


def targets() -> Tensor:
    """(N, TASKS), some of them missing."""
    draw = torch.rand(N, TASKS, generator=torch.Generator().manual_seed(3))
    return torch.where(draw < 0.3, 1.0, torch.where(draw < 0.85, 0.0, torch.nan))


def model(outputs: int = 1) -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, outputs)).double()


def _point(make: Callable[[nn.Module, int], OutputObjective], average: Average, block_label: int = 1) -> Case:
    loader = PointLoader(inputs(), labels(), 4, 6, average=average, block_label=block_label, seed=0)
    return Case(make(model(), loader.num_blocks).double(), loader)


def _tasks(make: Callable[[nn.Module, Tensor], OutputObjective], average: Average, block_label: int = 1) -> Case:
    loader = MultiLabelPointLoader(
        inputs(), targets(), 4, 5, average=average, block_label=block_label, block_fraction=0.4, seed=0
    )
    return Case(make(model(TASKS), loader.block_task).double(), loader)


def _queries(kind: type[Any], above: float) -> Case:
    query = torch.arange(N) // 8
    relevance = torch.randint(3, (N,), generator=torch.Generator().manual_seed(5)).double()
    loader = QueryItemLoader(inputs(), query, relevance, 4, relevant_above=above, seed=0)
    return Case(kind(model(), query, relevance).double(), loader)


def _cox() -> Case:
    generator = torch.Generator().manual_seed(6)
    time = torch.randint(25, (N,), generator=generator).double()  # some tied
    event = torch.rand(N, generator=generator) < 0.6
    return Case(Cox(model(), time, event.long()).double(), RiskSetLoader(inputs(), time, event, 4, 5, seed=0))


class TwoTowers(nn.Module):
    """A network for both modalities: the features of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = model(4)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(x), self.net(y)


def _contrastive(temperature: float | LearnedTemperature = 0.5, two_modal: bool = False, **options: Any) -> Case:
    net = TwoTowers() if two_modal else model(4)
    objective = GlobalContrastive(net, N, temperature=temperature, two_modal=two_modal, **options)
    return Case(objective.double(), ExampleLoader((inputs(), inputs() + 0.1), 6, seed=0))


def _nca() -> Case:
    y = torch.arange(N) % 3
    return Case(NCA(model(4), y).double(), ExampleLoader(inputs(), 6, labels=y, seed=0))


FAST: dict[str, Callable[[], Case]] = {
    "pauc": lambda: _point(lambda h, m: PartialAUC(h, m, temperature=0.3), Average.OPPOSITE),
    "pauc-square": lambda: _point(lambda h, m: PartialAUC(h, m, temperature=0.5, loss=Square()), Average.OPPOSITE),
    "two-way": lambda: _point(
        lambda h, m: PartialAUC(h, m, temperature=0.3, positive_temperature=0.5), Average.OPPOSITE
    ),
    "ap": lambda: _point(lambda h, m: AveragePrecision(h, m), Average.ALL),
    "auc": lambda: _point(lambda h, m: PNormPush(h, m, p=1.0, loss=SquaredHinge()), Average.OPPOSITE, 0),
    "push": lambda: _point(lambda h, m: PNormPush(h, m, p=3.0, loss=Square()), Average.OPPOSITE, 0),
    "pauc-tasks": lambda: _tasks(
        lambda h, task: PartialAUC(h, len(task), temperature=0.3, block_task=task), Average.OPPOSITE
    ),
    "ap-tasks": lambda: _tasks(lambda h, task: AveragePrecision(h, len(task), block_task=task), Average.ALL),
    "ndcg": lambda: _queries(NDCG, 0.0),
    "listnet": lambda: _queries(ListNet, -float("inf")),
    "cox": _cox,
    "tasks": lambda: Case(MultiTaskAUC(model(TASKS), TASKS).double(), BlockLoader(inputs(), targets(), 2, 4, seed=0)),
    "tasks-means": lambda: Case(
        MultiTaskAUC(model(TASKS), TASKS, trained_centers=False, block_weight=torch.tensor([1.0, 2.0, 0.5])).double(),
        BlockLoader(inputs(), targets(), 2, 4, seed=0),
    ),
    "tasks-classes": lambda: Case(
        MultiTaskAUC(model(TASKS), TASKS).double(), BlockLoader(inputs(), torch.arange(N) % TASKS, 2, 4, seed=0)
    ),
    "tasks-one": lambda: Case(
        MultiTaskAUC(model(), 1, loss=Square()).double(), BlockLoader(inputs(), labels().double(), 1, 4, seed=0)
    ),
    "contrastive": lambda: _contrastive(),
    "contrastive-modal": lambda: _contrastive(two_modal=True, epsilon=0.05),
    "contrastive-learned": lambda: _contrastive(temperature=LearnedTemperature(0.4, rho=0.2)),
    "contrastive-each": lambda: _contrastive(
        temperature=LearnedTemperature(0.4, per_example=True), two_modal=True, normalize=False
    ),
}
GENERIC: dict[str, Callable[[], Case]] = {
    "ap-logistic": lambda: _point(lambda h, m: AveragePrecision(h, m, loss=Logistic()), Average.ALL),
    "push-logistic": lambda: _point(lambda h, m: PNormPush(h, m, logarithm=True), Average.OPPOSITE, 0),
    "nca": _nca,
}
CASES = FAST | GENERIC


def solver_for(case: Case, method: fcco.Method, lr: float = 0.1, **options: Any) -> tuple[fcco.Solver, MemoryLoader]:
    optimizer = torch.optim.SGD(case.objective.parameters(), lr=lr)
    solver = fcco.Solver(case.objective, optimizer, method)
    return solver, MemoryLoader(solver, case.loader, **options)


def whole(memory: fcco.memory.Memory) -> fcco.Batch:
    """Every example of every stratum once, as a uniform draw of all of them would give it."""
    id = torch.cat([chances.members for chances in memory.chances])
    share = torch.cat([torch.full((c.members.shape[0],), 1.0 / c.members.shape[0]) for c in memory.chances]).double()
    return fcco.Batch(next(memory.loader._source.fetch([(0, id)], keep=False)), id, weight=share, probability=share)


def exact_gradient(case: Case) -> list[Tensor]:
    """Autograd of F = (1/m) sum_i f_i(g_i(w)) over a full pass in one piece."""
    log, rows = torch.tensor(case.objective.log), None
    for index, batch in case.loader.full_pass(10_000):
        g = torch.full((case.objective.num_blocks, case.objective.dim), 0.0, dtype=torch.float64)
        part = torch.where(log, -torch.inf, g).index_copy(0, index, case.objective(index, batch).double())
        assert rows is None or not any(case.objective.log)
        rows = part if rows is None else rows + part
    assert rows is not None
    f = case.objective.outer(torch.arange(case.objective.num_blocks), rows)
    wanted = [p for p in case.objective.parameters() if p.requires_grad]
    return list(torch.autograd.grad(f.mean(), wanted, materialize_grads=True))
