"""smoothed: proximal maps against brute force, envelopes against their definition, and SONEX."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import fcco
from fcco.data import Points, Tasks
from fcco.objectives import AveragePrecision, MultiTaskAUC, Square, SquaredHinge, smoothed
from fcco.objectives._smoothed import CVaR, Hinge, Max, Smoothed
from tests.objectives.literal import check_everywhere, check_exact, check_full_pass
from tests.objectives.tools import value, whole

M, D = 5, 3
A = torch.randn(M, 4, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Problem(fcco.Objective):
    """g_i(w) = mean_j tanh(a_ij . w) (+ offsets, for several components), f from outside."""

    def __init__(self, f, dim=1, dtype=torch.float64):
        super().__init__(num_blocks=M, dim=dim)
        self.w = nn.Parameter(torch.tensor([0.4, -0.7, 0.9], dtype=dtype))
        self.f = f

    def inner(self, index, rows):
        x = torch.tanh(A.to(self.w.dtype)[index][:, rows] @ self.w).mean(1, keepdim=True)
        return torch.cat([(k + 1) * x.sin() - 0.2 * k for k in range(self.dim)], 1)

    def outer(self, index, u):
        return self.f(index, u)


def wrapped(f, rho, dim=1, closed=True):
    return smoothed(Problem(f, dim), rho, prox=getattr(f, "prox", None) if closed else None)


def least(f, u, rho, span=8.0):
    """argmin over v of f(v) + rho/2 (v - u)^2 for one number u, by repeated grids."""
    low, high = u - span, u + span
    for _ in range(12):
        v = torch.linspace(low, high, 2001, dtype=torch.float64)
        height = f(None, v.unsqueeze(1)).detach() + 0.5 * rho * (v - u) ** 2
        at, step = v[height.argmin()].item(), (high - low) / 2000
        low, high = at - 2 * step, at + 2 * step
    return at


def absolute(index, u):
    return (u.squeeze(1) - 0.3).abs()


def quantile(index, u):
    return torch.maximum(0.9 * u, -0.1 * u).squeeze(1)


def smooth(index, u):
    return torch.nn.functional.softplus(3 * u.squeeze(1)) + u.squeeze(1).square() / 8


def steep(index, u):
    return (2 * u.squeeze(1)).exp()


numbers = st.floats(-3, 3)
rhos = st.sampled_from([0.3, 1.0, 7.0, 100.0])


@example(u=2.25, rho=0.3, f=smooth)  # Newton's steps alone go to and fro here
@settings(deadline=None, max_examples=25)
@given(numbers, rhos, st.sampled_from([Hinge(), Hinge(0.5, 2.0), CVaR(0.3, 0.4).double(), absolute, quantile, smooth]))
def test_the_prox_of_one_number_is_the_least_point(u, rho, f):
    wanted = least(f, u, rho)
    rows = torch.tensor([[u]], dtype=torch.float64)
    for closed in (True, False):
        found = wrapped(f, rho, closed=closed).nearest(torch.tensor([0]), rows).item()
        assert found == pytest.approx(wanted, abs=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_newton_and_closed_forms_agree_to_the_last_digits(dtype):
    u = torch.linspace(-3, 3, 41, dtype=dtype).unsqueeze(1)
    index = torch.zeros(41, dtype=torch.int64)
    for f in (Hinge(0.25, 1.5), CVaR(0.2, 0.3).to(dtype)):
        closed, found = (wrapped(f, 2.0, closed=c).nearest(index, u) for c in (True, False))
        torch.testing.assert_close(found, closed.detach(), atol=8 * torch.finfo(dtype).eps, rtol=0)
    found = wrapped(steep, 2.0).nearest(index, u)  # f'(v) = rho (u - v)
    torch.testing.assert_close(2 * (2 * found).exp(), 2 * (u - found), rtol=1e3 * torch.finfo(dtype).eps, atol=1e-6)


@settings(deadline=None, max_examples=25)
@given(st.lists(numbers, min_size=1, max_size=5), rhos)
def test_the_prox_of_the_maximum(u, rho):
    """u - v = y/rho with y in the simplex, y only where v is largest: the optimality conditions."""
    u = torch.tensor([u], dtype=torch.float64)
    v = Max().prox(torch.tensor([0]), u, rho)
    y = rho * (u - v)
    assert y.min() >= -1e-12
    assert y.sum().item() == pytest.approx(1.0)
    assert (y * (v.amax() - v)).abs().max() <= 1e-9


@settings(deadline=None, max_examples=12)
@given(st.lists(numbers, min_size=3, max_size=3), rhos)
def test_newton_steps_in_several_dimensions(u, rho):
    """grad f(v) = rho (u - v), for a coupled f that is flat in places."""

    def f(index, u):
        return (u[:, 0] + 2 * u[:, 1] - u[:, 2] + 0.5).clamp(min=0).square() + (u / 2).exp().sum(1)

    u = torch.tensor([u], dtype=torch.float64)
    v = wrapped(f, rho, dim=3).nearest(torch.tensor([0]), u).requires_grad_()
    slope = torch.autograd.grad(f(None, v).sum(), v)[0]
    torch.testing.assert_close(slope, rho * (u - v).detach(), atol=1e-9 * (1 + rho), rtol=1e-9)


@pytest.mark.parametrize(
    ("f", "closed"),
    [
        (Hinge(0.25, 1.5), True),
        (Hinge(0.25, 1.5), False),
        (CVaR(0.3, 0.2).double(), True),
        (Max(), True),
        (absolute, False),
        (smooth, False),
    ],
    ids=lambda f: getattr(f, "__name__", str(f)),
)
def test_the_envelope_lies_below_f_near_it_and_has_the_gradient_it_claims(f, closed):
    dim = 3 if isinstance(f, Max) else 1
    u = torch.randn(20, dim, dtype=torch.float64)
    index = torch.zeros(20, dtype=torch.int64)
    lipschitz = 4.0
    for rho in (1.0, 1e3):
        objective = wrapped(f, rho, dim, closed)
        envelope, exact = objective.outer(index, u).detach(), f(index, u).detach()
        assert (envelope <= exact + 1e-12).all()
        assert (envelope >= exact - lipschitz**2 / (2 * rho)).all()
        leaf = u.clone().requires_grad_()
        objective.outer(index, leaf).sum().backward()
        torch.testing.assert_close(leaf.grad, rho * (u - objective.nearest(index, u).detach()), rtol=0, atol=1e-12)
        h = 1e-6 / rho**0.5
        for k in range(dim):
            e = h * torch.eye(dim, dtype=torch.float64)[k]
            rise = (objective.outer(index, u + e) - objective.outer(index, u - e)).detach() / (2 * h)
            near = (leaf.grad[:, k] - rise).abs() <= 1e-4 * (1 + leaf.grad[:, k].abs()) + rho * h
            assert near.all()


def test_a_trained_threshold_gets_the_envelopes_own_gradient():
    """CVaR's t: also where the prox sits on the kink, which moves with t."""
    u = torch.linspace(-1, 2, 25, dtype=torch.float64).unsqueeze(1)
    index, h = torch.zeros(25, dtype=torch.int64), 1e-6

    f = CVaR(0.4, 0.3).double()

    def total(step):
        moved = CVaR(0.4).double()
        moved.threshold.data.copy_(f.threshold.detach() + step)
        return wrapped(moved, 2.0).outer(index, u).sum()

    wrapped(f, 2.0).outer(index, u).sum().backward()
    rise = (total(h) - total(-h)).item() / (2 * h)
    assert f.threshold.grad.item() == pytest.approx(rise, rel=1e-6)


def test_cvar_is_the_mean_of_the_worst():
    g = torch.randn(20, 1, dtype=torch.float64)
    index = torch.arange(20)
    worst = g[:, 0].sort(descending=True).values
    values = [CVaR(0.25, t).double()(index, g).mean().item() for t in worst.tolist()]
    assert min(values) == pytest.approx(worst[:5].mean().item())


# ---- as an objective ------------------------------------------------------------------------------------


def huber(d, scale, rho):
    """The envelope of scale * max(d, 0), written out."""
    inside = 0.5 * rho * d.clamp(min=0).square()
    return torch.where(d < scale / rho, inside, scale * d - scale**2 / (2 * rho))


ALL = (torch.arange(M), torch.arange(4))


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("rho", [0.5, 5.0])
def test_the_hinge_equals_brute_force(rho, closed):
    objective = wrapped(Hinge(0.1, 2.0), rho, closed=closed)
    w = objective.objective.w

    def F():
        total = 0.0
        for i in range(M):
            g = sum(torch.tanh(A[i, j] @ w) for j in range(4)) / 4
            total = total + huber(0.1 + g.sin(), 2.0, rho)
        return total / M

    check_exact(objective, *ALL, F)


def test_cvar_with_its_threshold_equals_brute_force():
    objective = wrapped(CVaR(0.4, 0.1).double(), 3.0)
    w, t = objective.objective.w, objective.objective.f.threshold

    def F():
        g = torch.tanh(A @ w).mean(1).sin()
        return (t + huber(g - t, 1 / 0.4, 3.0)).mean()

    check_exact(objective, *ALL, F)


def test_the_paper_objective_smoothed_equals_brute_force():
    """f = u1 + u2 + (c + u3)^2: its envelope is u1 + u2 - 1/rho + rho/(rho + 2) (c + u3)^2."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    x, y = torch.randn(9, 3, dtype=torch.float64), torch.arange(9) % 2
    data = Tasks(x, y, classes=(0, 1))
    plain = MultiTaskAUC(model, data, loss=Square(1.0))

    def F():
        u = plain(*whole(plain))
        return (u[:, 0] + u[:, 1] - 1 / 4 + 4 / 6 * (1 + u[:, 2]).square()).mean()

    objective = smoothed(plain, 4.0)
    check_everywhere(objective, F)
    smooth = smoothed(MultiTaskAUC(model, data, loss=SquaredHinge()), 1e9)
    F = lambda: value(smooth.objective, *whole(plain))  # noqa: E731
    check_everywhere(smooth, F, tolerance=1e-7)


def test_data_and_loaders_are_the_objectives_own_where_it_has_such():
    plain = MultiTaskAUC(nn.Linear(3, 1), Tasks(torch.randn(6, 3), torch.arange(6) % 2))
    objective = smoothed(plain, 2.0)
    assert objective.data is plain.data
    assert objective.blocks is plain.blocks
    batch = next(iter(objective.loader(1, 4)))
    assert objective(batch.index, batch).shape == (1, 3)
    own = smoothed(Problem(Hinge()), 2.0)
    for name in ("data", "blocks", "loader", "full_pass", "complete"):
        assert hasattr(objective, name)
        assert not hasattr(own, name)


def test_constants_name_the_objectives_own_and_the_smoothing():
    plain = MultiTaskAUC(nn.Linear(3, 1), Tasks(torch.randn(6, 3), torch.arange(6) % 2), loss=Square(0.5))
    assert smoothed(plain, 2.0).constants() == plain.constants() | {
        "rho": 2.0,
        "prox": None,
        "objective": "MultiTaskAUC",
    }
    assert smoothed(Problem(Hinge()), 3.0, prox=Hinge().prox).constants()["prox"] == "Hinge.prox"


def test_a_full_pass_in_chunks_adds_up_to_the_exact_value():
    class Weighted(Problem):
        def inner(self, index, rows, weight):
            return (torch.tanh(A[index][:, rows] @ self.w) * weight).sum(1, keepdim=True)

    objective = smoothed(Weighted(Hinge(0.1)), 3.0, prox=Hinge(0.1).prox)

    class Whole(fcco.Objective):  # one batch of everything, as check_full_pass hands it
        def __init__(self):
            super().__init__(M)
            self.part = objective

        def inner(self, index, data):
            return self.part(index, *data)

        def outer(self, index, u):
            return self.part.outer(index, u)

    def full_pass():
        for blocks in torch.arange(M).split(2):
            for rows in torch.arange(4).split(3):
                yield blocks, (rows, torch.tensor(0.25))

    check_full_pass(Whole(), torch.arange(M), (torch.arange(4), torch.tensor(0.25)), full_pass)


def test_the_outer_function_of_a_functional_objective_brings_its_prox():
    w = nn.Parameter(torch.tensor([2.0]))
    cvar = CVaR(0.5)
    kinked = fcco.objective(lambda i, x: x * w, cvar, num_blocks=4, parameters=[w])
    objective = smoothed(kinked, 10.0)
    assert objective.prox == cvar.prox
    assert any(p is cvar.threshold for p in objective.parameters())
    assert smoothed(Problem(Hinge()), 1.0).prox is None

    class WithProx(Problem):
        def prox(self, index, u, rho):
            return u - 1 / rho

    own = smoothed(WithProx(absolute), 2.0)
    assert own.nearest(torch.tensor([0]), torch.tensor([[1.0]])).item() == 0.5


@pytest.mark.parametrize("gamma", [0.0, None])
def test_sonex_brings_a_kinked_objective_down(gamma):
    """CVaR of squared errors; the exact, not smoothed, value has fallen."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 30, 3, generator=generator)
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + torch.arange(8).unsqueeze(1) / 10 * torch.randn(8, 30, generator=generator)
    w, cvar = nn.Parameter(torch.zeros(3)), CVaR(0.5, start=1.0)

    def inner(index, rows):
        return (x[index][:, rows] @ w - y[index][:, rows]).square().mean(1, keepdim=True)

    kinked = fcco.objective(inner, cvar, num_blocks=8, parameters=[w])
    objective = smoothed(kinked, 1.0)

    def exact():
        with torch.no_grad():
            g = inner(torch.arange(8), torch.arange(30))[:, 0]
            return g.sort().values[-4:].mean().item()

    before = exact()
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.02)
    solver = fcco.Solver(objective, optimizer, fcco.sonex(alpha=0.3, beta=0.3, gamma=gamma))
    for _ in range(200):
        index = torch.randperm(8, generator=generator)[:4]
        solver.step(index, torch.randperm(30, generator=generator)[:6])
    assert exact() < 0.2 * before


def test_state_goes_along_and_steps_are_counted():
    objective = smoothed(Problem(Hinge()), 2.0)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), fcco.sonex(alpha=0.5, beta=0.5))
    solver.step(torch.tensor([0, 3]), torch.arange(4))
    again = smoothed(Problem(Hinge()), 2.0)
    twin = fcco.Solver(again, torch.optim.SGD(again.parameters(), lr=0.1), fcco.sonex(alpha=0.5, beta=0.5))
    twin.load_state_dict(solver.state_dict())
    for each in (solver, twin):
        each.step(torch.tensor([1, 3]), torch.arange(4))
    torch.testing.assert_close(again.objective.w, objective.objective.w, rtol=0, atol=0)


# ---- errors that name what is wrong ---------------------------------------------------------------------


def test_what_cannot_be_smoothed_is_refused_by_name():
    with pytest.raises(ValueError, match="AveragePrecision tracks log u"):
        smoothed(AveragePrecision(nn.Linear(2, 1), Points(torch.randn(3, 2), [1, 0, 1])), 1.0)
    with pytest.raises(TypeError, match="objective must be an Objective"):
        smoothed(nn.Linear(2, 1), 1.0)
    with pytest.raises(ValueError, match="rho must be > 0"):
        smoothed(Problem(Hinge()), 0.0)
    with pytest.raises(ValueError, match="takes dim 1, got dim 2"):
        Hinge()(None, torch.zeros(1, 2))
    for dim in (1, 2):  # f = -u^2 is weakly convex with constant 2
        kinked = smoothed(Problem(lambda i, u: -u.square().sum(1), dim), 1.5)
        with pytest.raises(ValueError, match=r"weak convexity constant of f, got 1\.5"):
            kinked.outer(torch.tensor([0]), torch.ones(1, dim, dtype=torch.float64))
    fine = smoothed(Problem(lambda i, u: -u.square().sum(1)), 4.0)
    assert isinstance(fine, Smoothed)
    f = fine.outer(torch.tensor([0]), torch.ones(1, 1, dtype=torch.float64))
    assert math.isclose(f.item(), -2.0)  # the least of -v^2 + 2 (v - 1)^2, at v = 2
