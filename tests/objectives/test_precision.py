"""Half precision, far-away features and large penalties: values and gradients are still those of the formula."""

import pytest
import torch
from torch import nn

import fcco
from fcco.objectives import NCA, NDCG, AveragePrecision, MultiTaskAUC, smoothed
from fcco.objectives._smoothed import Hinge
from fcco.sampling import Average, ExampleLoader, PointLoader, QueryItemLoader


class Told(nn.Module):
    """Outputs that are given, in some precision."""

    def __init__(self, outputs, dtype=None):
        super().__init__()
        self.outputs, self.dtype = nn.Parameter(outputs), dtype

    def forward(self, id):
        found = self.outputs[id]
        return found if self.dtype is None else found.to(self.dtype)


def diagnosed(objective, loader):
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.0), fcco.bsgd())
    for _ in range(2):
        solver.step(*next(iter(loader)))
    found = solver.diagnose(loader.full_pass)
    return found.value, found.gradient_norm


@pytest.mark.parametrize("scale", [10.0, 30.0])
def test_ndcg_of_half_precision_scores_is_ndcg_of_these_scores(scale):
    generator = torch.Generator().manual_seed(0)
    h = (scale * torch.randn(60, generator=generator)).bfloat16().float()  # what half precision can say
    relevance, query = torch.randint(3, (60,), generator=generator), torch.arange(60) // 20
    gradients = []
    for dtype in (None, torch.bfloat16):
        loader = QueryItemLoader(torch.arange(60), relevance, query, 4, 8, seed=0)
        objective = NDCG(Told(h.clone(), dtype), relevance, query)
        index, batch = next(iter(loader))
        objective.outer(index, objective(index, batch)).sum().backward()
        gradients.append(objective.model.outputs.grad)
    error = (gradients[1] - gradients[0]).norm() / gradients[0].norm()
    assert error < 0.01  # the gradient itself is rounded to half precision, once


@pytest.mark.parametrize("offset", [0.0, 10.0])
def test_variances_of_half_precision_scores(offset):
    generator = torch.Generator().manual_seed(0)
    h = (offset + torch.randn(200, 2, generator=generator)).bfloat16().float()
    y = torch.randint(2, (200,), generator=generator)
    values = []
    for dtype in (torch.float64, torch.bfloat16):
        loader = fcco.BlockLoader(torch.arange(200), y, 2, 20, seed=0)
        objective = MultiTaskAUC(Told(h.clone(), dtype), num_tasks=2, trained_centers=False)
        index, batch = next(iter(loader))
        values.append(objective.outer(index, objective(index, batch).double()).detach())
    torch.testing.assert_close(values[1], values[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scale", [1.0, 300.0, 3000.0, 1e6])
@pytest.mark.parametrize("memory", [False, True])
def test_nca_of_features_that_are_far_apart(scale, memory):
    generator = torch.Generator().manual_seed(0)
    x = scale * torch.randn(40, 3, generator=generator, dtype=torch.float64)
    y = torch.arange(40) % 4
    distance = torch.cdist(x, x).square().fill_diagonal_(torch.inf)
    same = y == y[:, None]
    wanted = torch.logsumexp(-distance, 1) - torch.logsumexp((-distance).masked_fill(~same, -torch.inf), 1)
    objective = NCA(Told(x), y, log_likelihood=True)
    loader = ExampleLoader(torch.arange(40), 8, seed=0)
    if memory:
        solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.0), fcco.output_memory())
        table = fcco.memory.MemoryLoader(solver, loader)
        table.score()
        value = float(table.memory.phi.everything().f.mean())
    else:
        value, norm = diagnosed(objective, loader)
        assert norm > 0.0
    assert value == pytest.approx(float(wanted.mean()), rel=1e-9)


@pytest.mark.parametrize(("u", "rho"), [(100.0, 1e5), (1e4, 1e3), (1e4, 1e4), (1.0, 2.0)])
def test_smoothed_slopes_in_single_precision(u, rho):
    outer = Hinge()
    base = fcco.objective(lambda index, x: x, outer, num_blocks=1, parameters=[nn.Parameter(torch.ones(1))])
    for objective in (smoothed(base, rho, prox=outer.prox), smoothed(base, rho)):
        at = torch.tensor([[u]], requires_grad=True)
        f = objective.outer(torch.tensor([0]), at)
        assert f.dtype == torch.float32
        f.sum().backward()
        assert float(at.grad) == pytest.approx(1.0, rel=1e-4)


def test_num_blocks_is_the_loaders():
    x, y = torch.randn(30, 3), (torch.arange(30) < 6).long()
    loader = PointLoader(x, y, 2, 4, average=Average.ALL, seed=0)
    objective = AveragePrecision(nn.Linear(3, 1), num_blocks=len(x))
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), fcco.soap(beta=0.5))
    with pytest.raises(ValueError, match="num_blocks must be 6, as the loader counts, got 30"):
        solver.step(*next(iter(loader)))
