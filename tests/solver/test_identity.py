"""A state says what it is of: one of something else is refused by name, and nothing is changed by it."""

import pytest
import torch
from torch import nn

import fcco
from tests.helpers.methods import recipe
from tests.helpers.same import assert_same
from tests.helpers.trials import snapshot


class Square(fcco.Objective):
    """f = scale u^2."""

    def __init__(self, num_blocks=4, dim=1, scale=1.0, loss=None):
        super().__init__(num_blocks=num_blocks, dim=dim)
        self.w = nn.Parameter(torch.ones(3))
        self.scale, self.loss = scale, loss

    def constants(self):
        return {"scale": self.scale, "loss": self.loss}

    def inner(self, index, x):
        return (x @ self.w).unsqueeze(1).repeat(1, self.dim)

    def outer(self, index, u):
        return self.scale * u.square().sum(1)


class Root(Square):
    """Another f with the same parameters."""

    def outer(self, index, u):
        return (1 + u.square()).sqrt().sum(1)


class Hinge:
    """A part that prints as it was made."""

    def __init__(self, margin):
        self.margin = margin

    def __repr__(self):
        return f"Hinge(margin={self.margin})"


def solver(objective=None, method=None, optimizer=torch.optim.SGD, **options):
    objective = objective or Square()
    method = method or recipe("msvr-v1")
    return fcco.Solver(objective, optimizer(objective.parameters(), lr=0.1), method, **options)


def stepped(made):
    made.step([0, 2], torch.randn(2, 3))
    return made


class Mine(torch.optim.SGD):
    """SGD by another name."""


CASES = {  # what the state is of, who is asked to load it, what is said
    "objective": (solver, lambda: solver(Root()), "has objective 'Square', but this solver has 'Root'"),
    "number": (
        lambda: solver(Square(scale=0.1)),
        lambda: solver(Square(scale=10.0)),
        "of an objective with scale 0.1, but this one has 10.0",
    ),
    "part": (
        lambda: solver(Square(loss=Hinge(1.0))),
        lambda: solver(Square(loss=Hinge(2.0))),
        r"with loss 'Hinge\(margin=1.0\)', but this one has 'Hinge\(margin=2.0\)'",
    ),
    "no part": (solver, lambda: solver(Square(loss=Hinge(2.0))), r"with loss None, but this one has 'Hinge"),
    "blocks": (solver, lambda: solver(Square(num_blocks=5)), "has blocks 4, but this solver has 5"),
    "dim": (solver, lambda: solver(Square(dim=2)), "has dim 1, but this solver has 2"),
    "method": (
        solver,
        lambda: solver(method=recipe("storm-v1")),
        "has method 'msvr-v1', but this solver has 'storm-v1'",
    ),
    "estimator": (
        lambda: solver(method=recipe("msvr-v1")),
        lambda: solver(method=recipe("msvr-v2")),
        "has method 'msvr-v1', but this solver has 'msvr-v2'",
    ),
    "plain or momentum": (
        lambda: solver(Logarithm(), method=fcco.scent(alpha=0.5)),
        lambda: solver(Logarithm(), method=fcco.scent()),
        "has estimator 'Momentum', but this solver has 'Plain'",
    ),
    "nesterov": (
        solver,
        lambda: solver(method=recipe("msvr-v1", nesterov=True)),
        "has nesterov False, but this solver has True",
    ),
    "lag": (solver, lambda: solver(method=recipe("msvr-v1", lag=0)), "has lag 1, but this solver has 0"),
    "optimizer": (
        solver,
        lambda: solver(optimizer=torch.optim.Adam),
        "has optimizer 'SGD', but this solver has 'Adam'",
    ),
    "optimizer's child": (solver, lambda: solver(optimizer=Mine), "has optimizer 'SGD', but this solver has 'Mine'"),
    "keep": (solver, lambda: solver(keep="uniform"), "has keep 'last', but this solver has 'uniform'"),
}


class Logarithm(Square):
    """g = exp(x w) as its logarithm."""

    def __init__(self):
        super().__init__()
        self.log_domain = (True,)

    def outer(self, index, u):
        return u.squeeze(1)


@pytest.mark.parametrize("case", CASES)
def test_refused_by_name(case):
    of, asked, says = CASES[case]
    state = stepped(of()).state_dict()
    mine = asked()
    before = snapshot(mine)
    with pytest.raises(ValueError, match=says):
        mine.load_state_dict(state)
    assert_same(before, snapshot(mine))


def test_rates_may_change():
    """A schedule or a stage changes them; so may a resumed run."""
    state = stepped(solver()).state_dict()
    solver(method=fcco.msvr_v1(alpha=0.9, beta=lambda t: 1 / t)).load_state_dict(state)


@pytest.mark.parametrize("of", [solver, lambda: solver(Square(loss=Hinge(1.0)))])
def test_the_same_is_accepted(of):
    made = stepped(of())
    other = of()
    other.load_state_dict(made.state_dict())
    assert_same(made.state_dict(), other.state_dict())


def test_a_file_says_so_in_one_line(tmp_path):
    fcco.save(tmp_path / "run.pt", solver=stepped(solver(Square(scale=0.1))))
    with pytest.raises(fcco.CheckpointError, match=r"run\.pt does not fit: .* scale 0.1, but this one has 1.0$"):
        fcco.load(tmp_path / "run.pt", solver=solver())
