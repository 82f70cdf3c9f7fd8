"""ListNet: brute force, invariances, chunks, unbiased draws, single precision."""

import itertools

import numpy as np
import pytest
import torch

from fcco.data import Points, Queries
from fcco.objectives import ListNet
from fcco.objectives._listnet import top_one
from fcco.objectives._means import log_mean_exp_over
from tests.objectives.test_ndcg import DATA, QUERY, N, Y
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


def listnet(rows, **options):
    return ListNet(Table(rows), DATA, **options)


def by_hand(h, query=QUERY, y=Y):
    """The mean over queries of the cross-entropy of softmax(y) and softmax(h)."""
    losses = []
    for q in query.unique():
        mine = query == q
        p = torch.exp(y[mine].double()) / torch.exp(y[mine].double()).sum()
        losses.append(-(p * torch.log(torch.exp(h[mine]) / torch.exp(h[mine]).sum())).sum())
    return sum(losses) / len(losses)


@pytest.mark.parametrize("seed", range(3))
def test_one_step_is_the_gradient_of_the_cross_entropy(seed):
    torch.manual_seed(seed)
    objective = listnet(torch.randn(N, dtype=torch.float64))
    assert_exact(objective, lambda: by_hand(objective.model.rows))


def test_the_weights_of_qiu_et_al():
    relevant = (Y > 0).nonzero().squeeze(1)
    size = torch.tensor([int((QUERY[i] == QUERY).sum()) for i in relevant])
    h = torch.randn(N, dtype=torch.float64)
    objective = listnet(h, block_weight=Y[relevant] / size.double(), relevant_only=True)
    assert objective.block_item.tolist() == relevant.tolist()

    def qiu():
        rows, total = objective.model.rows, 0.0
        for i, n in zip(relevant.tolist(), size.tolist(), strict=True):
            mine = rows[QUERY[i] == QUERY]
            total = total - int(Y[i]) / n * torch.log(torch.exp(rows[i]) / torch.exp(mine).sum())
        return total / 3

    assert_exact(objective, qiu)


def test_shifts_and_permutations_change_nothing():
    h = torch.randn(N, dtype=torch.float64)
    F = value(listnet(h), *whole(listnet(h)))
    shifted = listnet(h + torch.tensor([11.0, -5.0, 3.0], dtype=torch.float64)[QUERY // 3])
    torch.testing.assert_close(value(shifted, *whole(shifted)), F)
    order = torch.randperm(N)
    permuted = ListNet(Table(h[order]), Queries(torch.arange(N), 10 - QUERY[order], Y[order]))
    torch.testing.assert_close(value(permuted, *whole(permuted)), F)
    raised = ListNet(
        Table(h), Queries(torch.arange(N), QUERY, Y + 5)
    )  # softmax of relevances: a shift there changes nothing either
    torch.testing.assert_close(value(raised, *whole(raised)), F)


def test_scores_equal_to_the_relevances_are_the_best_and_reversed_ones_worse():
    best = value(listnet(Y.double()), *whole(listnet(Y.double())))
    gradient = torch.autograd.grad(value(o := listnet(Y.double()), *whole(o)), o.model.rows)[0]
    assert float(gradient.norm()) < 1e-12
    flat = value(listnet(0.0 * Y), *whole(listnet(0.0 * Y)))
    reverse = value(listnet(-Y.double()), *whole(listnet(-Y.double())))
    assert best < flat < reverse


def test_top_one_survives_huge_relevances():
    p = top_one(torch.tensor([1000.0, 1000.0, -1000.0]), torch.tensor([0, 0, 0]))
    torch.testing.assert_close(p, torch.tensor([0.5, 0.5, 0.0]))


@pytest.mark.parametrize("present", [1, 3])
def test_the_mean_over_all_draws_of_others_is_exact(present):
    objective = listnet(torch.randn(N, dtype=torch.float64))
    exact = objective(*whole(objective)).detach().exp()
    for i in range(N):
        rest = [j for j in range(N) if QUERY[j] == QUERY[i] and j != i]
        probes = [
            objective(torch.tensor([i]), hand_made(objective, [i], sorted([i, *some]))).item()
            for some in itertools.combinations(rest, min(present, len(rest)))
        ]
        assert np.exp(probes).mean() == pytest.approx(exact[i].item(), rel=1e-12)


@pytest.mark.parametrize("size", [2, 5, N])
def test_chunks_add_up(size):
    assert_chunks_add_up(listnet(torch.randn(N, dtype=torch.float64)), size)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("blocks", [2, 4])
def test_exponents_of_400_in_single_precision(name, blocks):
    objective = listnet(far_scores(N))
    drawn = draws(N, objective.block_item, blocks=blocks, others=4, always=[0, 1, 2, 3, 8, 9], steps=15)
    assert_same_gradients(
        objective,
        lambda i, ids: hand_made(objective, i, ids),
        name,
        drawn,
        lr=0.2,
        guarded=0 if name == "sox" else 1,
    )


def test_with_the_loader():
    assert_loader_fits(listnet(torch.randn(N, dtype=torch.float64)), 3, 3, 4)


def test_errors_name_what_is_wrong():
    with pytest.raises(TypeError, match=r"ListNet needs fcco\.data\.Queries, got Points"):
        ListNet(Table(torch.zeros(N)), Points(torch.arange(N), Y > 0))
    with pytest.raises(ValueError, match="block_weight must be finite and >= 0"):
        listnet(torch.zeros(N), block_weight=-torch.ones(N))
    with pytest.raises(ValueError, match="block_weight must be > 0 somewhere"):
        listnet(torch.zeros(N), block_weight=torch.zeros(N))
    with pytest.raises(ValueError, match="relevance must be > 0 for at least one item"):
        ListNet(Table(torch.zeros(N)), Queries(torch.arange(N), QUERY, 0 * Y), relevant_only=True)


@pytest.mark.parametrize("scale", [1.0, 30.0, 400.0])
@pytest.mark.parametrize("seed", range(3))
def test_sums_by_query_equal_those_over_pairs(seed, scale):
    """Whole queries and parts of them, scores that dominate their query and scores that vanish in it."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for by_pairs in (False, True):
        generator.manual_seed(seed)
        h = scale * torch.randn(N, generator=generator, dtype=torch.float64)
        objective = listnet(h.requires_grad_())
        here = torch.randperm(N, generator=generator)[: N - seed]
        index = here[torch.randperm(len(here), generator=generator)]
        several = [i for i in index.tolist() if (QUERY[here] == QUERY[i]).sum() > 1 or (QUERY[i] == QUERY).sum() == 1]
        index = torch.tensor(several)
        batch = hand_made(objective, index, here)
        outputs = objective.outputs(here)
        if by_pairs:
            x, entering, weight = objective.pairs(index, outputs, batch)
            g = log_mean_exp_over(x, entering, weight, index, "items")
        else:
            g = objective.values(index, outputs, batch).squeeze(1)
        slope = torch.rand(len(index), generator=generator, dtype=torch.float64)
        (gradient,) = torch.autograd.grad(g, objective.model.rows, slope)
        found.append((g.detach(), gradient))
    (g, gradient), (wanted, wanted_gradient) = found
    assert torch.allclose(g, wanted, rtol=1e-13, atol=1e-13)
    assert torch.allclose(gradient, wanted_gradient, rtol=1e-10, atol=1e-13)


def test_items_that_come_twice_are_summed_over_pairs():
    objective = listnet(torch.randn(N, dtype=torch.float64))
    here = torch.cat([torch.arange(N), torch.arange(2)])
    index = torch.arange(N)
    batch = hand_made(objective, index, here)
    outputs = objective.outputs(here)
    x, entering, weight = objective.pairs(index, outputs, batch)
    wanted = log_mean_exp_over(x, entering, weight, index, "items")
    assert torch.equal(objective.values(index, outputs, batch).squeeze(1), wanted)
