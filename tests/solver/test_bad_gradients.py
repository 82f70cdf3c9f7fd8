"""Gradients, rows and norms that are not finite although every value is: the blocks are named."""

import pytest
import torch
from torch import nn

import fcco
from tests.helpers.methods import TABLE, recipe
from tests.helpers.same import assert_same
from tests.helpers.trials import BLOCKS, snapshot

pytestmark = pytest.mark.usefixtures("one_thread")


class Rooted(fcco.Objective):
    """g_i = mean of sqrt(|x w|), with no derivative at x = 0; `model` works on all blocks at once."""

    def __init__(self, model=None, shared=False):
        super().__init__(num_blocks=BLOCKS, dim=1)
        self.w, self.model, self.shared = nn.Parameter(torch.ones(4)), model or nn.Identity(), shared

    def inner(self, index, x, *rest):
        y = (x @ self.w).abs().sqrt().mean(1, keepdim=True)
        return self.model(y)

    def outer(self, index, u):
        return u.square().sum(1)


def rooted_step(objective, place, *rest, method=None, **options):
    solver = fcco.Solver(
        objective,
        torch.optim.SGD(objective.parameters(), lr=0.1),
        method or recipe("msvr-v2"),
        **options,
    )
    index = torch.tensor([4, 0, 3])
    solver.step(index, torch.ones(3, 2, 4), *rest)
    x = torch.ones(3, 2, 4)
    x[place, 1] = 0.0
    before = snapshot(solver)
    with pytest.raises(fcco.NonFiniteError, match="not finite") as caught:
        solver.step(index, x, *rest)
    assert_same(before, snapshot(solver))
    return caught.value.blocks


@pytest.mark.parametrize("name", ["soap", "sox", "msvr-v1", "msvr-v2", "msvr-v1-sp", "bspiderboost"])
@pytest.mark.parametrize("place", range(3))
def test_gradient_that_is_not_finite_names_the_block(place, name):
    options = {"radius": 2.0} if TABLE[name].single_point else {}
    assert rooted_step(Rooted(), place, method=recipe(name), **options) == [[4, 0, 3][place]]


def test_gradient_that_is_not_finite_with_data_that_all_blocks_share():
    """Data that cannot be cut up by block: all blocks are suspects, since 0 * inf spoils every row's gradient."""
    blocks = rooted_step(Rooted(), 1, torch.zeros(7))
    assert 0 in blocks


def test_gradient_that_is_not_finite_behind_batch_norm():
    """BatchNorm refuses a batch of one, so the replay block by block cannot run: the step's error must come all
    the same, not BatchNorm's."""
    blocks = rooted_step(Rooted(nn.BatchNorm1d(1)), 2)
    assert 3 in blocks


def test_gradient_that_is_not_finite_in_a_full_pass_names_blocks():
    objective, x = Rooted(), torch.ones(BLOCKS, 2, 4)
    passes = lambda: iter([(torch.tensor([0, 1, 2]), x[:3]), (torch.tensor([3, 4, 5]), x[3:])])  # noqa: E731
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.0)
    solver = fcco.Solver(objective, optimizer, recipe("msvr-v3", period=2), full_pass=passes)
    for _ in range(2):
        solver.step(torch.tensor([1]), x[1:2])
    x[4, 1] = 0.0
    before = snapshot(solver)
    with pytest.raises(fcco.NonFiniteError, match=r"full_pass.*gradient.*blocks 3, 4, 5$") as caught:
        solver.step(torch.tensor([1]), x[1:2])
    assert caught.value.blocks == [3, 4, 5]  # those of the batch that it came from
    assert_same(before, snapshot(solver))


def test_overflow_of_u_is_refused():
    """g and the gradient are finite, and yet the new row is not."""
    w = nn.Parameter(torch.ones(1))
    f = fcco.objective(lambda i, x: x * (1 + 0 * w), lambda i, u: torch.tanh(u).sum(1), num_blocks=3, parameters=[w])
    solver = fcco.Solver(f, torch.optim.SGD([w], lr=0.1), fcco.msvr_v1(alpha=0.5, beta=0.5, gamma=1e20))
    solver.step(torch.tensor([0, 2]), torch.ones(2, 1))
    solver.state.engine.previous[0].fill_(-1e25)
    g = fcco.objective(lambda i, x: x * w, lambda i, u: torch.tanh(u).sum(1), num_blocks=3, parameters=[w])
    f.inner = g.inner
    before = snapshot(solver)
    with pytest.raises(fcco.NonFiniteError, match=r"block 2$"):
        solver.step(torch.tensor([0, 2]), torch.tensor([[0.0], [1.0]]))
    assert_same(before, snapshot(solver))


@pytest.mark.parametrize("option", [{"radius": 1.0}, {"normalize": True}])
def test_norm_that_overflows_is_not_taken_for_a_zero_step(option):
    """Every component of z is finite, ||z|| is not: z/||z|| would be zero, and the run would stand still."""
    w = nn.Parameter(torch.ones(4))
    f = fcco.objective(lambda i, x: (x * w).sum(1, True), lambda i, u: u.sum(1), num_blocks=2, parameters=[w])
    solver = fcco.Solver(f, torch.optim.SGD([w], lr=1.0), fcco.bsgd(), **option)
    with pytest.raises(fcco.NonFiniteError, match="gradient"):
        solver.step([0], torch.tensor([[2e38, -2e38, 2e38, -2e38]]))
    assert torch.equal(w.detach(), torch.ones(4))
