"""The oracle has to be right by itself: derivatives against differences, methods against their limits."""

import ast
from pathlib import Path

import numpy as np
import pytest

from tests.reference.methods import METHODS, Adaptive, run
from tests.reference.problem import CurvedProblem, LogProblem

PROBLEMS = {
    "curved": CurvedProblem,
    "log": LogProblem,
    "mixed": lambda seed, p: LogProblem(seed, p=p, log=[k % 2 == 0 for k in range(p)]),
}
SETTINGS = {"alpha": 0.2, "beta": 0.3, "theta": 0.5, "step": 0.5}


def settings(method):
    period = {"bspiderboost": 10, "msvr-v3": 25, "variant-v3": 25}.get(method)
    kept = {"step": 0.5} if method == "scent" else {**SETTINGS, "step": None}
    return {**kept, "period": period, "lr": 0.05}


def draw(problem, steps, B1, B2, seed=0):
    random = np.random.default_rng(seed)
    batches = []
    for _ in range(steps):
        blocks = random.choice(problem.m, B1, replace=False).tolist()
        batches.append((blocks, [random.choice(problem.n, B2, replace=False).tolist() for _ in blocks]))
    return batches


def everything(problem, steps):
    """Every block with all its samples, at every step: no noise left."""
    return [(list(range(problem.m)), [problem.all_rows] * problem.m)] * steps


def differences(function, x, h=1e-5):
    """Central differences, one column a coordinate."""
    columns = [(function(x + h * e) - function(x - h * e)) / (2 * h) for e in np.eye(len(x))]
    return np.stack(columns, axis=-1)


@pytest.mark.parametrize("p", [1, 3])
@pytest.mark.parametrize("kind", PROBLEMS)
def test_derivatives(kind, p):
    problem = PROBLEMS[kind](3, p=p)
    w = np.random.default_rng(1).normal(size=problem.d)
    for i in range(problem.m):
        u = problem.inner(i, w, [0, 4])
        slope = differences(lambda x, i=i: problem.inner(i, x, [0, 4]), w)
        np.testing.assert_allclose(problem.jacobian(i, w, [0, 4]), slope, rtol=1e-7, atol=1e-8)
        slope = differences(lambda x, i=i: np.array(problem.outer(i, x)), u, h=1e-6 * np.abs(u).min())
        np.testing.assert_allclose(problem.outer_grad(i, u), slope, rtol=1e-4)
    np.testing.assert_allclose(problem.gradF(w), differences(problem.F, w), rtol=1e-6, atol=1e-7)


def test_curved_problem_is_curved():
    problem = CurvedProblem(0, p=3)
    w = np.random.default_rng(0).normal(size=problem.d)
    move = np.full(problem.d, 0.1)
    linear = problem.jacobian(0, w, [1]) @ move
    assert np.abs(problem.inner(0, w + move, [1]) - problem.inner(0, w, [1]) - linear).max() > 1e-2
    u = problem.inner(0, w, [1])
    assert np.abs(problem.outer_grad(0, 2 * u) - 2 * problem.outer_grad(0, u)).min() > 1e-2


@pytest.mark.parametrize("method", ["sox", "msvr-v1", "msvr-v2", "storm-v2"])
def test_without_noise_and_memory_it_is_gradient_descent(method):
    problem = CurvedProblem(0, p=3)
    w1 = np.ones(problem.d)
    got = run(method, problem, w1, everything(problem, 20), lr=0.05, alpha=1.0, beta=1.0, lag=0)
    w = w1
    for _ in range(20):
        w = w - 0.05 * problem.gradF(w)
    np.testing.assert_allclose(got.w, w, rtol=1e-12)


@pytest.mark.parametrize("method", ["msvr-v1", "msvr-v2"])
def test_all_blocks_make_msvr_storm(method):
    problem = CurvedProblem(1, p=3)
    batches = draw(problem, 40, B1=problem.m, B2=2)
    options = {"lr": 0.05, "alpha": 0.2, "beta": 0.3}
    got = run(method, problem, np.ones(problem.d), batches, **options)
    want = run(method.replace("msvr", "storm"), problem, np.ones(problem.d), batches, **options)
    np.testing.assert_allclose(got.w, want.w, rtol=1e-13)


def test_gamma_zero_is_the_moving_average():
    problem = CurvedProblem(1, p=3)
    batches = draw(problem, 40, B1=3, B2=2)
    options = {"lr": 0.05, "alpha": 0.2, "beta": 0.3}
    got = run("msvr-v1", problem, np.ones(problem.d), batches, gamma=0.0, lag=0, **options)
    want = run("sox", problem, np.ones(problem.d), batches, **options)
    np.testing.assert_array_equal(got.w, want.w)
    assert (got.g_calls, got.j_calls) == (want.g_calls, want.j_calls)


@pytest.mark.parametrize("method", ["storm-v2", "msvr-v2", "msvr-v3", "variant-v2", "variant-v3"])
def test_without_noise_tracking_is_exact(method):
    """All blocks, all samples: u_t = g(w_t), and with lag 1 z_t = (1/m) sum grad f(u_{t-1}) J(w_t)."""
    problem = CurvedProblem(2, p=3)
    options = {"lr": 0.05, "alpha": 0.2, "beta": 0.3, "period": 7}
    got = run(method, problem, np.ones(problem.d), everything(problem, 30), **options)
    w, w_prev = got.history[-2], got.history[-3]
    values = [problem.inner(i, w, problem.all_rows) for i in range(problem.m)]
    np.testing.assert_allclose(got.u, values, rtol=1e-10, atol=1e-12)
    z = 0
    for i in range(problem.m):
        u = problem.inner(i, w_prev, problem.all_rows)
        z = z + problem.outer_grad(i, u) @ problem.jacobian(i, w, problem.all_rows) / problem.m
    np.testing.assert_allclose(got.z, z, rtol=1e-10, atol=1e-12)


def test_v3_with_a_pass_every_step_has_the_exact_u():
    problem = CurvedProblem(2, p=3)
    batches = draw(problem, 20, B1=problem.m, B2=2)
    got = run("msvr-v3", problem, np.ones(problem.d), batches, lr=0.05, alpha=0.2, beta=1.0, period=1)
    values = [problem.inner(i, got.history[-2], problem.all_rows) for i in range(problem.m)]
    np.testing.assert_allclose(got.u, values, rtol=1e-12, atol=1e-13)
    first = run("msvr-v3", problem, np.ones(problem.d), batches[:1], lr=0.05, alpha=0.2, beta=0.3, period=5)
    np.testing.assert_allclose(first.z, problem.gradF(np.ones(problem.d)), rtol=1e-12)


class OneBlock(CurvedProblem):
    """m = 1 and f = identity: plain stochastic optimisation."""

    def __init__(self):
        super().__init__(0, m=1, p=1)

    def outer(self, i, u):
        return float(u[0])

    def outer_grad(self, i, u):
        return np.ones(1)


@pytest.mark.parametrize("method", ["msvr-v1", "msvr-v2"])
def test_one_block_is_momentum_and_storm_as_published(method):
    problem, a, lr = OneBlock(), 0.2, 0.05
    batches = draw(problem, 30, B1=1, B2=2)
    w = w_prev = np.ones(problem.d)
    z = None
    for _, (rows,) in batches:
        G, G_prev = problem.jacobian(0, w, rows)[0], problem.jacobian(0, w_prev, rows)[0]
        if z is None:
            z = G
        else:
            z = (1 - a) * z + a * G if method == "msvr-v1" else G + (1 - a) * (z - G_prev)
        w, w_prev = w - lr * z, w
    got = run(method, problem, np.ones(problem.d), batches, lr=lr, alpha=a, beta=0.3)
    np.testing.assert_allclose(got.w, w, rtol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_going_on_from_a_state_is_the_same_run(method):
    problem = LogProblem(0) if method == "scent" else CurvedProblem(0)
    batches = draw(problem, 60, B1=3, B2=2)
    whole = run(method, problem, np.ones(problem.d), batches, **settings(method))
    half = run(method, problem, np.ones(problem.d), batches[:30], **settings(method))
    kept = half.w.copy(), half.u.copy(), len(half.history)
    rest = run(method, problem, None, batches[30:], state=half, **settings(method))
    np.testing.assert_array_equal(rest.w, whole.w)
    np.testing.assert_array_equal(rest.u, whole.u)
    assert (rest.samples, rest.g_calls, rest.j_calls) == (whole.samples, whole.g_calls, whole.j_calls)
    np.testing.assert_array_equal(half.w, kept[0])
    np.testing.assert_array_equal(half.u, kept[1])
    assert len(half.history) == kept[2]


def test_a_new_stage_renews_the_anchor_and_leaves_u_alone():
    problem = CurvedProblem(0, p=3)
    batches = draw(problem, 40, B1=3, B2=2)
    options = {"lr": 0.05, "alpha": 0.2, "beta": 0.3, "period": 15}
    half = run("msvr-v3", problem, np.ones(problem.d), batches[:20], **options)
    rest = run("msvr-v3", problem, None, batches[20:21], state=half, new_stage=True, **options)
    np.testing.assert_array_equal(rest.anchor.w, half.w)
    undrawn = [i for i in range(problem.m) if i not in batches[20][0]]
    np.testing.assert_array_equal(rest.u[undrawn], half.u[undrawn])
    assert rest.samples == half.samples + problem.m * problem.n + 6


@pytest.mark.parametrize("p", [1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_runs_are_calm_and_move(method, p):
    """A difference at the start must not grow, or the comparison in test_reference would measure chaos."""
    problem = LogProblem(0, p=p) if method == "scent" else CurvedProblem(0, p=p)
    batches = draw(problem, 200, B1=3, B2=2)
    w1 = np.random.default_rng(0).normal(size=problem.d)
    nudge = 1e-8 * np.random.default_rng(5).normal(size=problem.d)
    one = run(method, problem, w1, batches, **settings(method))
    other = run(method, problem, w1 + nudge, batches, **settings(method))
    growth = [np.linalg.norm(x - y) for x, y in zip(one.history, other.history, strict=True)]
    assert max(growth) < 5 * np.linalg.norm(nudge)
    assert np.linalg.norm(one.w - w1) > 0.3
    assert problem.F(one.w) < problem.F(w1)


def test_counts_are_those_of_the_table():
    """(g, J, JVP) calls a sample and step, full passes apart."""
    wanted = {
        "sox": (1, 1, 0),
        "msvr-v1": (2, 1, 0),
        "msvr-v1-sp": (1, 1, 1),
        "msvr-v2": (2, 2, 0),
        "msvr-v2-sp": (2, 2, 1),
        "msvr-v3": (3, 3, 0),
    }
    problem = CurvedProblem(0)
    for method, (g, j, jvp) in wanted.items():
        got = run(method, problem, np.ones(problem.d), draw(problem, 50, B1=3, B2=2), **settings(method))
        passes = 2 * problem.m * problem.n if method == "msvr-v3" else 0
        assert got.samples == 50 * 6 + passes
        assert (got.g_calls, got.j_calls, got.jvp_calls) == (300 * g + passes, 300 * j + passes, 300 * jvp)


def test_adaptive_rule_by_hand():
    problem = CurvedProblem(0)
    batches = draw(problem, 2, B1=3, B2=2)
    options = {"lr": 0.1, "alpha": 0.2, "beta": 0.3}
    for amsgrad in (False, True):
        rule = Adaptive(beta=0.25, delta=1e-3, amsgrad=amsgrad)
        one = run("msvr-v2", problem, np.ones(5), batches[:1], adaptive=rule, **options)
        np.testing.assert_allclose(one.w, 1 - 0.1 * one.z / (0.5 * np.abs(one.z) + 1e-3), rtol=1e-13)
        two = run("msvr-v2", problem, np.ones(5), batches, adaptive=rule, **options)
        h = 0.75 * 0.25 * one.z**2 + 0.25 * two.z**2
        h = np.maximum(h, 0.25 * one.z**2) if amsgrad else h
        np.testing.assert_allclose(two.w, one.w - 0.1 * two.z / (np.sqrt(h) + 1e-3), rtol=1e-13)


def test_the_reference_imports_nothing_of_fcco():
    for file in (Path(__file__).with_name("methods.py"), Path(__file__).with_name("problem.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module]
            assert set(names) <= {"dataclasses", "numpy"}, f"{file.name} imports {names}"
