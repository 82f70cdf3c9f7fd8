"""PNormPush, the power and its logarithm: brute force over all pairs, limits, numbers that stay finite."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fcco
from fcco.data import Groups, Points
from fcco.objectives import Exponential, Logistic, PNormPush, Square, SquaredHinge
from tests.objectives.literal import (
    Literal,
    Scores,
    against_double,
    against_reference,
    check_everywhere,
    check_full_pass,
    draws,
)
from tests.objectives.tools import hand_made, pairs_of, value, whole

Y = torch.tensor([1, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0])
NEGATIVES = int((Y == 0).sum())
X = torch.randn(11, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
DATA = Points(X, Y)
LOSSES = [SquaredHinge(), Square(0.5), Logistic(), Logistic(2.0), Exponential(), Exponential(0.5)]


def network(outputs=1, seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


def brute(h, y, loss, p):
    """The mean over negatives of (the mean over positives of l(h_i - h_j))^p, pair by pair."""
    positives = [j for j in range(len(y)) if y[j] == 1]
    negatives = [i for i in range(len(y)) if y[i] == 0]
    rows = [sum(loss(h[i] - h[j]) for j in positives) / len(positives) for i in negatives]
    return sum(row**p for row in rows) / len(rows)


@pytest.mark.parametrize("p", [1, 2.0, 5.5])
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_it_equals_brute_force(loss, p):
    objective = PNormPush(network(), DATA, p=p, loss=loss)
    F = lambda: brute(objective.model(X)[:, 0], Y, loss, p)  # noqa: E731
    check_everywhere(objective, F)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_its_logarithm_at_the_best_v(loss):
    objective = PNormPush(network(), DATA, p=3.0, loss=loss, logarithm=True)
    with torch.no_grad():
        objective.v.copy_(brute(objective.model(X)[:, 0], Y, loss, 3.0).log() / 3.0)
    v = objective.v.detach().clone()

    def F():  # v - v: at the best v the derivative is 0
        return brute(objective.model(X)[:, 0], Y, loss, 3.0).log() / 3.0 + 0.0 * objective.v.sum()

    check_everywhere(objective, F)
    with torch.no_grad():
        objective.v.copy_(v + 0.4)
    assert value(objective, *whole(objective)) > F()


def test_many_labels_with_missing_ones():
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(11, 3, generator=generator) < 0.4).double()
    y[torch.rand(11, 3, generator=generator) < 0.3] = math.nan
    y[:2], y[2:4] = 1.0, 0.0
    objective = PNormPush(network(3), Points(X, y), p=3.0)

    def F():
        h, total = objective.model(X), 0.0
        for t in range(3):
            known = y[:, t] == y[:, t]
            total = total + brute(h[known, t], y[known, t], objective.loss, 3.0)
        return total / 3

    check_everywhere(objective, F)


@pytest.mark.parametrize("loss", [SquaredHinge(0.2), SquaredHinge(4.0), Logistic(), Exponential()], ids=str)
def test_a_full_pass_in_chunks_adds_up_to_the_exact_value(loss):
    objective = PNormPush(network(), DATA, p=3.0, loss=loss)
    positives = (Y == 1).nonzero()[:, 0]

    def by_hand():
        for blocks in torch.arange(NEGATIVES).split(3):
            for rows in positives.split(3):
                ids = torch.cat([objective.block_example[blocks], rows])
                weight = torch.full((len(ids),), 1 / len(positives), dtype=torch.float64)
                yield blocks, hand_made(objective, blocks, ids, weight=weight)

    for full_pass in (by_hand, pairs_of(objective, 4)):
        check_full_pass(objective, *whole(objective), full_pass, zeros=loss == SquaredHinge(0.2))


# ---- properties -----------------------------------------------------------------------------------------


def F_of(h, y, **options):
    objective = PNormPush(Scores(h), Points(torch.arange(len(h)), y), **options)
    return value(objective, *whole(objective)).item()


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.floats(-3, 3, width=32), min_size=6, max_size=10),
    st.floats(-5, 5),
    st.randoms(),
    st.sampled_from(LOSSES),
    st.booleans(),
)
def test_shifts_and_permutations_change_nothing(h, shift, random, loss, logarithm):
    h, y = torch.tensor(h, dtype=torch.float64), (torch.arange(len(h)) % 3 == 0).long()
    order = list(range(len(h)))
    random.shuffle(order)
    options = {"loss": loss, "p": 3.0, "logarithm": logarithm}
    F = F_of(h, y, **options)
    assert F_of(h + shift, y, **options) == pytest.approx(F, rel=1e-9, abs=1e-9)
    assert F_of(h[order], y[order], **options) == pytest.approx(F, rel=1e-9, abs=1e-9)


@settings(deadline=None, max_examples=25)
@given(st.permutations(range(8)), st.sampled_from([1.0, 4.0]), st.booleans())
def test_the_perfect_ranking_is_best(order, p, logarithm):
    y = torch.tensor([1, 1, 1, 0, 0, 0, 0, 0])
    perfect = F_of(torch.arange(8.0).flip(0), y, p=p, logarithm=logarithm)
    F = F_of(torch.arange(8.0)[order], y, p=p, logarithm=logarithm)
    if min(order[:3]) > max(order[3:]):
        assert math.isclose(F, perfect, rel_tol=1e-5)
    else:
        assert perfect < F


def test_a_large_p_minds_the_top_of_the_list():
    """One negative at the top, or two in the middle: the same AUC, a worse push."""
    y = torch.tensor([1, 1, 0, 0, 0])
    top = torch.tensor([4.0, 3.0, 5.0, 1.0, 0.0]) * 20  # one negative above both positives
    middle = torch.tensor([5.0, 2.0, 4.0, 3.0, 0.0]) * 20  # two negatives above one positive each
    assert F_of(top, y, p=1.0) == pytest.approx(F_of(middle, y, p=1.0), rel=1e-6)
    assert F_of(top, y, p=4.0) > 2 * F_of(middle, y, p=4.0)


# ---- numbers that stay finite ---------------------------------------------------------------------------

M, N = 10, 25  # m/B1 = 10; the negatives come first
LABELS = (torch.arange(N) >= M).long()
LARGER = Points(torch.arange(N), LABELS)


def steps(objective, count=40):
    return draws(objective, torch.arange(M, N), count)


@pytest.mark.parametrize("name", ["sox", "msvr-v1", "msvr-v2"])
@pytest.mark.parametrize(
    ("loss", "p", "spread", "lr"),
    [
        (SquaredHinge(0.0), 3.0, 0.5, 0.02),  # rows of zeros come and go
        (Logistic(), 2.0, 100.0, 1e-3),
        (Exponential(), 2.0, 0.3, 0.3),
        (Exponential(50.0), 1.0, 0.2, 1e-19),
    ],
    ids=str,
)
def test_single_precision_equals_the_reference(loss, p, spread, lr, name):
    def inner(i, w, rows):
        return loss(w[i] - w[[j for j in rows if j >= M]]).mean(0, keepdim=True)

    problem = Literal(inner, lambda i, u: (u**p).sum(), M, 1, (N,))
    h = spread * torch.randn(N, generator=torch.Generator().manual_seed(0))
    objective = PNormPush(Scores(h), LARGER, p=p, loss=loss)
    assert against_reference(name, objective, problem, steps(objective), lr) <= 1e-4


@pytest.mark.parametrize(("name", "start"), [("sox", 0.0), ("msvr-v1", 300.0), ("msvr-v2", -100.0), ("msvr-v2", 300.0)])
@pytest.mark.parametrize("loss", [Exponential(), Logistic(), SquaredHinge()], ids=str)
def test_the_logarithm_in_single_precision_equals_double(loss, start, name):
    h = 100.0 * torch.randn(N, generator=torch.Generator().manual_seed(0))  # exponents of +-400

    def make(dtype):
        return PNormPush(Scores(h), LARGER, p=4.0, loss=loss, logarithm=True, start=start).to(dtype)

    assert against_double(name, make, steps(make(torch.float32), 30), 0.3) <= 1e-4


def test_a_power_out_of_range_is_named_and_its_logarithm_is_not():
    h = torch.where(LABELS == 1, -400.0, 0.0)
    for logarithm in (False, True):
        objective = PNormPush(Scores(h), LARGER, p=2.0, loss=Exponential(), logarithm=logarithm)
        optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
        solver = fcco.Solver(objective, optimizer, fcco.msvr_v1(alpha=0.5, beta=0.5))
        index, batch = next(steps(objective, 1))
        if logarithm:
            assert math.isfinite(solver.step(index, batch).value)
        else:
            with pytest.raises(fcco.NonFiniteError, match="not finite for block"):
                solver.step(index, batch)


def test_separated_data_stays_finite():
    for loss in (SquaredHinge(0.0), Logistic(), Exponential()):
        h = torch.where(LABELS == 1, 400.0, 0.0)
        objective = PNormPush(Scores(h), LARGER, p=2.0, loss=loss)
        optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
        solver = fcco.Solver(objective, optimizer, fcco.msvr_v2(alpha=0.5, beta=0.5))
        for index, batch in steps(objective, 5):
            assert solver.step(index, batch).value == 0.0
            assert torch.isfinite(solver.z[0]).all()


def test_what_is_wrong_is_named():
    with pytest.raises(ValueError, match="p must be >= 1"):
        PNormPush(network(), DATA, p=0.5)
    with pytest.raises(TypeError, match=r"PNormPush needs fcco\.data\.Points, got Groups"):
        PNormPush(network(), Groups(X, Y, Y))
    objective = PNormPush(network(), DATA)
    positives = (Y == 1).nonzero()[:, 0]
    with pytest.raises(ValueError, match="must point at each block's own example"):
        objective(torch.arange(4), replace(whole(objective)[1], block_pos=positives))
    with pytest.raises(ValueError, match="no positives for block 0"):
        objective(torch.arange(7), hand_made(objective, torch.arange(7), objective.block_example))
