"""GroupDRO: brute force, what v makes of it, chunks, single precision."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import fcco
from fcco.objectives._group_dro import CVaRRisk, GroupDRO, KLRisk, cross_entropy
from fcco.sampling.batch import Batch
from fcco.sampling.groups import GroupLoader
from tests.objectives.test_cox import (
    RECIPES,
    Table,
    all_parameters,
    assert_chunks_add_up,
    assert_exact,
    assert_loader_fits,
    assert_same_gradients,
    value,
)

GROUPS = torch.tensor([0, 2, 1, 1, 2, 2, 3, 0, 2, 3, 1, 2])
N, M = len(GROUPS), 4
Y = torch.tensor([0, 1, 2, 1, 0, 2, 1, 1, 0, 2, 0, 1])
WEIGHT = torch.tensor([1.0, 5.0, 2.0, 0.5])


def identity(outputs, y):
    return outputs


def group_dro(rows, risk, **options):
    """Losses straight from a table."""
    return GroupDRO(Table(rows), M, risk, loss=identity, groups=GROUPS, **options)


def batch_of(ids):
    ids = torch.as_tensor(ids)
    return Batch(ids, ids, y=Y[ids])


def whole():
    return torch.arange(M), batch_of(torch.arange(N))


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

    assert_exact(objective, *whole(), written_out)


@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("rho", [0.0, 0.2])
def test_one_step_is_the_gradient_of_the_smoothed_cvar(rho, weight):
    objective = group_dro(torch.rand(N, dtype=torch.float64), CVaRRisk(0.4, rho), group_weight=weight, start=0.45)
    spread = means(objective.model.rows.detach()) - 0.45
    assert spread.min() < 0 < spread.max()

    def written_out():
        return cvar(means(objective.model.rows), objective.v, shares(weight), 0.4, rho)

    assert_exact(objective, *whole(), written_out)


@pytest.mark.parametrize("binary", [False, True])
def test_cross_entropy_of_a_network_is_the_default(binary):
    x = torch.randn(N, 5, dtype=torch.float64)
    model = nn.Linear(5, 1 if binary else 3).double()
    y = (Y > 0).long() if binary else Y
    objective = GroupDRO(model, M, KLRisk(0.5), groups=GROUPS, start=2.0)

    def written_out():
        h = model(x)
        if binary:
            p = torch.sigmoid(h.squeeze(1))
            losses = -torch.where(y == 1, p.log(), (1 - p).log())
        else:
            losses = -h.softmax(1).log()[torch.arange(N), y]
        return kl(means(losses), objective.v, shares(None), 0.5)

    assert_exact(objective, torch.arange(M), Batch(x, torch.arange(N), y=y), written_out)
    torch.testing.assert_close(cross_entropy(torch.zeros(2, 1), torch.tensor([0, 1])), torch.full((2,), math.log(2)))


def test_groups_may_come_from_what_an_example_serves():
    losses = torch.rand(N, dtype=torch.float64)
    by_map = group_dro(losses, KLRisk(0.5))
    by_place = GroupDRO(Table(losses), M, KLRisk(0.5), loss=identity)
    index = torch.tensor([2, 0, 3])
    ids = torch.arange(N)
    serves = torch.tensor([index.tolist().index(g) if g in index else -2 for g in GROUPS.tolist()])
    torch.testing.assert_close(by_place(index, Batch(ids, ids, y=Y, serves=serves)), by_map(index, batch_of(ids)))


def best_v(objective, low, high):
    """The minimum over v alone: F is convex in it, so its slope is bisected."""
    index, batch = whole()
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
        value(group_dro(losses, CVaRRisk(0.5, 0.0), start=v), *whole()).item()
        for v in torch.linspace(0, 1, 201).tolist()
    ]
    assert min(grid) == pytest.approx(worst, abs=5e-3)
    smooth = [
        value(group_dro(losses, CVaRRisk(0.5, 0.01), start=v), *whole()).item()
        for v in torch.linspace(0, 1, 201).tolist()
    ]
    assert min(grid) - 0.01 <= min(smooth) <= min(grid)


def test_permutations_change_nothing_and_shifts_of_losses_shift_f():
    losses = torch.rand(N, dtype=torch.float64)
    F = value(group_dro(losses, KLRisk(0.3)), *whole())
    order = torch.randperm(N)
    permuted = GroupDRO(Table(losses[order]), M, KLRisk(0.3), loss=identity, groups=GROUPS[order])
    torch.testing.assert_close(value(permuted, *whole()), F)
    shifted = group_dro(losses + 2.0, KLRisk(0.3), start=2.0)
    torch.testing.assert_close(value(shifted, *whole()), F + 2.0)


@pytest.mark.parametrize("risk", [KLRisk(0.05), CVaRRisk(0.25, 0.05)])
def test_the_worst_group_improves_most(risk):
    """Training lowers the worst group's loss further than the mean's gradient would."""
    torch.manual_seed(1)
    x = torch.randn(N, 2)
    x[GROUPS == 3] *= -1.0  # a group that the others pull the wrong way
    y = (x[:, 0] * torch.where(GROUPS == 3, -1.0, 1.0) > 0).long()
    batch = Batch(x, torch.arange(N), y=y)

    def trained(risk):
        torch.manual_seed(0)
        objective = GroupDRO(nn.Linear(2, 2), M, risk, groups=GROUPS, start=0.7)
        solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.2), fcco.sox(alpha=0.9, beta=0.9))
        for _ in range(25):
            solver.step(torch.arange(M), batch)
        return objective(torch.arange(M), batch).max().item()

    assert trained(risk) < trained(KLRisk(100.0))  # very strong: the mean


def test_chunks_add_up():
    objective = group_dro(torch.rand(N, dtype=torch.float64), KLRisk(0.5), start=0.3)
    size = GROUPS.bincount().double()

    def full_pass():
        for ids in torch.arange(N).split(5):
            for index in torch.arange(M).split(3):
                yield index, Batch(ids, ids, y=Y[ids], weight=1 / size[GROUPS[ids]])

    assert_chunks_add_up(objective, full_pass, *whole())


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
    assert_same_gradients(objective, lambda _, ids: batch_of(ids), name, drawn(), lr=0.001)


def test_v_is_trained_with_the_rest():
    objective = group_dro(torch.rand(N), KLRisk(1.0))
    assert {id(p) for p in all_parameters(objective)} == {id(objective.v), id(objective.model.rows)}


def test_with_the_loader():
    losses = torch.rand(N, dtype=torch.float64)
    objective = GroupDRO(Table(losses), M, KLRisk(0.5), loss=identity, start=0.4)
    loader = GroupLoader(torch.arange(N), GROUPS, 3, 2, labels=Y, seed=0)
    index, batch = whole()
    served = Batch(batch.x, batch.id, y=batch.y, serves=GROUPS)
    assert_loader_fits(objective, loader, 5, index, served)


def test_errors_name_what_is_wrong():
    model = nn.Linear(5, 3)
    with pytest.raises(ValueError, match="strength must be > 0"):
        KLRisk(0.0)
    with pytest.raises(ValueError, match=r"fraction must be in \(0, 1\]"):
        CVaRRisk(0.0)
    with pytest.raises(ValueError, match="got none of group 4"):
        GroupDRO(model, 5, KLRisk(), groups=GROUPS)
    with pytest.raises(ValueError, match=r"groups must be in 0\.\.2, got 3"):
        GroupDRO(model, 3, KLRisk(), groups=GROUPS)
    with pytest.raises(ValueError, match="group_weight must be"):
        GroupDRO(model, M, KLRisk(), group_weight=torch.zeros(M))
    ids = torch.arange(N)
    with pytest.raises(ValueError, match=r"batch\.serves must say the group"):
        GroupDRO(model, M, KLRisk())(torch.arange(M), Batch(torch.randn(N, 5), ids, y=Y))
    with pytest.raises(ValueError, match="loss must return one number an example"):
        GroupDRO(model, M, KLRisk(), groups=GROUPS, loss=functional.cross_entropy)(
            torch.arange(M), Batch(torch.randn(N, 5), ids, y=Y)
        )
    with pytest.raises(ValueError, match="no examples for block 3"):
        group_dro(torch.rand(N), KLRisk())(torch.arange(M), batch_of([0, 1, 2]))
