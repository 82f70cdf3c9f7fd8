"""The experiments on v3's sizes and on the paper's remarks, in tiny sizes; the PL problem is what it says."""

import math

import numpy as np
import pytest
import torch

from fcco import methods
from fcco.lab.rates import convex, finite, problems, remarks
from fcco.lab.rates.fit import Outcome
from fcco.methods.schedules import theorem_v3

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = remarks.Plan(horizon=40, doublings=2, lengths=3, budget=60, longest=300, passes=12, seeds=2)


def test_the_pl_problem_is_pl_and_not_convex():
    problem = problems.separate(8)
    best = torch.ones(problem.d, dtype=torch.float64)
    assert float(problem.value(best)) == 0.0
    assert float(problem.gradient(best).norm()) < 1e-12
    w = best + 4.0 * torch.randn(20_000, problem.d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    share = problem.gradient(w).square().sum(-1) / (2 * problem.value(w))
    assert float(share.min()) > 0.001  # ||grad F||^2 >= 2 mu (F - F*)
    line = best.repeat(400, 1)
    line[:, 0] += torch.linspace(-4.0, 4.0, 400, dtype=torch.float64)
    bends = torch.diff(problem.value(line), n=2)
    assert float(bends.min()) < 0.0 < float(bends.max())


def test_closed_form_of_the_pl_problem():
    problem = problems.separate(6, n=4)
    w = torch.linspace(-1, 2, problem.d, dtype=torch.float64).requires_grad_()
    g = (problem.linear @ w) + problem.offset
    value = (g.square() + 3 * g.sin().square()).mean() / 4
    (gradient,) = torch.autograd.grad(value, w)
    torch.testing.assert_close(problem.value(w.detach()), value.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(problem.gradient(w.detach()), gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("point", [finite.Point(6, 8, 2, 2), finite.Point(1, 16), finite.Point(10, 64, 1, 16)])
def test_the_rates_of_v3_are_its_theorems(point):
    rates = theorem_v3(m=point.m, n=point.n, b1=point.b1, b2=point.b2, c=1.0)
    stage = point.stage(10, point.eta)
    assert (point.period, stage.alpha, stage.beta) == pytest.approx((rates.period, rates.alpha, rates.beta))
    assert point.eta / math.sqrt(3776) == pytest.approx(rates.lr)


def test_the_first_lane_below_the_level_counts():
    steps = np.array([1.0, 10.0, 100.0])
    roots = np.array([[4.0, 4.0, np.nan], [3.0, 1.0, np.nan], [2.0, 0.5, np.nan]])
    assert finite._soonest(steps, roots, 1.0) == pytest.approx(10.0)
    assert finite._soonest(steps, roots, 0.1) == 100.0


def test_sizes_of_v3_in_small():
    plan = finite.Plan(ms=(4, 16), ns=(4, 16), b1s=(1, 4), b2s=(1, 4), many=16, alone=(4, 16), horizon=60,
                       longest=500, etas=3, seeds=2)  # fmt: skip
    constant, level = finite.tune(plan, finite.Point(4, 4))
    steps, roots = finite.decline(plan, finite.Point(4, 4), [constant * finite.Point(4, 4).eta], level, plan.longest)
    assert roots.shape == (len(steps), 1, 2)
    assert roots[-1].mean() < level
    assert set(plan.lines()) == {"m", "n", "B1", "B2", "n, m = 1"}


def names(outcome):
    return [(row.name, row.quantity) for row in outcome.rows]


def test_norms_of_the_remarks_in_small():
    outcome = Outcome()
    remarks.norms(TINY, outcome)
    found = [name for name, _ in names(outcome)]
    assert found == [
        "adaptive MSVR-v2, Adam style, delta = 1",
        "adaptive MSVR-v2, Adam style, delta = 0.1",
        "adaptive MSVR-v2, AMSGrad style, delta = 1",
        "adaptive MSVR-v2, AMSGrad style, delta = 0.1",
        "MSVR-v1 (late) with SP",
        "MSVR-v2 with SP",
        "all blocks probed (SOX with B1 = m, the baseline)",
        "SOX",
    ]
    assert all(math.isfinite(row.value) for row in outcome.rows)
    every = outcome.curves[-1]
    assert every.x == [TINY.m * steps for steps in TINY.stationarity().horizons()]  # all blocks are paid for


def test_convex_remarks_in_small():
    outcome = Outcome()
    remarks.without_momentum(TINY, outcome)
    remarks.bsgd(TINY, outcome)
    remarks.pl(TINY, outcome)
    assert names(outcome) == [
        ("SOX (its beta = 1: no momentum)", "gap against samples, convex"),
        ("BSGD", "gap against samples, convex"),
        ("BSGD", "gap against samples, strongly convex"),
        ("MSVR-v2", "gap against samples, PL"),
        ("SOX", "gap against samples, PL"),
        ("MSVR-v3", "log gap against passes, PL"),
        ("MSVR-v3", "R^2 of that line, PL"),
    ]
    assert all(min(curve.y) > 0.0 for curve in outcome.curves)


def test_mean_iterates_are_taken_over_each_lanes_own_horizon():
    problem = problems.paired(4, q=0.0, scales=(1.0, 0.5))
    lanes = [methods.bsgd(), methods.bsgd()]
    both = remarks.mean_gaps(problem, lanes, [0.1, 0.1], [5, 20], 1, seeds=2)
    short = remarks.mean_gaps(problem, lanes[:1], [0.1], [5], 1, seeds=2)
    long = remarks.mean_gaps(problem, lanes[:1], [0.1], [20], 1, seeds=2)
    np.testing.assert_allclose(both, np.concatenate([short, long]), rtol=1e-12)
    assert convex.optimum(problem) < float(problem.value(torch.zeros(2, dtype=torch.float64)))
