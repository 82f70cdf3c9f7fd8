"""The record: a field added in one place is saved, checked, rolled back and resumed."""

import dataclasses

import pytest
import torch

import fcco
from fcco.solver import _solver, _tracked
from fcco.solver._state import Layout, fork, saved
from tests.helpers.failing import Mine
from tests.helpers.same import assert_same
from tests.helpers.trials import BLOCKS, Trial

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def longer_records(monkeypatch):
    """Two more fields in the solver's record, two in the engine's: one line each."""
    solver_fields = [
        ("speed", int, saved(default=0)),
        ("sums", list, saved(Layout.PER_PARAMETER, default=None)),
    ]
    engine_fields = [
        ("visits", torch.Tensor, saved(Layout.PER_BLOCK, default_factory=lambda: torch.zeros(BLOCKS))),
        ("notes", dict, saved(Layout.PER_RANK, default_factory=dict)),
    ]
    for module, name, fields in (
        (_solver, "SolverState", solver_fields),
        (_tracked, "TrackedState", engine_fields),
    ):
        longer = dataclasses.make_dataclass(name, fields, bases=(getattr(module, name),))
        monkeypatch.setattr(module, name, longer)


def step(trial, t, error=None):
    """A step that changes all four."""
    index, *data = trial.batch(t)
    with trial.solver.gradient(index, *data):
        state = trial.solver.state
        state.speed += t
        state.sums = [p.detach().clone() for p in trial.solver.parameters]
        visits = state.engine.visits.clone()
        visits[index] += 1
        state.engine.visits = visits
        state.engine.notes = state.engine.notes | {f"step {t}": torch.tensor(float(t))}
        if error is not None:
            raise error
        trial.optimizer.step()


def test_in_state_dict(longer_records):
    trial = Trial("msvr-v2")
    for t in (1, 2):
        step(trial, t)
    state = trial.solver.state_dict()["state"]
    assert state["speed"] == 3
    assert [tuple(part.shape) for part in state["sums"]] == [tuple(p.shape) for p in trial.solver.parameters]
    assert float(state["engine"]["visits"].sum()) == 6.0
    assert_same(state["engine"]["notes"], [{"step 1": torch.tensor(1.0), "step 2": torch.tensor(2.0)}])


def test_rolled_back(longer_records):
    trial = Trial("msvr-v2")
    step(trial, 1)
    before = trial.snapshot()
    with pytest.raises(Mine):
        step(trial, 2, error=Mine("mine"))
    assert_same(before, trial.snapshot())
    assert trial.solver.state.speed == 1


def test_resumed(longer_records, tmp_path):
    trial = Trial("msvr-v2")
    for t in (1, 2):
        step(trial, t)
    fcco.save(tmp_path / "run.pt", solver=trial.solver)
    step(trial, 3)
    other = Trial("msvr-v2", seed=5)
    step(other, 7)
    fcco.load(tmp_path / "run.pt", solver=other.solver)
    step(other, 3)
    assert_same(trial.snapshot(), other.snapshot())


def test_a_state_without_it_is_refused_by_its_name(longer_records, monkeypatch):
    trial = Trial("msvr-v2")
    state = trial.solver.state_dict()
    del state["state"]["engine"]["visits"]
    with pytest.raises(ValueError, match=r"the state's engine is not one of this TrackedState: it lacks visits"):
        trial.solver.load_state_dict(state)


def test_one_of_other_sizes_is_refused_by_its_name(longer_records):
    trial = Trial("msvr-v2")
    state = trial.solver.state_dict()
    state["state"]["engine"]["visits"] = torch.zeros(BLOCKS + 1)
    with pytest.raises(ValueError, match=r"the state's visits has shape \(7,\), this solver needs \(6,\)"):
        trial.solver.load_state_dict(state)


def test_a_fork_leaves_the_original_alone():
    trial = Trial("msvr-v3").run(1, 3)
    state = trial.solver.state
    before = trial.snapshot()
    forked = fork(state)
    forked.t = 99
    forked.z = None
    forked.engine.previous = None
    forked.engine.table.rows = torch.zeros(1)
    forked.engine.reference.step = 99
    forked.engine.watch.figures = 99
    assert_same(before, trial.snapshot())
    assert forked.engine.table.visited is state.engine.table.visited  # tensors are shared, not copied
