"""Resumed equals uninterrupted, bit for bit."""

import copy

import pytest
import torch

import fcco
from tests.helpers.methods import FINITE_SUM, TRACKED, recipe
from tests.helpers.runs import STAGES, Run
from tests.helpers.same import assert_same, difference
from tests.helpers.trials import SAMPLES, Noisy, data, snapshot

STEPS = 9
# before the first step, after it, just before and just after v3's refreshes (period 4: at 5 and 9)
CUTS = (0, 1, 4, 5, 8)

pytestmark = pytest.mark.usefixtures("one_thread")


def resume_everywhere(tmp_path, cuts=CUTS, **setting):
    """One run that is saved at every cut and never loaded; then a fresh run from each of the files."""
    whole = Run(**setting)
    for cut in range(STEPS):
        if cut in cuts:
            fcco.save(tmp_path / f"{cut}.pt", **whole.parts)
        whole.steps(1)
    expected = whole.snapshot()
    for cut in cuts:
        resumed = Run(**setting | {"seed": 5}).steps(2)  # another start, other seeds, and state of its own
        fcco.load(tmp_path / f"{cut}.pt", **resumed.parts)
        found = difference(expected, resumed.steps(STEPS - cut).snapshot())
        assert found is None, f"cut after step {cut}: {found}"


@pytest.mark.parametrize("name", TRACKED)
def test_resumed_equals_uninterrupted(name, tmp_path):
    resume_everywhere(tmp_path, name=name, cuts=CUTS if name in FINITE_SUM else (0, 1, 6))


@pytest.mark.parametrize("name", ["sox", "soap", "msvr-v2", "msvr-v3", "variant-v3", "scent"])
def test_resumed_equals_uninterrupted_in_stages(name, tmp_path):
    """Stages of drawn lengths; v3's reference is renewed where a stage begins. The scheduler changes lr inside them."""
    resume_everywhere(tmp_path, name=name, stages=STAGES)


@pytest.mark.parametrize("option", [{"normalize": True}, {"u0": 0.1, "z0": 0.0}, {"radius": 0.5}, {"keep": "last"}])
@pytest.mark.parametrize("name", ["soap", "msvr-v2"])
def test_resumed_equals_uninterrupted_with_options(name, option, tmp_path):
    resume_everywhere(tmp_path, cuts=(0, 3, 7), name=name, **option)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.RMSprop, fcco.Adaptive])
def test_resumed_equals_uninterrupted_with_other_optimizers(optimizer, tmp_path):
    resume_everywhere(tmp_path, cuts=(1, 5), optimizer=optimizer)


def test_resumed_with_the_librarys_learning_rates(tmp_path):
    def run():
        torch.manual_seed(0)
        objective = Noisy()
        optimizer = torch.optim.SGD(objective.parameters(), lr=1.0)
        solver = fcco.Solver(objective, optimizer, recipe("msvr-v2"))
        return solver, fcco.LRSchedule(optimizer, lambda t: 0.1 / t)

    def steps(solver, scheduler, count):
        for _ in range(count):
            solver.step([1, 4], data()[[1, 4]], torch.full((2, SAMPLES), 1 / SAMPLES))
            scheduler.step()
        return snapshot(solver), scheduler.state_dict()

    parts = run()
    steps(*parts, 3)
    fcco.save(tmp_path / "cut.pt", solver=parts[0], scheduler=parts[1])
    expected = steps(*parts, 3)
    parts = run()
    fcco.load(tmp_path / "cut.pt", solver=parts[0], scheduler=parts[1])
    assert_same(expected, steps(*parts, 3))


def test_saving_changes_nothing(tmp_path):
    plain, saved = Run().steps(4).snapshot(), Run()
    for _ in range(4):
        fcco.save(tmp_path / "run.pt", **saved.parts)
        saved.step()
    assert_same(plain, saved.snapshot())


def test_a_state_is_a_copy():
    """Going on must not change a state that was taken before."""
    run = Run("msvr-v3").steps(5)
    state = run.solver.state_dict()
    before = copy.deepcopy(state)
    run.steps(4)
    assert_same(before, state)


def test_a_state_may_be_loaded_twice():
    """A loaded state is a copy too: the run that goes on from it must not write into it."""
    run = Run("msvr-v3").steps(5)
    states = {name: part.state_dict() for name, part in run.parts.items()}
    states["scheduler"] = copy.deepcopy(states["scheduler"])
    expected = run.steps(3).snapshot()
    for _ in range(2):
        again = Run("msvr-v3", seed=3)
        for name, part in again.parts.items():
            part.load_state_dict(states[name])
        assert_same(expected, again.steps(3).snapshot())


@pytest.mark.parametrize("name", ["msvr-v3", "variant-v2", "scent"])
def test_the_file_is_plain_tensors_and_values(name, tmp_path):
    run = Run(name, stages=STAGES).steps(3)
    fcco.save(tmp_path / "run.pt", **run.parts)
    content = torch.load(tmp_path / "run.pt", weights_only=True)
    assert content["kinds"] == {name: type(part).__name__ for name, part in run.parts.items()}
    assert_same(content["states"]["solver"], run.solver.state_dict())
