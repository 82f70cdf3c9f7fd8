"""Lemmas 1 and 2 of the paper with their constants, in exact expectations over every draw of blocks and samples.

One step of the library's own tracker from a given u_{t-1}, over all blocks and all samples, each draw with its
probability: no sampling, so an inequality that fails fails by more than rounding. With w = w_t, w- = w_{t-1}:

    E||u_t - g(w)||^2 <= (1 - B1 beta/m) ||u - g(w-)||^2 + 2 B1 beta^2 sigma^2/B2 + K m^2/B1 ||w - w-||^2

Lemma 1 (MSVR): K = 8 C_g^2. Lemma 2 (MSVR-SP): K = 4 L_g^2 C_F^2 + 9 C_g^2 + 8 sigma^2/B2, for ||w - w-|| <= eta C_F.
"""

import math

import numpy as np
import pytest
import torch

from fcco.methods.trackers import MSVR, MovingAverage, Storm, Values, combine

M, N, D = 5, 4, 3
SIZES = [1, 2, 4, 5]  # B1
BETAS = [1e-5, 1e-3, 0.1, 0.3, 0.5]


class Curved:
    """g_i(w; j) = sin(a_ij . w) + c_ij, N samples per block; the smallest constants that its derivatives allow."""

    def __init__(self, seed):
        random = np.random.default_rng(seed)
        self.a = random.normal(size=(M, N, D))
        self.c = random.normal(size=(M, N))
        squares = [np.linalg.eigvalsh(a.T @ a / N)[-1] for a in self.a]
        self.c_g = math.sqrt(max(squares))  # E|g(x; j) - g(y; j)|^2 <= C_g^2 |x - y|^2
        # |sin'' | <= 1 and a a^T has the norm |a|^2: E|J(x; j) - J(y; j)|^2 <= mean |a|^4 |x - y|^2
        self.l_g = math.sqrt(max(np.mean(np.sum(a * a, -1) ** 2) for a in self.a))

    def values(self, w):
        """g_i(w; j), (M, N)."""
        return np.sin(self.a @ w) + self.c

    def jacobians(self, w):
        """(M, N, D)."""
        return np.cos(self.a @ w)[..., None] * self.a

    def sigma(self, w):
        """The larger of the standard deviations of g and of its Jacobian over a block's samples, at w."""
        g, jacobian = self.values(w), self.jacobians(w)
        of_g = np.var(g, axis=1)
        of_jacobian = np.sum(np.var(jacobian, axis=1), axis=-1)
        return math.sqrt(max(of_g.max(), of_jacobian.max()))


def expected_error(tracker, problem, u, w, before, b1):
    """E||u_t - g(w_t)||^2: every block is drawn with probability B1/m, every sample of it with 1/N (B2 = 1)."""
    now, previous = problem.values(w), problem.values(before)
    jvp = problem.jacobians(w) @ (w - before)
    rows = torch.as_tensor(u)[:, None, None].expand(M, N, 1)
    seen = Values(u=rows, now=column(now), previous=column(previous), jvp=column(jvp))
    c = tracker.coefficients(1, M / b1, rows)
    drawn = combine(c, seen).squeeze(-1).numpy()  # (M, N)
    g = now.mean(1)
    error_drawn = np.mean((drawn - g[:, None]) ** 2, axis=1)
    error_kept = (u - g) ** 2
    return float(np.sum(b1 / M * error_drawn + (1 - b1 / M) * error_kept))


def column(x):
    return torch.as_tensor(x).unsqueeze(-1)


def bound(problem, u, w, before, b1, beta, constant):
    """The right-hand side, with sigma at w_t, which is all that the proofs use of it."""
    contracted = (1 - b1 * beta / M) * float(np.sum((u - problem.values(before).mean(1)) ** 2))
    noise = 2 * b1 * beta**2 * problem.sigma(w) ** 2
    return contracted + noise + constant * M**2 / b1 * float(np.sum((w - before) ** 2))


def steps(seed, longest):
    """Problems with rows near and far, and moves short and long; rows also along and against the move of g."""
    random = np.random.default_rng(seed)
    problem = Curved(seed)
    for distance in (0.0, 0.1, 3.0):
        for length in (1e-4, 1e-3, 0.01, 0.3, 3.0):
            before = random.normal(size=D)
            direction = random.normal(size=D)
            w = before + min(length, longest) * direction / np.linalg.norm(direction)
            was, now = problem.values(before).mean(1), problem.values(w).mean(1)
            for towards in (random.normal(size=M), now - was, was - now):
                yield problem, was + distance * towards / np.linalg.norm(towards), w, before


def violations(make, seeds, constant_of, longest_of=lambda problem, beta: math.inf):
    """How often the inequality fails, of how many."""
    found = total = 0
    for seed in range(seeds):
        problem = Curved(seed)
        for b1 in SIZES:
            for beta in BETAS:
                for _, u, w, before in steps(seed, longest_of(problem, beta)):
                    right = bound(problem, u, w, before, b1, beta, constant_of(problem, w))
                    left = expected_error(make(beta), problem, u, w, before, b1)
                    found += int(left > right * (1 + 1e-12))
                    total += 1
    return found, total


def lemma_1(problem, w):
    return 8 * problem.c_g**2


def lemma_2(problem, w, c_f=1.0):
    """C_F = C_f C_g, with C_f = 1."""
    return 4 * (problem.l_g * c_f * problem.c_g) ** 2 + 9 * problem.c_g**2 + 8 * problem.sigma(w) ** 2


def longest_step(problem, beta):
    """eta C_F with the largest eta that Lemma 2 allows."""
    return math.sqrt(beta) * problem.c_g


def test_lemma_1():
    found, total = violations(MSVR, 8, lemma_1)
    assert (found, total) == (0, 8 * len(SIZES) * len(BETAS) * 45)


def test_lemma_2():
    found, total = violations(lambda beta: MSVR(beta, single_point=True), 8, lemma_2, longest_step)
    assert (found, total) == (0, 8 * len(SIZES) * len(BETAS) * 45)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("STORM, naive", Storm),
        ("moving average", MovingAverage),
        ("gamma doubled", lambda beta: MSVR(beta, gamma=2 * ((M - 1) / (1 - beta) + 1 - beta))),
        ("gamma without its first term", lambda beta: MSVR(beta, gamma=1 - beta)),
    ],
)
def test_other_trackers_break_lemma_1(name, make):
    """So the inequality is one that tells them apart, and needs gamma as it is."""
    found, _ = violations(make, 2, lemma_1)
    assert found > 10


@pytest.mark.parametrize("factor", [0.0, 0.5, 4.0])
def test_another_gamma_breaks_lemma_2(factor):
    def make(beta):
        return MSVR(beta, gamma=factor * ((M - 1) / (1 - beta) + 1 - beta), single_point=True)

    found, _ = violations(make, 2, lemma_2, longest_step)
    assert found > 10


def test_the_constants_are_those_of_the_problem():
    """C_g and L_g bound every difference quotient that was tried."""
    random = np.random.default_rng(0)
    for seed in range(4):
        problem = Curved(seed)
        for _ in range(300):
            x, y = random.normal(size=D), random.normal(size=D)
            moved = np.sum((x - y) ** 2)
            g = np.mean((problem.values(x) - problem.values(y)) ** 2, axis=1)
            jacobian = np.mean(np.sum((problem.jacobians(x) - problem.jacobians(y)) ** 2, -1), axis=1)
            assert g.max() <= problem.c_g**2 * moved
            assert jacobian.max() <= problem.l_g**2 * moved
