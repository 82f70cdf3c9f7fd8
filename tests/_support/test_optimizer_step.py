import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from fcco._support.optimizer_step import _bare_step, take_step


def parameter():
    p = torch.nn.Parameter(torch.ones(2))
    p.grad = torch.tensor([1.0, -2.0])
    return p


def test_the_step_is_the_optimizers_own():
    found, wanted = parameter(), parameter()
    mine, other = (torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in (found, wanted))
    assert _bare_step(mine) is not None
    for _ in range(3):
        take_step(mine)
        other.step()
    assert torch.equal(found, wanted)
    assert torch.is_grad_enabled()


def test_hooks_of_an_optimizer_are_called():
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    called = []
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    take_step(optimizer)
    assert called == ["before", "after"]


@pytest.mark.parametrize("register", [register_optimizer_step_pre_hook, register_optimizer_step_post_hook])
def test_hooks_of_all_optimizers_are_called(register):
    called = []
    handle = register(lambda *_: called.append(True))
    try:
        take_step(torch.optim.SGD([parameter()], lr=0.1))
    finally:
        handle.remove()
    assert called == [True]


def test_a_step_that_was_replaced_is_called():
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    take_step(optimizer)
    scheduler.step()  # warns where it has not seen the optimizer's step
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


def test_a_class_with_a_wrapper_of_its_own_around_step_keeps_it(monkeypatch):
    called = []
    before = torch.optim.SGD.step

    def step(self):
        called.append(True)
        return before(self)

    step.__wrapped__ = before
    monkeypatch.setattr(torch.optim.SGD, "step", step)
    optimizer = torch.optim.SGD.__new__(torch.optim.SGD)
    monkeypatch.setattr(torch.optim.SGD, "_patch_step_function", lambda self: None)
    torch.optim.SGD.__init__(optimizer, [parameter()], lr=0.1)
    take_step(optimizer)
    assert called == [True]


def test_the_profiler_sees_the_step():
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        take_step(optimizer)
    assert any("Optimizer.step#SGD.step" in event.key for event in profile.key_averages())
