"""Cox; and the tools with which the objectives of this folder are held against brute force and tests/reference."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

import fcco
from fcco.objectives._cox import Cox
from fcco.sampling.batch import Batch
from fcco.sampling.risk_sets import RiskSetLoader
from tests.reference.methods import run

# ---- tools ----------------------------------------------------------------------------------------------


class Table(nn.Module):
    """A model whose outputs are its weights: example k is its position, its output the row k."""

    def __init__(self, rows):
        super().__init__()
        self.rows = nn.Parameter(rows.clone())

    def forward(self, x):
        return self.rows[x]


def value(objective, index, batch):
    """F over the blocks, with its graph."""
    return objective.outer(index, objective(index, batch)).mean()


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


def assert_exact(objective, index, batch, brute_force):
    """z and F of the solver are those of the objective written out, to 1e-10."""
    z, F = exact_z(objective, index, batch)
    expected = brute_force()
    gradients = flat(torch.autograd.grad(expected, all_parameters(objective)))
    assert gradients.norm() > 1e-3
    assert float((z - gradients).norm()) <= 1e-10 * max(1.0, float(gradients.norm()))
    assert abs(F - expected.item()) <= 1e-10 * max(1.0, abs(expected.item()))


def chunked(objective, num_examples, size, block_item, weigh, batch_of):
    """A full pass as the loaders make it: chunks of examples against chunks of blocks.

    Args:
        weigh: (index, ids) -> (B, S), how much each example counts for each block; adds up to the mean.
        batch_of: (ids, anchor, weight) -> Batch.
    """
    for ids in torch.arange(num_examples).split(size):
        for index in torch.arange(objective.num_blocks).split(size + 1):
            weight = weigh(index, ids)
            index, weight = index[(weight != 0).any(1)], weight[(weight != 0).any(1)]
            if index.numel() == 0:
                continue
            together, place = torch.cat([block_item[index], ids]).unique(return_inverse=True)
            spread = weight.new_zeros(index.numel(), together.numel())
            spread.index_add_(1, place[index.numel() :], weight)
            yield index, batch_of(together, place[: index.numel()], spread)


def assert_chunks_add_up(objective, full_pass, index, batch):
    """Rows of the chunks add up to g of the whole, and the solver's exact figures are those of the whole."""
    whole = objective(index, batch).detach()
    log = torch.tensor(objective.log)
    total = torch.where(log, -torch.inf, torch.zeros_like(whole))
    for some, part in full_pass():
        rows = objective(some, part).detach()
        total[some] = torch.where(log, torch.logaddexp(total[some], rows), total[some] + rows)
    torch.testing.assert_close(total, whole, rtol=1e-12, atol=1e-12)
    F = value(objective, index, batch)
    gradient = flat(torch.autograd.grad(F, all_parameters(objective)))
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.0), fcco.sox(alpha=1.0, beta=1.0))
    solver.step(index, batch)
    diagnosis = solver.diagnose(full_pass)
    assert diagnosis.value == pytest.approx(F.item(), rel=1e-10)
    assert diagnosis.gradient_norm == pytest.approx(float(gradient.norm()), rel=1e-10)
    assert diagnosis.gradient_error <= 1e-10 * max(1.0, float(gradient.norm()))


def assert_loader_fits(objective, loader, chunk, index, batch):
    """The loader's full pass is exact, its looks are so on average, and the solver takes its batches."""
    assert_chunks_add_up(objective, lambda: loader.full_pass(chunk), index, batch)
    exact = objective(index, batch).detach()
    log = torch.tensor(objective.log)
    total, count = torch.zeros_like(exact), torch.zeros(len(exact), 1)
    square = torch.zeros_like(exact)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.0), fcco.msvr_v2(alpha=0.5, beta=0.5))
    for _, (some, part) in zip(range(150), itertools.chain.from_iterable(itertools.repeat(loader)), strict=False):
        if solver.t < 3:
            assert math.isfinite(solver.step(some, part).value)
        look = objective(some, part).detach() - torch.where(log, exact[some], 0.0)
        look = torch.where(log, look.exp(), look)
        total[some], square[some] = total[some] + look, square[some] + look.square()
        count[some] += 1
    mean = total / count
    error = ((square / count - mean.square()).clamp(min=0.0) / count).sqrt()
    expected = torch.where(log, torch.ones_like(exact), exact)
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
        self.log = np.array(objective.log)
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
    """(blocks, positions) a step: blocks drawn afresh, their own examples, some others, those always there."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        index = random.choice(len(block_item), blocks, replace=False).tolist()
        some = random.choice(num_examples, others, replace=False).tolist()
        yield index, sorted({*(int(block_item[i]) for i in index), *some, *always})


def far_scores(n, seed=0):
    """Scores in float32 whose differences are near 0, 200 and 400, to both sides."""
    generator = torch.Generator().manual_seed(seed)
    return 200.0 * (torch.arange(n) % 3 - 1.0) + torch.randn(n, generator=generator)


# ---- Cox ------------------------------------------------------------------------------------------------

N = 14


def survival(ties=False, seed=0):
    """Times and events of N subjects; the last of all is censored or not, whatever the seed says."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.rand(N, generator=generator)
    if ties:
        time = (4 * time).round()
    event = (torch.rand(N, generator=generator) < 0.6).long()
    event[0] = 1
    return time, event


def cox(rows, ties=False, seed=0):
    return Cox(Table(rows), *survival(ties, seed))


def batch_of(objective, blocks, ids, weight=None):
    ids = torch.as_tensor(ids)
    anchor = torch.tensor([ids.tolist().index(int(objective.block_item[i])) for i in blocks])
    return Batch(ids, ids, anchor=anchor, weight=weight)


def whole(objective):
    index = torch.arange(objective.num_blocks)
    return index, batch_of(objective, index.tolist(), torch.arange(N))


def by_hand(h, time, event):
    """The mean over events of -log(exp(h_i) / sum over the risk set of exp(h_j))."""
    terms = []
    for i in range(N):
        if event[i]:
            risk = sum(torch.exp(h[j]) for j in range(N) if time[j] >= time[i])
            terms.append(-torch.log(torch.exp(h[i]) / risk))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_one_step_is_the_gradient_of_the_partial_likelihood(seed, ties):
    objective = cox(torch.randn(N, dtype=torch.float64), ties, seed)
    assert_exact(objective, *whole(objective), lambda: by_hand(objective.model.rows, *survival(ties, seed)))


def test_a_trained_network_and_scores_of_shape_k_1():
    x = torch.randn(N, 3, dtype=torch.float64)
    objective = Cox(nn.Linear(3, 1).double(), *survival())
    index, batch = whole(objective)
    full = Batch(x, batch.id, anchor=batch.anchor)
    assert_exact(objective, index, full, lambda: by_hand(objective.model(x).squeeze(1), *survival()))


def test_shifts_and_permutations_change_nothing():
    h, (time, event) = torch.randn(N, dtype=torch.float64), survival()
    F = value(cox(h), *whole(cox(h)))
    shifted = cox(h + 7.0)
    torch.testing.assert_close(value(shifted, *whole(shifted)), F)
    order = torch.randperm(N)
    permuted = Cox(Table(h[order]), time[order], event[order])
    torch.testing.assert_close(value(permuted, *whole(permuted)), F)
    later = Cox(Table(h), 100 * time.exp(), event)  # only the order of times counts
    torch.testing.assert_close(value(later, *whole(later)), F)


def test_hazards_in_the_order_of_events_score_better():
    time, _ = survival()
    good, bad = cox(-time.double()), cox(time.double())
    constant = cox(torch.zeros(N, dtype=torch.float64))
    F = [value(objective, *whole(objective)).item() for objective in (good, constant, bad)]
    assert F[0] < F[1] < F[2]
    assert F[1] == pytest.approx(constant.risk_size.double().log().mean().item())


@pytest.mark.parametrize("present", [1, 2, 5])
def test_the_mean_over_all_draws_of_others_is_exact(present):
    objective = cox(torch.randn(N, dtype=torch.float64))
    index, batch = whole(objective)
    exact = objective(index, batch).detach().exp().squeeze(1)
    for i in objective.risk_size.topk(2).indices.tolist():
        own = int(objective.block_item[i])
        risk = [j for j in range(N) if objective.moment[j] >= objective.moment[own] and j != own]
        assert len(risk) > present
        looks = [
            objective(torch.tensor([i]), batch_of(objective, [i], sorted([own, *some]))).item()
            for some in itertools.combinations(risk, present)
        ]
        assert np.exp(looks).mean() == pytest.approx(exact[i].item(), rel=1e-12)


@pytest.mark.parametrize("size", [3, 5, N])
def test_chunks_add_up(size):
    objective = cox(torch.randn(N, dtype=torch.float64), ties=True)

    def weigh(index, ids):
        at_risk = objective.moment[ids] >= objective.moment[objective.block_item[index]].unsqueeze(1)
        return at_risk / objective.risk_size[index].double().unsqueeze(1)

    def part(ids, anchor, weight):
        return Batch(ids, ids, anchor=anchor, weight=weight)

    assert_chunks_add_up(
        objective, lambda: chunked(objective, N, size, objective.block_item, weigh, part), *whole(objective)
    )


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("lr", [0.01, 0.5])
def test_exponents_of_400_in_single_precision(name, blocks, lr):
    objective = cox(far_scores(N))
    last = int(survival()[0].argmax())
    drawn = draws(N, objective.block_item, blocks=blocks, others=6, always=[last], steps=20)

    def make(index, ids):
        return batch_of(objective, index, ids)

    assert_same_gradients(objective, make, name, drawn, lr=lr, guarded=2 if lr == 0.5 and name != "sox" else 0)


def test_logarithms_near_400_keep_their_digits():
    single = cox(far_scores(N))
    double = copy.deepcopy(single).double()
    torch.testing.assert_close(single(*whole(single)), double(*whole(double)), rtol=0.0, atol=1e-12)


def test_a_risk_set_of_one_needs_nobody_else():
    objective = Cox(Table(torch.zeros(2)), torch.tensor([1.0, 2.0]), torch.tensor([1, 1]))
    alone = Batch(torch.tensor([1]), torch.tensor([1]), anchor=torch.tensor([0]))
    assert objective(torch.tensor([1]), alone).item() == 0.0


@pytest.mark.parametrize("chunk", [3, 100])
def test_with_the_loader(chunk):
    time, event = survival(ties=True)
    objective = cox(torch.randn(N, dtype=torch.float64), ties=True)
    loader = RiskSetLoader(torch.arange(N), time, event, blocks_per_step=3, samples_per_block=4, seed=0)
    assert_loader_fits(objective, loader, chunk, *whole(objective))


def test_errors_name_what_is_wrong():
    time, event = survival()
    with pytest.raises(ValueError, match="event must be 1 for some subject"):
        Cox(Table(time), time, torch.zeros(N))
    with pytest.raises(ValueError, match="event must be 0 or 1"):
        Cox(Table(time), time, event[:3])
    with pytest.raises(ValueError, match="time must be"):
        Cox(Table(time), time.masked_fill(time > 0.5, torch.nan), event)
    objective = cox(time)
    i = int(objective.risk_size.argmax())
    own = int(objective.block_item[i])
    with pytest.raises(ValueError, match=f"no other subjects at risk for block {i}"):
        objective(torch.tensor([i]), batch_of(objective, [i], [own]))
    with pytest.raises(ValueError, match=r"batch\.anchor must be given"):
        objective(torch.tensor([i]), Batch(torch.arange(N), torch.arange(N)))
    wrong = Batch(torch.arange(N), torch.arange(N), anchor=torch.tensor([(own + 1) % N]))
    with pytest.raises(ValueError, match=f"own example, not so for {i}"):
        objective(torch.tensor([i]), wrong)
