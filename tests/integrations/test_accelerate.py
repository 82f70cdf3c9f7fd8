"""The Accelerator's own checkpoints hold the solver and its loader, and a loop goes on from them bit for bit."""

import pytest
import torch
from accelerate import Accelerator, DistributedType
from accelerate.state import AcceleratorState, GradientState, PartialState

from fcco.integrations.accelerate import register
from tests.helpers.same import assert_same
from tests.integrations.cases import EPOCH, make_objective, make_parts, outcome, plain_run

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _fresh():
    """An Accelerator shares its state with all others of the process."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def make_run(name, **options):
    accelerator = Accelerator(cpu=True, **options)
    objective = make_objective()
    objective.model = accelerator.prepare(objective.model)
    solver, loader = make_parts(objective, name)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(solver.optimizer, 0.9)
    register(accelerator, solver, loader, scheduler)
    return accelerator, solver, loader, scheduler


def go_on(accelerator, solver, loader, scheduler, folder=None):
    while solver.t < 3 * EPOCH:
        for batch in loader:
            with accelerator.autocast():
                solver.step(batch.to(accelerator.device))
            scheduler.step()
            if folder is not None:
                accelerator.save_state(str(folder / str(solver.t)))
    return outcome(solver)


@pytest.mark.parametrize("name", ["msvr-v2", "msvr-v3", "soap", "memory"])
def test_resumed_equals_uninterrupted(name, tmp_path):
    whole = go_on(*make_run(name), folder=tmp_path)
    assert_same(outcome(plain_run(name, gamma=0.9)), whole)
    for step in (1, EPOCH, EPOCH + 2):
        run = make_run(name)
        torch.manual_seed(77)
        run[0].load_state(str(tmp_path / str(step)))
        assert_same(whole, go_on(*run))


def test_bfloat16():
    """g - g- is right too: autocast's copies of w_t do not serve the probe at w_{t-1}."""
    found = go_on(*make_run("msvr-v2", mixed_precision="bf16"))
    assert_same(outcome(plain_run("msvr-v2", gamma=0.9, bfloat16=True)), found)
    assert not torch.equal(found["u"], plain_run("msvr-v2", gamma=0.9).u())


def test_wrong_settings():
    with pytest.raises(ValueError, match="gradient_accumulation_steps must be 1, got 4"):
        make_run("msvr-v2", gradient_accumulation_steps=4)
    accelerator, _, loader, _ = make_run("msvr-v2")
    with pytest.raises(TypeError, match=r"solver must be a fcco.Solver, got Loader"):
        register(accelerator, loader)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("mixed_precision", "fp16", "mixed_precision must be no or bf16, got fp16"),
        ("distributed_type", DistributedType.FSDP, "distributed_type FSDP is not supported"),
        ("device", torch.device("meta"), "created on cpu, but the accelerator uses meta"),
    ],
)
def test_what_takes_other_devices_is_refused(name, value, says, monkeypatch):
    accelerator, solver, _, _ = make_run("msvr-v2")
    monkeypatch.setattr(Accelerator, name, property(lambda _: value))
    with pytest.raises(ValueError, match=says):
        register(accelerator, solver)
