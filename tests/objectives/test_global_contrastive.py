"""GlobalContrastive: brute force for views and modalities, temperatures, chunks, single precision."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

import fcco
from fcco.data import Batch, Examples, Points
from fcco.objectives import GlobalContrastive, LearnedTemperature
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

N, D = 7, 3


def contrastive(rows, **options):
    """Features (N, 2, D) straight from a table: the model gets positions, and returns both."""
    return GlobalContrastive(Table(rows), Examples(torch.arange(len(rows))), **options)


def features():
    return torch.randn(N, 2, D, dtype=torch.float64)


def by_hand(h, two_modal, tau, epsilon=0.0, rho=0.0):
    """Every term written out; tau (N, 2) or a number."""
    h = h / h.norm(dim=2, keepdim=True)
    total = 0.0
    for i, v in itertools.product(range(N), (0, 1)):
        t = tau[i, v] if isinstance(tau, torch.Tensor) and tau.dim() else tau
        negatives = [h[j, w] for j in range(N) for w in (0, 1) if j != i and (w != v or not two_modal)]
        terms = [torch.exp((h[i, v] @ z - h[i, 0] @ h[i, 1]) / t) for z in negatives]
        total = total + t * (torch.log(epsilon + sum(terms) / len(terms)) + rho)
    return total / (2 * N)


@pytest.mark.parametrize("two_modal", [False, True])
@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_one_step_is_the_gradient_of_the_global_loss(two_modal, epsilon):
    objective = contrastive(features(), two_modal=two_modal, temperature=0.2, epsilon=epsilon)
    assert_exact(objective, lambda: by_hand(objective.model.rows, two_modal, 0.2, epsilon))


@pytest.mark.parametrize("two_modal", [False, True])
@pytest.mark.parametrize("per_example", [False, True])
def test_a_learned_temperature(two_modal, per_example):
    learned = LearnedTemperature(start=0.3, rho=0.4, minimum=0.05, per_example=per_example)
    objective = contrastive(features(), two_modal=two_modal, temperature=learned)
    with torch.no_grad():
        objective.excess.add_(0.3 * torch.randn_like(objective.excess))

    def written_out():
        tau = 0.05 + objective.excess.exp()
        return by_hand(objective.model.rows, two_modal, tau, rho=0.4)

    assert objective.excess.shape == ((N, 2) if per_example else ())
    assert_exact(objective, written_out)


def test_the_learned_temperature_starts_where_told_and_finds_the_kl_ball():
    h = features()
    learned = LearnedTemperature(start=0.5, rho=0.5, minimum=0.01)
    objective = contrastive(h, temperature=learned)
    assert objective.tau(torch.tensor([0])).item() == pytest.approx(0.5)
    objective.model.rows.requires_grad_(False)
    solver = fcco.Solver(objective, torch.optim.Adam([objective.excess], lr=0.1), fcco.sox(alpha=1.0, beta=1.0))
    for _ in range(120):
        solver.step(*whole(objective))
    tau = objective.tau(torch.tensor([0])).detach()
    grid = [by_hand(h, False, t, rho=0.5).item() for t in (0.9 * tau, tau, 1.1 * tau)]
    assert grid[1] == min(grid)


@pytest.mark.parametrize("two_modal", [False, True])
def test_with_epsilon_one_over_the_negatives_it_is_infonce(two_modal):
    h = features()
    count = (1 if two_modal else 2) * (N - 1)
    objective = contrastive(h, two_modal=two_modal, temperature=0.2, epsilon=1 / count)
    unit = h / h.norm(dim=2, keepdim=True)
    losses = []
    for v in (0, 1):
        logits = unit[:, v] @ unit[:, 1 - v].T / 0.2
        if not two_modal:
            inside = (unit[:, v] @ unit[:, v].T / 0.2).masked_fill(torch.eye(N, dtype=torch.bool), -torch.inf)
            logits = torch.cat([logits, inside], 1)
        losses.append(nn.functional.cross_entropy(logits, torch.arange(N)))
    expected = 0.2 * (sum(losses) / 2 - math.log(count))
    torch.testing.assert_close(value(objective, *whole(objective)), expected)


def test_two_views_go_through_the_model_in_one_call():
    calls = []

    class Encoder(nn.Linear):
        def forward(self, x):
            calls.append(x.shape)
            return super().forward(x)

    model = Encoder(4, D).double()
    views = torch.randn(2, N, 4, dtype=torch.float64)
    objective = GlobalContrastive(model, Examples((views[0], views[1])), temperature=0.2)
    objective(*whole(objective))
    assert calls == [(2 * N, 4)]
    assert_exact(objective, lambda: by_hand(torch.stack([model(views[0]), model(views[1])], 1), False, 0.2))


def test_two_modalities_from_a_model_that_returns_a_pair():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.image, self.text = nn.Linear(4, D), nn.Linear(6, D)

        def forward(self, image, text):
            return self.image(image), self.text(text)

    model = Pair().double()
    image, text = torch.randn(N, 4, dtype=torch.float64), torch.randn(N, 6, dtype=torch.float64)
    objective = GlobalContrastive(model, Examples((image, text)), temperature=0.2, two_modal=True)
    assert_exact(objective, lambda: by_hand(torch.stack(model(image, text), 1), True, 0.2))


@pytest.mark.parametrize("two_modal", [False, True])
def test_permutations_turns_and_lengths_change_nothing(two_modal):
    h = features()

    def F(rows):
        return exact_value(contrastive(rows, two_modal=two_modal))

    turn = torch.linalg.qr(torch.randn(D, D, dtype=torch.float64)).Q
    length = torch.rand(N, 2, 1, dtype=torch.float64) + 0.5
    for other in (h[torch.randperm(N)], h @ turn, h * length, h.flip(1)):
        torch.testing.assert_close(F(other), F(h))
    raw = contrastive(h, two_modal=two_modal, normalize=False)
    long = contrastive(2 * h, two_modal=two_modal, normalize=False)
    assert not torch.isclose(exact_value(raw), exact_value(long))


@pytest.mark.parametrize("two_modal", [False, True])
def test_matching_pairs_score_better(two_modal):
    angle = 2 * math.pi * torch.arange(N) / N
    circle = torch.stack([angle.cos(), angle.sin(), 0 * angle], 1).double()
    matched = contrastive(torch.stack([circle, circle], 1), two_modal=two_modal)
    shifted = contrastive(torch.stack([circle, circle.roll(3, 0)], 1), two_modal=two_modal)
    assert exact_value(matched) < exact_value(shifted)


@pytest.mark.parametrize("two_modal", [False, True])
def test_the_mean_over_all_draws_of_negatives_is_exact(two_modal):
    objective = contrastive(features(), two_modal=two_modal, temperature=0.3)
    exact = objective(*whole(objective)).detach().exp()
    for i in range(N):
        rest = [j for j in range(N) if j != i]
        probes = [
            objective(torch.tensor([i]), hand_made(objective, [i], sorted([i, *some])))[0].detach().numpy()
            for some in itertools.combinations(rest, 3)
        ]
        np.testing.assert_allclose(np.exp(probes).mean(0), exact[i].numpy(), rtol=1e-12)


def test_an_example_that_comes_twice_is_no_negative_of_itself():
    objective = contrastive(features())
    ids = torch.tensor([0, 1, 2, 0])
    twice = objective(torch.tensor([0]), hand_made(objective, [0], ids))
    torch.testing.assert_close(twice, objective(torch.tensor([0]), hand_made(objective, [0], [0, 1, 2])))


@pytest.mark.parametrize("two_modal", [False, True])
@pytest.mark.parametrize("size", [2, 3, N])
def test_chunks_add_up(size, two_modal):
    assert_chunks_add_up(contrastive(features(), two_modal=two_modal, temperature=0.2), size)


def far_features(n, seed=0):
    """Some pairs agree and are far from the rest (exponents near -400 at tau = 0.005), some disagree (near +400)."""
    generator = torch.Generator().manual_seed(seed)
    h = 0.1 * torch.randn(n, 2, D, generator=generator)
    h[:, 0, 0] += torch.where(torch.arange(n) < 2, -1.0, 1.0)
    h[:, 1, 0] += torch.where(torch.arange(n) % 4 == 1, -1.0, 1.0) * h[:, 0, 0].sign()
    return h


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("two_modal", [False, True])
@pytest.mark.parametrize("name", RECIPES)
def test_exponents_of_400_in_single_precision(name, two_modal, blocks):
    n = 8
    objective = contrastive(far_features(n), two_modal=two_modal, temperature=0.005)
    g = objective(*whole(objective))
    assert g.max() > 350.0
    drawn = draws(n, torch.arange(n), blocks=blocks, others=3, steps=10)
    assert_same_gradients(objective, lambda i, ids: hand_made(objective, i, ids), name, drawn, lr=0.001)


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("per_example", [False, True])
def test_a_learned_temperature_in_single_precision(name, per_example, blocks):
    n = 8
    learned = LearnedTemperature(start=0.01, rho=0.5, minimum=0.004, per_example=per_example)
    objective = contrastive(far_features(n), temperature=learned)
    assert objective(*whole(objective)).max() > 150.0
    drawn = draws(n, torch.arange(n), blocks=blocks, others=3, steps=10)
    assert_same_gradients(objective, lambda i, ids: hand_made(objective, i, ids), name, drawn, lr=0.001)


@pytest.mark.parametrize("offset", [-400.0, 400.0])
def test_all_negatives_near_one_far_exponent(offset):
    h = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    pair = torch.stack([h, h if offset < 0 else -h], 1)  # similarity 1 or -1 with itself, 0 with the other
    objective = contrastive(pair, two_modal=True, temperature=1 / 400)
    torch.testing.assert_close(objective(*whole(objective)), torch.full((2, 2), offset), check_dtype=False)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=1e-3), fcco.msvr_v2(alpha=0.5, beta=0.3))
    for _ in range(3):
        assert math.isfinite(solver.step(*whole(objective)).value)


@pytest.mark.parametrize("size", [1e-8, 1e15, 1e19, 1e30])
def test_lengths_whose_squares_leave_single_precision(size):
    """At tau = 0.5 exponents are taken in single precision; lengths must not be."""
    h = features().float()
    found = contrastive(size * h, temperature=0.5)
    wanted = contrastive(h, temperature=0.5)
    for objective in (found, wanted):
        exact_value(objective).backward()
    torch.testing.assert_close(exact_value(found), exact_value(wanted), rtol=1e-6, atol=0.0)
    torch.testing.assert_close(size * found.model.rows.grad, wanted.model.rows.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("two_modal", [False, True])
def test_with_the_loader(two_modal):
    assert_loader_fits(contrastive(features(), two_modal=two_modal, temperature=0.3), 4, 0, 3)


def test_errors_name_what_is_wrong():
    model = nn.Linear(4, D)
    x = torch.randn(N, 4)
    data = Examples((x, x))
    with pytest.raises(TypeError, match=r"GlobalContrastive needs fcco\.data\.Examples, got Points"):
        GlobalContrastive(model, Points(x, torch.arange(N) % 2))
    with pytest.raises(ValueError, match="temperature must be > 0"):
        GlobalContrastive(model, data, temperature=0.0)
    with pytest.raises(ValueError, match="epsilon must be >= 0"):
        GlobalContrastive(model, data, epsilon=-1.0)
    with pytest.raises(ValueError, match="start must be above the minimum"):
        LearnedTemperature(start=0.01, minimum=0.05)
    objective = GlobalContrastive(model, data)
    ids = torch.arange(N)
    with pytest.raises(ValueError, match="two views of the same shape"):
        objective(ids, Batch((x, x[:3]), ids, block_pos=ids))
    with pytest.raises(ValueError, match=r"features must have shape \(7, 2, d\)"):
        objective(ids, Batch(x, ids, block_pos=ids))
    with pytest.raises(ValueError, match=r"batch\.block_pos must be given"):
        objective(ids, Batch((x, x), ids))
    with pytest.raises(ValueError, match="no other examples for block 2"):
        objective(torch.tensor([2]), Batch((x[2:3], x[2:3]), torch.tensor([2]), block_pos=torch.tensor([0])))
    with pytest.raises(ValueError, match="own example, not so for 1"):
        objective(torch.tensor([1]), Batch((x, x), ids, block_pos=torch.tensor([0])))
