"""Half precision, far-away features and large penalties: values and gradients are still those of the formula."""

import pytest
import torch
from torch import nn

import fcco
from fcco.data import Examples, Queries, Tasks
from fcco.objectives import NCA, NDCG, MultiTaskAUC, smoothed
from fcco.objectives._smoothed import Hinge
from tests.objectives.tools import pairs_of


class Told(nn.Module):
    """Outputs that are given, in some precision."""

    def __init__(self, outputs, dtype=None):
        super().__init__()
        self.outputs, self.dtype = nn.Parameter(outputs), dtype

    def forward(self, id):
        found = self.outputs[id]
        return found if self.dtype is None else found.to(self.dtype)


def diagnosed(objective, blocks, samples):
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.0), fcco.bsgd())
    for batch in objective.loader(blocks, samples, steps_per_epoch=2):
        solver.step(batch.index, batch)
    found = solver.diagnose(pairs_of(objective, 1024))
    return found.value, found.gradient_norm


@pytest.mark.parametrize("scale", [10.0, 30.0])
def test_ndcg_of_half_precision_scores_is_ndcg_of_these_scores(scale):
    generator = torch.Generator().manual_seed(0)
    h = (scale * torch.randn(60, generator=generator)).bfloat16().float()  # what half precision can say
    relevance, query = torch.randint(3, (60,), generator=generator), torch.arange(60) // 20
    gradients = []
    for dtype in (None, torch.bfloat16):
        objective = NDCG(Told(h.clone(), dtype), Queries(torch.arange(60), query, relevance))
        batch = next(iter(objective.loader(4, 8)))
        objective.outer(batch.index, objective(batch.index, batch)).sum().backward()
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
        data = Tasks(torch.arange(200), y, classes=(0, 1))
        objective = MultiTaskAUC(Told(h.clone(), dtype), data, trained_centers=False)
        batch = next(iter(objective.loader(2, 20)))
        values.append(objective.outer(batch.index, objective(batch.index, batch).double()).detach())
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
    objective = NCA(Told(x), Examples(torch.arange(40), y), log_likelihood=True)
    if memory:  # the table's own value of F
        solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.0), fcco.output_memory())
        for batch in solver.loader(blocks=8, samples=0, steps_per_epoch=40):
            value = solver.step(batch).value
    else:
        value, norm = diagnosed(objective, 8, 0)
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
