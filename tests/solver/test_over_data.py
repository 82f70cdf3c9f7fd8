"""The doors of an objective over data, also where it is smoothed; BSpiderBoost's large batches after a skipped step; a
refused load leaves the loop that is under way alone."""

import pytest
import torch
from torch import nn

import fcco
from fcco.data import Points, Tasks
from fcco.objectives import MultiTaskAUC, PartialAUC, Square

X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
Y = [1, 0, 0, 1] * 5


def solver_of(objective, method, **options):
    return fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), method, **options)


@pytest.mark.parametrize("name", ["sonex", "msvr-v3", "bspiderboost"])
def test_a_smoothed_objective_has_the_doors_of_the_one_inside(name):
    torch.manual_seed(0)
    objective = fcco.smoothed(MultiTaskAUC(nn.Linear(3, 1), Tasks(X, Y), loss=Square()), 10.0)
    solver = solver_of(objective, fcco.METHODS[name]())
    before = solver.diagnose().value
    for batch in solver.loader(blocks=1, samples=8, steps_per_epoch=20):
        solver.step(batch, chunk=3)
    solver.step(objective.data.batch([0, 1, 2, 3], X[:4]))
    assert solver.diagnose().value < before


class Spoilt(nn.Module):
    """A linear score that can be made not finite."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.spoilt = False

    def forward(self, x):
        if self.spoilt:
            return self.linear(x) * torch.nan
        return self.linear(x)


def test_sarah_starts_afresh_with_the_large_batches_also_after_a_skipped_step():
    torch.manual_seed(0)
    model = Spoilt()
    objective = PartialAUC(model, Points(X, Y))
    solver = solver_of(objective, fcco.bspiderboost(period=4), nonfinite="skip")
    for number, batch in enumerate(solver.loader(2, 2, steps_per_epoch=12)):
        model.spoilt = number == 2
        before = solver.oracle.j
        report = solver.step(batch)
        assert batch.large == (number % 4 == 0)
        assert batch.large == (len(batch) > 4)
        if not report.skipped:
            points = (solver.oracle.j - before) // len(batch)  # a fresh start takes no gradient at w_(t-1)
            assert points == (1 if batch.large else 2)
    assert solver.skipped == 1


def test_a_refused_load_does_not_end_the_loop_under_way(tmp_path):
    torch.manual_seed(0)
    first = solver_of(PartialAUC(nn.Linear(3, 1), Points(X, Y), temperature=1.0), fcco.sox())
    loader = first.loader(2, 3, steps_per_epoch=4)
    first.step(next(iter(loader)))
    fcco.save(tmp_path / "run.pt", solver=first, loader=loader)
    other = solver_of(PartialAUC(nn.Linear(3, 1), Points(X, Y), temperature=0.5), fcco.sox())
    loader = other.loader(2, 3, steps_per_epoch=4)
    steps = 0
    for batch in loader:
        other.step(batch)
        steps += 1
        with pytest.raises(fcco.CheckpointError, match=r"temperature 1\.0, but this one has 0\.5"):
            fcco.load(tmp_path / "run.pt", solver=other, loader=loader)
        assert all(p.grad is not None for p in other.parameters)
    assert steps == 4
