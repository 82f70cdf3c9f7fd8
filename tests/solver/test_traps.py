"""What a user's own code may do without thinking of it: steps stay right, or one sentence says why not."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

import fcco
from fcco.objectives import smoothed

RECIPES = {
    "soap": lambda: fcco.soap(beta=0.3),
    "storm-v1": lambda: fcco.storm_v1(alpha=1.0, beta=0.1),
    "msvr-v1": lambda: fcco.msvr_v1(alpha=0.5, beta=0.3),
    "msvr-v2": lambda: fcco.msvr_v2(alpha=0.5, beta=0.3),
}


def half_square(index, u):
    return u.squeeze(1).square() / 2


def run(inner, weights, method, steps=4, **options):
    objective = fcco.objective(inner, half_square, num_blocks=3, parameters=[weights])
    solver = fcco.Solver(objective, torch.optim.SGD([weights], lr=0.3), method, **options)
    reports = [solver.step([0, 1, 2]) for _ in range(steps)]
    return solver, reports


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("view", [lambda w: w.unsqueeze(1), lambda w: w.view(3, 1), lambda w: w[:, None].expand(3, 1)])
def test_g_may_be_a_view_of_the_weights(name, view):
    w, copied = (nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)) for _ in range(2))
    solver, reports = run(lambda index: view(w), w, RECIPES[name]())
    other, wanted = run(lambda index: copied.unsqueeze(1) * 1.0, copied, RECIPES[name]())
    assert torch.equal(solver.u(), other.u())
    assert torch.equal(w, copied)
    assert [torch.equal(a.g, b.g) for a, b in zip(reports, wanted, strict=True)] == [True] * 4


class Sum(fcco.Objective):
    def __init__(self):
        super().__init__(num_blocks=1)
        self.a, self.b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def inner(self, index):
        return (self.a + self.b).view(1, 1)

    def outer(self, index, u):
        return u.squeeze(1)


@pytest.mark.parametrize("start", [True, False])
def test_freezing_and_unfreezing_are_refused_by_name(start):
    objective = Sum()
    objective.a.requires_grad_(start)
    solver = fcco.Solver(objective, torch.optim.AdamW(objective.parameters(), lr=0.1), fcco.sox(alpha=0.1, beta=0.5))
    solver.step([0])
    before = [p.detach().clone() for p in objective.parameters()]
    objective.a.requires_grad_(not start)
    with pytest.raises(ValueError, match="requires_grad of a has changed since the Solver was created; create another"):
        solver.step([0])
    assert all(torch.equal(p, old) for p, old in zip(objective.parameters(), before, strict=True))
    objective.a.requires_grad_(start)
    assert solver.step([0]).step == 2


def test_a_parameter_that_the_objective_does_not_have_is_refused():
    w, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(1))
    objective = fcco.objective(lambda index: (w * b).unsqueeze(1), half_square, num_blocks=3, parameters=[w])
    solver = fcco.Solver(objective, torch.optim.SGD([w, b], lr=0.1), fcco.soap(beta=0.5))
    with pytest.raises(ValueError, match=r"parameters that the objective does not have, of shapes \(1,\)"):
        solver.step([0, 1, 2])
    assert solver.t == 0
    assert b.grad is None
    assert torch.equal(w, torch.ones(3))


def test_a_parameter_of_another_loss_in_the_same_optimizer_is_left_alone():
    w, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(1))
    objective = fcco.objective(lambda index: w.unsqueeze(1), half_square, num_blocks=3, parameters=[w])
    solver = fcco.Solver(objective, torch.optim.SGD([w, b], lr=0.1), fcco.soap(beta=0.5))
    for _ in range(2):
        b.grad = torch.full((1,), 2.0)
        solver.step([0, 1, 2])
    assert torch.allclose(b, torch.tensor(0.6))


def test_steps_under_no_grad_are_steps():
    moved = []
    for mode in (torch.no_grad, torch.enable_grad):
        w = nn.Parameter(torch.ones(3))
        with mode():
            run(lambda index, w=w: w.unsqueeze(1) * 1.0, w, fcco.msvr_v2(alpha=0.5, beta=0.3))
        moved.append(w.detach())
    assert torch.equal(*moved)
    assert not torch.equal(moved[0], torch.ones(3))


def test_an_outer_without_a_graph_is_refused():
    w = nn.Parameter(torch.ones(3))
    objective = fcco.objective(
        lambda index: w.unsqueeze(1), lambda index, u: u.detach().squeeze(1), num_blocks=3, parameters=[w]
    )
    solver = fcco.Solver(objective, torch.optim.SGD([w], lr=0.1), fcco.soap(beta=0.5))
    with pytest.raises(ValueError, match="outer must depend on u"):
        solver.step([0, 1, 2])


def test_two_functions_cannot_be_copied():
    w = nn.Parameter(torch.ones(3))
    solver, _ = run(lambda index: w.unsqueeze(1), w, fcco.soap(beta=0.5))
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(solver)


def test_a_modules_parameters_alone_leave_its_buffers_out():
    net = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    with pytest.warns(UserWarning, match="buffers of Sequential .* pass parameters=module"):
        fcco.objective(lambda index, x: net(x), half_square, num_blocks=3, parameters=net.parameters())
    plain = nn.Linear(2, 1)
    fcco.objective(lambda index, x: plain(x), half_square, num_blocks=3, parameters=plain.parameters())
    fcco.objective(lambda index, x: net(x), half_square, num_blocks=3, parameters=net)


class Jittered(fcco.Objective):
    """Noise from a generator of its own."""

    def __init__(self, draw, **held):
        super().__init__(num_blocks=2)
        self.w = nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.draw, self.seen = draw, []
        for name, value in held.items():
            setattr(self, name, value)

    def inner(self, index):
        noise = self.draw(self)
        self.seen.append(noise)
        return (self.w * (1.0 + noise)).unsqueeze(1)

    def outer(self, index, u):
        return u.squeeze(1).square()


SOURCES = {
    "numpy": (lambda o: o.source.standard_normal(), lambda: {"source": np.random.default_rng(0)}),
    "numpy, old": (lambda o: o.source.standard_normal(), lambda: {"source": np.random.RandomState(0)}),
    "python": (lambda o: o.source.gauss(0.0, 1.0), lambda: {"source": random.Random(0)}),
    "in a list": (lambda o: float(torch.randn((), generator=o.source[0])), lambda: {"source": [torch.Generator()]}),
    "in a dict": (lambda o: o.source["a"][0].random(), lambda: {"source": {"a": (random.Random(0),)}}),
}


@pytest.mark.parametrize("name", SOURCES)
def test_generators_of_an_objective_are_replayed_and_resumed(name, tmp_path):
    draw, held = SOURCES[name]

    def made():
        objective = Jittered(draw, **held())
        return fcco.Solver(objective, torch.optim.SGD([objective.w], lr=0.1), fcco.msvr_v2(alpha=0.5, beta=0.3))

    solver = made()
    for _ in range(3):
        solver.step([0, 1])
    probes = solver.objective.seen
    assert probes[0::2] == probes[1::2]  # the same xi at both points
    assert len(set(probes)) == 3
    fcco.save(tmp_path / "state", solver=solver)
    solver.step([0, 1])
    resumed = made()
    fcco.load(tmp_path / "state", solver=resumed)
    resumed.step([0, 1])
    assert torch.equal(resumed.objective.w, solver.objective.w)


def test_a_list_that_holds_itself_is_no_trap():
    ring = [random.Random(0)]
    ring.append(ring)
    objective = Jittered(lambda o: o.source[0].random(), source=ring)
    solver = fcco.Solver(objective, torch.optim.SGD([objective.w], lr=0.1), fcco.msvr_v2(alpha=0.5, beta=0.3))
    solver.step([0, 1])
    assert objective.seen[0] == objective.seen[1]


class Raw(fcco.Objective):
    """Reaches its parameter by a list, past the module's attributes."""

    def __init__(self, p, hidden):
        super().__init__(num_blocks=2)
        self.p = p
        self.aside = [p] if hidden else None

    def inner(self, index):
        p = self.p if self.aside is None else self.aside[0]
        return p.square().unsqueeze(1)

    def outer(self, index, u):
        return u.squeeze(1).square()


def test_single_point_forms_notice_parameters_that_forward_mode_cannot_see():
    rows = []
    for hidden in (False, True):
        objective = Raw(nn.Parameter(torch.tensor([1.0, 0.5], dtype=torch.float64)), hidden)
        method, optimizer = fcco.msvr_v1_sp(alpha=0.3, beta=0.3), torch.optim.SGD(objective.parameters(), lr=0.1)
        solver = fcco.Solver(objective, optimizer, method, radius=10.0)
        if hidden:
            with pytest.warns(UserWarning, match="that are not attributes of the module"):
                solver.step([0, 1])
        while solver.t < 6:
            solver.step([0, 1])
        rows.append(solver.u())
    assert torch.allclose(*rows, rtol=1e-12, atol=0)


class Tail(fcco.Objective):
    """f = t + relu(u - t)/0.25, with a threshold t that is trained."""

    def __init__(self):
        super().__init__(num_blocks=6)
        self.t = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))

    def inner(self, index, x):
        return x

    def outer(self, index, u):
        return self.t + torch.relu(u.squeeze(1) - self.t) / 0.25


def test_a_kink_that_moves_takes_the_smoothed_value_along():
    objective, u = smoothed(Tail(), 4.0), torch.linspace(-0.5, 2.0, 6, dtype=torch.float64).unsqueeze(1)
    t, index = objective.objective.t, torch.arange(6)
    found = torch.stack([torch.autograd.grad(objective.outer(index, u)[i], t)[0] for i in range(6)])
    with torch.no_grad():
        t += 1e-5
        above = objective.outer(index, u)
        t -= 2e-5
        below = objective.outer(index, u)
    torch.testing.assert_close(found, (above - below) / 2e-5, rtol=1e-4, atol=1e-5)
    assert found[2:4].tolist() == pytest.approx([0.2, -1.8], abs=1e-5)  # on the kink


class Barrier(fcco.Objective):
    """f = -t log u: no value left of 0."""

    def __init__(self):
        super().__init__(num_blocks=3)
        self.t = nn.Parameter(torch.tensor(1e-20, dtype=torch.float64))

    def inner(self, index, x):
        return x

    def outer(self, index, u):
        return -self.t * u.squeeze(1).log()


def test_a_smoothed_value_at_the_edge_of_its_domain_has_a_gradient():
    objective, index = smoothed(Barrier(), 2.0), torch.arange(3)
    u = torch.tensor([[1e-9], [1e-5], [1.0]], dtype=torch.float64)
    found = torch.autograd.grad(objective.outer(index, u).sum(), objective.objective.t)[0]
    nearest = objective.nearest(index, u)
    assert float(found) == pytest.approx(float(-nearest.log().sum()), rel=1e-2)


def test_common_schedulers_and_numpys_numbers_are_saved(tmp_path):
    def made():
        w = nn.Parameter(torch.ones(3))
        objective = fcco.objective(lambda index: w.unsqueeze(1), half_square, num_blocks=3, parameters=[w])
        optimizer = torch.optim.SGD([w], lr=np.float64(0.1), momentum=0.5)
        solver = fcco.Solver(objective, optimizer, fcco.soap(beta=0.5))
        return w, solver, torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4, 4])

    def go(solver, scheduler, steps):
        for _ in range(steps):
            solver.step([0, 1, 2])
            scheduler.step()

    w, *parts = made()
    go(*parts, 3)
    fcco.save(tmp_path / "state", solver=parts[0], scheduler=parts[1])
    go(*parts, 3)
    other, *again = made()
    fcco.load(tmp_path / "state", solver=again[0], scheduler=again[1])
    go(*again, 3)
    assert torch.equal(w, other)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.int8])
def test_any_integers_name_blocks(dtype):
    w = nn.Parameter(torch.ones(3))
    objective = fcco.objective(lambda index: w[index].unsqueeze(1), half_square, num_blocks=3, parameters=[w])
    solver = fcco.Solver(objective, torch.optim.SGD([w], lr=0.1), fcco.soap(beta=0.5))
    assert solver.step(torch.tensor([0, 2]).to(dtype)).step == 1
