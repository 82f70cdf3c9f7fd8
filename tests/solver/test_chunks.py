"""chunk=: a batch in pieces gives the gradient of the whole, for the user's own objectives block by block."""

import pytest
import torch
from torch import nn

import fcco
from tests.helpers.methods import SINGLE_POINT, TABLE, TRACKED, recipe
from tests.helpers.ranks import BLOCKS, SAMPLES, Curved, data
from tests.helpers.same import assert_same
from tests.helpers.trials import needs, snapshot

pytestmark = pytest.mark.usefixtures("one_thread")
X = data()
WHOLE = [name for name in TRACKED if name not in SINGLE_POINT]


def full_pass():
    yield torch.arange(BLOCKS), X, torch.full((BLOCKS, SAMPLES), 1 / SAMPLES, dtype=torch.float64)


def made(name, dropout=0.0, **options):
    torch.manual_seed(0)
    objective = Curved(log_domain=TABLE[name].log_domain, dropout=dropout)
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.02)
    return fcco.Solver(objective, optimizer, recipe(name), **needs(name, full_pass) | options)


def batch(t, blocks=5):
    generator = torch.Generator().manual_seed(t)
    index = torch.randperm(BLOCKS, generator=generator)[:blocks]
    rows = torch.stack([torch.randperm(SAMPLES, generator=generator)[:3] for _ in range(blocks)])
    return index, X[index[:, None], rows], torch.full((blocks, 3), 1 / 3, dtype=torch.float64)


def close(one, other, tolerance=1e-12):
    for p, q in zip(one.parameters, other.parameters, strict=True):
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(one.u(), other.u(), rtol=tolerance, atol=tolerance)
    assert (one.t, one.samples, one.oracle) == (other.t, other.samples, other.oracle)


@pytest.mark.parametrize("chunk", [1, 2, 5, 100])
@pytest.mark.parametrize("name", WHOLE)
def test_pieces_equal_the_whole(name, chunk):
    whole, pieces = made(name), made(name)
    for t in range(6):
        report = whole.step(*batch(t))
        other = pieces.step(*batch(t), chunk=chunk)
        assert other.value == pytest.approx(report.value, rel=1e-12)
    close(pieces, whole)


@pytest.mark.parametrize("options", [{"radius": 0.1}, {"normalize": True}, {"u0": 0.1, "z0": 0.0}], ids=str)
def test_pieces_equal_the_whole_with_options(options):
    whole, pieces = made("msvr-v2", **options), made("msvr-v2", **options)
    for t in range(6):
        whole.step(*batch(t))
        pieces.step(*batch(t), chunk=2)
    close(pieces, whole)


def test_pieces_through_the_seam():
    whole, pieces = made("msvr-v2"), made("msvr-v2")
    for t in range(4):
        whole.step(*batch(t))
        with pieces.gradient(*batch(t), chunk=2):
            pieces.optimizer.step()
    close(pieces, whole)


def test_pieces_in_stages():
    plan = [fcco.Stage(2, 0.05, 0.5, 0.5), fcco.Stage(2, 0.02, 0.3, 0.3)]
    whole, pieces = made("msvr-v2"), made("msvr-v2")
    stages = fcco.StageWise(whole, plan), fcco.StageWise(pieces, plan)
    for t in range(4):
        stages[0].step(*batch(t))
        stages[1].step(*batch(t), chunk=3)
    close(pieces, whole)


@pytest.mark.parametrize("name", ["sox", "msvr-v2"])
def test_dropout_in_one_piece_has_the_same_masks(name):
    runs, states = [], []
    for chunk in (None, 5):
        solver = made(name, dropout=0.4)
        for t in range(6):
            solver.step(*batch(t), chunk=chunk)
        runs.append(solver)
        states.append(torch.get_rng_state())
    close(*runs)
    assert torch.equal(*states)


class Recording(Curved):
    """Keeps a random number for every pass, with the blocks that it was for."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def inner(self, index, x, weight):
        noise = torch.rand(())
        self.seen.append((tuple(index.tolist()), torch.is_grad_enabled(), float(noise)))
        return super().inner(index, x, weight) * (1 + noise)


def test_every_piece_meets_the_same_random_numbers_in_both_passes_and_at_every_point():
    """With smaller pieces the numbers are others than those of the whole batch, drawn piece by piece."""
    torch.manual_seed(0)
    objective = Recording()
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.02), recipe("msvr-v2"))
    solver.step(*batch(0))
    objective.seen.clear()
    solver.step(*batch(1), chunk=2)
    passes = [objective.seen[start : start + 3] for start in range(0, len(objective.seen), 3)]
    assert len(passes) == 4  # two points, two passes each
    assert [{graph for _, graph, _ in one} for one in passes] == [{False}, {True}, {False}, {True}]
    assert all([(blocks, noise) for blocks, _, noise in one] == [(b, n) for b, _, n in passes[0]] for one in passes)
    assert len({noise for _, _, noise in passes[0]}) == 3


class Normed(fcco.Objective):
    """BatchNorm counts its passes."""

    def __init__(self):
        super().__init__(num_blocks=BLOCKS, dim=1)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()

    def inner(self, index, x, weight):
        return self.net(x.flatten(0, 1)).view(len(index), -1).mean(1, keepdim=True)

    def outer(self, index, u):
        return u.square().squeeze(1)


def test_every_piece_counts_once_in_the_running_statistics():
    objective = Normed()
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.02), recipe("msvr-v2"))
    solver.step(*batch(0), chunk=2)
    assert int(objective.net[1].num_batches_tracked) == 3


def test_fewer_graphs_at_a_time():
    sizes = []

    class Sized(Curved):
        def inner(self, index, x, weight):
            if torch.is_grad_enabled():
                sizes.append(len(index))
            return super().inner(index, x, weight)

    objective = Sized()
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.02), recipe("sox"))
    solver.step(*batch(0), chunk=2)
    assert sizes == [2, 2, 1]


@pytest.mark.parametrize("name", SINGLE_POINT)
def test_single_point_forms_are_refused(name):
    solver = made(name)
    solver.step(*batch(0))
    before = snapshot(solver)
    with pytest.raises(ValueError, match=f"chunk must be None for {name}: it needs Jacobian-vector products"):
        solver.step(*batch(1), chunk=2)
    assert_same(before, snapshot(solver))


@pytest.mark.parametrize(
    ("chunk", "error"), [(0, ValueError), (-1, ValueError), (2.0, TypeError), (True, TypeError), ("2", TypeError)]
)
def test_bad_sizes(chunk, error):
    solver = made("msvr-v2")
    before = snapshot(solver)
    with pytest.raises(error, match="chunk must be"):
        solver.step(*batch(0), chunk=chunk)
    assert_same(before, snapshot(solver))


def test_data_that_cannot_be_cut_by_block_are_refused():
    class Shared(Curved):
        def inner(self, index, x, weight, shared):
            return super().inner(index, x, weight) + shared.mean()

    objective = Shared()
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.02), recipe("sox"))
    with pytest.raises(ValueError, match="chunk needs data with one row per block"):
        solver.step(*batch(0), torch.zeros(7), chunk=2)
    assert solver.t == 0


@pytest.mark.parametrize("how", ["g", "gradient"])
def test_what_is_not_finite_in_a_piece_is_named(how):
    solver = made("msvr-v2")
    solver.step(*batch(0))
    index, *rest = batch(1)
    block = int(index[3])
    solver.objective.spoilt = (block, how)
    before = snapshot(solver)
    with pytest.raises(fcco.NonFiniteError, match=f"block {block}$") as caught:
        solver.step(index, *rest, chunk=2)
    assert caught.value.blocks == [block]
    assert_same(before, snapshot(solver))
