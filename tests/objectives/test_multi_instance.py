"""MultiInstance: brute force over bags and instances, what its trained centers stand for, numbers that stay finite."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fcco
from fcco.data import Bags, Groups
from fcco.objectives import MultiInstance, Square, SquaredHinge
from tests.objectives.literal import Scores, against_double, check_everywhere, check_full_pass
from tests.objectives.tools import hand_made, pairs_of, value, whole

LABEL = torch.tensor([0, 1, 0, 0, 1, 0])
BAG = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 3, 3, 4, 4, 5, 5, 5])  # the bag of each instance
X = torch.randn(15, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
DATA = Bags(X, BAG, LABEL)
NUMBERS = Bags(torch.arange(15), BAG, LABEL)
LOSSES = [SquaredHinge(), SquaredHinge(0.5, 3.0), Square(1.0, 2.0)]


def network(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def pooled(scores, temperature):
    """tau log mean exp(s/tau), bag by bag."""
    bags = [[k for k in range(len(BAG)) if BAG[k] == i] for i in range(len(LABEL))]
    return [temperature * (sum((scores[k] / temperature).exp() for k in bag) / len(bag)).log() for bag in bags]


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_it_equals_brute_force(loss, temperature):
    objective = MultiInstance(network(), DATA, temperature=temperature, loss=loss)
    with torch.no_grad():
        objective.a.fill_(0.3)
        objective.b.fill_(-0.1)

    def F():
        h = pooled(objective.model(X)[:, 0], temperature)
        positive = [h[i] for i in range(6) if LABEL[i] == 1]
        negative = [h[i] for i in range(6) if LABEL[i] == 0]
        return (
            sum((x - objective.a) ** 2 for x in positive) / len(positive)
            + sum((x - objective.b) ** 2 for x in negative) / len(negative)
            + loss(objective.b - objective.a)
        )

    check_everywhere(objective, F)


def test_a_full_pass_with_bags_in_parts_adds_up_to_the_exact_value():
    objective = MultiInstance(network(), DATA, temperature=0.3)
    check_full_pass(objective, *whole(objective), pairs_of(objective, 4))


# ---- properties -----------------------------------------------------------------------------------------


def best_centers(objective):
    """a and b put where F is least: F is quadratic in them on either side of the hinge's kink."""
    index, batch = whole(objective)
    centers = [objective.a, objective.b]
    for _ in range(3):
        F = value(objective, index, batch)
        slope = torch.stack(torch.autograd.grad(F, centers, create_graph=True))
        hessian = torch.stack([torch.stack(torch.autograd.grad(s, centers, retain_graph=True)) for s in slope])
        with torch.no_grad():
            for center, step in zip(centers, torch.linalg.solve(hessian, slope), strict=True):
                center -= step
    return value(objective, index, batch).item()


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from(LOSSES))
def test_with_the_best_centers_it_is_variances_plus_the_mean_margin(seed, loss):
    s = 2 * torch.randn(15, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    objective = MultiInstance(Scores(s), NUMBERS, temperature=0.5, loss=loss)
    h = torch.stack(pooled(s, 0.5))
    positive, negative = h[LABEL == 1], h[LABEL == 0]
    x = loss.margin + negative.mean() - positive.mean()
    margin = x if isinstance(loss, Square) else x.clamp(min=0)
    wanted = positive.var(correction=0) + negative.var(correction=0)
    wanted = wanted + loss.scale / (1 + 2 * loss.scale) * margin**2
    found = best_centers(objective)
    assert found == pytest.approx(wanted.item(), rel=1e-9, abs=1e-9)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10**6), st.floats(-5, 5), st.randoms())
def test_shifts_and_permutations_change_nothing(seed, shift, random):
    s = torch.randn(15, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    F = best_centers(MultiInstance(Scores(s), NUMBERS))
    assert best_centers(MultiInstance(Scores(s + shift), NUMBERS)) == pytest.approx(F)
    order = list(range(15))
    random.shuffle(order)
    mixed = MultiInstance(Scores(s[order]), Bags(torch.arange(15), BAG[order], LABEL))
    assert best_centers(mixed) == pytest.approx(F)


@settings(deadline=None, max_examples=20)
@given(st.permutations(range(6)))
def test_the_perfect_ranking_is_best(order):
    """Three positive and three negative bags; every order of the same bag scores."""
    data = Bags(torch.arange(6), torch.arange(6), torch.tensor([1, 1, 1, 0, 0, 0]))

    def F(scores):
        scores = torch.tensor(scores, dtype=torch.float64) / 4
        return best_centers(MultiInstance(Scores(scores), data))

    if min(order[:3]) > max(order[3:]):
        assert F(order) == pytest.approx(F([5, 4, 3, 2, 1, 0]))
    else:
        assert F(order) > F([5, 4, 3, 2, 1, 0])


def test_the_temperature_goes_from_the_mean_to_the_maximum():
    s = torch.randn(15, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for temperature, pool in ((1e5, torch.mean), (1e-3, torch.amax)):
        objective = MultiInstance(Scores(s), NUMBERS, temperature=temperature)
        h = temperature * objective(*whole(objective))[:, 0].detach()
        wanted = torch.stack([pool(s[i == BAG], 0) for i in range(6)])
        torch.testing.assert_close(h, wanted, atol=5e-3, rtol=0)


# ---- numbers that stay finite ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sox", "msvr-v1", "msvr-v2"])
@pytest.mark.parametrize(("temperature", "spread"), [(0.01, 1.5), (1.0, 150.0)])
def test_single_precision_equals_double_at_exponents_of_400(name, temperature, spread):
    generator = torch.Generator().manual_seed(0)
    s = spread * torch.randn(40, generator=generator)
    data = Bags(torch.arange(40), torch.arange(40) // 4, torch.arange(10) < 3)

    def make(dtype):
        return MultiInstance(Scores(s), data, temperature=temperature).to(dtype)

    def steps():
        for _ in range(30):  # m/B1 = 10, two of a bag's four instances
            bag = torch.randint(10, (1,), generator=generator)
            ids = 4 * bag + torch.randperm(4, generator=generator)[:2]
            yield bag, hand_made(make(torch.float32), bag, ids)

    assert against_double(name, make, steps(), 0.01) <= 1e-4


def test_it_learns_a_rule_about_the_highest_instance():
    """A bag is positive where one of its instances lies in a corner; half of its instances are seen at a time."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 8, 2, generator=generator)
    label = (x.sum(2).amax(1) > 2.3).long()
    assert 15 < int(label.sum()) < 45
    model = nn.Linear(2, 1)
    nn.init.constant_(model.weight, -0.2)  # the wrong way round
    data = Bags(x.reshape(-1, 2), torch.arange(60).repeat_interleave(8), label)
    objective = MultiInstance(model, data, temperature=0.3)
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.05)
    solver = fcco.Solver(objective, optimizer, fcco.sox(alpha=0.5, beta=0.5))

    def auc():
        with torch.no_grad():
            h = model(x).squeeze(2).div(0.3).logsumexp(1)
        return (h[label == 1].unsqueeze(1) > h[label == 0]).double().mean().item()

    assert auc() < 0.6
    for batch in objective.loader(10, 4, steps_per_epoch=150, seed=0):
        solver.step(batch.index, batch)
    assert auc() > 0.95


def test_what_is_wrong_is_named():
    with pytest.raises(TypeError, match=r"MultiInstance needs fcco\.data\.Bags, got Groups"):
        MultiInstance(network(), Groups(X, BAG, BAG))
    with pytest.raises(ValueError, match="at least one negative bag"):
        MultiInstance(network(), Bags(X, BAG, torch.ones(6)))
    with pytest.raises(TypeError, match="loss must be a SquaredHinge or Square"):
        MultiInstance(network(), DATA, loss=nn.Identity())
    with pytest.raises(ValueError, match="temperature must be > 0"):
        MultiInstance(network(), DATA, temperature=-1.0)
    objective = MultiInstance(network(), DATA)
    with pytest.raises(ValueError, match="no instances for block 4"):
        objective(torch.tensor([0, 4]), hand_made(objective, [0, 4], [0, 1]))
