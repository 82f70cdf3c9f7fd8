"""Weights of examples, for every objective: two copies equal weight 2, weight 0 is absence; by passes and draws."""

import itertools

import pytest
import torch

from tests.objectives.cases import CASES, CLASS, VIEW, N, X
from tests.objectives.tools import (
    all_parameters,
    assert_same,
    everything,
    exact_value,
    flat,
    hand_made,
    passed,
    value,
)

ROWS = torch.tensor([*range(N), 3, 4, 4, 10])  # which examples come how often
COPIES = ROWS.bincount().double()
ANY = torch.tensor([0.5, 2.0, 1.0, 3.0, 0.3, 1.5, 1.0, 0.7, 2.5, 1.2, 0.9, 1.1], dtype=torch.float64)
LEAVE_ONE_OUT = [name for name, case in CASES.items() if case.kind.__name__ == "Examples"]
OTHERS = [name for name in CASES if name not in LEAVE_ONE_OUT]


def gradient(objective, F):
    return flat(torch.autograd.grad(F, all_parameters(objective)))


@pytest.mark.parametrize("name", OTHERS)
def test_two_copies_are_an_example_of_weight_2(name):
    copies, weighted = CASES[name].objective(ROWS), CASES[name].objective(weight=COPIES)
    wanted = exact_value(copies)
    for found in (exact_value(weighted), exact_value(weighted, 1000), of_everything(weighted)):
        assert found.item() == pytest.approx(wanted.item(), rel=1e-12)
        torch.testing.assert_close(
            gradient(weighted, found), gradient(copies, exact_value(copies)), rtol=1e-10, atol=1e-12
        )


def of_everything(objective):
    batch = everything(objective)
    return value(objective, batch.index, batch)


@pytest.mark.parametrize("name", CASES)
def test_an_example_of_weight_0_is_not_there(name):
    weight = torch.ones(N, dtype=torch.float64)
    weight[10] = 0.0
    rest = torch.arange(N)[torch.arange(N) != 10]
    without, weighted = CASES[name].objective(rest), CASES[name].objective(weight=weight)
    wanted = exact_value(without)
    for found in (exact_value(weighted), of_everything(weighted)):
        assert found.item() == pytest.approx(wanted.item(), rel=1e-12)
        torch.testing.assert_close(
            gradient(weighted, found), gradient(without, exact_value(without)), rtol=1e-10, atol=1e-12
        )


@pytest.mark.parametrize("name", [name for name in CASES if name != "NDCG"])
def test_only_the_proportions_of_weights_matter(name):
    """But for a constant where F counts examples (Cox, ListNet); NDCG's places are counted in weights."""
    one, other = CASES[name].objective(weight=ANY), CASES[name].objective(weight=2.5 * ANY)
    if name not in ("Cox", "ListNet"):
        assert exact_value(other).item() == pytest.approx(exact_value(one).item(), rel=1e-12)
    torch.testing.assert_close(
        gradient(other, exact_value(other)), gradient(one, exact_value(one)), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("name", CASES)
def test_equal_weights_are_none(name):
    plain, weighted = CASES[name].objective(), CASES[name].objective(weight=torch.ones(N))
    assert_same(exact_value(weighted), exact_value(weighted, 5), all_parameters(weighted))
    assert exact_value(weighted).item() == pytest.approx(exact_value(plain).item(), rel=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_draws_are_unbiased_for_weighted_means(name):
    objective = CASES[name].objective(weight=ANY)
    exact = passed(objective).detach()
    log_domain = torch.tensor(objective.log_domain)
    total, square = torch.zeros_like(exact), torch.zeros_like(exact)
    count = torch.zeros(len(exact), 1)
    blocks = min(3, objective.num_blocks)
    loader = objective.loader(blocks, 4, seed=1)
    for batch in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), 400):
        probe = objective(batch.index, batch).detach()
        probe = torch.where(log_domain, (probe - exact[batch.index]).exp(), probe)
        total[batch.index] += probe
        square[batch.index] += probe.square()
        count[batch.index] += 1
    mean = total / count
    error = ((square / count - mean.square()).clamp(min=0.0) / count).sqrt()
    wanted = torch.where(log_domain, torch.ones_like(exact), exact)
    assert bool(((mean - wanted).abs() <= 5.0 * error + 1e-9).all())


# ---- objectives that leave one out: copies of an example are no neighbours of each other


def contrastive_by_hand(model, tau, rho, original, weight):
    """Every copy against every copy of other examples."""
    h = torch.stack([model(X), model(VIEW)], 1)
    h = h / h.norm(dim=2, keepdim=True)
    total = 0.0
    for (i, mine), v in itertools.product(zip(original, weight, strict=True), (0, 1)):
        others = [(j, w) for j, w in zip(original, weight, strict=True) if j != i]
        terms = [w * torch.exp((h[i, v] @ h[j, k] - h[i, 0] @ h[i, 1]) / tau) for j, w in others for k in (0, 1)]
        mean = sum(terms) / (2 * sum(w for _, w in others))
        total = total + mine * tau * (torch.log(mean) + rho) / 2
    return total / sum(weight)


def nca_by_hand(model, original, weight):
    h = model(X)
    total = 0.0
    for i, mine in zip(original, weight, strict=True):
        near = [
            (w * torch.exp(-(h[i] - h[j]).square().sum()), bool(CLASS[i] == CLASS[j]))
            for j, w in zip(original, weight, strict=True)
            if j != i
        ]
        total = total - mine * sum(x for x, same in near if same) / sum(x for x, _ in near)
    return total / sum(weight)


@pytest.mark.parametrize("name", LEAVE_ONE_OUT)
@pytest.mark.parametrize("copies", [True, False])
def test_leaving_one_out_leaves_all_its_copies_out(name, copies):
    weight = COPIES if copies else ANY
    objective = CASES[name].objective(weight=weight)
    original, each = list(range(N)), weight.tolist()
    if copies:
        original, each = ROWS.tolist(), [1.0] * len(ROWS)
    if name == "NCA":
        wanted = nca_by_hand(objective.model, original, each)
    elif objective.excess is None:
        wanted = contrastive_by_hand(objective.model, 0.5, 0.0, original, each)
    else:
        tau = 0.1 + objective.excess.exp()
        wanted = contrastive_by_hand(objective.model, tau, 0.2, original, each)
    found = [exact_value(objective), of_everything(objective)]
    expected = gradient(objective, wanted)
    for F in found:
        assert F.item() == pytest.approx(wanted.item(), rel=1e-12)
        torch.testing.assert_close(gradient(objective, F), expected, rtol=1e-10, atol=1e-12)


def test_a_batch_without_weights_is_refused_where_the_data_have_them():
    objective = CASES["pAUC"].objective(weight=ANY)
    batch = hand_made(objective, [0], range(N))
    with pytest.raises(ValueError, match=r"batch\.weight must be given, since the data have weights"):
        objective(batch.index, batch)
    batch = objective.complete(objective.data.batch(torch.arange(N), X))
    torch.testing.assert_close(objective(batch.index, batch), passed(objective))


def test_a_batch_whose_others_have_weight_0_is_finite():
    x = torch.randn(6, 3)
    data = Examples((x, x + 0.1), weight=[1, 1, 1, 0, 0, 0])
    objective = objectives.GlobalContrastive(nn.Linear(3, 2), data)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), fcco.sox())
    for batch in solver.loader(2, 1, seed=0, steps_per_epoch=20):
        solver.step(batch)
    assert torch.isfinite(solver.u()).all()
