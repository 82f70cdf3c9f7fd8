"""What captured steps are given and what they depend on: nothing is baked in unnoticed, and nothing ends a run."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import fcco
from fcco.solver._fingerprint import Fingerprint

pytestmark = pytest.mark.usefixtures("capturing")
STEPS = 40


class Own(fcco.Objective):
    def __init__(self):
        super().__init__(num_blocks=6)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))

    def inner(self, index, x):
        x = torch.as_tensor(x)
        return self.model(x.flatten(0, 1)).view(x.shape[0], -1).mean(1, keepdim=True)

    def outer(self, index, u):
        return u.square().squeeze(1)


class Averaging(Own):
    """A buffer that every pass assigns anew."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def inner(self, index, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean()
        return super().inner(index, x) + self.mean


@dataclass
class Setting:
    """Not frozen, so without a hash."""

    scale: float = 2.0


class Configured(Own):
    def __init__(self):
        super().__init__()
        self.setting = Setting()
        self.powers = [1, 2]

    def outer(self, index, u):
        return self.setting.scale * super().outer(index, u)


def batch(generator):
    index = torch.randperm(6, generator=generator)[:2]
    return index, torch.randn(2, 4, 3, generator=generator)


def run(kind, capture, method=None, *, given=lambda index, x: (index, x), bad=(), optimizer=None, nonfinite="raise"):
    torch.manual_seed(0)
    objective = kind()
    make = optimizer or (lambda objective: torch.optim.SGD(objective.parameters(), lr=0.02))
    solver = fcco.Solver(objective, make(objective), method or fcco.msvr_v2(), capture=capture, nonfinite=nonfinite)
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(2)
    for number in range(STEPS):
        index, x = batch(generator)
        if number in bad:
            x[0, 0, 0] = math.nan
        solver.step(*given(index, x))
    return solver


def assert_same(mine, wanted):
    assert mine.t == wanted.t
    for name, value in wanted.objective.state_dict().items():
        assert torch.equal(mine.objective.state_dict()[name], value), name
    assert torch.equal(mine.u(), wanted.u())
    for one, other in zip(mine.z, wanted.z, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("method", [fcco.sox, fcco.msvr_v2])
def test_a_buffer_that_is_assigned_anew(method):
    captured = run(Averaging, "auto", method())
    assert_same(captured, run(Averaging, False, method()))
    assert "assigns a new tensor to the buffer Averaging.mean" in captured.eager_because


def named(objective):
    return torch.optim.SGD(objective.named_parameters(), lr=0.02)


@pytest.mark.parametrize(("kind", "optimizer"), [(Own, named), (Configured, None)])
def test_settings_without_a_hash(kind, optimizer):
    captured = run(kind, "auto", optimizer=optimizer)
    assert captured.eager_because is None
    assert_same(captured, run(kind, False, optimizer=optimizer))


def test_arrays_are_left_to_eager_steps():
    def arrays(index, x):
        return index, x.numpy()

    captured = run(Own, "auto", given=arrays)
    assert captured.eager_because == "data of type ndarray have no fixed place"
    assert_same(captured, run(Own, False, given=arrays))


@pytest.mark.parametrize("as_index", [lambda index: index.tolist(), lambda index: index.numpy()])
def test_blocks_as_numbers(as_index):
    captured = run(Own, "auto", given=lambda index, x: (as_index(index), x))
    assert captured.eager_because is None
    assert captured._capture._programs
    assert_same(captured, run(Own, False))


def test_a_schedule_with_an_end():
    rates = [0.5] * STEPS
    method = fcco.sox(alpha=lambda t: rates[t - 1], beta=0.5)
    captured = run(Own, "auto", method)
    assert captured.t == STEPS
    assert captured.eager_because is None
    with pytest.raises(IndexError):
        captured.step(*batch(torch.Generator().manual_seed(5)))
    assert captured.t == STEPS


@pytest.mark.parametrize("bad", [(3,), (4,), (35,), (STEPS - 1,)])
def test_plain_estimators_keep_z_over_a_skipped_step(bad):
    captured = run(Own, "auto", fcco.soap(), bad=bad, nonfinite="skip")
    assert_same(captured, run(Own, False, fcco.soap(), bad=bad, nonfinite="skip"))


def test_a_copy_is_refused():
    with pytest.raises(TypeError, match="save its state"):
        copy.deepcopy(run(Own, "auto"))


CHANGES = {
    "the share of dropout": lambda objective, optimizer: setattr(objective.model[1], "p", 0.5),
    "momentum of BatchNorm": lambda objective, optimizer: setattr(objective.model[2], "momentum", 0.5),
    "an entry of a list": lambda objective, optimizer: objective.powers.append(3),
    "a field of a dataclass": lambda objective, optimizer: setattr(objective.setting, "scale", 3.0),
    "1 in place of True": lambda objective, optimizer: setattr(objective, "flag", 1),
    "a tensor": lambda objective, optimizer: setattr(objective, "offset", torch.zeros(1)),
    "a module": lambda objective, optimizer: objective.model.__setitem__(3, nn.ReLU()),
    "a hook": lambda objective, optimizer: objective.model[0].register_forward_hook(lambda *_: None),
    "weights of a frozen layer": lambda objective, optimizer: setattr(objective.frozen, "data", torch.ones(2)),
    "members of a group": lambda objective, optimizer: optimizer.param_groups[0]["params"].reverse(),
    "the learning rate": lambda objective, optimizer: optimizer.param_groups[0].update(lr=0.5),
    "a train flag": lambda objective, optimizer: objective.model[2].eval(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_graph_depends_on_is_noticed(name):
    objective = Configured()
    objective.flag = True
    objective.offset = torch.zeros(1)
    objective.frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
    optimizer = torch.optim.SGD([p for p in objective.parameters() if p.requires_grad], lr=0.1)
    solver = fcco.Solver(objective, optimizer, fcco.sox(), capture=True)
    fingerprint: Fingerprint = solver._capture._fingerprint
    before = fingerprint.take()
    assert fingerprint.take() == before
    CHANGES[name](objective, optimizer)
    assert fingerprint.take() != before
