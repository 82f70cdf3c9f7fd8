"""BatchNorm in training mode: a full pass must look at the same function as the steps do."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import fcco
from fcco.lab.passes import ComposedPass, depends_on_company
from fcco.objectives import MultiTaskAUC
from fcco.sampling import BlockLoader
from fcco.solver._full_pass import FullPass, full_values

pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class Gaps:
    """Root mean squares over the tasks: how far a full pass is from the mean of g over training batches."""

    size: float  # of the mean itself
    noise: float  # the standard error of the mean
    plain: float
    composed: float


def measure(solver: fcco.Solver, loader: BlockLoader, plain: FullPass, composed: FullPass, epochs: int) -> Gaps:
    """Compare both kinds of full pass with the mean of g_i(w; xi) over the draws of some epochs, in training mode."""
    m, dim = solver.table.num_blocks, solver.table.dim
    total, squares, count = torch.zeros(m, dim), torch.zeros(m, dim), torch.zeros(m, 1)
    with torch.no_grad():
        for _ in range(epochs):
            for index, batch in loader:
                g = solver.objective(index, batch).cpu()
                total[index.cpu()] += g
                squares[index.cpu()] += g.square()
                count[index.cpu()] += 1
    mean = total / count
    error = ((squares / count - mean.square()).clamp(min=0) / count).sqrt()

    def off(full_pass: FullPass) -> float:
        g, _ = full_values(solver._evaluator, solver.table, full_pass)
        return size(g.cpu() - mean)

    def size(rows: Tensor) -> float:
        return float(rows.square().sum(1).mean().sqrt())

    return Gaps(size(mean), size(error), off(plain), off(composed))


def normalised(classes: int, features: int) -> tuple[MultiTaskAUC, Tensor, Tensor]:
    """A network with BatchNorm whose scores depend strongly on the batch's mix of classes."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(600) % classes
    centres = 2 * torch.randn(classes, features, generator=generator)
    x = centres[y] + torch.randn(600, features, generator=generator)
    net = nn.Sequential(nn.Linear(features, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, classes))
    return MultiTaskAUC(net, classes), x, y


def test_a_composed_pass_sees_what_the_steps_see() -> None:
    objective, x, y = normalised(10, 6)
    assert depends_on_company(objective)
    loader = BlockLoader(x, y, 2, 16, seed=0)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.3), fcco.sox(alpha=0.5, beta=0.5))
    for index, batch in loader:
        solver.step(index, batch)
    found = measure(solver, loader, loader.full_pass, ComposedPass(loader, x, 0), epochs=30)
    assert found.plain > 2.5 * found.composed
    assert found.composed < 0.1 * found.size


@pytest.mark.parametrize(("blocks", "fraction"), [(2, 0.5), (3, 0.25), (7, 0.5), (10, 0.5)])
def test_without_batchnorm_it_is_the_exact_mean(blocks: int, fraction: float) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(203, 5), torch.arange(203) % 10
    y[:20] = 3  # classes of unequal size
    objective = MultiTaskAUC(nn.Linear(5, 10), 10).double()
    assert not depends_on_company(objective)
    loader = BlockLoader(x.double(), y, blocks, 8, positive_fraction=fraction)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), fcco.soap(beta=0.5))
    plain, _ = full_values(solver._evaluator, solver.table, loader.full_pass)
    composed = ComposedPass(loader, x.double(), seed=1)
    found, _ = full_values(solver._evaluator, solver.table, composed)
    torch.testing.assert_close(found, plain, rtol=1e-12, atol=1e-12)
    batches = list(composed())
    assert {len(batch) for _, batch in batches} == {blocks * 8}  # every batch is as large as a step's
    assert sum(len(batch) for _, batch in batches) == composed.evaluations


def test_missing_labels_and_several_labels_are_covered_too() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(150, 4).double(), (torch.rand(150, 5) < 0.3).float()
    y[torch.rand(150, 5) < 0.2] = float("nan")
    objective = MultiTaskAUC(nn.Linear(4, 5), 5).double()
    loader = BlockLoader(x, y, 2, 8)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), fcco.soap(beta=0.5))
    plain, _ = full_values(solver._evaluator, solver.table, loader.full_pass)
    found, _ = full_values(solver._evaluator, solver.table, ComposedPass(loader, x, seed=1))
    torch.testing.assert_close(found, plain, rtol=1e-12, atol=1e-12)
