"""Schedules against the spec's formulas, written out again, and against the conditions that the proofs need."""

import math

import pytest
import torch

import fcco
from fcco.methods import schedules

SIZES = [(10, 2, 4, 1.0), (100, 5, 128, 3.0), (7, 7, 1, 2.0), (1000, 1, 1, 1.0)]


@pytest.mark.parametrize(("m", "b1", "b2", "c"), SIZES)
def test_v1_meets_every_condition_of_its_theorem_and_no_smaller_offset_would(m, b1, b2, c):
    rates = schedules.theorem_v1(m=m, b1=b1, b2=b2, c=c)
    top = min(b1 / (4 * m), 1 / (2 * math.sqrt(c)))
    tight = 1 + 1e-9
    for t in (1, 2, 10, 10**4):
        assert rates.alpha(t) <= tight / 15
        assert rates.beta(t) <= 0.44 * tight
        assert rates.lr(t) <= top
        assert rates.alpha(t + 1) == pytest.approx(36 * c * rates.lr(t))
        assert rates.beta(t + 1) == pytest.approx(256 * m**2 * c**2 * rates.lr(t) ** 2 / b1**2)
    at_bound = [rates.alpha(1) * 15, rates.beta(1) / 0.44, rates.lr(0) / top]
    assert max(at_bound) == pytest.approx(1.0)


@pytest.mark.parametrize(("m", "b1", "b2", "c"), SIZES)
def test_v2_meets_every_condition_of_its_theorem(m, b1, b2, c):
    rates, c0 = schedules.theorem_v2(m=m, b1=b1, b2=b2, c=c), 264 * c
    for t in (1, 2, 10, 10**4):
        assert rates.lr(t) <= b1 / (m * c0)
        assert rates.beta(t) <= (1 + 1e-9) / (32 * c)
        assert rates.beta(t + 1) == pytest.approx(m**2 * c0**2 * rates.lr(t) ** 2 / (32 * b1**2))
        assert rates.alpha(t) == pytest.approx(b1 * rates.beta(t) / m)
    a = (rates.lr(0) / (b1 * math.sqrt(min(b2, m)) / m) ** (2 / 3)) ** -3
    if c == 1.0:
        assert a == pytest.approx(264**3 * m * min(b2, m) / b1)  # the order 10^7 m B2/B1 of the spec
    assert rates.beta(1) == pytest.approx(1 / (32 * c))


@pytest.mark.parametrize(("m", "n", "b1", "b2"), [(10, 100, 2, 4), (7, 9, 2, 3), (5, 64, 5, 32)])
def test_v3_meets_every_condition_of_its_theorem(m, n, b1, b2):
    rates = schedules.theorem_v3(m=m, n=n, b1=b1, b2=b2, c=2.0)
    assert rates.period == math.ceil(m * n / (b1 * b2))
    assert rates.beta <= 0.5
    assert rates.beta * rates.period <= m / b1 + 1e-9
    assert rates.alpha * rates.period <= 1 + 1e-12
    assert b1 * rates.beta <= m * rates.alpha + 1e-12
    assert rates.lr <= b1 * math.sqrt(rates.beta) / (m * math.sqrt(3776 * 2.0)) * (1 + 1e-12)
    with pytest.raises(ValueError, match="b2 must be at most n/2"):
        schedules.theorem_v3(m=m, n=n, b1=b1, b2=n, c=2.0)


def test_constant_free_forms():
    m, b1, n, t = 40, 4, 25, 10_000
    sox = schedules.constant_free_sox(m=m, b1=b1, horizon=t)
    assert (sox.alpha, sox.beta, sox.lr) == pytest.approx(
        (math.sqrt(b1 / t), math.sqrt(m / (b1 * t)), (b1 / m) ** 0.25 * t**-0.75)
    )
    v2 = schedules.constant_free_v2(m=m, b1=b1, horizon=t)
    assert v2.beta == pytest.approx((m / (b1 * t)) ** (2 / 3))
    assert (v2.alpha, v2.lr) == pytest.approx((b1 * v2.beta / m, (b1 / m) ** (1 / 3) * t ** (-2 / 3)))
    v1 = schedules.constant_free_v1(m=m, b1=b1, b2=2, horizon=t)
    assert (v1.alpha, v1.lr) == pytest.approx((math.sqrt(2 / t), 2**0.25 * t**-0.75))
    assert v1.beta == pytest.approx(m / b1 * v1.lr)
    v3 = schedules.constant_free_v3(m=m, n=n, b1=b1, horizon=t)
    assert (v3.alpha, v3.beta, v3.period) == pytest.approx((b1 / (m * n), 1 / n, m * n // b1))
    assert v3.lr == pytest.approx(math.sqrt(b1 / m) * n**-0.25 * t**-0.5)


def test_rates_go_into_recipes_solver_and_scheduler():
    w = torch.nn.Parameter(torch.ones(2))
    objective = fcco.objective(
        lambda i, x: (x @ w).mean(1, keepdim=True), lambda i, u: u.square()[:, 0], num_blocks=4, parameters=[w]
    )
    rates = schedules.theorem_v2(m=4, b1=2, b2=3, c=1.0)
    optimizer = torch.optim.SGD([w], lr=123.0)
    scheduler = fcco.LRSchedule(optimizer, rates.lr)
    solver = fcco.Solver(objective, optimizer, fcco.msvr_v2(alpha=rates.alpha, beta=rates.beta), normalize=True)
    for t in range(1, 4):
        assert optimizer.param_groups[0]["lr"] == rates.lr(t)
        before = w.detach().clone()
        solver.step(torch.tensor([0, 1]), torch.randn(2, 3, 2))
        assert float((w.detach() - before).norm()) == pytest.approx(rates.lr(t), rel=1e-3)
        scheduler.step()
    fresh = fcco.LRSchedule(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0), rates.lr)
    fresh.load_state_dict(scheduler.state_dict())
    fresh.step()
    assert fresh.optimizer.param_groups[0]["lr"] == rates.lr(5)


@pytest.mark.parametrize("name", ["theorem_v1", "theorem_v2"])
def test_blocks_a_step_cannot_exceed_blocks(name):
    with pytest.raises(ValueError, match="b1 must be at most m = 3, got 4"):
        getattr(schedules, name)(m=3, b1=4, b2=1, c=1.0)


# C_f, L_f, C_g, L_g, sigma, and the term that is the largest there
CONSTANTS = [
    ((0.1, 0.1, 0.1, 0.1, 0.1), 1.0),
    ((0.1, 0.1, 3.0, 0.0, 0.1), 3.0**2),  # C_g^2
    ((2.0, 0.5, 1.0, 4.0, 0.1), (2.0 * 4.0 + 1.0**2 * 0.5) ** 2),  # L_F^2, with C_f to the first power
    ((0.1, 0.1, 0.1, 0.1, 5.0), 5.0**2),  # sigma^2
    ((0.1, 4.0, 0.5, 0.0, 3.0), (4.0 * 0.5 * 3.0) ** 2),  # L_f^2 C_g^2 sigma^2
    ((2.0, 0.1, 1.0, 0.1, 3.0), 2.0**2 * (3.0**2 + 1.0**2)),  # C_f^2 (sigma^2 + C_g^2)
]


@pytest.mark.parametrize(("constants", "largest"), CONSTANTS)
def test_the_constant_of_the_theorems(constants, largest):
    names = ("c_f", "l_f", "c_g", "l_g", "sigma")
    assert fcco.theorem_constant(**dict(zip(names, constants, strict=True))) == pytest.approx(largest)


def test_the_constant_of_the_theorems_against_the_papers_list():
    """The ten terms of Appendix A.4, written out again, over random numbers."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        f, lf, g, lg, s = (3 * torch.rand(5, generator=generator, dtype=torch.float64)).tolist()
        smooth = f * lg + g * g * lf
        both = [lf**2 * g**2, lg**2 * f**2, lf**2 * g**4, lf**2 * g**2 * s**2, f**2 * (s**2 + g**2)]
        expected = max([1.0, g**2, smooth**2, f**2 * g**2, s**2, *both])
        assert schedules.theorem_constant(c_f=f, l_f=lf, c_g=g, l_g=lg, sigma=s) == pytest.approx(expected)
