"""Captured steps take the steps that eager ones take, bit for bit, whatever happens in between.

Without a GPU a program is called in place of a graph, so that everything but the recording itself is tested here.
"""

from __future__ import annotations

import itertools
import math
import warnings

import pytest
import torch
from torch import nn

import fcco
from fcco.lab.models import channels_last, is_channels_last
from fcco.solver import _capture
from tests.helpers.capture import CAPTURED
from tests.helpers.methods import TRACKED

STEPS = 50

pytestmark = CAPTURED


def network(outputs=5):
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, outputs), nn.Dropout(0.1)
    )


def tasks(device):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 6, generator=generator)
    return fcco.data.Tasks(x.to(device), torch.randint(0, 5, (120,), generator=generator).to(device))


def trained(device, method, capture, *, steps=STEPS, optimizer=None, **options):
    """A solver after some steps on its loader's batches, and the reports' values."""
    objective = fcco.objectives.MultiTaskAUC(network().to(device), tasks(device))
    make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.5))
    solver = fcco.Solver(objective, make(objective.parameters()), method, capture=capture, **options)
    torch.manual_seed(5)
    loader = solver.loader(blocks=2, samples=8, seed=3, steps_per_epoch=17)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    reports = [solver.step(batch) for batch in itertools.islice(batches, steps)]
    return solver, loader, [report.value for report in reports]


def assert_equal(mine, wanted):
    assert mine.t == wanted.t
    assert mine.samples == wanted.samples
    assert mine.oracle == wanted.oracle
    for name, value in wanted.objective.state_dict().items():
        assert torch.equal(mine.objective.state_dict()[name], value), name
    assert torch.equal(mine.u(), wanted.u())
    for one, other in zip(mine.z, wanted.z, strict=True):
        assert torch.equal(one, other)


CAPTURED = [name for name in TRACKED if name != "scent" and not name.endswith("-sp")]


@pytest.mark.parametrize("name", CAPTURED)
def test_equal_to_eager(name, device):
    eager, _, wanted = trained(device, fcco.METHODS[name](), False)
    captured, _, values = trained(device, fcco.METHODS[name](), True)
    assert captured.eager_because is None
    assert values == wanted
    assert_equal(captured, eager)


@pytest.mark.parametrize("warm_up", [1, 2, 4, 5, 6])
def test_large_batches_between(warm_up, device, monkeypatch):
    """A step after one with other blocks is taken eagerly, whenever graphs are made."""
    monkeypatch.setattr(_capture, "WARM_UP", warm_up)
    method = fcco.bspiderboost(period=4)
    eager, _, wanted = trained(device, method, False)
    captured, _, values = trained(device, method, True)
    assert captured.eager_because is None
    assert values == wanted
    assert_equal(captured, eager)


def convolutions(device, capture, method):
    """A solver over convolutions whose weights lie channels last, one of them with one channel, and its loader."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3)]
    model = channels_last(nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 5)).to(device))
    data = fcco.data.Tasks(torch.randn(60, 1, 7, 7).to(device), (torch.arange(60) % 5).to(device))
    objective = fcco.objectives.MultiTaskAUC(model, data)
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.02, momentum=0.5)
    solver = fcco.Solver(objective, optimizer, method, capture=capture)
    return solver, solver.loader(blocks=2, samples=8, seed=3, steps_per_epoch=14)


@pytest.mark.parametrize("method", [fcco.sox(), fcco.msvr_v2(), fcco.msvr_v3(period=6)], ids=lambda method: method.name)
def test_convolutions_in_another_memory_format(method, device, tmp_path):
    """Eager, captured and resumed in the middle: the same bits, and no tensor loses its strides."""
    eager, batches = convolutions(device, False, method)
    for batch in batches:
        eager.step(batch)
    first, loader = convolutions(device, True, method)
    batches = iter(loader)
    for batch in itertools.islice(batches, 7):
        first.step(batch)
    fcco.save(tmp_path / "state.pt", solver=first, loader=loader)
    for batch in batches:
        first.step(batch)
    second, again = convolutions(device, True, method)
    fcco.load(tmp_path / "state.pt", solver=second, loader=again)
    for batch in again:
        second.step(batch)
    assert first.eager_because is None
    for solver in (first, second):
        assert solver.t == 14
        assert_equal(solver, eager)
        assert is_channels_last(solver.objective)
        for p, z in zip(solver.parameters, solver.z, strict=True):
            if p.dim() == 4:  # where a dimension has one element its stride may be any
                assert z.is_contiguous(memory_format=torch.channels_last)


def falling(t):
    return 1.0 / (1.0 + 0.1 * t)


SCHEDULED = {
    "sox": lambda: fcco.sox(alpha=falling, beta=falling),
    "nesterov": lambda: fcco.sox(alpha=falling, beta=0.5, nesterov=True),
    "msvr-v2": lambda: fcco.msvr_v2(alpha=falling, beta=lambda t: 0.5 * falling(t)),
    "variant-v2": lambda: fcco.variant_v2(alpha=0.5, beta=falling),
}


@pytest.mark.parametrize("name", SCHEDULED)
def test_schedules(name, device):
    eager, _, wanted = trained(device, SCHEDULED[name](), False)
    captured, _, values = trained(device, SCHEDULED[name](), True)
    assert captured.eager_because is None
    if device == "cuda":
        assert values == wanted
        assert_equal(captured, eager)
    else:  # on the CPU eager steps take their rates as floats
        for one, other in zip(captured.parameters, eager.parameters, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


OPTIMIZERS = {
    "plain": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "decay": lambda parameters: torch.optim.SGD(parameters, lr=0.02, weight_decay=0.1, nesterov=True, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, capturable=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name, device):
    if device == "cpu" and name == "adamw":
        pytest.skip("capturable=True is for accelerators")
    eager, _, wanted = trained(device, fcco.msvr_v1(), False, optimizer=OPTIMIZERS[name])
    captured, _, values = trained(device, fcco.msvr_v1(), True, optimizer=OPTIMIZERS[name])
    assert captured.eager_because is None
    assert values == wanted
    assert_equal(captured, eager)


@pytest.mark.parametrize("options", [{"radius": 0.5}, {"normalize": True}, {"radius": 0.5, "normalize": True}])
def test_bounds(options, device):
    eager, _, wanted = trained(device, fcco.msvr_v2(), False, **options)
    captured, _, values = trained(device, fcco.msvr_v2(), True, **options)
    assert values == wanted
    assert_equal(captured, eager)


# ---------------------------------------------------------------------- steps that are not finite


class Own(fcco.Objective):
    """Any user's g and f, with dropout."""

    def __init__(self, dropout):
        super().__init__(num_blocks=6, dim=1)
        self.w = nn.Parameter(torch.ones(3))
        self.dropout = nn.Dropout(dropout)

    def inner(self, index, x):
        return self.dropout(x @ self.w).mean(1, keepdim=True)

    def outer(self, index, u):
        return u.square().squeeze(1)


def own_run(device, capture, nonfinite, bad, dropout, method=None):
    """Steps on data some of which are not finite: solver, reports, and the error with the batch that raised it."""
    objective = Own(dropout).to(device)
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.01, momentum=0.9)
    solver = fcco.Solver(objective, optimizer, method or fcco.msvr_v2(), nonfinite=nonfinite, capture=capture)
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(7)
    reports = []
    try:
        for number in range(STEPS):
            index = torch.randperm(6, generator=generator)[:2]
            x = torch.randn(2, 4, 3, generator=generator)
            if number in bad:
                x[1, 0, 0] = math.nan
            reports.append(solver.step(index.to(device), x.to(device)))
        solver.state_dict()
    except fcco.NonFiniteError as error:
        return solver, reports, error
    return solver, reports, None


BAD = [(), (5,), (10,), (31, 32, 33), (49,)]


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("bad", BAD)
def test_skipping(bad, dropout, device):
    eager, wanted, _ = own_run(device, False, "skip", bad, dropout)
    captured, reports, _ = own_run(device, True, "skip", bad, dropout)
    assert captured.skipped == eager.skipped == len(bad)
    assert [report.skipped for report in reports] == [report.skipped for report in wanted]
    assert [report.step for report in reports] == [report.step for report in wanted]
    assert [report.samples for report in reports] == [report.samples for report in wanted]
    assert repr([report.value for report in reports]) == repr([report.value for report in wanted])
    assert_equal(captured, eager)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("bad", BAD[1:])
def test_raising(bad, dropout, device):
    """The error comes when the host looks, names the same blocks, and the state is that before the failing step."""
    eager, _, wanted = own_run(device, False, "raise", bad, dropout)
    captured, reports, error = own_run(device, True, "raise", bad, dropout)
    assert error.blocks == wanted.blocks
    assert str(error) == str(wanted)
    assert len(reports) <= bad[0] + _capture.LOOK
    assert_equal(captured, eager)
    mine = captured.state_dict()["random"]
    theirs = eager.state_dict()["random"]
    for name in ("torch", "cuda"):
        for one, other in zip(mine[0][name], theirs[0][name], strict=True):
            assert torch.equal(one, other)
    assert [report.value for report in reports[: bad[0]]] == [report.value for report in reports[: bad[0]]]


def test_goes_on_after_an_error(device):
    solvers = []
    for capture in (True, False):
        solver, _, error = own_run(device, capture, "raise", (20,), 0.2)
        assert error is not None
        for _ in range(40):
            solver.step(torch.tensor([0, 3], device=device), torch.ones(2, 4, 3, device=device))
        solvers.append(solver)
    assert_equal(*solvers)


def test_a_block_that_is_none(device):
    if device == "cpu":
        pytest.skip("on the CPU the host looks at blocks at once")
    objective = Own(0.0).to(device)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.01), fcco.sox(), capture=True)
    x = torch.ones(2, 4, 3, device=device)
    for _ in range(10):
        solver.step(torch.tensor([0, 3], device=device), x)
    with pytest.raises(ValueError, match="block 6"):  # noqa: PT012
        solver.step(torch.tensor([0, 6], device=device), x)
        solver.state_dict()
    with pytest.raises(ValueError, match="block 3 more than once"):  # noqa: PT012
        solver.step(torch.tensor([3, 3], device=device), x)
        solver.state_dict()
    assert solver.t == 10


# ---------------------------------------------------------------------- state


@pytest.mark.parametrize("name", ["sox", "soap", "msvr-v2", "msvr-v3", "variant-v2"])
def test_resume_in_the_middle(name, device, tmp_path):
    whole, _, _ = trained(device, fcco.METHODS[name](), True)
    first, loader, _ = trained(device, fcco.METHODS[name](), True, steps=23)
    fcco.save(tmp_path / "state.pt", solver=first, loader=loader)
    objective = fcco.objectives.MultiTaskAUC(network().to(device), tasks(device))
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.02, momentum=0.5)
    second = fcco.Solver(objective, optimizer, fcco.METHODS[name](), capture=True)
    again = second.loader(blocks=2, samples=8, seed=3, steps_per_epoch=17)
    fcco.load(tmp_path / "state.pt", solver=second, loader=again)
    batches = itertools.chain.from_iterable(itertools.repeat(again))
    for batch in itertools.islice(batches, STEPS - 23):
        second.step(batch)
    assert_equal(second, whole)


def test_load_into_a_captured_run(device):
    """A state that is loaded mid-way takes effect, whatever the graphs have seen before."""
    solver, loader, _ = trained(device, fcco.msvr_v2(), True, steps=20)
    state = solver.state_dict()
    at = loader.state_dict()
    for batch in itertools.islice(loader, 6):
        solver.step(batch)
    solver.load_state_dict(state)
    loader.load_state_dict(at)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    for batch in itertools.islice(batches, STEPS - 20):
        solver.step(batch)
    whole, _, _ = trained(device, fcco.msvr_v2(), False)
    assert_equal(solver, whole)


def test_mixed_with_eager_steps(device):
    """The seam, pieces and batches that somebody looked at come between captured steps."""
    eager, _, _ = trained(device, fcco.msvr_v2(), False, steps=40)
    objective = fcco.objectives.MultiTaskAUC(network().to(device), tasks(device))
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.02, momentum=0.5)
    solver = fcco.Solver(objective, optimizer, fcco.msvr_v2(), capture=True)
    torch.manual_seed(5)
    loader = solver.loader(blocks=2, samples=8, seed=3, steps_per_epoch=17)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    for number, batch in enumerate(itertools.islice(batches, 40)):
        assert len(batch) == 16
        if number % 9 == 8:
            with solver.gradient(batch):
                optimizer.step()
        elif number % 7 == 6:
            assert batch.x.shape[0] == 16
            solver.step(batch)
        else:
            solver.step(batch)
    assert_equal(solver, eager)


def test_changes_capture_anew(device):
    """A learning rate, a train flag and a constant that change are noticed."""

    def run(capture):
        objective = fcco.objectives.MultiTaskAUC(network().to(device), tasks(device))
        optimizer = torch.optim.SGD(objective.parameters(), lr=0.02)
        solver = fcco.Solver(objective, optimizer, fcco.msvr_v2(), capture=capture)
        torch.manual_seed(5)
        loader = solver.loader(blocks=2, samples=8, seed=3, steps_per_epoch=100)
        for number, batch in enumerate(itertools.islice(loader, 40)):
            if number == 10:
                optimizer.param_groups[0]["lr"] = 0.05
            if number == 20:
                objective.model.eval()
            if number == 30:
                objective.loss = fcco.objectives.SquaredHinge(margin=3.0)
            solver.step(batch)
        return solver

    captured = run(True)
    assert captured.eager_because is None
    assert_equal(captured, run(False))


@pytest.mark.filterwarnings("ignore:the correction of MSVR:UserWarning")
@pytest.mark.parametrize("name", ["msvr-v1", "msvr-v2", "msvr-v3"])
def test_the_watch_over_the_correction(name, device):
    eager, _, _ = trained(device, fcco.METHODS[name](), False, steps=430)
    captured, _, _ = trained(device, fcco.METHODS[name](), True, steps=430)
    assert captured.correction_share == pytest.approx(eager.correction_share, rel=1e-6)
    assert captured.state.engine.watch.figures == eager.state.engine.watch.figures


def test_reports_stay_readable(device):
    solver, _, _ = trained(device, fcco.sox(), True, steps=10)
    loader = solver.loader(blocks=2, samples=8, seed=9, steps_per_epoch=200)
    reports = [solver.step(batch) for batch in loader]
    early = reports[3].value
    assert len({report.value for report in reports}) > 190
    assert reports[3].value == early
    assert [report.step for report in reports] == list(range(11, 211))


# ---------------------------------------------------------------------- where steps are not captured


def eager_reason(solver, *data):
    """Why the solver takes its steps eagerly, as it says."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(6):
            solver.step(*data)
    said = [str(one.message) for one in caught if "steps run eagerly" in str(one.message)]
    assert len(said) == 1
    return said[0]


def test_random_numbers_of_the_host(device):
    import random

    class FromPython(Own):
        def inner(self, index, x):
            return super().inner(index, x) * (1.0 + 0.1 * random.random())

    objective = FromPython(0.0).to(device)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.01), fcco.sox(), capture=True)
    x = torch.ones(2, 4, 3, device=device)
    assert "Python's generator" in eager_reason(solver, torch.tensor([0, 3], device=device), x)


def test_optimizers_on_the_host(device):
    objective = Own(0.0).to(device)
    with pytest.warns(UserWarning, match="Adam needs capturable=True"):
        fcco.Solver(objective, torch.optim.Adam(objective.parameters()), fcco.sox(), capture=True)


def test_silent_under_auto(device):
    objective = Own(0.0).to(device)
    solver = fcco.Solver(objective, torch.optim.Adam(objective.parameters()), fcco.sox(), capture="auto")
    assert solver.eager_because is not None


def test_single_point_and_uniform(device):
    objective = Own(0.0).to(device)
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.01)
    with pytest.warns(UserWarning, match="Jacobian-vector products"):
        fcco.Solver(objective, optimizer, fcco.msvr_v1_sp(), capture=True, radius=1.0)
    with pytest.warns(UserWarning, match="keep='uniform'"):
        fcco.Solver(objective, optimizer, fcco.sox(), capture=True, keep="uniform")


def test_an_inner_that_waits(device):
    if device == "cpu":
        pytest.skip("on the CPU nothing waits")

    class Waits(Own):
        def inner(self, index, x):
            return super().inner(index, x) * float(x.sum() > -1e9)

    objective = Waits(0.0).to(device)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.01), fcco.sox(), capture=True)
    x = torch.ones(2, 4, 3, device=device)
    assert "makes the host wait" in eager_reason(solver, torch.tensor([0, 3], device=device), x)


def test_a_wrong_word(device):
    objective = Own(0.0).to(device)
    with pytest.raises(ValueError, match="capture must be False, True or 'auto', got 'yes'"):
        fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.01), fcco.sox(), capture="yes")
