"""What a loss promises besides its numbers: state, modes, precision, and one sentence for every mistake."""

import copy
import pickle

import pytest
import torch
from torch import nn

import fcco
from tests.losses.cases import LOSSES, Loop, batches, labels, make_loss, scores
from tests.objectives.cases import CASES, CLASS, LABEL, TARGETS, N, X

ALL = torch.arange(N)


@pytest.mark.parametrize("name", LOSSES)
def test_resumed_equals_uninterrupted_bit_for_bit(name, tmp_path):
    ids = batches(12)
    whole = Loop(name, beta=lambda t: 1.0 / t)
    for id in ids:
        whole.step(id)
    first = Loop(name, beta=lambda t: 1.0 / t)
    for id in ids[:5]:
        first.step(id)
    parts = ("model", "loss", "optimizer")
    torch.save({part: getattr(first, part).state_dict() for part in parts}, tmp_path / "run.pt")
    second = Loop(name, beta=lambda t: 1.0 / t)
    saved = torch.load(tmp_path / "run.pt", weights_only=True)
    for part in parts:
        getattr(second, part).load_state_dict(saved[part])
    for id in ids[5:]:
        second.step(id)
    for one, other in zip(whole.outcome(), second.outcome(), strict=True):
        assert torch.equal(one, other)
    assert second.loss.steps == 12


def test_u_is_in_the_state_dict_and_nothing_of_the_data():
    assert set(make_loss("pAUC").state_dict()) == {"of", "u", "visited", "steps"}
    assert set(make_loss("multi-task AUC").state_dict()) == {
        "of",
        "u",
        "visited",
        "steps",
        "objective.a",
        "objective.b",
    }


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))])
def test_a_copy_goes_its_own_way(copied):
    loop = Loop("AP")
    loop.step(ALL)
    twin = copied(loop.loss)
    before = loop.loss.u.clone()
    twin(torch.randn(N).double(), LABEL, ALL)
    assert torch.equal(loop.loss.u, before)
    assert not torch.equal(twin.u, before)


@pytest.mark.parametrize("name", LOSSES)
def test_eval_mode_gives_the_value_and_moves_nothing(name):
    loop = Loop(name)
    loop.step(ALL)
    before = loop.loss.state_dict()
    before = {key: value.clone() for key, value in before.items()}
    given = scores(name, loop.model, ALL)
    loop.loss.eval()
    value = loop.loss(given, labels(name, ALL), ALL)
    for key, kept in loop.loss.state_dict().items():
        assert torch.equal(kept, before[key])
    loop.loss.train()
    assert value.item() == loop.loss(given, labels(name, ALL), ALL).item()
    assert not torch.equal(loop.loss.u, before["u"])


@pytest.mark.parametrize("name", ["AP", "pAUC", "pAUC, two-way", "multi-task AUC", "p-norm push, logarithm", "Cox"])
def test_a_batch_without_a_block_gives_zero_with_a_graph(name):
    loop = Loop(name)
    id = ALL[:1]
    if name == "Cox":
        id = torch.tensor([2])  # censored
    given = scores(name, loop.model, id)
    value = loop.loss(given, labels(name, id), id)
    assert value.item() == 0.0
    value.backward()
    for p in [*loop.model.parameters(), *loop.loss.parameters()]:
        assert torch.equal(p.grad, torch.zeros_like(p))
    assert not loop.loss.visited.any()
    assert loop.loss.steps == 0


def test_a_loss_knows_its_optimizer_as_little_as_its_network():
    """A weighted sum of two losses, in single precision, with Adam, falls."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    ranking = fcco.losses.PartialAUC(LABEL, temperature=0.5)
    plain = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    values = []
    for _ in range(40):
        optimizer.zero_grad()
        given = model(X.float())
        value = ranking(given, LABEL, ALL) + 0.1 * plain(given.squeeze(1), LABEL.float())
        assert value.dtype == torch.float32
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[-1] < 0.5 * values[0]


@pytest.mark.parametrize("name", LOSSES)
def test_under_autocast(name):
    """Half precision in the network alone: nearly the values of single precision, and float32 comes back."""
    model = copy.deepcopy(Loop(name).model).float()
    exact = LOSSES[name]()
    half = LOSSES[name]()

    def of(loss):
        x = X.float()
        if CASES[name].views:
            return loss((model(x), model(x + 0.1)), id=ALL)
        return loss(model(x), labels(name, ALL), ALL)

    wanted = of(exact)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = of(half)
        assert value.dtype == torch.float32
    value.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
    torch.testing.assert_close(value, wanted, rtol=0.05, atol=0.05)
    assert half.u.dtype == torch.float64


def test_under_a_gradient_scaler():
    loop = Loop("pAUC")
    plain = copy.deepcopy(loop)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for id in batches(4):
        plain.step(id)
        loop.optimizer.zero_grad()
        scaler.scale(loop.loss(scores("pAUC", loop.model, id), LABEL[id], id)).backward()
        scaler.step(loop.optimizer)
        scaler.update()
    for one, other in zip(plain.outcome(), loop.outcome(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_scores_that_are_not_finite_leave_u_as_it_was():
    loss = make_loss("pAUC")
    loss(torch.zeros(N).double(), LABEL, ALL)
    before = loss.u.clone()
    spoilt = torch.zeros(N).double()
    spoilt[0] = torch.nan  # a positive: its own block alone
    assert torch.isnan(loss(spoilt, LABEL, ALL))
    assert torch.isfinite(loss.u).all()
    assert torch.equal(loss.u[0], before[0])


def test_a_module_in_half_precision_keeps_its_u():
    loss = make_loss("multi-task AUC")
    loss(torch.randn(N, 3).double(), TARGETS, ALL)
    kept = loss.u.clone()
    loss.half()
    assert loss.objective.a.dtype == torch.float16
    assert loss.u.dtype == torch.float64
    assert torch.equal(loss.u, kept)


def test_scores_as_models_of_transformers_give_them():
    class Output:
        logits = torch.zeros(N, 1)

    assert fcco.losses.PartialAUC(LABEL)(Output(), LABEL, ALL) == fcco.losses.PartialAUC(LABEL)(
        torch.zeros(N), LABEL, ALL
    )


# ---------------------------------------------------------------------- y


@pytest.mark.parametrize(
    ("known", "given", "options"),
    [
        (LABEL, LABEL, {}),
        (LABEL, LABEL.unsqueeze(1).float(), {}),
        (2 * LABEL - 1, (2 * LABEL - 1).double(), {}),
        (LABEL.bool(), LABEL.bool(), {}),
        (LABEL.tolist(), LABEL, {}),
        (CLASS, CLASS, {}),
        (TARGETS, TARGETS, {}),
        (["spam" if y else "ham" for y in LABEL], ["spam" if y else "ham" for y in LABEL], {"positive": "spam"}),
        (["spam" if y else "ham" for y in LABEL], LABEL, {"positive": "spam"}),
        (["abc"[y] for y in CLASS], CLASS, {}),
        (LABEL, None, {}),
    ],
)
def test_labels_may_come_in_many_forms(known, given, options):
    loss = fcco.losses.PartialAUC(known, **options)
    assert torch.isfinite(
        loss(torch.randn(N, 3).squeeze() if loss.objective.num_tasks == 3 else torch.randn(N), given, ALL)
    )


def test_a_wrong_label_is_named():
    wrong = LABEL.clone()
    wrong[4] = 0
    loss = fcco.losses.PartialAUC(LABEL)
    with pytest.raises(
        ValueError, match=r"^y must be the labels that PartialAUC was made with, got 0.0 for id 4, whose label is 1.0$"
    ):
        loss(torch.zeros(N), wrong, ALL)
    assert not loss.visited.any()
    text = fcco.losses.AveragePrecision(["no", "yes", "no"], positive="yes")
    with pytest.raises(ValueError, match=r"got 'yes' for id 2, whose label is 'no'"):
        text(torch.zeros(2), ["yes", "yes"], torch.tensor([1, 2]))
    with pytest.raises(ValueError, match=r"for id 7, whose label is \[6.0, 1.0\]"):
        make_loss("Cox")(torch.zeros(1), torch.tensor([[5.0, 1.0]]), torch.tensor([7]))


def test_times_and_events_may_come_as_a_pair():
    loss = make_loss("Cox")
    y = labels("Cox", ALL)
    assert torch.isfinite(loss(torch.zeros(N).double(), (y[:, 0], y[:, 1].long()), ALL))
    with pytest.raises(ValueError, match="for id 0"):
        loss(torch.zeros(N).double(), (y[:, 0] + 1.0, y[:, 1].long()), ALL)


@pytest.mark.parametrize(
    ("y", "error", "message"),
    [
        (torch.zeros(N, 2), ValueError, r"y must have shape \(12,\), as PartialAUC knows it, got \(12, 2\)"),
        (LABEL[:3], ValueError, "y must have one row per id, 12 of them, got 3"),
        (["a"] * N, TypeError, "y must hold numbers, as the constructor's y does, got 'a'"),
        (3.0, TypeError, "y must be a tensor or a list of labels, got float"),
    ],
)
def test_labels_of_another_kind(y, error, message):
    with pytest.raises(error, match=message):
        fcco.losses.PartialAUC(LABEL)(torch.zeros(N), y, ALL)


# ---------------------------------------------------------------------- id


@pytest.mark.parametrize(
    ("id", "error", "message"),
    [
        (
            None,
            TypeError,
            r"id must be given to PartialAUC, .*: loss\(scores, y, id\); fcco.data.Indexed\(dataset\) yields",
        ),
        (ALL + 1, ValueError, r"id must be in 0..11, the 12 examples of PartialAUC, got 12"),
        (ALL - 1, ValueError, r"id must be in 0..11, .* got -1"),
        (ALL.float(), TypeError, "id must hold integers"),
        (LABEL.bool(), TypeError, "id must hold integers"),
        (["a"] * N, TypeError, "id must hold integers"),
        (ALL[:3], ValueError, r"id must have shape \(12,\), one per score, got \(3,\)"),
        (ALL.unsqueeze(1), ValueError, r"id must have shape \(12,\)"),
    ],
)
def test_wrong_ids(id, error, message):
    with pytest.raises(error, match=message):
        fcco.losses.PartialAUC(LABEL)(torch.zeros(N), LABEL, id)


@pytest.mark.parametrize("id", [ALL.tolist(), ALL.int(), ALL.numpy()])
def test_ids_as_lists_and_arrays(id):
    assert torch.isfinite(fcco.losses.PartialAUC(LABEL)(torch.zeros(N), LABEL, id))


def test_scores_of_another_shape_or_place():
    with pytest.raises(ValueError, match=r"scores must have one row per example, shape \(K, ...\), got \(\)"):
        fcco.losses.PartialAUC(LABEL)(torch.tensor(1.0), LABEL, ALL)
    with pytest.raises(ValueError, match=r"scores are on meta and the loss is on cpu: call loss\.to"):
        fcco.losses.PartialAUC(LABEL)(torch.zeros(N, device="meta"), LABEL, ALL)


@pytest.mark.parametrize("y", [[], torch.tensor(1.0)])
def test_no_labels_at_all(y):
    with pytest.raises(ValueError, match="y must have one row per training example, got shape"):
        fcco.losses.PartialAUC(y)


@pytest.mark.parametrize("beta", [0.0, 1.5, "fast"])
def test_a_beta_that_is_none(beta):
    with pytest.raises((ValueError, TypeError), match="beta must be"):
        fcco.losses.PartialAUC(LABEL, beta=beta)


def test_an_empty_batch_gives_zero_with_a_graph():
    y = torch.arange(50) % 5 == 0
    scores_of_none = torch.zeros(0, 1, requires_grad=True)
    value = fcco.losses.PartialAUC(y)(scores_of_none, y[:0], torch.arange(0))
    value.backward()
    assert value.item() == 0.0
    assert scores_of_none.grad is not None


def test_wrong_ids_are_told_on_one_line():
    y = torch.arange(50) % 5 == 0
    with pytest.raises(TypeError, match="id must hold integers") as caught:
        fcco.losses.PartialAUC(y)(torch.zeros(50, 1), y, torch.arange(50.0))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200
    with pytest.raises(TypeError, match="num_examples must be an int") as caught:
        fcco.losses.GlobalContrastive(torch.zeros(50, 5))
    assert "\n" not in str(caught.value)
