"""A rank that fails: every rank raises, in the same step and within seconds, and names it. Real processes, by gloo."""

import functools
import re

import pytest

from tests.helpers import failing_ranks, ranks
from tests.helpers.ranks import Pool
from tests.solver.test_distributed import assert_close

SOON = 10.0  # seconds; the group itself would give up after 30

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two ranks for all tests of this file."""
    pool = Pool(tmp_path_factory.mktemp("ranks"))
    try:
        yield pool
    finally:
        pool.close()


@functools.cache
def alone(name, last):
    """The same steps on one rank."""
    return ranks.train(name, last=last)


CAUSES = {
    "index": ("ValueError", "index must be in 0..7"),
    "inner": ("Mine", "mine"),
    "outer": ("Mine", "mine"),
    "frozen": ("ValueError", "has changed since the Solver was created"),
}


@pytest.mark.parametrize("where", CAUSES)
@pytest.mark.parametrize(("name", "t"), [("sox", 3), ("msvr-v2", 1), ("msvr-v3", 1), ("msvr-v3", 2), ("msvr-v3", 5)])
def test_a_step_that_raises_on_one_rank_raises_on_both(name, t, where, pair):
    healthy, failed = pair.run(failing_ranks.raise_once, name=name, where=where, t=t)
    kind, says = CAUSES[where]
    assert failed[0][0] == kind
    assert says in failed[0][1]
    assert healthy[0][0] == "RankError"
    assert healthy[0][1].startswith(f"rank 1 failed in step {t}: {kind}: ")
    assert says in healthy[0][1]
    for _, seconds, unchanged, _ in (healthy, failed):
        assert seconds < SOON
        assert unchanged
    assert_close([healthy[3], failed[3]], alone(name, t + 2))


def test_ranks_that_are_not_at_the_same_step_refuse_the_next(pair, tmp_path):
    """The optimizer raised on one rank alone, after the gradient was there: the other has taken its step."""
    healthy, failed = pair.run(failing_ranks.optimizer_raises, path=str(tmp_path / "run.pt"))
    assert healthy[0] is None
    assert failed[0] == ("Mine", "mine")
    for answer in (healthy, failed):
        kind, says = answer[1]
        assert kind == "RankError"
        assert "rank 0 takes step 4, rank 1 takes step 3" in says
        assert answer[2] < SOON
    assert_close([healthy[3], failed[3]], alone("msvr-v2", 5))


def test_a_diagnosis_that_fails_on_one_rank_raises_on_both(pair):
    (healthy, soon), (failed, _) = pair.run(failing_ranks.diagnose_fails)
    assert failed == ("Mine", "mine")
    assert healthy == ("RankError", "rank 1 failed in a pass over all data: Mine: mine")
    assert soon < SOON


SAVES = {
    "disk": (("RuntimeError", "unexpected pos"), ("OSError", "rank 0 could not write"), 0),
    "part": (("Mine", "mine"), ("RankError", "rank 1 failed to save .*: Mine: mine"), 1),
    "pending": (("RuntimeError", "a step is pending"), ("RankError", "rank 1 failed to give its state"), 1),
    "no state": (("TypeError", "mine must have state_dict"), ("RankError", "rank 1 failed to save .*TypeError"), 1),
}


@pytest.mark.parametrize("how", SAVES)
def test_a_save_that_fails_on_one_rank_raises_on_both(how, pair, tmp_path):
    """The disk's case is torch's own error, as its writer raises it on a full disk: no OSError."""
    answers = pair.run(failing_ranks.save_fails, path=str(tmp_path / "run.pt"), how=how)
    at_fault, other, rank = SAVES[how]
    _check(answers[rank], at_fault)
    _check(answers[1 - rank], other)
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


LOADS = {
    "damaged": (("CheckpointError", "is damaged"), ("CheckpointError", "rank 1: .* is damaged")),
    "part": (("CheckpointError", "does not fit: mine"), ("CheckpointError", "rank 1 failed to load .*mine")),
    "nowhere": (("FileNotFoundError", "no checkpoint at"), ("FileNotFoundError", "no checkpoint at")),
    "another": (("CheckpointError", "rank 1 and rank 0 have different checkpoints"),) * 2,
    "kinds": (
        ("CheckpointError", "but the call asks for solver"),
        ("CheckpointError", "rank 1 failed to load .*the call asks for"),
    ),
}


@pytest.mark.parametrize("how", LOADS)
def test_a_load_that_fails_on_one_rank_raises_on_both_and_changes_nothing(how, pair, tmp_path):
    healthy, failed = pair.run(failing_ranks.load_fails, path=str(tmp_path / "run.pt"), how=how)
    _check(failed, LOADS[how][0])
    _check(healthy, LOADS[how][1])
    for _, _, unchanged, t in (healthy, failed):
        assert unchanged
        assert t == 4


def _check(answer, wanted):
    (kind, says), seconds = answer[:2]
    assert kind == wanted[0], says
    assert re.search(wanted[1], says)
    assert seconds < SOON


@pytest.mark.parametrize("missing", [0, 1])
def test_machines_without_a_shared_disk(missing, pair, tmp_path):
    """Only one rank finds the file: the other is sent its content."""
    answers = pair.run(failing_ranks.load_without_a_shared_disk, path=str(tmp_path / "run.pt"), missing=missing)
    assert answers == [(True, 3)] * 2


@pytest.mark.parametrize("where", ["first", "later", "backward", "score"])
def test_the_output_memory_on_one_rank_raises_on_both(where, pair):
    healthy, failed = pair.run(failing_ranks.memory_raises, where=where)
    assert failed[0] == ("Mine", "mine")
    assert healthy[0][0] == "RankError"
    assert healthy[0][1].startswith("rank 1 failed in ")
    assert healthy[1] < SOON
    assert healthy[2] == failed[2]  # and both go on together
