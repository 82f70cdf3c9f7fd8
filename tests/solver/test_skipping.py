"""Steps that are skipped where something is not finite."""

import math

import pytest

from tests.helpers.failing import INF, clean, nan_row, root_of
from tests.helpers.methods import FINITE_SUM, TRACKED
from tests.helpers.same import assert_same
from tests.helpers.trials import Trial, without_counts

pytestmark = pytest.mark.usefixtures("one_thread")


SPOILT = {
    "g": {"fault": nan_row(1)},
    "f": {"outer_fault": nan_row(0, INF)},
    "u": {"project_fault": lambda u: u * INF},
    "gradient": {"fault": root_of(1)},
}


SKIPPED = [(name, "g") for name in TRACKED]
SKIPPED += [(name, what) for name in ("soap", "msvr-v2", "msvr-v3", "scent") for what in SPOILT if what != "g"]


@pytest.mark.parametrize(("name", "what"), SKIPPED)
def test_skipping(name, what):
    """A skipped step counts itself and its samples, and is else as if it had never been."""
    t = 1 if what == "f" else 5 if name in FINITE_SUM else 3  # v3's reference is due at 1 and at 5
    trial = Trial(name, nonfinite="skip").run(1, t - 1)
    before, drawn = trial.snapshot(), trial.solver.samples
    for count in (1, 2):
        trial.objective.arm(**SPOILT[what])
        report = trial.solver.step(*trial.batch(t))
        assert report.skipped
        assert (trial.solver.skipped, report.step, trial.solver.t) == (count, t - 1, t - 1)
        assert report.samples == trial.solver.samples == drawn + 9 * count
        assert math.isnan(report.value)
        assert math.isnan(report.tracking_error)
    trial.objective.disarm()
    assert_same(without_counts(before), without_counts(trial.snapshot()))
    went_on = trial.run(t, t + 1).snapshot()
    assert trial.solver.skipped == 2
    assert_same(without_counts(went_on), without_counts(clean(name, t + 1)))


def test_skipping_is_for_numbers_only():
    """A wrong shape is an error whatever `nonfinite` says."""
    trial = Trial("msvr-v2", nonfinite="skip").run(1, 2)
    before = trial.snapshot()
    trial.objective.arm(fault=lambda n, g: g[:, 0])
    with pytest.raises(ValueError, match="inner"):
        trial.solver.step(*trial.batch(3))
    trial.objective.disarm()
    assert_same(before, trial.snapshot())
