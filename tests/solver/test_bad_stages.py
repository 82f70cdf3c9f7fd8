"""StageWise: bad arguments, and bad steps at the boundary of a stage."""

import pytest
import torch

import fcco
from fcco.methods.stages import Stage
from fcco.solver import StageWise
from tests.helpers.failing import NAN, nan_row
from tests.helpers.same import assert_same
from tests.helpers.trials import Noisy, Trial, without_counts

pytestmark = pytest.mark.usefixtures("one_thread")


STAGES = [Stage(2, 0.1, 0.5, 0.5), Stage(3, 0.05, 0.25, 0.25)]
STAGEWISE = {
    "solver: an optimizer": ({"solver": torch.optim.SGD(Noisy().parameters())}, TypeError, "solver .*SGD"),
    "stages: none": ({"stages": None}, (TypeError, ValueError), "stages .*None"),
    "stages: empty": ({"stages": []}, ValueError, r"stages .*\[\]"),
    "stages: a stage": ({"stages": STAGES[0]}, (TypeError, ValueError), "stages .*Stage"),
    "stages: tuples": ({"stages": [(2, 0.1, 0.5, 0.5)]}, ValueError, "stages .*0.1"),
    "stages: an iterator": ({"stages": iter(STAGES)}, (TypeError, ValueError), "stages .*iterator"),
    "mu: negative": ({"mu": -1.0}, ValueError, "mu .*-1"),
    "mu: nan": ({"mu": NAN}, ValueError, "mu .*nan"),
    "mu: without weight decay": ({"mu": 0.5}, ValueError, "mu is 0.5.*weight_decay.*got 0"),
    "drawn: a string": ({"drawn": "no"}, TypeError, "drawn .*'no'"),
    "seed: a float": ({"seed": 0.5}, TypeError, "seed .*0.5"),
}


@pytest.mark.parametrize("case", STAGEWISE)
def test_stage_wise_argument(case):
    changes, error, says = STAGEWISE[case]
    trial = Trial("msvr-v2")
    before = trial.snapshot()
    with pytest.raises(error, match=says):
        StageWise(**{"solver": trial.solver, "stages": STAGES} | changes)
    assert_same(before, trial.snapshot())


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_mu_with_an_optimizer_whose_decay_is_another_term(optimizer):
    objective = Noisy()
    solver = fcco.Solver(objective, optimizer(objective.parameters(), weight_decay=0.1), fcco.msvr_v2())
    with pytest.warns(UserWarning, match=f"mu is 0.1, but the weight decay of {optimizer.__name__}"):
        StageWise(solver, STAGES, mu=0.1)


def test_mu_with_sgd_is_what_the_theorem_means():
    objective = Noisy()
    sgd = torch.optim.SGD(objective.parameters(), weight_decay=0.1)
    StageWise(fcco.Solver(objective, sgd, fcco.msvr_v2()), STAGES, mu=0.1)  # warnings are errors


def test_stage_wise_is_over_when_it_is_over():
    trial = Trial("msvr-v2")
    run = StageWise(trial.solver, STAGES)
    for t in range(1, 6):
        run.step(*trial.batch(t))
    before = trial.snapshot(), run.state_dict()
    with pytest.raises(ValueError, match="2 stages are finished"):
        run.step(*trial.batch(6))
    assert_same(before, (trial.snapshot(), run.state_dict()))


@pytest.mark.parametrize("name", ["msvr-v2", "msvr-v3"])
@pytest.mark.parametrize("t", range(1, 5))
def test_stage_wise_survives_a_bad_step(name, t):
    """At t = 1 and t = 3 a stage begins: the bad step must not begin it, or begin it twice."""

    def run(spoilt):
        trial = Trial(name)
        run = StageWise(trial.solver, STAGES, drawn=False)
        for step in range(1, 6):
            if spoilt and step == t:
                before = trial.snapshot(), run.state_dict()
                trial.objective.arm(fault=nan_row(0))
                with pytest.raises(fcco.NonFiniteError):
                    run.step(*trial.batch(step))
                trial.objective.disarm()
                assert_same(before, (trial.snapshot(), run.state_dict()))
            run.step(*trial.batch(step))
        return trial.snapshot(), run.state_dict()

    assert_same(run(False), run(True))


def test_stage_wise_does_not_count_a_skipped_step():
    def run(spoilt):
        trial = Trial("msvr-v2", nonfinite="skip")
        run = StageWise(trial.solver, STAGES)
        for step in range(1, 6):
            if spoilt and step == 2:
                trial.objective.arm(fault=nan_row(0))
                assert run.step(*trial.batch(step)).skipped
                trial.objective.disarm()
            run.step(*trial.batch(step))
        return without_counts(trial.snapshot()), run.state_dict()

    assert_same(run(False), run(True))
