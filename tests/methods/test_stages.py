"""Stages: their formulas, and the bounds of the proofs that they are made for, put together again from its lemmas."""

import itertools
import math

import pytest

from fcco.methods import schedules, stages

# m, B1, B2, C, mu: wide and narrow, one block, all blocks, B2 at and above m
V2_SETTINGS = [
    (6, 2, 4, 1.0, 0.5),
    (1, 1, 1, 1.0, 1.0),
    (100, 5, 128, 3.0, 0.01),
    (10, 10, 10, 2.0, 1e-3),
    (10, 1, 10**6, 1.0, 5.0),
]
V3_SETTINGS = [
    # m, n, B1, B2, C, mu
    (6, 10, 2, 2, 1.0, 0.5),
    (1, 1000, 1, 1, 1.0, 1.0),
    (100, 500, 5, 128, 4.0, 0.01),
    (10, 4, 10, 2, 1.0, 50.0),
    (7, 13, 3, 5, 2.0, 1e-4),
]


def test_stages_of_v2_follow_the_spec():
    m, b1, b2, c, mu = 6, 2, 4, 1.0, 0.5
    plan = stages.stages_v2(m=m, b1=b1, b2=b2, c=c, mu=mu, gap=1.0, accuracy=0.5)
    c0, first = 264 * c, max(2 * c / mu, 1.0)
    assert len(plan) == math.ceil(math.log2(2 * first / 0.5))
    for s, stage in enumerate(plan):
        noise = b2 * mu * first / 2**s
        assert stage.lr == pytest.approx(8 * b1 * math.sqrt(noise) / (m * c0**2))
        assert stage.beta == pytest.approx(2 * noise / c0**2)
        assert stage.alpha == pytest.approx(b1 * stage.beta / m)
        steps = max(m * c0**2 / (b1 * mu * math.sqrt(noise)), m * c0**4 / (b1 * noise))
        assert stage.steps == math.ceil(steps)
    capped = stages.stages_v2(m=10**4, b1=b1, b2=10**6, c=c, mu=mu, gap=1.0, accuracy=0.5)
    assert capped[0].beta == pytest.approx(2 * 1089 * c / c0**2)
    assert all(stage.beta <= 2 * 1089 * c / c0**2 * (1 + 1e-12) for stage in capped)


def test_stages_of_v2_read_more_samples_than_blocks_as_m():
    sizes = {"m": 6, "b1": 2, "c": 1.0, "mu": 0.5, "gap": 1.0, "accuracy": 0.5}
    assert stages.stages_v2(b2=10**6, **sizes) == stages.stages_v2(b2=6, **sizes)
    assert stages.stages_v2(b2=5, **sizes) != stages.stages_v2(b2=6, **sizes)


@pytest.mark.parametrize(("m", "b1", "b2", "c", "mu"), V2_SETTINGS)
def test_stages_of_v2_meet_their_proof(m, b1, b2, c, mu):
    """The three terms that bound mean ||grad F||^2 in the proof of Theorem 3 stay below 2 mu eps_s.

    The last one is the noise of a step, put together from beta and alpha themselves, with the B2 that was given.
    """
    c0, first = 264 * c, max(2 * c / mu, 1.0)
    for s, stage in enumerate(stages.stages_v2(m=m, b1=b1, b2=b2, c=c, mu=mu, gap=1.0, accuracy=0.01)):
        eps, before = first / 2**s, first / 2 ** (s - 1)
        assert stage.lr**2 == pytest.approx(32 * b1**2 * stage.beta / (m * c0) ** 2)
        assert stage.beta <= 1 / (32 * c) * (1 + 1e-12)
        assert stage.lr <= b1 / (m * c0) * (1 + 1e-12)
        start = 2 * before / (stage.lr * stage.steps)
        errors = 2 * b1 * mu * before / (c0 * stage.lr**2 * stage.steps * m)
        noise = 14 * (b1 * stage.beta / m) ** 2 * c / (b2 * c0 * stage.lr) + 2 * stage.alpha**2 * c / (
            m * c0 * stage.lr
        )
        assert start + errors + 2 * noise / stage.lr <= 2 * mu * eps


def test_rates_and_number_of_the_stages_of_v3():
    plan = stages.stages_v3(m=6, n=10, b1=2, b2=2, c=1.0, mu=0.5, gap=1.0, accuracy=1.0)
    rates = schedules.theorem_v3(m=6, n=10, b1=2, b2=2, c=1.0)
    assert len(plan) == math.ceil(math.log2(2 * 146 / 0.5))
    assert {(stage.lr, stage.alpha, stage.beta) for stage in plan} == {(rates.lr, rates.alpha, rates.beta)}
    # here 1/(mu lr) = 6 * sqrt(3776 * 5) is the largest of the three
    assert plan[0].steps == math.ceil(6 * 6 / (0.5 * 2) * math.sqrt(3776 * 5))


@pytest.mark.parametrize(("m", "n", "b1", "b2", "c", "mu"), V3_SETTINGS)
def test_stages_of_v3_meet_their_proof(m, n, b1, b2, c, mu):
    """Theorem 5: (F_s - F*)/eps_{s-1} <= 1/(mu eta T) + 1/(alpha T) + m/(beta B1 T), which has to be at most 1/2."""
    b2 = min(b2, n // 2)
    for stage in stages.stages_v3(m=m, n=n, b1=b1, b2=b2, c=c, mu=mu, gap=1.0, accuracy=0.01):
        terms = [1 / (mu * stage.lr), 1 / stage.alpha, m / (stage.beta * b1)]
        assert sum(terms) / stage.steps <= 0.5
        assert max(terms) / (stage.steps - 1) > 1 / 6  # and no longer than that


@pytest.mark.parametrize(("m", "n", "b1", "b2", "c", "mu"), V3_SETTINGS)
def test_the_whole_induction_of_v3_closes(m, n, b1, b2, c, mu):
    """All three bounds of Theorem 5's induction, the two that it leaves out too, by docs/errata.md: each halves.

    F, U and Z are the bounds at the end of a stage over those at its start (F over eps, U and Z over mu eps).
    """
    b2 = min(b2, n // 2)
    stage = stages.stages_v3(m=m, n=n, b1=b1, b2=b2, c=c, mu=mu, gap=1.0, accuracy=0.01)[0]
    alpha, beta, lr, steps = stage.alpha, stage.beta, stage.lr, stage.steps
    assert b1 * beta <= m * alpha * (1 + 1e-12)
    u_forgets, z_forgets = 2 - beta, 2 - alpha  # 1 - (1 - beta)^2 = beta (2 - beta); the proof rounds it to beta
    moves = (428 / z_forgets + 1460 / u_forgets) * m**2 * c * lr**2 / (b1**2 * beta)
    kept = 1 - lr * math.sqrt(c) - moves  # of sum ||z||^2, after Lemma 4 with L_F <= sqrt(C)
    assert kept > 0
    start = (2 / (mu * lr) + 1 / (z_forgets * alpha) + m / (u_forgets * b1 * beta)) / steps
    squares = m**2 * c * lr**2 / (b1**2 * beta) * start / kept  # of the steps, as it enters both errors
    gap = start / 2
    u_error = m / (u_forgets * b1 * beta * steps) + 1460 / u_forgets * squares
    z_error = 1 / (z_forgets * alpha * steps) + (128 / 146 * beta * u_error + 384 * squares) / z_forgets
    assert max(gap, u_error, z_error) <= 0.5


def test_the_induction_of_v3_closes_over_a_grid():
    """B1/m, B2/n and the constants over decades."""
    for m, n, c, mu in itertools.product((1, 3, 1000), (2, 50, 10**4), (1.0, 100.0), (1e-4, 1.0, 100.0)):
        for b1, b2 in itertools.product({1, m}, {1, n // 2}):
            test_the_whole_induction_of_v3_closes(m, n, b1, b2, c, mu)
            test_stages_of_v3_meet_their_proof(m, n, b1, b2, c, mu)


def test_the_convex_weight():
    assert stages.convex_mu(accuracy=0.1, distance=4.0) == pytest.approx(0.025)
