"""Limits in which a method becomes another, simpler one."""

import pytest
import torch
from torch import nn

import fcco

M, D, N = 6, 4, 10


class Curved(fcco.Objective):
    """g_i(w; xi) = mean of tanh(x.w) + (x.w)^2/4, dim 1; f = sqrt(1 + u^2) + sin(u)/3; rows name the samples."""

    def __init__(self, m=M, identity=False, seed=0):
        super().__init__(num_blocks=m, dim=1)
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(m, N, D, generator=generator, dtype=torch.float64)
        self.w = nn.Parameter(torch.randn(D, generator=generator, dtype=torch.float64))
        self.identity = identity

    def inner(self, index, rows):
        score = self.x[index.unsqueeze(1), rows] @ self.w
        return (score.tanh() + score.square() / 4).mean(1, keepdim=True)

    def outer(self, index, u):
        u = u.squeeze(1)
        return u if self.identity else (1 + u.square()).sqrt() + u.sin() / 3

    def samples(self, index, rows):
        return rows.numel()

    def exact(self):
        everything = torch.arange(N).expand(self.num_blocks, N)
        return self.outer(torch.arange(self.num_blocks), self.inner(torch.arange(self.num_blocks), everything)).mean()


def everything(m=M):
    yield torch.arange(m), torch.arange(N).expand(m, N)


def run(method, *, steps=25, m=M, blocks=3, rows=2, identity=False, lr=0.1, full_pass=everything, **options):
    objective = Curved(m, identity)
    optimizer = torch.optim.SGD(objective.parameters(), lr=lr)
    solver = fcco.Solver(objective, optimizer, method, full_pass=full_pass, **options)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        index = torch.randperm(m, generator=generator)[:blocks]
        solver.step(index, torch.randint(N, (blocks, rows), generator=generator))
    return solver


def same(one, other, tolerance=1e-13):
    torch.testing.assert_close(one.objective.w, other.objective.w, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(one.u(), other.u(), rtol=tolerance, atol=tolerance)


def test_all_blocks_make_msvr_equal_storm():
    same(run(fcco.msvr_v1(alpha=0.3, beta=0.4), blocks=M), run(fcco.storm_v1(alpha=0.3, beta=0.4), blocks=M))
    same(run(fcco.msvr_v2(alpha=0.3, beta=0.4), blocks=M), run(fcco.storm_v2(alpha=0.3, beta=0.4), blocks=M))


def test_fewer_blocks_do_not():
    with pytest.raises(AssertionError):
        same(run(fcco.msvr_v1(alpha=0.3, beta=0.4)), run(fcco.storm_v1(alpha=0.3, beta=0.4)))


def test_gamma_zero_is_the_moving_average():
    same(run(fcco.msvr_v1(alpha=0.3, beta=0.4, gamma=0.0, lag=0)), run(fcco.sox(alpha=0.3, beta=0.4)))
    same(run(fcco.msvr_v1(alpha=0.3, beta=0.4, gamma=lambda t: 0.0, lag=0)), run(fcco.sox(alpha=0.3, beta=0.4)))
    same(run(fcco.sonx(beta=0.4, gamma=0.0)), run(fcco.soap(beta=0.4)))
    same(run(fcco.alexr(beta=0.4, theta=0.0)), run(fcco.soap(beta=0.4)))


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9, 1.0])
def test_v1_and_v2_coincide_at_alpha_one(beta):
    """z = G in both: 20 of the 80 points of the grid, whatever beta; other alphas tell them apart."""
    one, two = run(fcco.msvr_v1(alpha=1.0, beta=beta)), run(fcco.msvr_v2(alpha=1.0, beta=beta))
    assert torch.equal(one.objective.w, two.objective.w)
    assert torch.equal(one.u(), two.u())
    with pytest.raises(AssertionError):
        same(run(fcco.msvr_v1(alpha=0.9, beta=beta)), run(fcco.msvr_v2(alpha=0.9, beta=beta)))


def single_function_run(rule, alpha, steps=25, lr=0.1):
    """Momentum SGD and STORM as published for min E[g(w; xi)]: one function, no f."""
    objective, generator = Curved(1, identity=True), torch.Generator().manual_seed(1)
    w = objective.w.detach().clone().requires_grad_()
    before, d = w.detach().clone(), None

    def gradient(at, rows):
        at = at.detach().clone().requires_grad_()
        score = objective.x[torch.zeros(1, 1, dtype=torch.int64), rows] @ at
        return torch.autograd.grad((score.tanh() + score.square() / 4).mean(), at)[0]

    for _ in range(steps):
        torch.randperm(1, generator=generator)
        rows = torch.randint(N, (1, 2), generator=generator)
        now = gradient(w, rows)
        if d is None:
            d = now
        elif rule == "momentum":
            d = (1 - alpha) * d + alpha * now
        else:
            d = now + (1 - alpha) * (d - gradient(before, rows))
        before, w = w.detach().clone(), w.detach() - lr * d
    return w


@pytest.mark.parametrize("lag", [0, 1])
def test_one_block_and_identity_give_the_published_single_level_methods(lag):
    momentum = run(fcco.msvr_v1(alpha=0.3, beta=0.4, lag=lag), m=1, blocks=1, identity=True)
    torch.testing.assert_close(momentum.objective.w.detach(), single_function_run("momentum", 0.3))
    storm = run(fcco.msvr_v2(alpha=0.3, beta=0.4, lag=lag), m=1, blocks=1, identity=True)
    torch.testing.assert_close(storm.objective.w.detach(), single_function_run("storm", 0.3))


def test_v3_renewed_every_step_with_all_blocks_has_the_exact_u():
    solver = run(fcco.msvr_v3(alpha=0.5, beta=1.0, period=1), blocks=M, steps=7)
    index, rows = next(everything())
    before = [w.clone() for w in solver.state.engine.previous]  # u_t follows g(w_t); the optimizer has moved on since
    with torch.no_grad():
        solver.objective.w.copy_(before[0])
        torch.testing.assert_close(solver.u(), solver.objective.inner(index, rows), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["sox", "msvr-v1", "msvr-v2", "storm-v2", "variant-v1"])
def test_full_batches_and_full_rates_are_gradient_descent(name):
    objective = Curved()
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
    solver = fcco.Solver(objective, optimizer, fcco.METHODS[name](alpha=1.0, beta=1.0, lag=0))
    twin = Curved()
    for _ in range(20):
        solver.step(*next(everything()))
        (gradient,) = torch.autograd.grad(twin.exact(), twin.w)
        with torch.no_grad():
            twin.w -= 0.1 * gradient
    torch.testing.assert_close(objective.w, twin.w, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["msvr-v1", "msvr-v2", "msvr-v3", "variant-v2"])
def test_a_stage_boundary_that_changes_nothing_changes_no_bit(name):
    period = {"period": 5} if name.endswith("v3") else {}
    whole = run(fcco.METHODS[name](alpha=0.3, beta=0.2, **period), steps=20)
    objective = Curved()
    solver = fcco.Solver(
        objective,
        torch.optim.SGD(objective.parameters(), lr=9.0),
        fcco.METHODS[name](alpha=0.9, beta=0.9, **period),
        full_pass=everything,
    )
    stages = fcco.StageWise(solver, [fcco.Stage(10, 0.1, 0.3, 0.2), fcco.Stage(10, 0.1, 0.3, 0.2)])
    generator = torch.Generator().manual_seed(1)
    while not stages.finished:
        index = torch.randperm(M, generator=generator)[:3]
        stages.step(index, torch.randint(N, (3, 2), generator=generator))
    assert torch.equal(objective.w, whole.objective.w)
    assert torch.equal(solver.u(), whole.u())


def test_a_stage_does_not_count_a_move_twice():
    """Without noise and with B1 = m, u = g(w_t) exactly at every step, across stages too (spec, stage-wise form)."""
    objective = Curved()
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
    solver = fcco.Solver(objective, optimizer, fcco.msvr_v2(alpha=0.5, beta=0.5))
    stages = fcco.StageWise(solver, [fcco.Stage(4, 0.1, 0.5, 0.5), fcco.Stage(4, 0.3, 0.1, 0.1)], drawn=True)
    while not stages.finished:
        index, rows = next(everything())
        with torch.no_grad():
            exact = objective.inner(index, rows)
        stages.step(index, rows)
        torch.testing.assert_close(solver.u(), exact, rtol=1e-12, atol=1e-12)


def test_the_convex_form_adds_mu_w_exactly():
    objective = Curved()
    optimizer = torch.optim.SGD(objective.parameters(), lr=1.0, weight_decay=0.5)
    solver = fcco.Solver(objective, optimizer, fcco.sox(alpha=1.0, beta=1.0), radius=1e-3)
    stages = fcco.StageWise(solver, [fcco.Stage(1, 0.1, 1.0, 1.0)], mu=0.5)
    w = objective.w.detach().clone()
    stages.step(*next(everything()))
    z = solver.z[0]
    assert float(z.norm()) <= 1e-3 * (1 + 1e-12)  # the term is outside the projection
    torch.testing.assert_close(objective.w.detach(), w - 0.1 * (z + 0.5 * w), rtol=1e-14, atol=1e-14)
    with pytest.raises(ValueError, match=r"weight_decay must be 0\.25"):
        fcco.StageWise(solver, [fcco.Stage(1, 0.1, 1.0, 1.0)], mu=0.25)


def test_the_kept_iterate_is_uniform_over_the_run():
    drawn = []
    for seed in range(600):
        solver = run(fcco.bsgd(), steps=5, lr=0.01, keep="uniform", seed=seed)
        drawn.append(solver.state.reservoir.drawn_at)
    counts = torch.bincount(torch.tensor(drawn), minlength=6)[1:]
    assert counts.sum() == 600
    assert float(((counts - 120.0) ** 2 / 120.0).sum()) < 18.5  # chi-square, 4 degrees of freedom, p = 0.001
    assert set(solver.kept()) == set(solver.objective.state_dict())


def test_diagnosis_is_exact_and_changes_nothing():
    solver = run(fcco.msvr_v2(alpha=0.3, beta=0.4))
    before, grads = solver.state_dict(), [p.grad.clone() for p in solver.parameters]
    found = solver.diagnose(everything)
    value = solver.objective.exact()
    (gradient,) = torch.autograd.grad(value, solver.objective.w)
    index, rows = next(everything())
    g = solver.objective.inner(index, rows).detach()
    assert found.value == pytest.approx(float(value.detach()), rel=1e-12)
    assert found.gradient_norm == pytest.approx(float(gradient.norm()), rel=1e-12)
    assert found.gradient_error == pytest.approx(float((solver.z[0] - gradient).norm()), rel=1e-9)
    assert found.tracking_error == pytest.approx(float((solver.u() - g).square().mean().sqrt()), rel=1e-9)
    after = solver.state_dict()
    for name in ("t", "samples", "g_calls", "j_calls", "jvp_calls"):
        assert before["state"][name] == after["state"][name]
    assert torch.equal(before["objective"]["w"], after["objective"]["w"])
    assert torch.equal(before["random"][0]["torch"], after["random"][0]["torch"])
    assert all(torch.equal(a, p.grad) for a, p in zip(grads, solver.parameters, strict=True))


def test_a_full_pass_may_split_blocks_over_batches():
    """Rows of one block add up, in and across batches: sums weighted by 1/N give the same reference as one batch."""

    class Weighted(Curved):
        def inner(self, index, rows, weight=None):
            score = self.x[index.unsqueeze(1), rows] @ self.w
            value = score.tanh() + score.square() / 4
            return (value.mean(1) if weight is None else (value * weight).sum(1)).unsqueeze(1)

        def samples(self, index, rows, weight=None):
            return rows.numel()

    def pieces():
        for start, stop in ((0, 3), (3, 4), (4, N)):
            rows = torch.arange(start, stop).expand(M, stop - start)
            yield torch.arange(M), rows, torch.full(rows.shape, 1 / N, dtype=torch.float64)

    solvers = []
    for full_pass in (everything, pieces):
        objective = Weighted()
        optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
        method = fcco.msvr_v3(alpha=0.2, beta=0.3, period=4)
        solver = fcco.Solver(objective, optimizer, method, full_pass=full_pass)
        generator = torch.Generator().manual_seed(3)
        for _ in range(10):
            index = torch.randperm(M, generator=generator)[:2]
            report = solver.step(index, torch.randint(N, (2, 2), generator=generator))
        solvers.append(solver)
    same(*solvers)
    assert report.samples == 10 * 4 + 3 * M * N
