"""torchrun restarts ranks that were killed at random: the run ends in the bits of the undisturbed one.

Where it does not come to its end, a control without fcco is killed in the same way: gloo cannot always join again. That
is then torchrun's own failure, and shown so.
"""

import os

import pytest

from benchmarks import elastic

RUNS = int(os.environ.get("FCCO_ELASTIC_RUNS", "20"))

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    return elastic.undisturbed(tmp_path_factory.mktemp("elastic") / "undisturbed")


@pytest.mark.parametrize("seed", range(RUNS))
def test_killed_ranks_end_in_the_same_bits(seed, wanted, tmp_path):
    one = elastic.trial(seed, tmp_path, wanted, control=False)
    assert one.run.killed
    if one.verdict == "torchrun's own failure":
        pytest.skip("torchrun cannot restart here, without fcco either")
    assert one.verdict == "the same bits", one.run.said[-2000:]
