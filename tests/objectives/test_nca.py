"""NCA: brute force, invariances, chunks, unbiased draws, single precision."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

import fcco
from fcco.data import Examples, Points
from fcco.objectives import NCA
from fcco.objectives._nca import squared_distances
from tests.objectives.tools import (
    RECIPES,
    Table,
    assert_chunks_add_up,
    assert_exact,
    assert_loader_fits,
    assert_same_gradients,
    draws,
    exact_value,
    hand_made,
    value,
    whole,
)

LABELS = torch.tensor([4, 0, 4, 0, 1, 1, 4, 4, 1, 0])
N = len(LABELS)
DATA = Examples(torch.arange(N), LABELS)


def nca(rows, **options):
    return NCA(Table(rows), DATA, **options)


def probabilities(h):
    """p_i, written out over all pairs."""
    result = []
    for i in range(N):
        near = {j: torch.exp(-((h[i] - h[j]) ** 2).sum()) for j in range(N) if j != i}
        result.append(sum(near[j] for j in near if LABELS[j] == LABELS[i]) / sum(near.values()))
    return torch.stack(result)


@pytest.mark.parametrize("log_likelihood", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_one_step_is_the_gradient_of_the_exact_objective(seed, log_likelihood):
    torch.manual_seed(seed)
    objective = nca(torch.randn(N, 3, dtype=torch.float64), log_likelihood=log_likelihood)

    def by_hand():
        p = probabilities(objective.model.rows)
        return -(p.log() if log_likelihood else p).mean()

    assert_exact(objective, by_hand)


def test_a_linear_map_trained():
    x = torch.randn(N, 4, dtype=torch.float64)
    objective = NCA(nn.Linear(4, 2, bias=False).double(), Examples(x, LABELS))
    assert_exact(objective, lambda: -probabilities(objective.model(x)).mean())


def test_moves_of_all_features_and_permutations_change_nothing():
    h = torch.randn(N, 3, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q
    order = torch.randperm(N)
    permuted = NCA(Table(h[order]), Examples(torch.arange(N), LABELS[order]))
    renamed = NCA(Table(h), Examples(torch.arange(N), 10 - 2 * LABELS))
    F = exact_value(nca(h))
    for objective in (nca(h + 1000.0), nca(h @ turn), permuted, renamed):
        torch.testing.assert_close(exact_value(objective), F)


@pytest.mark.parametrize("log_likelihood", [False, True])
def test_classes_apart_score_better(log_likelihood):
    noise = 0.1 * torch.randn(N, 2, dtype=torch.float64)
    apart = nca(noise + 5.0 * LABELS.unsqueeze(1), log_likelihood=log_likelihood)
    mixed = nca(noise, log_likelihood=log_likelihood)
    wrong = nca(noise + 5.0 * LABELS[torch.arange(N).roll(1)].unsqueeze(1), log_likelihood=log_likelihood)
    F = [value(objective, *whole(objective)).item() for objective in (apart, mixed, wrong)]
    assert F[0] < F[1] < F[2]
    assert F[0] == pytest.approx(0.0 if log_likelihood else -1.0, abs=1e-6)


@pytest.mark.parametrize("present", [1, 3])
def test_the_mean_over_all_draws_is_exact_those_without_the_class_among_them(present):
    objective = nca(torch.randn(N, 3, dtype=torch.float64))
    exact = objective(*whole(objective)).detach().exp()
    for i in (0, 1, 4):
        rest = [j for j in range(N) if j != i]
        probes = [
            objective(torch.tensor([i]), hand_made(objective, [i], sorted([i, *some])))[0].detach().numpy()
            for some in itertools.combinations(rest, present)
        ]
        assert np.min(probes) == -1e30  # log 0
        np.testing.assert_allclose(np.exp(probes).mean(0), exact[i].numpy(), rtol=1e-12)


@pytest.mark.parametrize("log_likelihood", [False, True])
def test_draws_without_the_class_train_on(log_likelihood):
    objective = nca(torch.randn(N, 3), log_likelihood=log_likelihood)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.01), fcco.msvr_v1(alpha=0.5, beta=0.3))
    for ids in ([0, 1, 3], [0, 1, 2], [0, 2, 4], [0, 1, 3]):
        assert math.isfinite(solver.step(torch.tensor([0]), hand_made(objective, [0], ids)).value)


@pytest.mark.parametrize("size", [1, 3, N])
def test_chunks_add_up_even_where_one_holds_nobody_of_a_kind(size):
    assert_chunks_add_up(nca(torch.randn(N, 3, dtype=torch.float64), log_likelihood=True), size)


def far_features(seed=0):
    """Groups of examples at distances whose squares are near 0, 100 and 400, across classes."""
    generator = torch.Generator().manual_seed(seed)
    h = 0.3 * torch.randn(N, 3, generator=generator)
    h[:, 0] += 10.0 * (torch.arange(N) % 3)
    return h


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("blocks", [1, 3])
def test_exponents_of_400_in_single_precision(name, blocks):
    objective = nca(far_features(), log_likelihood=True)
    deepest = objective(*whole(objective)).min().item()
    assert deepest < -90.0
    drawn = draws(N, torch.arange(N), blocks=blocks, others=3, always=[0, 1, 2, 3, 4, 5], steps=15)
    assert_same_gradients(objective, lambda i, ids: hand_made(objective, i, ids), name, drawn, lr=0.003)


@pytest.mark.parametrize("log_likelihood", [False, True])
def test_the_far_ends_are_finite(log_likelihood):
    labels = torch.tensor([0, 0, 1, 1])
    h = torch.tensor([[0.0], [20.0], [0.1], [20.2]])  # e^-400 for the class, e^0 for the other
    for order in ([0, 1, 2, 3], [0, 2, 1, 3]):  # wrong neighbours, right neighbours
        objective = NCA(Table(h[order]), Examples(torch.arange(4), labels), log_likelihood=log_likelihood)
        solver = fcco.Solver(
            objective, torch.optim.SGD(objective.parameters(), lr=0.01), fcco.msvr_v2(alpha=0.5, beta=0.3)
        )
        for _ in range(3):
            assert math.isfinite(solver.step(*whole(objective)).value)


def test_distances_keep_their_digits_far_from_the_origin():
    h = torch.randn(6, 3, dtype=torch.float64) + 1e6
    own = torch.tensor([0, 3])
    direct = (h[own].unsqueeze(1) - h).square().sum(2)
    torch.testing.assert_close(squared_distances(h, own), direct, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("chunk", [3, 100])
def test_with_the_loader(chunk):
    assert_loader_fits(nca(torch.randn(N, 3, dtype=torch.float64)), 4, 0, chunk)


def test_errors_name_what_is_wrong():
    model = nn.Linear(2, 1)
    x = torch.arange(N)
    with pytest.raises(TypeError, match=r"NCA needs fcco\.data\.Examples, got Points"):
        NCA(model, Points(x, LABELS))
    with pytest.raises(ValueError, match="NCA needs classes"):
        NCA(model, Examples(x))
    with pytest.raises(ValueError, match=r"y must be \(N,\) classes for NCA"):
        NCA(model, Examples(x, LABELS / 3))
    with pytest.raises(ValueError, match="at least two classes"):
        NCA(model, Examples(x, 0 * LABELS))
    with pytest.raises(ValueError, match="got one of class 9"):
        NCA(model, Examples(x[:5], torch.tensor([0, 0, 9, 4, 4])))
    objective = nca(torch.randn(N, 3))
    with pytest.raises(ValueError, match="no other examples for block 0"):
        objective(torch.tensor([0]), hand_made(objective, [0], [0]))
    with pytest.raises(ValueError, match="features of shape"):
        nca(torch.randn(N, 3, 3))(*whole(objective))
