"""Captured steps of the output memory are its eager ones, bit for bit, refreshes, resumption and failures included."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

import fcco
from tests.helpers.capture import CAPTURED

STEPS = 50

pytestmark = CAPTURED


CASES = {
    "partial AUC": (fcco.objectives.PartialAUC, fcco.data.Points, 1),
    "partial AUC, labels": (fcco.objectives.PartialAUC, fcco.data.Points, 3),
    "average precision": (fcco.objectives.AveragePrecision, fcco.data.Points, 1),
    "average precision, labels": (fcco.objectives.AveragePrecision, fcco.data.Points, 3),
    "tasks": (fcco.objectives.MultiTaskAUC, fcco.data.Tasks, 3),
}


def made(name, device, capture, *, nonfinite="raise", refresh=None):
    objective_kind, data_kind, labels = CASES[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 8, generator=generator)
    y = (torch.rand(200, labels, generator=generator) < 0.2).float()
    if labels == 1:
        y = y[:, 0]
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, labels))
    objective = objective_kind(network.to(device), data_kind(x.to(device), y.to(device)))
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.02, momentum=0.9)
    method = fcco.output_memory(refresh=refresh)
    solver = fcco.Solver(objective, optimizer, method, capture=capture, nonfinite=nonfinite)
    return solver, solver.loader(blocks=8, samples=24, seed=0, steps_per_epoch=23)


def taken(solver, loader, steps):
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    reports = [solver.step(batch) for batch in itertools.islice(batches, steps)]
    return [report.value for report in reports]


def assert_equal(mine, wanted):
    assert (mine.t, mine.samples, mine.oracle) == (wanted.t, wanted.samples, wanted.oracle)
    for name, value in wanted.objective.state_dict().items():
        assert torch.equal(mine.objective.state_dict()[name], value), name
    assert torch.equal(mine.state.engine.values, wanted.state.engine.values)
    assert torch.equal(mine.state.engine.written, wanted.state.engine.written)


@pytest.mark.parametrize("refresh", [None, 7])
@pytest.mark.parametrize("name", CASES)
def test_equal_to_eager(name, refresh, device):
    runs = []
    for capture in (True, False):
        torch.manual_seed(3)
        solver, loader = made(name, device, capture, refresh=refresh)
        runs.append((solver, taken(solver, loader, STEPS)))
    (captured, values), (eager, wanted) = runs
    assert captured.eager_because is None
    # On the CPU a step that evaluates the whole table is eager; with a period of 1 every one is, once all were seen.
    if str(device) != "cpu" or captured.state.engine.period > 1:
        assert captured._capture._programs
    assert values == wanted
    assert_equal(captured, eager)


@pytest.mark.parametrize("name", ["partial AUC", "tasks"])
def test_resume_in_the_middle(name, device):
    torch.manual_seed(3)
    whole, loader = made(name, device, True, refresh=5)
    taken(whole, loader, STEPS)
    torch.manual_seed(3)
    first, loader = made(name, device, True, refresh=5)
    taken(first, loader, 21)
    states = first.state_dict(), loader.state_dict()
    second, again = made(name, device, True, refresh=5)
    second.load_state_dict(states[0])
    again.load_state_dict(states[1])
    taken(second, again, STEPS - 21)
    assert_equal(second, whole)


@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
def test_a_step_that_is_not_finite(nonfinite, device):
    """An example whose x is not finite: the table is as it was before the step that met it."""
    found = []
    for capture in (True, False):
        torch.manual_seed(3)
        solver, loader = made("partial AUC", device, capture, nonfinite=nonfinite, refresh=9)
        taken(solver, loader, 12)
        solver.objective.data.source.x[5] = math.nan
        error = None
        try:
            taken(solver, loader, 30)
            solver.state_dict()
        except fcco.NonFiniteError as raised:
            error = raised
        found.append((solver, error))
    (captured, error), (eager, wanted) = found
    assert str(error) == str(wanted)
    assert (error is None) == (nonfinite == "skip")
    assert captured.skipped == eager.skipped
    assert_equal(captured, eager)
