"""Nesterov's momentum: the literal rule, torch's SGD in the limit, projection, normalisation, start values."""

import inspect

import numpy as np
import pytest
import torch
from torch import nn

import fcco
from tests.helpers import twins
from tests.helpers.methods import MOMENTUM, TABLE, recipe
from tests.helpers.same import assert_same
from tests.reference.problem import CurvedProblem, LogProblem

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:the theory of msvr-v.-sp needs a bounded step:UserWarning"),
]
NAMES = [name for name in MOMENTUM if not TABLE[name].memory]
STEPS = 40


def both(name, **options):
    """The reference and the library over the same batches."""
    log_domain = TABLE[name].log_domain
    problem = LogProblem(0, p=2) if log_domain else CurvedProblem(0, p=2)
    w1 = np.random.default_rng(100).normal(size=problem.d)
    options = {"lr": 0.05, "safeguard": log_domain, "alpha": 0.2, "nesterov": True} | options
    batches = twins.draw(problem, STEPS)
    state = twins.reference_run(name, problem, w1, batches, options)
    objective = (twins.Logarithmic if log_domain else twins.Curved)(problem, w1)
    trace = twins.library_run(objective, problem, twins.recipe(name, options), batches, options)
    return state, trace


def worst(state, trace):
    """The largest relative difference of the weights over all steps."""
    return max(twins.relative(x, y) for x, y in zip(trace.history, state.history, strict=True))


OPTIONS = {
    "plain": {},
    "radius": {"radius": 0.4},
    "normalized": {"normalize": True, "lr": 0.02},
    "both": {"radius": 0.4, "normalize": True, "lr": 0.02},
    "from zero": {"z0": 0.0},
    "schedule": {"alpha": lambda t: 0.1 + 0.6 / (t + 1)},
}


@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_the_literal_rule(name, case):
    state, trace = both(name, **OPTIONS[case])
    assert worst(state, trace) <= 1e-12
    assert twins.relative(trace.z, state.z) <= 1e-11  # solver.z is z_t, not what the optimizer gets


def test_it_is_another_rule_than_momentum():
    found, _ = both("sox")
    plain, _ = both("sox", nesterov=False)
    assert twins.relative(plain.w, found.w) > 1e-3


def test_one_percent_off_is_noticed(monkeypatch):
    state, _ = both("sox")
    usual = fcco.estimators.Momentum.weights
    for coefficient in ("lookahead", "fresh"):

        def changed(self, t, large=None, coefficient=coefficient):
            weights = usual(self, t)
            values = {name: getattr(weights, name) for name in weights.__dataclass_fields__}
            return type(weights)(**values | {coefficient: 1.01 * values[coefficient]})

        with monkeypatch.context() as patch:
            patch.setattr(fcco.estimators.Momentum, "weights", changed)
            _, trace = both("sox")
        assert worst(state, trace) > 1e-6


class Noise(fcco.Objective):
    """g_i = tanh(x w), f = u^2."""

    def __init__(self):
        super().__init__(num_blocks=5)
        self.w = nn.Parameter(torch.linspace(-1.0, 1.0, 4, dtype=torch.float64))

    def inner(self, index, x):
        return (x @ self.w).tanh().mean(1, keepdim=True)

    def outer(self, index, u):
        return u.square().squeeze(1)


def batch(t):
    generator = torch.Generator().manual_seed(t)
    index = torch.randperm(5, generator=generator)[:2]
    return index, torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
def test_equal_to_torchs_nesterov_on_the_plain_gradient(alpha):
    """torch's buffer b_t = (1 - alpha) b + G is z_t/alpha where both start from zero; so is the step."""
    ours, theirs = Noise(), Noise()
    solver = fcco.Solver(
        ours, torch.optim.SGD(ours.parameters(), lr=0.3), fcco.sox(alpha=alpha, beta=0.4, nesterov=True), z0=0.0
    )
    if alpha == 1.0:
        stock = torch.optim.SGD(theirs.parameters(), lr=0.3)
    else:
        stock = torch.optim.SGD(theirs.parameters(), lr=0.3 * alpha, momentum=1 - alpha, nesterov=True)
    plain = fcco.Solver(theirs, stock, fcco.soap(beta=0.4))
    for t in range(30):
        solver.step(*batch(t))
        plain.step(*batch(t))
        torch.testing.assert_close(ours.w, theirs.w, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("options", [{}, {"radius": 0.05}], ids=str)
def test_the_first_step_is_along_the_first_gradient(options):
    objective, plain = Noise(), Noise()
    w = objective.w.detach().clone()
    method = fcco.sox(alpha=0.1, beta=0.4, nesterov=True)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=1.0), method, **options)
    other = fcco.Solver(plain, torch.optim.SGD(plain.parameters(), lr=1.0), fcco.soap(beta=0.4), **options)
    solver.step(*batch(0))
    other.step(*batch(0))
    torch.testing.assert_close(solver.z[0], other.z[0], rtol=1e-14, atol=0)
    if not options:
        torch.testing.assert_close(w - objective.w.detach(), solver.z[0], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("normalize", [False, True])
def test_the_mixture_is_projected_too(normalize):
    objective = Noise()
    method = fcco.sox(alpha=0.5, beta=0.4, nesterov=True)
    optimizer = torch.optim.SGD(objective.parameters(), lr=1.0)
    solver = fcco.Solver(objective, optimizer, method, radius=0.05, normalize=normalize)
    length = 1.0 if normalize else 0.05
    for t in range(6):
        before = objective.w.detach().clone()
        solver.step(*batch(t))
        assert float(solver.z[0].norm()) <= 0.05 * (1 + 1e-12)
        assert float((objective.w.detach() - before).norm()) <= length * (1 + 1e-12)


def test_same_passes_as_momentum():
    counts = []
    for nesterov in (False, True):
        objective = Noise()
        method = recipe("msvr-v1", nesterov=nesterov)
        solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), method)
        for t in range(3):
            report = solver.step(*batch(t))
        counts.append((report.samples, report.oracle))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("name", TABLE)
def test_every_momentum_recipe_takes_it_and_no_other(name):
    takes = "nesterov" in inspect.signature(fcco.METHODS[name]).parameters
    assert takes == TABLE[name].momentum
    if takes:
        assert recipe(name, nesterov=True).estimator.nesterov


@pytest.mark.parametrize("name", ["scent", "output-memory"])
def test_without_momentum_it_is_refused(name):
    with pytest.raises(ValueError, match="nesterov=True needs momentum: pass alpha too"):
        fcco.METHODS[name](nesterov=True)


def test_resumed_equals_uninterrupted(tmp_path):
    def made():
        objective = Noise()
        method = fcco.sox(alpha=0.3, beta=0.4, nesterov=True)
        return fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.3), method)

    whole = made()
    for t in range(8):
        if t == 4:
            fcco.save(tmp_path / "run.pt", solver=whole)
        whole.step(*batch(t))
    resumed = made()
    fcco.load(tmp_path / "run.pt", solver=resumed)
    for t in range(4, 8):
        resumed.step(*batch(t))
    assert_same(whole.state_dict(), resumed.state_dict())
