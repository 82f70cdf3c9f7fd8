"""AveragePrecision: against brute force over all pairs, its limits, and numbers that stay finite."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fcco
from fcco.data import Batch, Points, Tasks
from fcco.objectives import AveragePrecision, Logistic, Square, SquaredHinge
from fcco.objectives._means import ZERO
from tests.objectives.literal import Literal, Scores, against_reference, check_everywhere, check_full_pass, draws
from tests.objectives.tools import hand_made, pairs_of, value, whole

LOSSES = [SquaredHinge(), SquaredHinge(margin=0.0), SquaredHinge(0.5, 2.0), Square(2.0), Logistic(), Logistic(3.0)]


def data(n=14, positives=5, tasks=None, missing=0.0, seed=0):
    """x (n, 3) and y, (n,) or (n, tasks)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    if tasks is None:
        y = torch.zeros(n, dtype=torch.int64)
        y[torch.randperm(n, generator=generator)[:positives]] = 1
        return x, y
    y = (torch.rand(n, tasks, generator=generator) < 0.4).double()
    y[torch.rand(n, tasks, generator=generator) < missing] = math.nan
    y[:2], y[2:4] = 1.0, 0.0
    return x, y


def network(outputs=1, seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


def brute(h, y, loss):
    """-mean over positives of sum_pos l / sum_all l, pair by pair; h, y (n,) of the labelled examples."""
    total = 0.0
    positives = [i for i in range(len(y)) if y[i] == 1]
    for i in positives:
        over = sum(loss(h[j] - h[i]) for j in positives)
        below = sum(loss(h[j] - h[i]) for j in range(len(y)))
        total = total - (over / below if float(below.detach()) > 0 else 1.0)
    return total / len(positives)


@pytest.mark.parametrize(
    ("loss", "kind"),
    [*((loss, "int") for loss in LOSSES), *((LOSSES[0], kind) for kind in ("float", "column", "bool", "signs"))],
    ids=str,
)
def test_it_equals_brute_force(loss, kind):
    x, y = data()
    kinds = {"int": y, "float": y.double(), "column": y.unsqueeze(1), "bool": y.bool(), "signs": 2 * y - 1}
    objective = AveragePrecision(network(), Points(x, kinds[kind]), loss=loss)
    check_everywhere(objective, lambda: brute(objective.model(x)[:, 0], y, loss))


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_many_labels_equal_brute_force_and_tasks_count_equally(missing):
    x, y = data(tasks=3, missing=missing)
    objective = AveragePrecision(network(3), Points(x, y))

    def F():
        h = objective.model(x)
        known = [y[:, t] == y[:, t] for t in range(3)]  # missing labels equal the data set without them
        return sum(brute(h[k, t], y[k, t], objective.loss) for t, k in enumerate(known)) / 3

    check_everywhere(objective, F)


def test_a_task_without_positives_is_left_out_and_keeps_its_column():
    x, y = data(tasks=3)
    y[:, 1] = 0.0
    with pytest.warns(UserWarning, match="column 1 has no positives"):
        objective = AveragePrecision(network(3), Points(x, y))

    def F():
        h = objective.model(x)
        return sum(brute(h[:, t], y[:, t], objective.loss) for t in (0, 2)) / 2

    check_everywhere(objective, F)


def test_class_labels_are_one_against_the_rest():
    x, _ = data()
    y = torch.arange(14) % 3
    objective = AveragePrecision(network(3), Points(x, y))

    def F():
        h = objective.model(x)
        return sum(brute(h[:, t], (y == t).long(), objective.loss) for t in range(3)) / 3

    check_everywhere(objective, F)


@pytest.mark.parametrize("loss", [SquaredHinge(0.3), Logistic(2.0)], ids=str)
def test_a_full_pass_in_chunks_adds_up_to_the_exact_value(loss):
    x, y = data()
    objective = AveragePrecision(network(), Points(x, y), loss=loss)
    own = objective.block_example

    def by_hand():  # weights (K,), which the sums of the squared hinge are taken with at once
        for blocks in torch.arange(5).split(2):
            for rows in torch.arange(14).split(4):
                ids = torch.cat([own[blocks], rows])  # the blocks' own examples are there to be compared with: weight 0
                weight = torch.full((len(ids),), 1 / 14, dtype=torch.float64)
                weight[: len(blocks)] = 0.0
                yield blocks, hand_made(objective, blocks, ids, weight=weight)

    for full_pass in (by_hand, pairs_of(objective, 4)):
        check_full_pass(objective, *whole(objective), full_pass)


def test_serving_one_block_each_equals_a_step_per_block():
    x, y = data()
    objective = AveragePrecision(network(), Points(x, y))
    own = objective.block_example
    rows = [torch.cat([own[i : i + 1], torch.tensor([j, 13 - j])]) for i, j in ((0, 2), (3, 5))]
    joined = hand_made(objective, [0, 3], torch.cat(rows), serves=torch.tensor([0, 0, 0, 1, 1, 1]))
    together = objective(torch.tensor([0, 3]), joined)
    for place, (block, row) in enumerate(zip((0, 3), rows, strict=True)):
        alone = objective(torch.tensor([block]), hand_made(objective, [block], row))
        torch.testing.assert_close(together[place], alone[0])


# ---- properties -----------------------------------------------------------------------------------------


def F_of(h, y, loss):
    objective = AveragePrecision(Scores(h), Points(torch.arange(len(h)), y), loss=loss)
    return float(value(objective, *whole(objective)).detach())


scores = st.lists(st.floats(-3, 3, width=32), min_size=6, max_size=10)


@settings(deadline=None, max_examples=25)
@given(scores, st.floats(-5, 5), st.randoms(), st.sampled_from(LOSSES))
def test_shifts_and_permutations_change_nothing(h, shift, random, loss):
    h, y = torch.tensor(h, dtype=torch.float64), torch.arange(len(h)) % 3 == 0
    order = list(range(len(h)))
    random.shuffle(order)
    if isinstance(loss, SquaredHinge) and loss.margin == 0.0:
        shift = round(shift * 64) / 64  # 0/0 is decided by exact ties, which rounding would break
        h = (h * 64).round() / 64
    F = F_of(h, y.long(), loss)
    assert abs(F_of(h + shift, y.long(), loss) - F) <= 1e-9
    assert abs(F_of(h[order], y[order].long(), loss) - F) <= 1e-9
    assert -1.0 <= F <= 0.0


@settings(deadline=None, max_examples=25)
@given(st.permutations(range(8)))
def test_the_perfect_ranking_is_best(order):
    h, y = torch.arange(8.0)[order], torch.tensor([1, 1, 1, 0, 0, 0, 0, 0])
    F = F_of(h, y, SquaredHinge(0.5))
    if min(order[:3]) > max(order[3:]):
        assert F == -1.0
    else:
        assert F > -0.999


# ---- numbers that stay finite ---------------------------------------------------------------------------


def problem(y, loss):
    n, anchor = len(y), (y == 1).nonzero()[:, 0]

    def inner(i, w, rows):
        l = loss(w[rows] - w[anchor[i]])
        return torch.stack([(l * (y[rows] == 1)).mean(), l.mean()])

    def outer(i, u):
        return (0.0 * u).sum() - 1.0 if float(u[1].detach()) == 0.0 else -u[0] / u[1]

    def project(u):
        return u.clip(max=u[1])

    return Literal(inner, outer, len(anchor), 2, (n,), project)


def steps(objective, count=40):
    return draws(objective, torch.arange(objective.data.num_examples), count, size=8)


@pytest.mark.parametrize("name", ["sox", "msvr-v1", "msvr-v2"])
@pytest.mark.parametrize(
    ("loss", "spread", "lr"),
    [
        (SquaredHinge(), 1.0, 0.5),
        (SquaredHinge(margin=0.0), 1.0, 0.5),  # rows of zeros come and go
        (Logistic(), 100.0, 50.0),  # differences of +-400: l from e^-400 to 400
        (Logistic(sharpness=200.0), 1.0, 0.5),
    ],
    ids=str,
)
def test_single_precision_equals_the_reference(name, loss, spread, lr):
    y = (torch.arange(30) < 10).long()  # m/B1 = 10
    h = spread * torch.randn(30, generator=torch.Generator().manual_seed(0))
    objective = AveragePrecision(Scores(h), Points(torch.arange(30), y), loss=loss)
    assert against_reference(name, objective, problem(y, loss), steps(objective), lr) <= 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["sox", "msvr-v1", "msvr-v2", "variant-v1"])
@pytest.mark.parametrize(("loss", "gaps"), [(SquaredHinge(margin=0.0), 1.0), (Logistic(), 200.0)], ids=str)
def test_separated_data_stays_finite(loss, gaps, name, dtype):
    """Margin 0: 0/0 for the highest positive; the logistic loss at -200 and below: e^-200 is 0 in single precision."""
    y = (torch.arange(12) < 4).long()
    h = torch.where(y == 1, gaps, 0.0).to(dtype) + torch.arange(12, dtype=dtype) / 16
    objective = AveragePrecision(Scores(h), Points(torch.arange(12), y), loss=loss)
    method = fcco.METHODS[name](alpha=0.5, beta=0.5)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), method)
    for index, batch in draws(objective, torch.arange(4, 12), steps=8):
        report = solver.step(index, batch)
        assert report.value == pytest.approx(-1.0, abs=1e-6)
        assert float(solver.z[0].abs().max()) <= 1e-6
    assert torch.isfinite(solver.u()).all()


@pytest.mark.parametrize(("name", "ahead"), [("msvr-v1", 2.0), ("msvr-v2", 2.0), ("sonex", 0.0)])
def test_rows_of_zeros_that_come_and_go_stay_finite(name, ahead):
    """Few blocks drawn and large steps: the tracker's combination falls below 0 where g is 0, and u is 0 then."""
    y = (torch.arange(24) < 8).long()
    h = torch.randn(24, generator=torch.Generator().manual_seed(1)) + ahead * y
    objective = AveragePrecision(Scores(h), Points(torch.arange(24), y), loss=SquaredHinge(margin=0.0))
    method = fcco.METHODS[name](alpha=0.3, beta=0.3)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=3.0), method)
    zeros = 0
    for index, batch in steps(objective, 60):
        assert math.isfinite(solver.step(index, batch).value)
        zeros += int((solver.u()[:, 1] < ZERO / 2).sum())
    assert zeros > 0
    assert F_of(objective.model.w.detach(), y, SquaredHinge(0.0)) < F_of(h, y, SquaredHinge(0.0))


def test_zero_over_zero_takes_its_limit_with_gradient_zero():
    """The ranking tends to the perfect one: f tends to -1, and is -1 there."""
    y = torch.tensor([1, 0, 0])
    for low in (1e-3, 1e-9, 0.0):
        h = torch.tensor([0.0, -1.0, low - 1.0], dtype=torch.float64) + torch.tensor([1.0, 0.0, 0.0])
        assert F_of(h, y, SquaredHinge(0.0)) == -1.0
    objective = AveragePrecision(nn.Identity(), Points(torch.arange(3), y))
    u = torch.tensor([[ZERO, ZERO], [ZERO - 3.0, ZERO - 1.0], [ZERO, 0.0]], requires_grad=True)
    f = objective.outer(torch.tensor([0, 0, 0]), u)
    f.sum().backward()
    assert f.tolist() == [-1.0, -1.0, 0.0]
    assert u.grad.tolist() == [[0.0, 0.0]] * 3


# ---- errors that name what is wrong ---------------------------------------------------------------------


def test_bad_batches_are_refused_by_name():
    x, y = data()
    objective = AveragePrecision(network(), Points(x, y))
    index, ids, own = torch.arange(5), torch.arange(14), objective.block_example

    def message(batch):
        with pytest.raises(ValueError) as error:  # noqa: PT011
            objective(index, batch)
        return str(error.value)

    assert "batch.y must be given" in message(Batch(x, ids, block_pos=own))
    assert "batch.block_pos must be given" in message(Batch(x, ids, y=y))
    assert "batch.block_pos must have shape (5,)" in message(Batch(x, ids, y=y, block_pos=own[:2]))
    wrong = torch.where(index == 3, (y == 0).nonzero()[0, 0], own)
    assert "own example, not so for 3" in message(Batch(x, ids, y=y, block_pos=wrong))
    assert "batch.y must hold a label per task" in message(Batch(x, ids, y=y.repeat(2, 1).T, block_pos=own))


def test_bad_arguments_are_refused_by_name():
    x, y = data()
    with pytest.raises(TypeError, match=r"AveragePrecision needs fcco\.data\.Points, got Tasks"):
        AveragePrecision(network(), Tasks(x, y))
    with pytest.raises(TypeError, match=r"AveragePrecision needs fcco\.data\.Points, got int"):
        AveragePrecision(network(), 5)
    with pytest.raises(TypeError, match="loss must be a Surrogate, got 'hinge'"):
        AveragePrecision(network(), Points(x, y), loss="hinge")
    x, y = data(tasks=3)
    objective = AveragePrecision(network(2), Points(x, y))
    with pytest.raises(ValueError, match=r"one score per task, shape \(14, 3\), got \(14, 2\)"):
        objective(*whole(objective))
    single = AveragePrecision(network(2), Points(x, y[:, 0]))
    with pytest.raises(ValueError, match=r"one score per example, shape \(14,\), got \(14, 2\)"):
        single(*whole(single))
