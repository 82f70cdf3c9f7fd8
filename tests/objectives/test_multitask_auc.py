"""MultiTaskAUC: brute force for both forms, class labels and missing ones, the pairwise square loss, tasks left out."""

import math

import pytest
import torch
from torch import nn

from fcco.data import Batch, Points, Tasks
from fcco.objectives import Logistic, MultiTaskAUC, Square, SquaredHinge
from tests.objectives.literal import check_everywhere
from tests.objectives.tools import assert_loader_fits, exact_value, hand_made, whole

N, T = 13, 3
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def targets(missing=0.3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    y = (torch.rand(N, T, generator=generator) < 0.4).double()
    y[torch.rand(N, T, generator=generator) < missing] = math.nan
    y[:2] = 1.0
    y[2:4] = 0.0
    return y


def network(outputs=T):
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs)).double()


def made(data, outputs=T, **options):
    objective = MultiTaskAUC(network(outputs), data, **options)
    if objective.a is not None:
        with torch.no_grad():
            objective.a.add_(0.3 * torch.arange(objective.num_tasks))
            objective.b.sub_(0.2)
    return objective


def brute(objective, y, tasks=range(T), weight=None):
    """The mean over tasks, written out example by example; y (N, T)."""
    h = objective.model(X)
    total = 0.0
    for t in tasks:
        high = [h[k, t] for k in range(N) if y[k, t] == 1]
        low = [h[k, t] for k in range(N) if y[k, t] == 0]
        a, b = sum(high) / len(high), sum(low) / len(low)
        margin = objective.loss(b - a)
        if objective.a is not None:
            a, b = objective.a[t], objective.b[t]
        around = sum((x - a) ** 2 for x in high) / len(high) + sum((x - b) ** 2 for x in low) / len(low)
        factor = 1.0 if weight is None else weight[t]
        total = total + factor * (around + margin)
    return total / len(list(tasks))


@pytest.mark.parametrize("trained_centers", [True, False])
@pytest.mark.parametrize("loss", [SquaredHinge(1.0, 0.5), Square(0.7), SquaredHinge(0.0)], ids=str)
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_it_equals_brute_force(missing, loss, trained_centers):
    y = targets(missing)
    objective = made(Tasks(X, y), loss=loss, trained_centers=trained_centers)
    check_everywhere(objective, lambda: brute(objective, y))


@pytest.mark.parametrize("trained_centers", [True, False])
def test_class_labels_are_one_against_the_rest(trained_centers):
    y = torch.arange(N) % 3
    objective = made(Tasks(X, y), trained_centers=trained_centers)
    check_everywhere(objective, lambda: brute(objective, nn.functional.one_hot(y, 3)))


@pytest.mark.parametrize("labels", ["int", "bool", "signs", "float"])
def test_two_values_are_one_task(labels):
    y = (torch.arange(N) % 3 == 0).long()
    kinds = {"int": y, "bool": y.bool(), "signs": 2 * y - 1, "float": y.double()}
    objective = made(Tasks(X, kinds[labels]), outputs=1)
    assert objective.num_blocks == 1
    check_everywhere(objective, lambda: brute(objective, y.unsqueeze(1), [0]))


def test_a_task_without_negatives_is_left_out_and_keeps_its_column():
    y = targets()
    y[:, 1] = 1.0
    with pytest.warns(UserWarning, match="column 1 has no negatives"):
        objective = made(Tasks(X, y))
    assert objective.num_blocks == 2
    assert objective.block_task.tolist() == [0, 2]
    assert objective.a.shape == (T,)
    check_everywhere(objective, lambda: brute(objective, y, [0, 2]) + 0.0 * objective.a.sum())


def test_task_weights_multiply_their_tasks():
    y, weight = targets(), torch.tensor([2.0, 0.0, 0.5], dtype=torch.float64)
    objective = made(Tasks(X, y), block_weight=weight)
    check_everywhere(objective, lambda: brute(objective, y, weight=weight))


@pytest.mark.parametrize("margin", [0.5, 1.0])
def test_the_square_loss_with_exact_centers_is_the_pairwise_square_loss(margin):
    y = targets()
    objective = made(Tasks(X, y), loss=Square(margin), trained_centers=False)
    h = objective.model(X)
    pairs = [(margin + h[y[:, t] == 0, t] - h[y[:, t] == 1, t].unsqueeze(1)).square().mean() for t in range(T)]
    torch.testing.assert_close(exact_value(objective), sum(pairs) / T)


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("trained_centers", [True, False])
def test_the_pairwise_square_loss_pair_by_pair(trained_centers, missing):
    """Every pair of a positive and a negative that both have a label; trained centers at the class means."""
    y = targets(missing)
    objective = made(Tasks(X, y), loss=Square(0.7), trained_centers=trained_centers)
    h = objective.model(X).detach()
    losses = []
    for t in range(T):
        positives = [k for k in range(N) if y[k, t] == 1]
        negatives = [k for k in range(N) if y[k, t] == 0]
        assert (len(positives) + len(negatives) < N) is (missing > 0)
        pairs = [float((0.7 + h[j, t] - h[i, t]) ** 2) for i in positives for j in negatives]
        losses.append(sum(pairs) / len(pairs))
        if trained_centers:
            with torch.no_grad():
                objective.a[t] = h[positives, t].mean()
                objective.b[t] = h[negatives, t].mean()
    assert exact_value(objective).item() == pytest.approx(sum(losses) / T, rel=1e-12)
    if trained_centers:
        gradients = torch.autograd.grad(exact_value(objective), [objective.a, objective.b])
        assert all(float(gradient.abs().max()) < 1e-12 for gradient in gradients)


@pytest.mark.parametrize("loss", [SquaredHinge(1.0, 0.5), Square(1.0)], ids=str)
@pytest.mark.parametrize("trained_centers", [True, False])
def test_the_sign_lifts_positives_above_negatives(trained_centers, loss):
    """With the sign of the paper's Section 5 (mean of the positives less that of the negatives) the AUC falls."""
    y = targets()
    objective = made(Tasks(X, y), loss=loss, trained_centers=trained_centers)

    def difference():
        h = objective.model(X)
        means = [h[y[:, t] == 1, t].mean() - h[y[:, t] == 0, t].mean() for t in range(T)]
        return sum(means) / T

    start = float(difference().detach())
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        exact_value(objective).backward()
        optimizer.step()
    assert float(difference().detach()) > start + 0.1


def test_exact_centers_are_invariant_to_shifts_and_trained_ones_are_not():
    for trained_centers in (True, False):
        objective = made(Tasks(X, targets()), trained_centers=trained_centers)
        before = exact_value(objective).item()
        with torch.no_grad():
            objective.model[2].bias.add_(torch.tensor([3.0, -1.0, 0.5]))
        assert objective.shift_invariant is not trained_centers
        assert (exact_value(objective).item() == pytest.approx(before)) is not trained_centers


@pytest.mark.parametrize("trained_centers", [True, False])
def test_with_the_loader(trained_centers):
    y = targets(missing=0.0)
    assert_loader_fits(made(Tasks(X, y), trained_centers=trained_centers), 2, 4, 5)


def test_what_is_wrong_is_named():
    data = Tasks(X, targets())
    with pytest.raises(TypeError, match=r"MultiTaskAUC needs fcco\.data\.Tasks, got Points"):
        MultiTaskAUC(network(), Points(X, targets()))
    with pytest.raises(TypeError, match="loss must be a SquaredHinge or Square"):
        MultiTaskAUC(network(), data, loss=Logistic())
    with pytest.raises(ValueError, match=r"block_weight must have shape \(3,\)"):
        MultiTaskAUC(network(), data, block_weight=torch.ones(2))
    with pytest.raises(ValueError, match="block_weight must be > 0 somewhere"):
        MultiTaskAUC(network(), data, block_weight=torch.zeros(3))
    wide = MultiTaskAUC(network(4), data)
    with pytest.raises(ValueError, match=r"one score per task, shape \(K, 3\), got \(13, 4\)"):
        wide(*whole(wide))
    objective = MultiTaskAUC(network(), data)
    with pytest.raises(ValueError, match="no negatives for block 1"):
        objective(torch.tensor([1]), hand_made(objective, [1], [0, 1]))


def test_a_known_pattern_of_classes_gives_the_values_of_new_masks():
    """Tasks change from batch to batch, who is a positive of them does not; what only looks like it is made anew."""
    y = torch.arange(12) % T
    data = Tasks(torch.randn(12, 4, dtype=torch.float64), y)
    objective = made(data)
    serves = torch.tensor([0, 0, 0, 1, 1, 1])
    weight = torch.tensor([0.5, 0.5, 1.0, 1.0, 0.3, 0.7], dtype=torch.float64)
    usual = [0, 0, 1, 1, 2, 0]  # the classes of the examples, where the blocks are of the tasks 0 and 1
    cases = [
        ([0, 1], usual, serves, weight),
        ([1, 2], [1, 1, 2, 2, 0, 1], serves, weight),
        ([0, 1], [0, 1, 1, 1, 2, 0], serves, weight),  # another positive
        ([0, 1], [0, 0, 1, 1, -1, 0], serves, weight),  # one without a class
        ([0, 1], usual, torch.tensor([0, 0, 0, 1, 1, -1]), weight),
        ([0, 1], usual, serves, weight.flip(0)),
        ([0, 1], usual, serves, weight),
    ]
    known = []
    for index, classes, served, counts in cases:
        blocks = torch.tensor(index)
        batch = Batch(None, torch.arange(6), blocks, torch.tensor(classes), serves=served, weight=counts)
        outputs = torch.randn(6, T, dtype=torch.float64)
        wanted = made(data).values(blocks, outputs, batch)
        assert torch.equal(objective.values(blocks, outputs, batch), wanted)
        known.append(objective._pattern.last)
    assert known[0] is known[1]
    assert known[1] is not known[2]
