"""BatchNorm in training mode: a full pass must see the same function as the steps do."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import fcco
from fcco.data import Loader, Tasks
from fcco.lab.passes import ComposedPass, FullPass, depends_on_batch
from fcco.objectives import MultiTaskAUC

pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class Gaps:
    """Root mean squares over the tasks: how far a full pass is from the mean of g over training batches."""

    size: float  # of the mean itself
    noise: float  # the standard error of the mean
    plain: float
    composed: float


@torch.no_grad()
def full_values(objective: MultiTaskAUC, full_pass: FullPass) -> Tensor:
    """g (m, dim): the rows of a pass, added up per block."""
    total = torch.zeros(objective.num_blocks, objective.dim, dtype=next(objective.parameters()).dtype)
    for batch in full_pass():
        assert batch.index is not None
        total.index_add_(0, batch.index, objective(batch.index, batch))
    return total


def measure(objective: MultiTaskAUC, loader: Loader, plain: FullPass, composed: FullPass, epochs: int) -> Gaps:
    """Compare both kinds of full pass with the mean of g_i(w; xi) over the draws of some epochs, in training mode."""
    m, dim = objective.num_blocks, objective.dim
    total, squares, count = torch.zeros(m, dim), torch.zeros(m, dim), torch.zeros(m, 1)
    with torch.no_grad():
        for _ in range(epochs):
            for batch in loader:
                assert batch.index is not None
                g = objective(batch.index, batch)
                total[batch.index] += g
                squares[batch.index] += g.square()
                count[batch.index] += 1
    mean = total / count
    error = ((squares / count - mean.square()).clamp(min=0) / count).sqrt()

    def off(full_pass: FullPass) -> float:
        return size(full_values(objective, full_pass) - mean)

    def size(rows: Tensor) -> float:
        return float(rows.square().sum(1).mean().sqrt())

    return Gaps(size(mean), size(error), off(plain), off(composed))


def normalised(classes: int, features: int) -> MultiTaskAUC:
    """A network with BatchNorm whose scores depend strongly on the batch's mix of classes."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(600) % classes
    centres = 2 * torch.randn(classes, features, generator=generator)
    x = centres[y] + torch.randn(600, features, generator=generator)
    net = nn.Sequential(nn.Linear(features, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, classes))
    return MultiTaskAUC(net, Tasks(x, y))


def test_a_composed_pass_sees_what_the_steps_see() -> None:
    objective = normalised(10, 6)
    assert depends_on_batch(objective)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.3), fcco.sox(alpha=0.5, beta=0.5))
    loader = solver.loader(blocks=2, samples=16, seed=0)
    for batch in loader:
        solver.step(batch)
    composed = ComposedPass(objective.blocks, blocks=2, samples=16, seed=0)
    found = measure(objective, loader, objective.full_pass, composed, epochs=30)
    assert found.plain > 2.5 * found.composed
    assert found.composed < 0.1 * found.size


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("blocks", "fraction"), [(2, 0.5), (3, 0.25), (7, 0.5), (10, 0.5)])
def test_without_batchnorm_it_is_the_exact_mean(blocks: int, fraction: float, weighted: bool) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(203, 5).double(), torch.arange(203) % 10
    y[:20] = 3  # classes of unequal size
    weight = None
    if weighted:
        weight = torch.rand(203).masked_fill(torch.rand(203) < 0.1, 0.0)
    data = Tasks(x, y, weight=weight)
    objective = MultiTaskAUC(nn.Linear(5, 10).double(), data, positive_fraction=fraction)
    assert not depends_on_batch(objective)
    plain = full_values(objective, objective.full_pass)
    composed = ComposedPass(objective.blocks, blocks=blocks, samples=8, seed=1)
    torch.testing.assert_close(full_values(objective, composed), plain, rtol=1e-12, atol=1e-12)
    batches = list(composed())
    assert {len(batch) for batch in batches} == {blocks * 8}  # every batch is as large as a step's
    assert sum(len(batch) for batch in batches) == composed.evaluations


def test_missing_labels_and_several_labels_are_covered_too() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(150, 4).double(), (torch.rand(150, 5) < 0.3).float()
    y[torch.rand(150, 5) < 0.2] = float("nan")
    objective = MultiTaskAUC(nn.Linear(4, 5).double(), Tasks(x, y))
    plain = full_values(objective, objective.full_pass)
    composed = ComposedPass(objective.blocks, blocks=2, samples=8, seed=1)
    torch.testing.assert_close(full_values(objective, composed), plain, rtol=1e-12, atol=1e-12)


def test_a_task_that_is_left_out_is_no_block_of_the_pass() -> None:
    torch.manual_seed(0)
    y = torch.tensor([0, 1, 3]).repeat(40)  # nobody is of class 2
    with pytest.warns(UserWarning, match="class 2 has no positives"):
        objective = MultiTaskAUC(nn.Linear(4, 4).double(), Tasks(torch.randn(120, 4).double(), y, classes=range(4)))
    composed = ComposedPass(objective.blocks, blocks=2, samples=8, seed=1)
    plain = full_values(objective, objective.full_pass)
    torch.testing.assert_close(full_values(objective, composed), plain, rtol=1e-12, atol=1e-12)
