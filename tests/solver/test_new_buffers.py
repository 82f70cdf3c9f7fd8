"""Buffers that come to life in a pass."""

import pytest
import torch
from torch import nn

import fcco
from tests.helpers.failing import Mine
from tests.helpers.same import assert_same
from tests.helpers.trials import snapshot

pytestmark = pytest.mark.usefixtures("one_thread")


class Lazy(fcco.Objective):
    """Its buffer is None until the first pass, and holds the latest mean from then on."""

    def __init__(self):
        super().__init__(num_blocks=3, dim=1)
        self.w = nn.Parameter(torch.ones(2))
        self.register_buffer("mean", None)
        self.fail = False

    def inner(self, index, x):
        y = x @ self.w
        self.mean = y.detach().mean() if self.mean is None else 0.5 * self.mean + 0.5 * y.detach().mean()
        if self.fail:
            raise Mine("mine")
        return (y - self.mean).square().mean(1, keepdim=True)

    def outer(self, index, u):
        return (1 + u).log().sum(1)


@pytest.mark.parametrize("lag", [0, 1])
def test_buffer_that_is_none_at_first(lag):
    def run(spoilt):
        objective = Lazy()
        optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
        solver = fcco.Solver(objective, optimizer, fcco.msvr_v2(alpha=0.5, beta=0.5, lag=lag))
        generator = torch.Generator().manual_seed(3)
        for _ in range(3):
            batch = torch.tensor([0, 2]), torch.randn(2, 4, 2, generator=generator)
            if spoilt:
                objective.fail, before = True, objective.mean
                with pytest.raises(Mine):
                    solver.step(*batch)
                objective.fail = False
                assert (objective.mean is None) == (before is None)
            solver.step(*batch)
        return snapshot(solver)

    assert_same(run(False), run(True))


@pytest.mark.parametrize("lag", [0, 1])
def test_only_the_pass_at_the_current_weights_marks_a_new_buffer(lag):
    """The first step probes twice; the mean must come from one pass, not from two."""
    objective = Lazy()
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
    solver = fcco.Solver(objective, optimizer, fcco.msvr_v1(alpha=0.5, beta=0.5, lag=lag))
    x = torch.randn(2, 4, 2)
    solver.step([0, 2], x)
    assert torch.equal(objective.mean, (x @ torch.ones(2)).mean())
