"""Objective.outer_and_slope: f and its derivative in closed form equal autograd's; called where it belongs to f."""

import pytest
import torch
from torch import nn

import fcco


class Root(fcco.Objective):
    """g_i = a_i . w + noise, f = sqrt(1 + u^2)."""

    def __init__(self):
        super().__init__(num_blocks=4, dim=2)
        self.w = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def inner(self, index, x):
        return torch.stack([x @ self.w, (x @ self.w).sin()], 1)

    def outer(self, index, u):
        return (1 + u.square()).sqrt().sum(1)


class Closed(Root):
    def outer(self, index, u):
        return super().outer(index, u)

    def outer_and_slope(self, index, u):
        root = (1 + u.square()).sqrt()
        return root.sum(1), u / root


class Wrong(Closed):
    def outer_and_slope(self, index, u):
        f, slope = super().outer_and_slope(index, u)
        return f, 2 * slope


class Other(Closed):
    """Another f on top: the inherited slope is not its own."""

    def outer(self, index, u):
        return u.square().sum(1)


class OtherOpen(Root):
    def outer(self, index, u):
        return u.square().sum(1)


def weights(objective, name="msvr-v2", steps=12):
    method = fcco.METHODS[name]
    rates = {"beta": 0.3} if name == "soap" else {"alpha": 0.3, "beta": 0.3}
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), method(**rates))
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        index = torch.randperm(4, generator=generator)[:2]
        solver.step(index, torch.randn(2, 3, generator=generator, dtype=torch.float64))
    return objective.w.detach()


@pytest.mark.parametrize("name", ["soap", "sox", "msvr-v1", "msvr-v2", "storm-v2"])
def test_a_closed_form_takes_the_same_steps(name):
    assert torch.allclose(weights(Closed(), name), weights(Root(), name), rtol=1e-12, atol=0)
    assert not torch.allclose(weights(Wrong(), name), weights(Root(), name), rtol=1e-3)  # it was really asked


def test_a_slope_of_another_shape_is_refused():
    class Flat(Closed):
        def outer_and_slope(self, index, u):
            f, slope = super().outer_and_slope(index, u)
            return f, slope.sum(1)

    with pytest.raises(ValueError, match=r"slope must return shapes \(2,\) and \(2, 2\), got \(2,\) and \(2,\)"):
        weights(Flat())


def test_another_f_does_not_inherit_it():
    assert torch.allclose(weights(Other()), weights(OtherOpen()), rtol=1e-12, atol=0)


def test_an_f_put_onto_the_object_does_not_inherit_it():
    objective, plain = Closed(), OtherOpen()
    objective.outer = plain.outer
    assert torch.allclose(weights(objective), weights(OtherOpen()), rtol=1e-12, atol=0)
