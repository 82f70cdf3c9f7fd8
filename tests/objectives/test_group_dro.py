"""GroupDRO: brute force, what v makes of it, chunks, single precision."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import fcco
from fcco.data import Bags, Groups
from fcco.objectives import CVaRRisk, GroupDRO, KLRisk
from fcco.objectives._group_dro import cross_entropy
from tests.objectives.tools import (
    RECIPES,
    Table,
    all_parameters,
    assert_chunks_add_up,
    assert_exact,
    assert_loader_fits,
    assert_same_gradients,
    exact_value,
    hand_made,
    whole,
)

GROUPS = torch.tensor([0, 2, 1, 1, 2, 2, 3, 0, 2, 3, 1, 2])
N, M = len(GROUPS), 4
Y = torch.tensor([0, 1, 2, 1, 0, 2, 1, 1, 0, 2, 0, 1])
DATA = Groups(torch.arange(N), Y, GROUPS)
WEIGHT = torch.tensor([1.0, 5.0, 2.0, 0.5])


def identity(outputs, y):
    return outputs


def group_dro(rows, risk, **options):
    """Losses straight from a table."""
    return GroupDRO(Table(rows), DATA, risk, loss=identity, **options)


def means(losses):
    return torch.stack([losses[i == GROUPS].mean() for i in range(M)])


def shares(weight):
    return torch.full((M,), 1 / M, dtype=torch.float64) if weight is None else weight.double() / weight.double().sum()


def kl(g, v, p, strength):
    return v + strength * (p * (torch.exp((g - v) / strength) - 1)).sum()


def cvar(g, v, p, alpha, rho):
    x = g - v
    smooth = torch.where(x <= 0, 0 * x, torch.where(x <= rho, x**2 / (2 * max(rho, 1e-9)), x - rho / 2))
    return v + (p * smooth).sum() / alpha


@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("strength", [0.3, 2.0])
def test_one_step_is_the_gradient_of_the_kl_form(strength, weight):
    objective = group_dro(torch.rand(N, dtype=torch.float64), KLRisk(strength), group_weight=weight, start=0.6)
    excess = (means(objective.model.rows.detach()) - 0.6) / strength
    assert bool((excess < -shares(weight).log()).all())  # the exponential itself, not its tangent

    def written_out():
        return kl(means(objective.model.rows), objective.v, shares(weight), strength)

    assert_exact(objective, written_out)


@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("rho", [0.0, 0.2])
def test_one_step_is_the_gradient_of_the_smoothed_cvar(rho, weight):
    objective = group_dro(torch.rand(N, dtype=torch.float64), CVaRRisk(0.4, rho), group_weight=weight, start=0.45)
    spread = means(objective.model.rows.detach()) - 0.45
    assert spread.min() < 0 < spread.max()

    def written_out():
        return cvar(means(objective.model.rows), objective.v, shares(weight), 0.4, rho)

    assert_exact(objective, written_out)


@pytest.mark.parametrize("binary", [False, True])
def test_cross_entropy_of_a_network_is_the_default(binary):
    x = torch.randn(N, 5, dtype=torch.float64)
    model = nn.Linear(5, 1 if binary else 3).double()
    y = (Y > 0).long() if binary else Y
    objective = GroupDRO(model, Groups(x, y, GROUPS), KLRisk(0.5), start=2.0)

    def written_out():
        h = model(x)
        if binary:
            p = torch.sigmoid(h.squeeze(1))
            losses = -torch.where(y == 1, p.log(), (1 - p).log())
        else:
            losses = -h.softmax(1).log()[torch.arange(N), y]
        return kl(means(losses), objective.v, shares(None), 0.5)

    assert_exact(objective, written_out)
    torch.testing.assert_close(cross_entropy(torch.zeros(2, 1), torch.tensor([0, 1])), torch.full((2,), math.log(2)))


def test_examples_serve_the_group_they_were_drawn_for():
    objective = group_dro(torch.rand(N, dtype=torch.float64), KLRisk(0.5))
    index = torch.tensor([2, 0, 3])
    serves = torch.tensor([index.tolist().index(g) if g in index else -2 for g in GROUPS.tolist()])
    served = hand_made(objective, index, range(N), serves=serves)
    torch.testing.assert_close(objective(index, served), objective(index, hand_made(objective, index, range(N))))


def best_v(objective, low, high):
    """The minimum over v alone: F is convex in it, so its slope is bisected."""
    index, batch = whole(objective)
    g = objective(index, batch).detach()
    for _ in range(100):
        middle = (low + high) / 2
        with torch.no_grad():
            objective.v.fill_(middle)
        F = objective.outer(index, g).mean()
        (slope,) = torch.autograd.grad(F, objective.v)
        low, high = (low, middle) if slope > 0 else (middle, high)
    return F.item()


@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("strength", [0.003, 0.2, 3.0])
def test_the_minimum_over_v_is_the_log_of_the_mean_exponential(strength, weight):
    losses = 2 * torch.rand(N, dtype=torch.float64)
    objective = group_dro(losses, KLRisk(strength), group_weight=weight)
    expected = strength * torch.logsumexp(means(losses) / strength + shares(weight).log(), 0)
    assert best_v(objective, -50.0, 50.0) == pytest.approx(expected.item(), rel=1e-8)


@pytest.mark.parametrize("strength", [0.01, 0.2, 5.0])
def test_the_tangent_begins_above_every_exponential_of_the_best_v(strength):
    losses = 2 * torch.rand(N, dtype=torch.float64)
    p = shares(WEIGHT)
    v = strength * torch.logsumexp(means(losses) / strength + p.log(), 0)
    excess = (means(losses) - v).requires_grad_()
    phi = KLRisk(strength)(excess, p)
    torch.testing.assert_close(phi, strength * (torch.exp(excess / strength) - 1))
    (weight,) = torch.autograd.grad(phi.sum(), excess)
    assert (p * weight).sum().item() == pytest.approx(1.0)  # the worst-case distribution over groups
    far = torch.full((M,), 1e6, dtype=torch.float64, requires_grad=True)
    (weight,) = torch.autograd.grad(KLRisk(strength)(far, p).sum(), far)
    torch.testing.assert_close(weight, 1 / p)  # and no group ever counts more than alone


def test_the_minimum_of_the_cvar_is_the_mean_of_the_worst():
    losses = torch.rand(N, dtype=torch.float64)
    worst = means(losses).sort(descending=True).values[:2].mean().item()
    grid = [
        exact_value(group_dro(losses, CVaRRisk(0.5, 0.0), start=v)).item() for v in torch.linspace(0, 1, 201).tolist()
    ]
    assert min(grid) == pytest.approx(worst, abs=5e-3)
    smooth = [
        exact_value(group_dro(losses, CVaRRisk(0.5, 0.01), start=v)).item() for v in torch.linspace(0, 1, 201).tolist()
    ]
    assert min(grid) - 0.01 <= min(smooth) <= min(grid)


def test_permutations_change_nothing_and_shifts_of_losses_shift_f():
    losses = torch.rand(N, dtype=torch.float64)
    F = exact_value(group_dro(losses, KLRisk(0.3)))
    order = torch.randperm(N)
    data = Groups(torch.arange(N), Y[order], GROUPS[order])
    permuted = GroupDRO(Table(losses[order]), data, KLRisk(0.3), loss=identity)
    torch.testing.assert_close(exact_value(permuted), F)
    shifted = group_dro(losses + 2.0, KLRisk(0.3), start=2.0)
    torch.testing.assert_close(exact_value(shifted), F + 2.0)


@pytest.mark.parametrize("risk", [KLRisk(0.05), CVaRRisk(0.25, 0.05)])
def test_the_worst_group_improves_most(risk):
    """Training lowers the worst group's loss further than the mean's gradient would."""
    torch.manual_seed(1)
    x = torch.randn(N, 2)
    x[GROUPS == 3] *= -1.0  # a group that the others pull the wrong way
    y = (x[:, 0] * torch.where(GROUPS == 3, -1.0, 1.0) > 0).long()
    data = Groups(x, y, GROUPS)

    def trained(risk):
        torch.manual_seed(0)
        objective = GroupDRO(nn.Linear(2, 2), data, risk, start=0.7)
        solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.2), fcco.sox(alpha=0.9, beta=0.9))
        for _ in range(25):
            solver.step(*whole(objective))
        return objective(*whole(objective)).max().item()

    assert trained(risk) < trained(KLRisk(100.0))  # very strong: the mean


def test_chunks_add_up():
    objective = group_dro(torch.rand(N, dtype=torch.float64), KLRisk(0.5), start=0.3)
    assert_chunks_add_up(objective, 5)


def drawn(blocks=2, steps=12):
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        index = torch.randperm(M, generator=generator)[:blocks].tolist()
        ids = torch.randperm(N, generator=generator)[:6].tolist()
        yield index, sorted({*ids, 0, 1, 2, 6})  # somebody of every group


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("risk", [KLRisk(0.005), CVaRRisk(0.3, 0.01)])
@pytest.mark.parametrize("start", [-1.0, 1.0, 3.0])
def test_exponents_of_400_in_single_precision(start, risk, name):
    losses = GROUPS.float() / 2 + 0.1 * torch.rand(N, generator=torch.Generator().manual_seed(0))
    objective = group_dro(losses, risk, start=start)
    excess = (means(losses) - start) / 0.005
    assert excess.abs().max() > 180.0
    assert_same_gradients(objective, lambda i, ids: hand_made(objective, i, ids), name, drawn(), lr=0.001)


def test_v_is_trained_with_the_rest():
    objective = group_dro(torch.rand(N), KLRisk(1.0))
    assert {id(p) for p in all_parameters(objective)} == {id(objective.v), id(objective.model.rows)}


def test_with_the_loader():
    assert_loader_fits(group_dro(torch.rand(N, dtype=torch.float64), KLRisk(0.5), start=0.4), 3, 2, 5)


def test_errors_name_what_is_wrong():
    model = nn.Linear(5, 3)
    with pytest.raises(ValueError, match="strength must be > 0"):
        KLRisk(0.0)
    with pytest.raises(ValueError, match=r"fraction must be in \(0, 1\]"):
        CVaRRisk(0.0)
    with pytest.raises(TypeError, match=r"GroupDRO needs fcco\.data\.Groups, got Bags"):
        GroupDRO(model, Bags(torch.arange(4), [0, 0, 1, 1], [0, 1]), KLRisk())
    with pytest.raises(TypeError, match="risk must be a KLRisk or CVaRRisk"):
        GroupDRO(model, DATA, 0.5)
    for weight, message in (
        (torch.zeros(M), "group_weight must be > 0 somewhere"),
        (torch.tensor([1.0, 0.0, 1.0, 1.0]), "group_weight must be > 0 for every group"),
        (-torch.ones(M), "group_weight must be finite and >= 0"),
        (torch.ones(3), r"group_weight must have shape \(4,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            GroupDRO(model, DATA, KLRisk(), group_weight=weight)
    wrong = GroupDRO(model, Groups(torch.randn(N, 5), Y, GROUPS), KLRisk(), loss=functional.cross_entropy)
    with pytest.raises(ValueError, match="loss must return one number per example"):
        wrong(*whole(wrong))
    objective = group_dro(torch.rand(N), KLRisk())
    with pytest.raises(ValueError, match="no examples for block 3"):
        objective(torch.arange(M), hand_made(objective, range(M), [0, 1, 2]))


def test_a_corner_too_small_for_the_dtype_is_none():
    """It was 0/0: F was NaN with a float32 model."""
    excess = torch.tensor([-1.0, 0.0, 2.0])
    share = torch.full((3,), 1 / 3)
    for smoothing in (6.7e-124, 1e-44, 5e-324):
        found = CVaRRisk(fraction=0.5, smoothing=smoothing)(excess, share)
        assert torch.equal(found, CVaRRisk(fraction=0.5, smoothing=0.0)(excess, share))
