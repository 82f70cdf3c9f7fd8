"""benchmarks/peers.py: fcco's u, score gradients and hard inputs against LibAUC's, where that is installed."""

import warnings

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of LibAUC's own code
    pytest.importorskip("libauc.losses", reason="LibAUC is not importable", exc_type=ImportError)
    from benchmarks import peers


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("make", peers.all_pairs(), ids=lambda make: make().name)
def test_u_and_score_gradients_are_those_of_libauc(make, dtype):
    row = peers.agreement(make, dtype)
    assert row.holds, f"{row.name}: u {row.u:.1e}, gradient {row.gradient:.1e}, bound {row.bound:.0e}"


def test_hard_inputs_are_finite_and_right_where_libauc_is_not():
    for row in peers.hard_inputs():
        assert row.holds, row


def test_every_contender_takes_its_step():
    for name, (ours, theirs) in peers.contenders().items():
        report = ours()
        assert report.step == 1, name
        theirs()
