"""NDCG: brute force, invariances, chunks, unbiased draws, single precision."""

import itertools
import math

import pytest
import torch
from torch import nn

import fcco
from fcco.data import Examples, Queries
from fcco.objectives import NDCG, Logistic, Square, SquaredHinge
from fcco.objectives._ndcg import ideal_dcg, inverse_discount
from tests.objectives.tools import (
    RECIPES,
    Table,
    assert_chunks_add_up,
    assert_exact,
    assert_loader_fits,
    assert_same_gradients,
    draws,
    far_scores,
    hand_made,
    value,
    whole,
)

QUERY = torch.tensor([7, 3, 3, 7, 3, 7, 7, 3, 5, 5, 7, 3])  # any numbers, in any order
Y = torch.tensor([2, 0, 1, 0, 3, 1, 0, 0, 1, 0, 2, 1])
N = len(QUERY)
DATA = Queries(torch.arange(N), QUERY, Y)


def ndcg(rows, **options):
    return NDCG(Table(rows), DATA, **options)


def by_hand(h, surrogate, query=QUERY, y=Y):
    """Minus the mean over queries of sum_i (2^y_i - 1) / log2(1 + sum_j l(h_j - h_i)) over the ideal DCG."""
    total = 0.0
    for q in query.unique():
        items = [int(i) for i in (query == q).nonzero()]
        gains = sorted((2.0 ** int(y[i]) - 1 for i in items), reverse=True)
        ideal = sum(gain / math.log2(2 + place) for place, gain in enumerate(gains))
        for i in items:
            rank = sum(surrogate(h[j] - h[i]) for j in items)
            total = total - (2.0 ** int(y[i]) - 1) / (ideal * torch.log2(1 + rank))
    return total / len(query.unique())


@pytest.mark.parametrize("surrogate", [SquaredHinge(1.0), SquaredHinge(0.5, 2.0), Square(1.0), Logistic(3.0)])
def test_one_step_is_the_gradient_of_the_surrogate_ndcg(surrogate):
    objective = ndcg(torch.randn(N, dtype=torch.float64), surrogate=surrogate)
    assert_exact(objective, lambda: by_hand(objective.model.rows, surrogate))


def test_the_default_surrogate_is_the_squared_hinge_with_margin_1():
    h = torch.randn(N, dtype=torch.float64)
    objective = ndcg(h)
    assert objective.surrogate == SquaredHinge(1.0)
    assert value(objective, *whole(objective)).item() == pytest.approx(by_hand(h, SquaredHinge(1.0)).item())


def test_blocks_are_the_relevant_items_and_their_weights_count():
    h = torch.randn(N, dtype=torch.float64)
    some = ndcg(h)
    assert some.block_item.tolist() == [i for i in range(N) if Y[i] > 0]
    weighted = ndcg(h, block_weight=torch.full((some.num_blocks,), 2 * some.num_blocks / 3))
    torch.testing.assert_close(value(weighted, *whole(weighted)), 2 * value(some, *whole(some)))
    one = ndcg(h, block_weight=torch.arange(some.num_blocks) == 2)
    f = one.outer(torch.arange(one.num_blocks), one(*whole(one)))
    assert (f != 0).tolist() == [i == 2 for i in range(one.num_blocks)]


def test_shifts_and_permutations_change_nothing():
    h = torch.randn(N, dtype=torch.float64)
    F = value(ndcg(h), *whole(ndcg(h)))
    shifted = ndcg(h + torch.tensor([11.0, -5.0, 3.0], dtype=torch.float64)[QUERY // 3])  # a shift per query
    torch.testing.assert_close(value(shifted, *whole(shifted)), F)
    order = torch.randperm(N)
    permuted = NDCG(Table(h[order]), Queries(torch.arange(N), 10 - QUERY[order], Y[order]))
    torch.testing.assert_close(value(permuted, *whole(permuted)), F)


def test_a_perfect_ranking_scores_better_than_any_with_two_items_exchanged():
    perfect = 10.0 * Y.double()
    F = value(ndcg(perfect), *whole(ndcg(perfect))).item()
    for i, j in itertools.combinations(range(N), 2):
        if QUERY[i] == QUERY[j] and Y[i] != Y[j]:
            worse = perfect.clone()
            worse[[i, j]] = perfect[[j, i]]
            assert value(ndcg(worse), *whole(ndcg(worse))).item() > F
    reverse = value(ndcg(-perfect), *whole(ndcg(-perfect))).item()
    assert -1.0 <= F < reverse < 0.0


def test_well_separated_perfect_scores_reach_minus_the_ndcg_of_1():
    y = torch.tensor([3, 2, 1, 0, 0])
    query = torch.zeros(5, dtype=torch.int64)
    objective = NDCG(Table(10.0 * y.double()), Queries(torch.arange(5), query, y), surrogate=SquaredHinge(1.0))
    index, batch = whole(objective)
    top = objective.outer(index, objective(index, batch))[0]  # its smooth rank is exactly 1
    assert top.item() == pytest.approx(-3 * 7 / float(ideal_dcg(2.0**y - 1, query)))


def test_the_ideal_dcg():
    gain = 2.0 ** torch.tensor([0, 2, 1, 3]) - 1
    expected = 7.0 + 3.0 / math.log2(3) + 1.0 / 2.0
    assert ideal_dcg(gain, torch.zeros(4, dtype=torch.int64)).item() == pytest.approx(expected)


@pytest.mark.parametrize("present", [1, 2, 3])
def test_the_mean_over_all_draws_of_others_is_exact(present):
    objective = ndcg(torch.randn(N, dtype=torch.float64))
    exact = objective(*whole(objective)).detach()
    for i in range(objective.num_blocks):
        own = int(objective.block_item[i])
        rest = [j for j in range(N) if QUERY[j] == QUERY[own] and j != own]
        probes = [
            objective(torch.tensor([i]), hand_made(objective, [i], sorted([own, *some]))).detach()
            for some in itertools.combinations(rest, min(present, len(rest)))
        ]
        torch.testing.assert_close(torch.stack(probes).mean(0), exact[i : i + 1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [2, 5, N])
def test_chunks_add_up(size):
    assert_chunks_add_up(ndcg(torch.randn(N, dtype=torch.float64)), size)


@pytest.mark.parametrize("name", RECIPES)
def test_scores_400_apart_in_single_precision(name):
    objective = ndcg(far_scores(N) + 1000.0 * (QUERY == 3))
    drawn = draws(N, objective.block_item, blocks=3, others=5, always=[0, 1, 2, 3, 8, 9], steps=12)
    assert_same_gradients(objective, lambda i, ids: hand_made(objective, i, ids), name, drawn, lr=1.0)


def test_a_row_outside_the_range_of_g_has_a_finite_slope():
    rank = torch.tensor([-1e4, -1.0, -0.5, 0.0, 0.999999, 1.0, 1.000001, 5.0], dtype=torch.float64, requires_grad=True)
    f = inverse_discount(rank, torch.ones_like(rank))
    (slope,) = torch.autograd.grad(f.sum(), rank)
    assert bool(torch.isfinite(f).all())
    assert bool((slope < 0).all())
    assert float(slope.min()) == pytest.approx(-1 / (2 * math.log(2)))  # never steeper than at the least rank
    torch.testing.assert_close(f[-3:], 1 / torch.log2(1 + rank[-3:]))
    assert bool((f.diff() < 0).all())
    objective = ndcg(torch.randn(N))
    solver = fcco.Solver(
        objective, torch.optim.SGD(objective.parameters(), lr=0.1), fcco.msvr_v2(alpha=0.1, beta=0.1), u0=-3.0
    )
    index, batch = whole(objective)
    for _ in range(3):
        assert math.isfinite(solver.step(index, batch).value)


def test_shared_batches_hold_items_of_other_queries_and_serve_by_place():
    objective = ndcg(torch.randn(N, dtype=torch.float64))
    i, j = 0, 1  # blocks of queries 7 and 3
    first, second = [k for k in range(N) if QUERY[k] == 7], [k for k in range(N) if QUERY[k] == 3]
    together = objective(torch.tensor([i, j]), hand_made(objective, [i, j], torch.arange(N)))
    alone = [objective(torch.tensor([b]), hand_made(objective, [b], ids)) for b, ids in ((i, first), (j, second))]
    torch.testing.assert_close(together, torch.cat(alone))
    serves = torch.tensor([0] * len(first) + [1] * len(second))
    served = hand_made(objective, [i, j], [*first, *second], serves=serves)
    torch.testing.assert_close(objective(torch.tensor([i, j]), served), together)


@pytest.mark.parametrize("chunk", [3, 100])
def test_with_the_loader(chunk):
    assert_loader_fits(ndcg(torch.randn(N, dtype=torch.float64)), 3, 3, chunk)


def test_errors_name_what_is_wrong():
    model = nn.Linear(2, 1)
    with pytest.raises(TypeError, match=r"NDCG needs fcco\.data\.Queries, got Examples"):
        NDCG(model, Examples(torch.arange(N)))
    with pytest.raises(ValueError, match="relevance must be >= 0 for NDCG, got -1"):
        NDCG(model, Queries(torch.arange(N), QUERY, Y - 1))
    with pytest.raises(ValueError, match="relevance must be > 0 for at least one item"):
        NDCG(model, Queries(torch.arange(N), QUERY, 0 * Y))
    with pytest.raises(ValueError, match="surrogate must be > 0 at 0"):
        NDCG(model, DATA, surrogate=SquaredHinge(0.0))
    m = int((Y > 0).sum())
    for weight, message in (
        (torch.ones(2), f"block_weight must have shape \\({m},\\)"),
        (-torch.ones(m), "block_weight must be finite and >= 0"),
        (torch.zeros(m), "block_weight must be > 0 somewhere"),
        (torch.full((m,), math.inf), "block_weight must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            NDCG(model, DATA, block_weight=weight)
    objective = ndcg(torch.randn(N))
    with pytest.raises(ValueError, match="no other items of its query for block 0"):
        objective(torch.tensor([0]), hand_made(objective, [0], [0, 1, 2]))
    with pytest.raises(ValueError, match="one score per example"):
        NDCG(Table(torch.randn(N, 2)), DATA)(*whole(objective))
