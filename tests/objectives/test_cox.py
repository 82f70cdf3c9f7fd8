"""Cox: brute force, invariances, chunks, unbiased draws, single precision."""

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn

from fcco.data import Batch, Points, RiskSets
from fcco.objectives import Cox
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
    return Cox(Table(rows), RiskSets(torch.arange(N), *survival(ties, seed)))


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
    assert_exact(objective, lambda: by_hand(objective.model.rows, *survival(ties, seed)))


def test_a_trained_network_and_scores_of_shape_k_1():
    x = torch.randn(N, 3, dtype=torch.float64)
    objective = Cox(nn.Linear(3, 1).double(), RiskSets(x, *survival()))
    assert_exact(objective, lambda: by_hand(objective.model(x).squeeze(1), *survival()))


def test_shifts_and_permutations_change_nothing():
    h, (time, event) = torch.randn(N, dtype=torch.float64), survival()
    F = value(cox(h), *whole(cox(h)))
    shifted = cox(h + 7.0)
    torch.testing.assert_close(value(shifted, *whole(shifted)), F)
    order = torch.randperm(N)
    permuted = Cox(Table(h[order]), RiskSets(torch.arange(N), time[order], event[order]))
    torch.testing.assert_close(value(permuted, *whole(permuted)), F)
    later = Cox(Table(h), RiskSets(torch.arange(N), 100 * time.exp(), event))  # only the order of times counts
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
        probes = [
            objective(torch.tensor([i]), hand_made(objective, [i], sorted([own, *some]))).item()
            for some in itertools.combinations(risk, present)
        ]
        assert np.exp(probes).mean() == pytest.approx(exact[i].item(), rel=1e-12)


@pytest.mark.parametrize("size", [3, 5, N])
def test_chunks_add_up(size):
    assert_chunks_add_up(cox(torch.randn(N, dtype=torch.float64), ties=True), size)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("lr", [0.01, 0.5])
def test_exponents_of_400_in_single_precision(name, blocks, lr):
    objective = cox(far_scores(N))
    last = int(survival()[0].argmax())
    drawn = draws(N, objective.block_item, blocks=blocks, others=6, always=[last], steps=20)

    def make(index, ids):
        return hand_made(objective, index, ids)

    assert_same_gradients(objective, make, name, drawn, lr=lr, guarded=2 if lr == 0.5 and name != "sox" else 0)


def test_logarithms_near_400_keep_their_digits():
    single = cox(far_scores(N))
    double = copy.deepcopy(single).double()
    torch.testing.assert_close(single(*whole(single)), double(*whole(double)), rtol=0.0, atol=1e-12)


def test_a_risk_set_of_one_needs_nobody_else():
    objective = Cox(Table(torch.zeros(2)), RiskSets(torch.arange(2), [1.0, 2.0], [1, 1]))
    assert objective(torch.tensor([1]), hand_made(objective, [1], [1])).item() == 0.0


@pytest.mark.parametrize("chunk", [3, 100])
def test_with_the_loader(chunk):
    assert_loader_fits(cox(torch.randn(N, dtype=torch.float64), ties=True), 3, 4, chunk)


def test_errors_name_what_is_wrong():
    time, event = survival()
    with pytest.raises(TypeError, match=r"Cox needs fcco\.data\.RiskSets, got Points"):
        Cox(Table(time), Points(torch.arange(N), event))
    with pytest.raises(ValueError, match="event must be 1 for at least one subject"):
        Cox(Table(time), RiskSets(torch.arange(N), time, torch.zeros(N)))
    objective = cox(time)
    i = int(objective.risk_size.argmax())
    own = int(objective.block_item[i])
    with pytest.raises(ValueError, match=f"no other subjects at risk for block {i}"):
        objective(torch.tensor([i]), hand_made(objective, [i], [own]))
    with pytest.raises(ValueError, match=r"batch\.block_pos must be given"):
        objective(torch.tensor([i]), Batch(torch.arange(N), torch.arange(N)))
    wrong = Batch(torch.arange(N), torch.arange(N), block_pos=torch.tensor([(own + 1) % N]))
    with pytest.raises(ValueError, match=f"own example, not so for {i}"):
        objective(torch.tensor([i]), wrong)
