"""What a step is given, and what the objective's functions return: the right error, and nothing changed by it.

A step that fails leaves weights, u, z, earlier weights, buffers, optimizer state, counters and random state bit for
bit as they were, and the next good step is the same as if the bad one had never been asked for.
"""

import pytest
import torch

import fcco
from tests.helpers.failing import INF, NAN, Mine, check_failed_step, forgets, nan_row, never, raises
from tests.helpers.methods import TRACKED
from tests.helpers.trials import BLOCKS, Trial

pytestmark = pytest.mark.usefixtures("one_thread")


INDEX = {
    "float": (lambda i: i.float(), TypeError, "index .*float32"),
    "bool": (lambda i: i > 2, TypeError, "index .*bool"),
    "list of bools": (lambda i: [True, False, True], TypeError, "index .*bool"),
    "list of floats": (lambda i: [0.0, 1.0, NAN], TypeError, "index .*float"),
    "complex": (lambda i: i.to(torch.complex64), TypeError, "index .*complex"),
    "two dimensions": (lambda i: i[None], ValueError, r"index .*\(1, 3\)"),
    "no dimension": (lambda i: i[0], ValueError, r"index .*\(\)"),
    "a number": (lambda i: 3, ValueError, r"index .*\(\)"),
    "empty": (lambda i: i[:0], ValueError, "index .*empty"),
    "empty list": (lambda i: [], ValueError, "index .*empty"),
    "negative": (lambda i: i.new_tensor([0, -2, 3]), ValueError, "index .*block -2"),
    "too large": (lambda i: i.new_tensor([0, 1, BLOCKS]), ValueError, f"index .*block {BLOCKS}"),
    "huge": (lambda i: [2**70, 1, 2], (TypeError, ValueError), f"index .*{2**70}"),
    "twice": (lambda i: i.new_tensor([4, 1, 4]), ValueError, "index .*block 4 more than once"),
    "string": (lambda i: "ab", TypeError, "index .*'ab'"),
    "list of strings": (lambda i: ["a", "b"], TypeError, r"index .*'a'"),
    "ragged": (lambda i: [[1], [2, 3]], TypeError, r"index .*\[2, 3\]"),
    "none": (lambda i: None, TypeError, "index .*None"),
    "set": (lambda i: {1, 2}, TypeError, r"index .*\{1, 2\}"),
}


@pytest.mark.parametrize("case", INDEX)
def test_index(case):
    change, error, says = INDEX[case]

    def spoil(trial):
        index, *rest = trial.batch(1)
        trial.solver.step(change(index), *rest)

    check_failed_step("msvr-v3", spoil, error, says, t=1)  # the reference is due


INNER = {
    "too wide": (lambda n, g: torch.cat([g, g], 1), ValueError, r"inner .*\(3, 2\).*got \(3, 4\)"),
    "too short": (lambda n, g: g[:2], ValueError, r"inner .*\(3, 2\).*got \(2, 2\)"),
    "one dimension": (lambda n, g: g[:, 0], ValueError, r"inner .*\(3, 2\).*got \(3,\)"),
    "transposed": (lambda n, g: g.T, ValueError, r"inner .*\(3, 2\).*got \(2, 3\)"),
    "integers": (lambda n, g: g.long(), TypeError, "inner .*int64"),
    "complex": (lambda n, g: g.to(torch.complex64), TypeError, "inner .*complex64"),
    "list": (lambda n, g: g.tolist(), TypeError, "inner .*list"),
    "nothing": (forgets, TypeError, "inner .*NoneType"),
    "without graph": (lambda n, g: g.detach(), ValueError, "inner .*without a graph"),
    "elsewhere": (lambda n, g: g.to("meta"), ValueError, "inner .*cpu.*meta"),
    "nan": (nan_row(1), fcco.NonFiniteError, r"not finite for block {0}$"),
    "inf": (nan_row(1, INF), fcco.NonFiniteError, r"not finite for block {0}$"),
    "error of its own": (raises(Mine("mine")), Mine, "mine"),
    "index error": (raises(IndexError("theirs")), IndexError, "theirs"),
    "not written": (never, NotImplementedError, "later"),
    "interrupt": (raises(KeyboardInterrupt("stop")), KeyboardInterrupt, "stop"),
    "exit": (raises(SystemExit(3)), SystemExit, "3"),
}


@pytest.mark.parametrize("name", ["soap", "msvr-v1-sp"])
@pytest.mark.parametrize("case", INNER)
def test_what_inner_returns(case, name):
    fault, error, says = INNER[case]

    def spoil(trial):
        index, *rest = trial.batch(3)
        trial.objective.arm(fault=fault)
        trial.solver.step(index, *rest)

    block = int(Trial(name).batch(3)[0][1])
    found = check_failed_step(name, spoil, error, says.format(block))
    if error is fcco.NonFiniteError:
        assert found.blocks == [block]


OUTER = {
    "one column": (lambda n, f: f[:, None], ValueError, r"outer .*\(3,\).*got \(3, 1\)"),
    "the mean": (lambda n, f: f.mean(), ValueError, r"outer .*\(3,\).*got \(\)"),
    "too short": (lambda n, f: f[:2], ValueError, r"outer .*\(3,\).*got \(2,\)"),
    "list": (lambda n, f: f.tolist(), (TypeError, ValueError), "outer .*list"),
    "nothing": (forgets, (TypeError, ValueError), "outer .*NoneType"),
    "complex": (lambda n, f: f + 1j, TypeError, "outer .*complex"),
    "integers": (lambda n, f: f.long(), TypeError, "outer .*int64"),
    "nan": (nan_row(1), fcco.NonFiniteError, r"not finite for block {0}$"),
    "inf": (nan_row(1, -INF), fcco.NonFiniteError, r"not finite for block {0}$"),
    "error of its own": (raises(Mine("mine")), Mine, "mine"),
}


@pytest.mark.parametrize("name", ["sox", "msvr-v2"])
@pytest.mark.parametrize("case", OUTER)
def test_what_outer_returns(case, name):
    fault, error, says = OUTER[case]

    def spoil(trial):
        index, *rest = trial.batch(3)
        trial.objective.arm(outer_fault=fault)
        trial.solver.step(index, *rest)

    block = int(Trial(name).batch(3)[0][1])
    found = check_failed_step(name, spoil, error, says.format(block))
    if error is fcco.NonFiniteError:
        assert found.blocks == [block]


PROJECT = {
    "too short": (lambda u: u[:1], ValueError, r"project .*\(3, 2\).*got \(1, 2\)"),
    "one row": (lambda u: u[0], ValueError, r"project .*\(3, 2\).*got \(2,\)"),
    "a number": (lambda u: u.mean(), ValueError, r"project .*\(3, 2\).*got \(\)"),
    "list": (lambda u: u.tolist(), TypeError, "project .*list"),
    "integers": (lambda u: u.long(), TypeError, "project .*int64"),
    "nothing": (lambda u: None, TypeError, "project .*NoneType"),
    "nan": (lambda u: u.index_fill(0, torch.tensor([1]), NAN), fcco.NonFiniteError, "block {0}$"),
    "inf": (lambda u: u.index_fill(0, torch.tensor([1]), INF), fcco.NonFiniteError, "block {0}$"),
}


@pytest.mark.parametrize("name", ["soap", "msvr-v2"])
@pytest.mark.parametrize("case", PROJECT)
def test_what_project_returns(case, name):
    fault, error, says = PROJECT[case]

    def spoil(trial):
        index, *rest = trial.batch(3)
        trial.objective.arm(project_fault=fault)
        trial.solver.step(index, *rest)

    block = int(Trial(name).batch(3)[0][1])
    found = check_failed_step(name, spoil, error, says.format(block))
    if error is fcco.NonFiniteError:
        assert found.blocks == [block]


def test_rows_keep_no_graph_of_a_trained_projection():
    """A projection onto a learned range must not tie the rows of u to a graph that grows with every step."""
    trial = Trial("msvr-v2")
    trial.objective.arm(project_fault=lambda u: u.clamp(max=trial.objective.shift.max() + 5))
    trial.run(1, 3)
    assert not trial.solver.state.engine.table.rows.requires_grad


SAMPLES_CASES = {
    "error of its own": (raises(Mine("mine")), Mine, "mine"),
    "nothing": (lambda *_: None, TypeError, "samples .*None"),
    "a float": (lambda *_: 2.5, TypeError, "samples .*2.5"),
    "negative": (lambda *_: -4, ValueError, "samples .*-4"),
}


@pytest.mark.parametrize("name", ["soap", "msvr-v2"])
@pytest.mark.parametrize("case", SAMPLES_CASES)
def test_what_samples_returns(case, name):
    fault, error, says = SAMPLES_CASES[case]

    def spoil(trial):
        trial.objective.arm(samples_fault=lambda: fault(1, None))
        trial.solver.step(*trial.batch(3))

    check_failed_step(name, spoil, error, says)


# the probes after the first, by number
LATER = [
    ("msvr-v1", 2),
    ("msvr-v2", 2),
    ("storm-v2", 2),
    ("variant-v2", 2),
    ("msvr-v2-sp", 2),
    ("alexr", 2),
    ("sonx", 2),
]
LATER += [("msvr-v3", 2), ("msvr-v3", 3), ("variant-v3", 3), ("bspiderboost", 2)]


@pytest.mark.parametrize("error", [Mine("mine"), KeyboardInterrupt("mine")], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(("name", "probe"), LATER)
def test_error_at_a_later_probe(name, probe, error):
    """The weights are those of an earlier step when it comes, and buffers and masks are being replayed."""

    def spoil(trial):
        trial.objective.arm(fault=raises(error, at=probe))
        trial.solver.step(*trial.batch(3))

    check_failed_step(name, spoil, type(error), "mine")


@pytest.mark.parametrize(("name", "probe"), LATER)
def test_not_finite_at_a_later_probe(name, probe):
    def spoil(trial):
        trial.objective.arm(fault=lambda n, g: nan_row(2)(n, g) if n == probe else g)
        trial.solver.step(*trial.batch(3))

    block = int(Trial(name).batch(3)[0][2])
    assert check_failed_step(name, spoil, fcco.NonFiniteError, f"block {block}$").blocks == [block]


@pytest.mark.parametrize("probe", range(1, 8))
def test_error_while_the_reference_is_renewed(probe):
    """v3's first step: two passes of two batches each, then the probes."""

    def spoil(trial):
        trial.objective.arm(fault=raises(Mine("mine"), at=probe))
        trial.solver.step(*trial.batch(1))

    check_failed_step("msvr-v3", spoil, Mine, "mine", t=1)


@pytest.mark.parametrize("name", TRACKED)
def test_the_first_step_may_fail_too(name):
    def spoil(trial):
        trial.objective.arm(fault=nan_row(0))
        trial.solver.step(*trial.batch(1))

    check_failed_step(name, spoil, fcco.NonFiniteError, "not finite", t=1)


@pytest.mark.parametrize("name", TRACKED)
def test_not_finite_data(name):
    """BatchNorm spreads a NaN over the batch: every block of it is named."""

    def spoil(trial):
        index, x, weight = trial.batch(3)
        x[1, 0, 2] = NAN
        trial.solver.step(index, x, weight)

    blocks = Trial(name).batch(3)[0].tolist()
    says = "not finite for blocks " + ", ".join(str(block) for block in blocks)
    assert check_failed_step(name, spoil, fcco.NonFiniteError, says).blocks == blocks


@pytest.mark.parametrize("name", ["sox", "bsgd", "msvr-v2", "msvr-v1-sp", "scent"])
def test_not_finite_data_without_batch_norm(name):
    """Without it only the block that the NaN belongs to is named."""

    def spoil(trial):
        index, x, weight = trial.batch(3)
        x[1, 0, 2] = INF
        trial.solver.step(index, x, weight)

    block = int(Trial(name).batch(3)[0][1])
    found = check_failed_step(name, spoil, fcco.NonFiniteError, f"block {block}$", batch_norm=False)
    assert found.blocks == [block]
