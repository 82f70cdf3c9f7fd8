"""Tools for the pairwise objectives: exact steps, and the library in single precision against tests/reference."""

import numpy as np
import pytest
import torch

import fcco
from tests.objectives.tools import assert_same, everything, exact_value, hand_made, whole
from tests.reference.methods import run


class Scores(torch.nn.Module):
    """A model whose weights are the scores themselves; x holds example numbers."""

    def __init__(self, start):
        super().__init__()
        self.w = torch.nn.Parameter(start.clone())

    def forward(self, x):
        return self.w[x]


def exact_step(objective, index, batch):
    """One step with beta = alpha = 1 and lag 0 that leaves the weights alone, so z = grad F; the solver and F."""
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.0)
    solver = fcco.Solver(objective, optimizer, fcco.sox(alpha=1.0, beta=1.0))
    return solver, solver.step(index, batch).value


def gap(found, wanted):
    """||found - wanted|| / (||wanted|| + 1e-12) over lists of tensors."""
    distance = sum(float((a - b).square().sum()) for a, b in zip(found, wanted, strict=True)) ** 0.5
    return distance / (sum(float(b.square().sum()) for b in wanted) ** 0.5 + 1e-12)


def check_everywhere(objective, F, tolerance=1e-10):
    """F and its gradient by :func:`check_exact` from one batch without weights and from a draw of everything, and
    through full passes in large and small chunks."""
    index, batch = whole(objective)
    check_exact(objective, index, batch, F, tolerance)
    drawn = everything(objective)
    check_exact(objective, drawn.index, drawn, F, tolerance)
    parameters = [p for p in objective.parameters() if p.requires_grad]
    for chunk in (3, 1000):
        assert_same(exact_value(objective, chunk), F(), parameters, tolerance)


def check_exact(objective, index, batch, F, tolerance=1e-10):
    """Value and z of one exact step equal the brute-force F() and its autograd gradient."""
    wanted = F()
    gradient = torch.autograd.grad(wanted, [p for p in objective.parameters() if p.requires_grad])
    solver, value = exact_step(objective, index, batch)
    assert value == pytest.approx(wanted.item(), rel=tolerance, abs=tolerance)
    assert gap(solver.z, gradient) <= tolerance


def check_full_pass(objective, index, batch, full_pass, tolerance=1e-10, zeros=False):
    """The pass gives the same F, gradient and (in logarithms: unless it is 0) g as one batch of everything."""
    solver, value = exact_step(objective, index, batch)
    seen = solver.diagnose(full_pass)
    assert seen.value == pytest.approx(value, rel=tolerance, abs=tolerance)
    assert seen.gradient_error <= tolerance * (1 + seen.gradient_norm)
    assert zeros or seen.tracking_error <= tolerance


class Literal:
    """A problem as tests/reference takes it: w are the scores, inner(i, w, rows) and outer(i, u) plain values.

    exp(+-400) and its products stay inside float64, so nothing has to be done in the log domain here.
    """

    def __init__(self, inner, outer, m, p, shape, project=None):
        self.m, self.p, self.shape, self.project = m, p, tuple(shape), project
        self.n, self.d = shape[0], int(np.prod(shape))
        self.log = np.ones(p, dtype=bool)
        self.all_rows = list(range(self.n))
        self._inner, self._outer = inner, outer

    def _g(self, i, w, rows):
        return self._inner(i, w.reshape(self.shape), rows)

    def inner(self, i, w, rows):
        return self._g(i, torch.tensor(w), rows).numpy()

    def jacobian(self, i, w, rows):
        return torch.autograd.functional.jacobian(lambda w: self._g(i, w, rows), torch.tensor(w)).numpy()

    def outer_grad(self, i, u):
        leaf = torch.tensor(u, requires_grad=True)
        self._outer(i, leaf).backward()
        return leaf.grad.numpy()


RATES = {"alpha": 0.3, "beta": 0.3}


def _solver(name, objective, lr):
    method = fcco.METHODS[name](**RATES)
    return fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=lr), method)


def _weights(objective):
    return objective.model.w.detach().double().numpy().reshape(-1).copy()


def against_reference(name, objective, problem, batches, lr):
    """The largest relative difference of z, over the steps, between the library and the literal float64 transcription.

    Both take every step from the library's weights, so that roundings of the weights themselves do not count.
    """
    solver, state, worst = _solver(name, objective, lr), None, 0.0
    w1 = _weights(objective)
    for index, batch in batches:
        step = [(index.tolist(), [batch.id.tolist()] * len(index))]
        state = run(name, problem, w1, step, lr=lr, safeguard=True, state=state, project=problem.project, **RATES)
        solver.step(index, batch)
        z = solver.z[0].double().numpy().reshape(-1)
        assert np.isfinite(z).all()
        worst = max(worst, np.linalg.norm(z - state.z) / (np.linalg.norm(state.z) + 1e-30))
        state.w = _weights(objective)
    assert np.linalg.norm(state.w - w1) > 1e-6 * np.linalg.norm(w1)  # or there was nothing to compare
    return worst


def against_double(name, make, batches, lr):
    """The same against the library's own float64, for objectives whose f has parameters of its own."""
    single, double = make(torch.float32), make(torch.float64)
    solvers, worst = [_solver(name, objective, lr) for objective in (single, double)], 0.0
    for index, batch in batches:
        for solver in solvers:
            solver.step(index, batch)
        z = [part.double() for part in solvers[0].z]
        assert all(bool(torch.isfinite(part).all()) for part in z)
        worst = max(worst, gap(z, solvers[1].z))
        with torch.no_grad():
            for one, two in zip(double.parameters(), single.parameters(), strict=True):
                one.copy_(two)
    return worst


def draws(objective, others, steps, blocks=1, size=6, seed=0):
    """Batches of a few blocks with their own examples, and shared others, without weights."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        index = torch.randperm(objective.num_blocks, generator=generator)[:blocks]
        rest = others[torch.randperm(len(others), generator=generator)[:size]]
        ids = torch.cat([objective.blocks.block_example[index], rest])
        yield index, hand_made(objective, index, ids)
