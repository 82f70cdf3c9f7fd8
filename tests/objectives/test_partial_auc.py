"""PartialAUC, one-way and two-way: brute force over all pairs, limits, and numbers that stay finite."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fcco
from fcco.data import Points, Tasks
from fcco.objectives import Logistic, PartialAUC, Square, SquaredHinge
from fcco.objectives._soft_maximum import soft_maximum
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

Y = torch.tensor([1, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0])
POSITIVES = int((Y == 1).sum())
X = torch.randn(13, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
DATA = Points(X, Y)
LOSSES = [SquaredHinge(), Square(0.5), Logistic(2.0)]


def network(outputs=1, seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


def robust(h, y, loss, temperature):
    """x_i = lambda log mean_j exp(l(h_j - h_i)/lambda), pair by pair; a list over the positives."""
    negatives = [j for j in range(len(y)) if y[j] == 0]
    values = []
    for i in range(len(y)):
        if y[i] == 1:
            total = sum((loss(h[j] - h[i]) / temperature).exp() for j in negatives)
            values.append(temperature * (total / len(negatives)).log())
    return values


@pytest.mark.parametrize("temperature", [0.1, 1.0, 20.0])
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_one_way_equals_brute_force(loss, temperature):
    objective = PartialAUC(network(), DATA, loss=loss, temperature=temperature)
    F = lambda: sum(robust(objective.model(X)[:, 0], Y, loss, temperature)) / POSITIVES  # noqa: E731
    check_everywhere(objective, F)


@pytest.mark.parametrize("start", [0.0, 1.3, -9.0])
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_two_way_equals_brute_force_with_its_trained_variable(loss, start):
    objective = PartialAUC(network(), DATA, loss=loss, temperature=0.5, positive_temperature=0.3, start=start)

    def F():
        total = 0.0
        for x in robust(objective.model(X)[:, 0], Y, loss, 0.5):
            t = (x - objective.v[0]) / 0.3
            top = math.log(POSITIVES)
            phi = t.exp() if t.item() <= top else POSITIVES * (1 + t - top)
            total = total + objective.v[0] + 0.3 * (phi - 1)
        return total / POSITIVES

    check_everywhere(objective, F)


def test_two_way_at_the_best_v_is_the_log_of_the_mean_over_positives():
    objective = PartialAUC(network(), DATA, temperature=0.5, positive_temperature=0.2)
    x = torch.stack(robust(objective.model(X)[:, 0], Y, objective.loss, 0.5))
    best = 0.2 * ((x / 0.2).logsumexp(0) - math.log(len(x)))
    gradient = torch.autograd.grad(best, list(objective.model.parameters()))
    with torch.no_grad():
        objective.v.copy_(best)
    F = value(objective, *whole(objective))
    found = torch.autograd.grad(F, [*objective.model.parameters(), objective.v])
    torch.testing.assert_close(F, best, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[:-1], gradient, rtol=1e-10, atol=1e-10)
    assert abs(found[-1].item()) <= 1e-12


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(-50, 50), min_size=2, max_size=8), st.floats(0.05, 5.0))
def test_the_straight_continuation_does_not_move_the_minimum(x, temperature):
    """The least over v of the mean is temperature * log mean exp(x/temperature): no v far or near is better."""
    x = torch.tensor(x, dtype=torch.float64)
    best = temperature * ((x / temperature).logsumexp(0) - math.log(len(x)))

    def at(v):
        return soft_maximum(x, torch.tensor([v], dtype=torch.float64), temperature, len(x)).mean().item()

    assert at(best.item()) == pytest.approx(best.item(), abs=1e-9)
    for away in (1e-3, 0.1, 1.0, 10.0, 1e3):
        assert at(best.item() + away) >= best.item() - 1e-9
        assert at(best.item() - away) >= best.item() - 1e-9


@pytest.mark.parametrize("two_way", [False, True])
def test_many_labels_with_missing_ones(two_way):
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(13, 3, generator=generator) < 0.4).double()
    y[torch.rand(13, 3, generator=generator) < 0.3] = math.nan
    y[:2], y[2:4] = 1.0, 0.0
    options = {"temperature": 0.5, "positive_temperature": 0.3 if two_way else None, "start": 0.7}
    objective = PartialAUC(network(3), Points(X, y), **options)

    def F():
        h, total = objective.model(X), 0.0
        for t in range(3):
            known = y[:, t] == y[:, t]
            x = torch.stack(robust(h[known, t], y[known, t], objective.loss, 0.5))
            total = total + (soft_maximum(x, objective.v[t], 0.3, len(x)) if two_way else x).mean()
        return total / 3

    check_everywhere(objective, F)


@pytest.mark.parametrize("two_way", [False, True])
def test_a_full_pass_in_chunks_adds_up_to_the_exact_value(two_way):
    options = {"temperature": 0.2, "positive_temperature": 0.3 if two_way else None}
    objective = PartialAUC(network(), DATA, **options)
    negatives = (Y == 0).nonzero()[:, 0]

    def by_hand():
        for blocks in torch.arange(POSITIVES).split(3):
            for rows in negatives.split(4):
                ids = torch.cat([objective.block_example[blocks], rows])
                weight = torch.full((len(ids),), 1 / len(negatives), dtype=torch.float64)
                yield blocks, hand_made(objective, blocks, ids, weight=weight)

    for full_pass in (by_hand, pairs_of(objective, 4)):
        check_full_pass(objective, *whole(objective), full_pass)


# ---- properties -----------------------------------------------------------------------------------------


def F_of(h, y, **options):
    objective = PartialAUC(Scores(h), Points(torch.arange(len(h)), y), **options)
    return value(objective, *whole(objective)).item()


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.floats(-3, 3, width=32), min_size=6, max_size=10),
    st.floats(-5, 5),
    st.randoms(),
    st.sampled_from(LOSSES),
    st.sampled_from([None, 0.5]),
)
def test_shifts_and_permutations_change_nothing(h, shift, random, loss, two_way):
    h, y = torch.tensor(h, dtype=torch.float64), (torch.arange(len(h)) % 3 == 0).long()
    order = list(range(len(h)))
    random.shuffle(order)
    options = {"loss": loss, "temperature": 0.3, "positive_temperature": two_way}
    F = F_of(h, y, **options)
    assert F_of(h + shift, y, **options) == pytest.approx(F, rel=1e-9, abs=1e-9)
    assert F_of(h[order], y[order], **options) == pytest.approx(F, rel=1e-9, abs=1e-9)


@settings(deadline=None, max_examples=25)
@given(st.permutations(range(8)), st.sampled_from([0.05, 1.0]), st.sampled_from([None, 0.5]))
def test_the_perfect_ranking_is_best(order, temperature, two_way):
    y = torch.tensor([1, 1, 1, 0, 0, 0, 0, 0])
    options = {"temperature": temperature, "positive_temperature": two_way, "loss": Logistic()}
    perfect = F_of(torch.arange(8.0).flip(0), y, **options)
    F = F_of(torch.arange(8.0)[order], y, **options)
    if min(order[:3]) > max(order[3:]):
        assert math.isclose(F, perfect, rel_tol=1e-5)
    else:
        assert perfect < F


def test_large_temperatures_give_the_mean_and_small_ones_the_hardest_negative():
    h = torch.randn(13, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pairs = SquaredHinge()(h[Y == 0] - h[Y == 1].unsqueeze(1))
    assert F_of(h, Y, temperature=1e6) == pytest.approx(pairs.mean().item(), rel=1e-4)
    assert F_of(h, Y, temperature=1e-4) == pytest.approx(pairs.amax(1).mean().item(), rel=1e-3)


# ---- numbers that stay finite ---------------------------------------------------------------------------

M, N = 10, 30  # m/B1 = 10
LABELS = (torch.arange(N) < M).long()
LARGER = Points(torch.arange(N), LABELS)
HARD = [
    (0.01, SquaredHinge(), 0.25, 3e-3),  # l/lambda from 0 to 400
    (0.01, Square(0.0), 0.5, 3e-3),
    (0.01, Logistic(), 1.0, 3e-3),
    (1.0, Logistic(), 100.0, 0.5),  # scores that differ by 400
]


def steps(objective, count=40):
    return draws(objective, torch.arange(M, N), count)


def hard_scores(spread, loss, temperature):
    h = spread * torch.randn(N, generator=torch.Generator().manual_seed(0))
    exponents = loss(h[M:] - h[:M].unsqueeze(1)) / temperature
    return h * min(1.0, (450.0 / exponents.max().item()) ** 0.5)


@pytest.mark.parametrize("name", ["sox", "msvr-v1", "msvr-v2"])
@pytest.mark.parametrize(("temperature", "loss", "spread", "lr"), HARD, ids=str)
def test_one_way_in_single_precision_equals_the_reference(temperature, loss, spread, lr, name):
    def inner(i, w, rows):
        rows = [j for j in rows if j >= M]
        return (loss(w[rows] - w[i]) / temperature).exp().mean(0, keepdim=True)

    problem = Literal(inner, lambda i, u: temperature * u.log().sum(), M, 1, (N,))
    scores = hard_scores(spread, loss, temperature)
    objective = PartialAUC(Scores(scores), LARGER, loss=loss, temperature=temperature)
    assert against_reference(name, objective, problem, steps(objective), lr) <= 1e-4


@pytest.mark.parametrize(("name", "start"), [("sox", 0.0), ("msvr-v1", 4.0), ("msvr-v2", -4.0), ("msvr-v2", 4.0)])
@pytest.mark.parametrize(("temperature", "loss", "spread", "lr"), HARD, ids=str)
def test_two_way_in_single_precision_equals_double(temperature, loss, spread, lr, start, name):
    h = hard_scores(spread, loss, temperature)

    def make(dtype):
        options = {"loss": loss, "temperature": temperature, "positive_temperature": 0.01, "start": start}
        return PartialAUC(Scores(h), LARGER, **options).to(dtype)

    assert against_double(name, make, steps(make(torch.float32), 30), lr) <= 1e-4


@pytest.mark.parametrize("two_way", [None, 0.01])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_extreme_scores_stay_finite(sign, two_way):
    """Differences of 400 at lambda = 0.01: exponents of +-40000."""
    h = torch.where(LABELS == 1, sign * 400.0, 0.0)
    objective = PartialAUC(Scores(h), LARGER, loss=Logistic(), temperature=0.01, positive_temperature=two_way)
    optimizer = torch.optim.SGD(objective.parameters(), lr=1.0)
    solver = fcco.Solver(objective, optimizer, fcco.msvr_v2(alpha=0.3, beta=0.3))
    for index, batch in steps(objective, 5):
        report = solver.step(index, batch)
        assert math.isfinite(report.value)
        assert all(bool(torch.isfinite(part).all()) for part in solver.z)


# ---- errors that name what is wrong ---------------------------------------------------------------------


def test_what_is_wrong_is_named():
    with pytest.raises(ValueError, match="temperature must be > 0"):
        PartialAUC(network(), DATA, temperature=0.0)
    with pytest.raises(ValueError, match="positive_temperature must be > 0"):
        PartialAUC(network(), DATA, positive_temperature=-1.0)
    with pytest.raises(TypeError, match=r"PartialAUC needs fcco\.data\.Points, got Tasks"):
        PartialAUC(network(), Tasks(X, Y))
    objective = PartialAUC(network(), DATA)
    with pytest.raises(ValueError, match="no negatives for block 0"):
        objective(torch.arange(4), hand_made(objective, torch.arange(4), objective.block_example))
