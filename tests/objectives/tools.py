"""The tools with which objectives are held against brute force and against tests/reference."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

import fcco
from fcco.data import Batch
from tests.reference.methods import run


class Table(nn.Module):
    """A model whose outputs are its weights: example k is its position, its output the row k."""

    def __init__(self, rows):
        super().__init__()
        self.rows = nn.Parameter(rows.clone())

    def forward(self, x):
        return self.rows[x]


def hand_made(objective, blocks, ids, **others):
    """A batch without weights, as a user might make it: the examples ``ids`` for the blocks."""
    ids = torch.as_tensor(ids)
    index = torch.as_tensor(blocks)
    block_pos = None
    if objective.blocks.block_example is not None:
        own = objective.blocks.block_example[index]
        block_pos = torch.tensor([ids.tolist().index(int(example)) for example in own])
    x = objective.data.source.take(ids)
    return Batch(x, ids, index, objective.blocks.labels_at(ids), block_pos, **others)


def whole(objective):
    """All blocks and all examples in one batch without weights."""
    batch = hand_made(objective, range(objective.num_blocks), range(objective.data.num_examples))
    return batch.index, batch


def everything(objective):
    """A draw of the loader in which everything is drawn."""
    loader = objective.loader(objective.num_blocks, 2 * objective.data.num_examples)
    return next(iter(loader))


def value(objective, index, batch):
    """F over the blocks, with its graph."""
    return objective.outer(index, objective(index, batch)).mean()


def passed(objective, chunk=4):
    """g of all blocks (m, dim) added up over a full pass, with its graph."""
    log_domain = torch.tensor(objective.log_domain)
    total = None
    for batch in objective.full_pass(chunk):
        rows = objective(batch.index, batch)
        if total is None:
            start = torch.where(log_domain, -torch.inf, 0.0).to(rows.dtype)
            total = start.repeat(objective.num_blocks, 1)
        old = total[batch.index]
        added = torch.where(log_domain, torch.logaddexp(old, rows), old + rows)
        total = total.index_put((batch.index,), added)
    return total


def exact_value(objective, chunk=4):
    """F through a full pass, with its graph."""
    return objective.outer(torch.arange(objective.num_blocks), passed(objective, chunk)).mean()


def pairs_of(objective, chunk):
    """The objective's full pass as a Solver takes it for objectives without data: index and data."""
    return lambda: ((batch.index, batch) for batch in objective.full_pass(chunk))


def assert_same(found, wanted, parameters, tolerance=1e-10):
    """Two values with their graphs are the same, and so are their gradients."""
    assert found.item() == pytest.approx(wanted.item(), rel=tolerance, abs=tolerance)
    gradients = [
        flat(torch.autograd.grad(F, parameters, allow_unused=True, materialize_grads=True)) for F in (found, wanted)
    ]
    assert float((gradients[0] - gradients[1]).norm()) <= tolerance * max(1.0, float(gradients[1].norm()))


def all_parameters(objective):
    return [p for p in objective.parameters() if p.requires_grad]


def flat(tensors):
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def exact_z(objective, index, batch):
    """The solver's z with all blocks, full inner batches, beta = alpha = 1 and lag 0, and its value of F."""
    solver = fcco.Solver(
        objective, torch.optim.SGD(objective.parameters(), lr=0.0), fcco.sox(alpha=1.0, beta=1.0, lag=0)
    )
    report = solver.step(index, batch)
    return flat(solver.z), report.value


def assert_exact(objective, brute_force, batch=None):
    """F and its gradient are those of the objective written out, to 1e-10: by the solver from one batch without
    weights, from a draw of everything, and through full passes."""
    if batch is None:
        _, batch = whole(objective)
    for given in (batch, everything(objective)):
        z, F = exact_z(objective, given.index, given)
        expected = brute_force()
        gradients = flat(torch.autograd.grad(expected, all_parameters(objective)))
        assert gradients.norm() > 1e-3
        assert float((z - gradients).norm()) <= 1e-10 * max(1.0, float(gradients.norm()))
        assert abs(F - expected.item()) <= 1e-10 * max(1.0, abs(expected.item()))
    for chunk in (3, 1000):
        assert_same(exact_value(objective, chunk), brute_force(), all_parameters(objective))


def assert_chunks_add_up(objective, chunk):
    """Rows of the chunks add up to g of the whole, and the solver's exact figures are those of the whole."""
    index, batch = whole(objective)
    torch.testing.assert_close(
        passed(objective, chunk).detach(), objective(index, batch).detach(), rtol=1e-12, atol=1e-12
    )
    F = value(objective, index, batch)
    gradient = flat(torch.autograd.grad(F, all_parameters(objective)))
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.0), fcco.sox(alpha=1.0, beta=1.0))
    solver.step(index, batch)
    diagnosis = solver.diagnose(pairs_of(objective, chunk))
    assert diagnosis.value == pytest.approx(F.item(), rel=1e-10)
    assert diagnosis.gradient_norm == pytest.approx(float(gradient.norm()), rel=1e-10)
    assert diagnosis.gradient_error <= 1e-10 * max(1.0, float(gradient.norm()))


def assert_loader_fits(objective, blocks, samples, chunk):
    """The full pass is exact, the loader's probes are so on average, and the solver takes its batches."""
    assert_chunks_add_up(objective, chunk)
    index, batch = whole(objective)
    exact = objective(index, batch).detach()
    log_domain = torch.tensor(objective.log_domain)
    total = torch.zeros_like(exact)
    square = torch.zeros_like(exact)
    count = torch.zeros(len(exact), 1)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.0), fcco.msvr_v2(alpha=0.5, beta=0.5))
    loader = objective.loader(blocks, samples, seed=0)
    for part in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), 150):
        some = part.index
        if solver.t < 3:
            assert math.isfinite(solver.step(some, part).value)
        probe = objective(some, part).detach() - torch.where(log_domain, exact[some], 0.0)
        probe = torch.where(log_domain, probe.exp(), probe)
        total[some] += probe
        square[some] += probe.square()
        count[some] += 1
    mean = total / count
    error = ((square / count - mean.square()).clamp(min=0.0) / count).sqrt()
    expected = torch.where(log_domain, torch.ones_like(exact), exact)
    assert bool(((mean - expected).abs() <= 5.0 * error + 1e-9).all())


class _At(np.ndarray):
    """A Jacobian that remembers the weights at which it was taken."""

    w = None


class _Slope:
    """grad f_i(u): beside a Jacobian at w, G_i = grad f_i(u) J, and f_i's own parameters' gradient at the same u."""

    def __init__(self, problem, i, u):
        self._problem, self._i, self._u = problem, i, u

    def __matmul__(self, jacobian):
        slope, own = self._problem.outer_gradients(self._i, jacobian.w, self._u)
        return slope @ np.asarray(jacobian) + own


class Literal:
    """An objective in float64 as a problem of tests/reference: plain u, one block at a time; rows are positions."""

    def __init__(self, objective, batch_of):
        self.objective, self.batch_of = objective, batch_of
        self.m, self.p = objective.num_blocks, objective.dim
        self.log = np.array(objective.log_domain)
        self.parameters = all_parameters(objective)
        self.d = sum(p.numel() for p in self.parameters)

    def _g(self, i, w, rows):
        self._move_to(w)
        return self.objective(torch.tensor([i]), self.batch_of([i], rows))[0]

    def inner(self, i, w, rows):
        g = self._g(i, w, rows).detach().numpy()
        return np.where(self.log, np.exp(np.where(self.log, g, 0.0)), g)

    def jacobian(self, i, w, rows):
        g = self._g(i, w, rows)
        rows_of = [torch.autograd.grad(part, self.parameters, retain_graph=True, allow_unused=True) for part in g]
        plain = np.stack([self._whole(row) for row in rows_of])
        scale = np.where(self.log, np.exp(np.where(self.log, g.detach().numpy(), 0.0)), 1.0)
        result = (scale[:, None] * plain).view(_At)
        result.w = np.array(w)
        return result

    def outer_gradients(self, i, w, u):
        """df/du (p,) and df/dw (d,) at the weights w and the plain row u."""
        self._move_to(w)
        plain = torch.tensor(np.array(u), requires_grad=True)
        row = torch.where(torch.tensor(self.log), torch.where(torch.tensor(self.log), plain, 1.0).log(), plain)
        f = self.objective.outer(torch.tensor([i]), row.unsqueeze(0)).sum()
        slope, *own = torch.autograd.grad(f, [plain, *self.parameters], allow_unused=True)
        return slope.numpy(), self._whole(own)

    def outer_grad(self, i, u):
        return _Slope(self, i, u)

    @torch.no_grad()
    def _move_to(self, w):
        parts = torch.tensor(np.asarray(w)).split([p.numel() for p in self.parameters])
        for p, part in zip(self.parameters, parts, strict=True):
            p.copy_(part.view_as(p))

    def _whole(self, gradients):
        parts = [
            torch.zeros_like(p) if gradient is None else gradient
            for gradient, p in zip(gradients, self.parameters, strict=True)
        ]
        return flat(parts).numpy()


RATES = {"alpha": 0.5, "beta": 0.3}
RECIPES = {
    "sox": lambda: fcco.sox(**RATES),
    "msvr-v1": lambda: fcco.msvr_v1(**RATES),
    "msvr-v2": lambda: fcco.msvr_v2(**RATES),
}


def assert_same_gradients(objective, batch_of, name, draws, lr, guarded=0):
    """The library in float32 against tests/reference in float64, the same draws: z the same to 1e-4 at every step.

    The reference goes on from the library's weights, so that their rounding is not counted step after step; its
    own safeguard must have been needed at least `guarded` times.
    """
    assert all(p.dtype == torch.float32 for p in objective.parameters())
    problem = Literal(copy.deepcopy(objective).double(), batch_of)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=lr), RECIPES[name]())
    state, gaps = None, []
    w1 = flat(all_parameters(objective)).numpy()
    for blocks, ids in draws:
        report = solver.step(torch.tensor(blocks), batch_of(blocks, ids))
        assert math.isfinite(report.value)
        batch = [(blocks, [ids] * len(blocks))]
        state = run(name, problem, w1, batch, lr=lr, safeguard=True, state=state, **RATES)
        size = max(np.linalg.norm(state.z), 1e-12)  # a draw may hold nothing to be learned
        gaps.append(float(np.linalg.norm(flat(solver.z).numpy() - state.z) / size))
        state.w = flat(all_parameters(objective)).numpy()
    assert np.linalg.norm(state.z) > 1e-6
    assert state.guarded >= guarded
    assert bool(torch.isfinite(solver.u()).all())
    assert objective.num_blocks / len(blocks) <= 10
    assert max(gaps) <= 1e-4


def draws(num_examples, block_item, *, blocks, others, steps=6, always=(), seed=0):
    """(blocks, positions) per step: blocks drawn afresh, their own examples, some others, those always there."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        index = random.choice(len(block_item), blocks, replace=False).tolist()
        some = random.choice(num_examples, others, replace=False).tolist()
        yield index, sorted({*(int(block_item[i]) for i in index), *some, *always})


def far_scores(n, seed=0):
    """Scores in float32 whose differences are near 0, 200 and 400, to both sides."""
    generator = torch.Generator().manual_seed(seed)
    return 200.0 * (torch.arange(n) % 3 - 1.0) + torch.randn(n, generator=generator)
