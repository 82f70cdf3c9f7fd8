"""f and its derivative in closed form, of the ready objectives that have them."""

import pytest
import torch
from torch import nn

from fcco.data import Examples, Points, Queries, Tasks
from fcco.objectives import (
    NDCG,
    AveragePrecision,
    GlobalContrastive,
    LearnedTemperature,
    ListNet,
    MultiTaskAUC,
    PartialAUC,
    Square,
    SquaredHinge,
)
from fcco.objectives._means import ZERO


def points(tasks):
    """Six blocks, of one task or of two."""
    y = torch.zeros(9, tasks)
    if tasks == 1:
        y[:6] = 1.0
    else:
        y[:2, 0] = 1.0
        y[2:6, 1] = 1.0
    weight = torch.arange(1.0, 10.0)
    return Points(torch.randn(9, 2), y, weight=weight)


@pytest.mark.parametrize("tasks", [1, 2])
def test_average_precision_has_autograds_slope(tasks):
    objective = AveragePrecision(nn.Linear(2, tasks), points(tasks))
    u = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u[1] = torch.tensor([ZERO, ZERO])
    u[2] = torch.tensor([ZERO - 3.0, ZERO - 1.0])
    u[3] = torch.tensor([0.5, 0.5])
    index = torch.arange(6)
    leaf = u.clone().requires_grad_()
    f = objective.outer(index, leaf)
    f.sum().backward()
    value, slope = objective.outer_and_slope(index, u)
    assert torch.equal(value, f.detach())
    assert torch.allclose(slope, leaf.grad, rtol=1e-14, atol=0)


@pytest.mark.parametrize("tasks", [1, 2])
def test_partial_auc_has_autograds_slope(tasks):
    model = nn.Linear(2, tasks)
    objective = PartialAUC(model, points(tasks), temperature=0.3)
    index, u = torch.arange(6), torch.randn(6, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    leaf = u.clone().requires_grad_()
    f = objective.outer(index, leaf)
    f.sum().backward()
    value, slope = objective.outer_and_slope(index, u)
    assert torch.allclose(value, f.detach(), rtol=1e-14, atol=0)
    assert torch.allclose(slope, leaf.grad, rtol=1e-14, atol=0)
    two_way = PartialAUC(model, points(tasks), temperature=0.3, positive_temperature=1.0)
    assert two_way.outer_and_slope(index, u) is None  # its threshold is trained, too


def assert_autograds_slope(objective, u):
    index = torch.arange(u.shape[0])
    leaf = u.clone().requires_grad_()
    f = objective.outer(index, leaf)
    f.sum().backward()
    value, slope = objective.outer_and_slope(index, u)
    assert torch.allclose(value, f.detach(), rtol=1e-13, atol=0)
    assert torch.allclose(slope, leaf.grad, rtol=1e-13, atol=0)


def rows(count, dim):
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("loss", [SquaredHinge(margin=0.5, scale=0.7), Square(margin=0.5, scale=0.7)])
@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 2.0, 3.0])])
def test_multitask_auc_has_autograds_slope(loss, weight):
    data = Tasks(torch.randn(9, 2), torch.arange(9) % 3)
    model = nn.Linear(2, 3).double()
    assert_autograds_slope(MultiTaskAUC(model, data, loss=loss, block_weight=weight), rows(3, 3))
    moments = MultiTaskAUC(model, data, trained_centers=False)
    assert moments.outer_and_slope(torch.arange(3), rows(3, 4)) is None


@pytest.mark.parametrize("weight", [None, torch.arange(1.0, 6.0)])
@pytest.mark.parametrize("epsilon", [0.0, 0.2])
def test_global_contrastive_has_autograds_slope(epsilon, weight):
    x = torch.randn(5, 2)
    data = Examples((x, x), weight=weight)
    model = nn.Linear(2, 3).double()
    assert_autograds_slope(GlobalContrastive(model, data, temperature=0.3, epsilon=epsilon), rows(5, 2))
    learned = GlobalContrastive(model, data, temperature=LearnedTemperature())
    assert learned.outer_and_slope(torch.arange(5), rows(5, 2)) is None


@pytest.mark.parametrize("kind", [ListNet, NDCG])
def test_ranking_objectives_have_autograds_slope(kind):
    query = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    data = Queries(torch.randn(7, 2), query, torch.tensor([1, 2, 1, 3, 1, 1, 2]), weight=torch.arange(1.0, 8.0))
    # NDCG's f goes on as its tangent where u is too small to be a rank.
    assert_autograds_slope(kind(nn.Linear(2, 1).double(), data), rows(7, 1))
