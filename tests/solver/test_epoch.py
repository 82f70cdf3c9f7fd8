"""v3 without a period renews its reference once per epoch: after as many samples as a full pass takes."""

import pytest
import torch

import fcco
from tests.helpers.failing import Mine, nan_row
from tests.helpers.methods import FINITE_SUM
from tests.helpers.same import assert_same
from tests.helpers.trials import BLOCKS, SAMPLES, Trial, full_pass, without_counts

pytestmark = pytest.mark.usefixtures("one_thread")
# a pass takes 6 * 5 samples, a step 3 * 3
EPOCH = 4


def renewals(trial, steps):
    """The steps at which a pass over all data was made."""
    found = []
    passes = trial.passes

    def counted():
        found.append(trial.solver.t + 1)
        return passes()

    trial.passes = counted
    trial.run(1, steps)
    return sorted(set(found))


@pytest.mark.parametrize("name", FINITE_SUM)
def test_once_per_epoch(name):
    assert BLOCKS * SAMPLES == 30
    assert renewals(Trial(name, changes={"period": None}), 14) == [1, 1 + EPOCH, 1 + 2 * EPOCH, 1 + 3 * EPOCH]


@pytest.mark.parametrize("name", FINITE_SUM)
def test_equal_to_that_period(name):
    found = Trial(name, changes={"period": None}).run(1, 10)
    wanted = Trial(name, changes={"period": EPOCH}).run(1, 10)
    for p, q in zip(found.solver.parameters, wanted.solver.parameters, strict=True):
        assert torch.equal(p, q)
    assert torch.equal(found.solver.u(), wanted.solver.u())
    assert found.solver.samples == wanted.solver.samples


@pytest.mark.parametrize("cut", [1, 4, 5, 7])
def test_resumed_equals_uninterrupted(cut, tmp_path):
    whole = Trial("msvr-v3", changes={"period": None}).run(1, cut)
    fcco.save(tmp_path / "run.pt", solver=whole.solver)
    expected = whole.run(cut + 1, 10).snapshot()
    resumed = Trial("msvr-v3", seed=3, changes={"period": None})
    fcco.load(tmp_path / "run.pt", solver=resumed.solver)
    assert_same(expected, resumed.run(cut + 1, 10).snapshot())


def test_failed_and_skipped_steps_move_no_renewal():
    clean = Trial("msvr-v3", changes={"period": None}).run(1, 9).snapshot()
    trial = Trial("msvr-v3", changes={"period": None}, nonfinite="skip").run(1, 4)
    for fault in (nan_row(0), nan_row(1)):
        trial.objective.arm(fault=fault)
        assert trial.solver.step(*trial.batch(5)).skipped
    trial.objective.disarm()
    with pytest.raises(Mine), trial.solver.gradient(*trial.batch(5)):
        raise Mine("mine")
    assert_same(without_counts(trial.run(5, 9).snapshot()), without_counts(clean))


def test_a_new_stage_renews_and_counts_from_there():
    trial = Trial("msvr-v3", changes={"period": None})
    run = fcco.StageWise(trial.solver, [fcco.Stage(6, 0.02, 0.3, 0.4), fcco.Stage(6, 0.01, 0.3, 0.4)])
    found, passes = set(), trial.passes

    def counted():
        found.add(trial.solver.t + 1)
        return passes()

    trial.passes = counted
    for t in range(1, 13):
        run.step(*trial.batch(t))
    assert sorted(found) == [1, 5, 7, 11]


def test_the_whole_pass_in_one_step_renews_at_every_step():
    trial = Trial("msvr-v3", changes={"period": None})
    everything = torch.arange(BLOCKS), trial.x, torch.full((BLOCKS, SAMPLES), 1 / SAMPLES)
    for t in range(1, 4):
        report = trial.solver.step(*everything)
        assert report.samples == 2 * t * BLOCKS * SAMPLES
    assert len(list(full_pass(trial.x))) == 2
