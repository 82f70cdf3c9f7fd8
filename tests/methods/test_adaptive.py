"""The adaptive optimizer: weight decay, schedules of b', tensors for captured steps, states, copies."""

import copy
import pickle

import pytest
import torch
from torch import nn

import fcco


def target(w):
    """A convex function with a minimum away from 0, as its gradient."""
    return torch.tensor([3.0, -2.0, 0.5], dtype=torch.float64) * (w - torch.ones_like(w))


def parameter():
    return nn.Parameter(torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64))


def walk(optimizer, w, steps, before=None):
    for t in range(1, steps + 1):
        if before is not None:
            before(t)
        w.grad = target(w.detach())
        optimizer.step()
    return w.detach().clone()


def test_weight_decay_leads_to_the_regularised_minimum_and_leaves_the_gradient_alone():
    """grad F + mu w = 0 at the end, which a decoupled decay misses."""
    mu = 0.7
    w = nn.Parameter(torch.tensor([0.5, 0.5], dtype=torch.float64))
    slopes = torch.tensor([3.0, 2.0], dtype=torch.float64)
    optimizer = fcco.Adaptive([w], lr=0.3, beta=0.5, delta=1.0, weight_decay=mu)
    for _ in range(600):
        w.grad = slopes * (w.detach() - 1.0)
        kept = w.grad.clone()
        optimizer.step()
        assert torch.equal(w.grad, kept)
    torch.testing.assert_close(w.detach(), slopes / (slopes + mu), rtol=1e-10, atol=0.0)


def test_the_group_that_a_stagewise_run_asks_for_is_regularised():
    """A weight_decay of the group used to pass the check of StageWise(mu) and to do nothing."""
    w = nn.Parameter(torch.ones(1, dtype=torch.float64))
    objective = fcco.objective(
        lambda i, x: 0.0 * w.expand(len(i), 1) + x, lambda i, u: u[:, 0], num_blocks=2, parameters=[w]
    )
    optimizer = fcco.Adaptive([{"params": [w], "weight_decay": 5.0}], lr=9.0, beta=1.0, delta=1.0)
    solver = fcco.Solver(objective, optimizer, fcco.msvr_v2(alpha=1.0, beta=1.0))
    run = fcco.StageWise(solver, [fcco.Stage(1, 0.1, 1.0, 1.0)], mu=5.0)
    run.step(torch.tensor([0]), torch.zeros(1, 1, dtype=torch.float64))
    assert float(w.detach()) == pytest.approx(1.0 - 0.1 * 5.0 / (5.0 + 1.0), rel=1e-14)  # F itself is flat


@pytest.mark.parametrize("amsgrad", [False, True])
def test_a_schedule_of_beta_equals_its_numbers_set_by_hand(amsgrad):
    def schedule(t):
        return 0.2 + 0.7 / t

    one, two = parameter(), parameter()
    scheduled = fcco.Adaptive([one], lr=0.1, beta=schedule, delta=0.1, amsgrad=amsgrad)
    by_hand = fcco.Adaptive([two], lr=0.1, beta=1.0, delta=0.1, amsgrad=amsgrad)

    def set_by_hand(t):
        by_hand.param_groups[0]["beta"] = schedule(t)

    assert torch.equal(walk(scheduled, one, 8), walk(by_hand, two, 8, set_by_hand))


def test_groups_with_schedules_of_their_own():
    one, two = parameter(), parameter()
    optimizer = fcco.Adaptive([{"params": [one], "beta": lambda t: 1 / t}, {"params": [two]}], lr=0.1, beta=0.25)
    for _ in range(3):
        one.grad, two.grad = target(one.detach()), target(two.detach())
        optimizer.step()
    assert [group["beta"] for group in optimizer.param_groups] == [pytest.approx(1 / 3), 0.25]


def test_a_schedule_that_leaves_its_range_is_refused_before_anything_moves():
    first, w = parameter(), parameter()
    groups = [{"params": [first]}, {"params": [w], "beta": lambda t: 1.0 if t < 3 else 0.0}]
    optimizer = fcco.Adaptive(groups, lr=0.1)
    first.grad = target(first.detach())
    walk(optimizer, w, 2)
    before = first.detach().clone(), w.detach().clone()
    with pytest.raises(ValueError, match=r"beta at step 3 must be in \(0, 1\], got 0\.0"):
        walk(optimizer, w, 1)
    assert torch.equal(first, before[0])
    assert torch.equal(w, before[1])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_keep_their_schedule(copied):
    w = parameter()
    optimizer = fcco.Adaptive([w], lr=0.1, beta=fcco.schedules.MeanStart(0.1), delta=0.1)
    walk(optimizer, w, 2)
    other_w, other = copied((w, optimizer))
    assert torch.equal(walk(optimizer, w, 3), walk(other, other_w, 3))
    assert other.param_groups[0]["beta"] == 0.2


def test_a_resumed_schedule_goes_on_where_it_was(tmp_path):
    def made():
        w = parameter()
        return w, fcco.Adaptive([w], lr=0.1, beta=fcco.schedules.MeanStart(0.1), delta=0.1, amsgrad=True)

    w, optimizer = made()
    walk(optimizer, w, 3)
    torch.save((w.detach(), optimizer.state_dict()), tmp_path / "state.pt")  # no function in it
    value, state = torch.load(tmp_path / "state.pt", weights_only=True)
    again_w, again = made()
    again_w.data.copy_(value)
    again.load_state_dict(state)
    assert torch.equal(walk(optimizer, w, 3), walk(again, again_w, 3))


def test_states_of_earlier_versions_load():
    w = parameter()
    optimizer = fcco.Adaptive([w], lr=0.1)
    walk(optimizer, w, 2)
    state = optimizer.state_dict()
    for key in ("weight_decay", "capturable", "steps"):
        del state["param_groups"][0][key]
    optimizer.load_state_dict(state)
    walk(optimizer, w, 1)


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_tensors_for_captured_steps_give_the_same_steps(amsgrad, weight_decay):
    """Rates in tensors that are written into between steps, against floats that are replaced."""
    one, two = parameter(), parameter()
    lr, beta = torch.tensor(0.1, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
    options = {"delta": 0.1, "amsgrad": amsgrad, "weight_decay": weight_decay}
    captured = fcco.Adaptive([one], lr=lr, beta=beta, capturable=True, **options)
    plain = fcco.Adaptive([two], lr=0.1, beta=0.5, **options)

    def set_tensors(t):
        lr.fill_(0.1 / t)
        beta.fill_(0.5 / t)

    def set_floats(t):
        plain.param_groups[0].update(lr=0.1 / t, beta=0.5 / t)

    expected = walk(plain, two, 6, set_floats)
    torch.testing.assert_close(walk(captured, one, 6, set_tensors), expected, rtol=1e-14, atol=1e-14)


def test_a_captured_step_reads_nothing_on_the_host_and_keeps_its_tensors():
    """On the meta device a read of a value raises, so a step that passes has read none."""
    w = nn.Parameter(torch.zeros(3, device="meta"))
    optimizer = fcco.Adaptive([w], lr=0.1, beta=0.5, amsgrad=True, weight_decay=0.1, capturable=True)
    group = optimizer.param_groups[0]
    group["lr"] = torch.zeros((), device="meta")
    group["beta"] = torch.zeros((), device="meta")
    with pytest.raises(Exception, match="meta"):
        float(group["lr"])
    kept, groups = [], []
    for _ in range(2):
        w.grad = torch.zeros(3, device="meta")
        optimizer.step()
        kept.append({name: id(value) for name, value in optimizer.state[w].items()})
        groups.append({name: id(value) for name, value in group.items()})
    assert kept[0] == kept[1]
    assert set(kept[0]) == {"average", "largest"}
    assert groups[0] == groups[1]  # nothing that a look at the groups would take for a change


def test_torchs_schedulers_write_into_the_tensor():
    w = parameter()
    lr = torch.tensor(0.5)
    optimizer = fcco.Adaptive([w], lr=lr, capturable=True)
    scheduler = fcco.LRSchedule(optimizer, lambda t: 1 / t)
    walk(optimizer, w, 1)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] is lr
    assert float(lr) == 0.5


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"lr": torch.tensor(0.1)}, TypeError, "lr must be a number"),
        ({"beta": torch.tensor(0.1)}, TypeError, "beta must be a number"),
        ({"lr": torch.ones(2), "capturable": True}, ValueError, r"lr must be .* a tensor of shape \(\), got .*\(2,\)"),
        ({"beta": torch.ones(1), "capturable": True}, ValueError, r"beta must be .*got one of shape \(1,\)"),
        ({"lr": torch.tensor(-1.0), "capturable": True}, ValueError, "lr must be >= 0, got -1"),
        ({"beta": torch.tensor(1.5), "capturable": True}, ValueError, r"beta must be in \(0, 1\], got 1\.5"),
        ({"beta": lambda t: 0.1, "capturable": True}, ValueError, "beta must be a number or a tensor"),
        ({"lr": lambda t: 0.1}, TypeError, "lr must be a number"),
    ],
)
def test_what_is_refused(arguments, error, says):
    with pytest.raises(error, match=says):
        fcco.Adaptive([parameter()], **arguments)
