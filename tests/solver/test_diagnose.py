"""diagnose: with and without the gradient, and without a trace."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fcco
from fcco.data import Tasks
from fcco.objectives import MultiTaskAUC


@pytest.mark.parametrize("steps", [0, 4])
def test_without_the_gradient_f_and_the_tracking_error_are_the_same(steps: int) -> None:
    net = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    objective = MultiTaskAUC(net, Tasks(torch.randn(60, 5), torch.arange(60) % 4))
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), fcco.msvr_v2())
    batches = iter(solver.loader(blocks=2, samples=4, steps_per_epoch=8))
    for _ in range(steps):
        solver.step(next(batches))
    buffers = [buffer.clone() for buffer in net.buffers()]
    grads = [p.grad for p in solver.parameters]

    whole = solver.diagnose()
    short = solver.diagnose(gradient=False)

    assert short.value == pytest.approx(whole.value, rel=1e-6)
    assert short.tracking_error == whole.tracking_error
    assert (short.tracking_error is None) == (steps == 0)
    assert whole.gradient_norm is not None
    assert short.gradient_norm is None
    assert short.gradient_error is None
    assert all(torch.equal(a, b) for a, b in zip(buffers, net.buffers(), strict=True))
    assert all(before is p.grad for before, p in zip(grads, solver.parameters, strict=True))
