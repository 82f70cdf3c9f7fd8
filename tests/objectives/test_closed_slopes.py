"""f and its derivative in closed form, of the ready objectives that have them."""

import pytest
import torch
from torch import nn

from fcco.data import Points
from fcco.objectives import AveragePrecision, PartialAUC
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
