"""Small problems for the output memory: data, objectives with fast forms, objectives without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import fcco
from fcco.data import Examples, Points, Queries, RiskSets, Tasks
from fcco.memory import MemoryLoader, MemoryState
from fcco.memory._strata import Strata
from fcco.objectives import (
    NCA,
    NDCG,
    AveragePrecision,
    Cox,
    GlobalContrastive,
    LearnedTemperature,
    ListNet,
    Logistic,
    MultiTaskAUC,
    OutputObjective,
    PartialAUC,
    PNormPush,
    Square,
    SquaredHinge,
)

N, TASKS = 40, 3
BLOCKS, SAMPLES = 4, 6  # of a step

Case = OutputObjective


def inputs() -> Tensor:
    return torch.randn(N, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def labels() -> Tensor:
    return (torch.rand(N, generator=torch.Generator().manual_seed(2)) < 0.3).long()


def targets() -> Tensor:
    """(N, TASKS), some of them missing."""
    draw = torch.rand(N, TASKS, generator=torch.Generator().manual_seed(3))
    return torch.where(draw < 0.3, 1.0, torch.where(draw < 0.85, 0.0, torch.nan))


def weights() -> Tensor:
    """(N,), some of them 0."""
    weight = torch.randint(0, 4, (N,), generator=torch.Generator().manual_seed(11))
    return weight.double()


def model(outputs: int = 1) -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, outputs)).double()


class TwoTowers(nn.Module):
    """A network for both modalities: the features of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = model(4)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(x), self.net(y)


def points(weight: Tensor | None = None) -> Points:
    return Points(inputs(), labels(), weight=weight)


def many_points(weight: Tensor | None = None) -> Points:
    return Points(inputs(), targets(), weight=weight)


def tasks(weight: Tensor | None = None) -> Tasks:
    return Tasks(inputs(), targets(), weight=weight)


def queries(weight: Tensor | None = None) -> Queries:
    relevance = torch.randint(3, (N,), generator=torch.Generator().manual_seed(5)).double()
    return Queries(inputs(), torch.arange(N) // 8, relevance, weight=weight)


def risk_sets(weight: Tensor | None = None) -> RiskSets:
    generator = torch.Generator().manual_seed(6)
    time = torch.randint(25, (N,), generator=generator).double()  # some tied
    event = torch.rand(N, generator=generator) < 0.6
    return RiskSets(inputs(), time, event, weight=weight)


def pairs(weight: Tensor | None = None) -> Examples:
    return Examples((inputs(), inputs() + 0.1), weight=weight)


def _contrastive(w: Tensor | None, temperature: Any = 0.5, two_modal: bool = False, **options: Any) -> Case:
    net = TwoTowers() if two_modal else model(4)
    return GlobalContrastive(net, pairs(w), temperature=temperature, two_modal=two_modal, **options).double()


Maker = Callable[[Tensor | None], Case]
LEARNED = LearnedTemperature(0.4, rho=0.2)
EACH = LearnedTemperature(0.4, per_example=True)
#: by name, each from the weights of the examples, or None
WEIGHTED_FAST: dict[str, Maker] = {
    "pauc": lambda w: PartialAUC(model(), points(w), temperature=0.3),
    "pauc-square": lambda w: PartialAUC(model(), points(w), temperature=0.5, loss=Square()),
    "two-way": lambda w: PartialAUC(model(), points(w), temperature=0.3, positive_temperature=0.5),
    "ap": lambda w: AveragePrecision(model(), points(w)),
    "auc": lambda w: PNormPush(model(), points(w), p=1.0, loss=SquaredHinge()),
    "push": lambda w: PNormPush(model(), points(w), p=3.0, loss=Square()),
    "pauc-tasks": lambda w: PartialAUC(model(TASKS), many_points(w), temperature=0.3),
    "ap-tasks": lambda w: AveragePrecision(model(TASKS), many_points(w)),
    "ndcg": lambda w: NDCG(model(), queries(w)),
    "listnet": lambda w: ListNet(model(), queries(w)),
    "cox": lambda w: Cox(model(), risk_sets(w)),
    "tasks": lambda w: MultiTaskAUC(model(TASKS), tasks(w)),
    "tasks-means": lambda w: MultiTaskAUC(
        model(TASKS), tasks(w), trained_centers=False, block_weight=torch.tensor([1.0, 2.0, 0.5])
    ),
    "tasks-classes": lambda w: MultiTaskAUC(model(TASKS), Tasks(inputs(), torch.arange(N) % TASKS, weight=w)),
    "tasks-one": lambda w: MultiTaskAUC(model(), Tasks(inputs(), labels(), weight=w), loss=Square()),
    "contrastive": lambda w: _contrastive(w),
    "contrastive-modal": lambda w: _contrastive(w, two_modal=True, epsilon=0.05),
    "contrastive-learned": lambda w: _contrastive(w, temperature=LEARNED),
    "contrastive-each": lambda w: _contrastive(w, temperature=EACH, two_modal=True, normalize=False),
}
WEIGHTED_GENERIC: dict[str, Maker] = {
    "ap-logistic": lambda w: AveragePrecision(model(), points(w), loss=Logistic()),
    "push-logistic": lambda w: PNormPush(model(), points(w), logarithm=True),
    "nca": lambda w: NCA(model(4), Examples(inputs(), torch.arange(N) % 3, weight=w)),
}
WEIGHTED = WEIGHTED_FAST | WEIGHTED_GENERIC


def _plain(make: Maker) -> Callable[[], Case]:
    return lambda: make(None).double()


FAST = {name: _plain(make) for name, make in WEIGHTED_FAST.items()}
GENERIC = {name: _plain(make) for name, make in WEIGHTED_GENERIC.items()}
CASES = FAST | GENERIC


def solver_for(case: Case, method: fcco.Method, lr: float = 0.1, **options: Any) -> tuple[fcco.Solver, MemoryLoader]:
    solver = fcco.Solver(case, torch.optim.SGD(case.parameters(), lr=lr), method)
    options = {"blocks": BLOCKS, "samples": SAMPLES, "seed": 0} | options
    loader = solver.loader(**options)
    assert isinstance(loader, MemoryLoader)
    return solver, loader


def state_of(solver: fcco.Solver) -> MemoryState:
    state = solver.state.engine
    assert isinstance(state, MemoryState)
    return state


def engine_of(solver: fcco.Solver) -> fcco.memory.MemoryEngine:
    engine = solver._engine
    assert isinstance(engine, fcco.memory.MemoryEngine)
    return engine


def whole(case: Case) -> fcco.data.Batch:
    """Every example of every stratum once, as a uniform draw of all of them would give it."""
    strata = Strata(case.blocks, torch.device("cpu"))
    id = torch.cat(strata.on_cpu)
    share = torch.cat([torch.full((size,), 1.0 / size) for size in strata.sizes]).double()
    return fcco.data.Batch(case.data.source.take(id), id, weight=share, probability=share)


def exact_gradient(case: Case) -> list[Tensor]:
    """Autograd of F = (1/m) sum_i f_i(g_i(w)) over a full pass in one piece."""
    log_domain = torch.tensor(case.log_domain)
    rows = None
    for batch in case.full_pass(10_000):
        g = torch.zeros(case.num_blocks, case.dim, dtype=torch.float64)
        values = case(batch.index, batch).double()
        part = torch.where(log_domain, -torch.inf, g).index_copy(0, batch.index, values)
        assert rows is None or not any(case.log_domain)
        rows = part if rows is None else rows + part
    assert rows is not None
    f = case.outer(torch.arange(case.num_blocks), rows)
    wanted = [p for p in case.parameters() if p.requires_grad]
    return list(torch.autograd.grad(f.mean(), wanted, materialize_grads=True))
