"""Passes over all data that are wrong: for the reference of the finite-sum forms, and for diagnose."""

import pytest
import torch

import fcco
from tests.helpers.failing import NAN, Mine, check_failed_step, raises
from tests.helpers.methods import FINITE_SUM
from tests.helpers.same import assert_same
from tests.helpers.trials import BLOCKS, Trial, data, full_pass

pytestmark = pytest.mark.usefixtures("one_thread")


X = data()


def passes(*batches):
    return lambda: iter(batches)


def good(first=0, last=BLOCKS, index=None):
    blocks = torch.arange(first, last)
    return (blocks if index is None else index, X[first:last], torch.full((last - first, 5), 0.2))


def nan_batch(place):
    index, x, weight = good()
    return index, x, weight.index_fill(0, torch.tensor([place]), NAN)


FULL = {
    "nothing": (passes(), ValueError, "full_pass .*blocks 0, 1, 2, 3, 4, 5"),
    "one missing": (passes(good(0, 5)), ValueError, "full_pass .*blocks? 5"),
    "float index": (passes(good(index=torch.arange(6.0))), TypeError, "index of full_pass .*float32"),
    "index too large": (passes(good(index=torch.arange(1, 7))), ValueError, "index of full_pass .*block 6"),
    "negative index": (passes(good(index=torch.arange(-1, 5))), ValueError, "index of full_pass .*block -1"),
    "a tensor": (passes(torch.arange(6)), TypeError, "full_pass .*Tensor"),
    "an empty tuple": (passes(()), TypeError, r"full_pass .*tuple"),
    "a dict": (passes({"index": 1}), TypeError, "full_pass .*dict"),
    "not an iterator": (lambda: None, TypeError, "full_pass .*NoneType"),
    "a number": (lambda: 3, TypeError, "full_pass .*int"),
    "error of its own": (lambda: (raises(Mine("mine"))(1, i) for i in (1,)), Mine, "mine"),
    "nan": (passes(nan_batch(3)), fcco.NonFiniteError, "full.pass.*block.* 3$"),
    "wrong data": (passes((torch.arange(6),)), TypeError, "inner|missing"),
}


@pytest.mark.parametrize(("name", "t"), [("msvr-v3", 1), ("variant-v3", 5)], ids=["first", "later"])
@pytest.mark.parametrize("case", FULL)
def test_full_pass(case, name, t):
    bad, error, says = FULL[case]

    def spoil(trial):
        kept, trial.passes = trial.passes, bad
        try:
            trial.solver.step(*trial.batch(t))
        finally:
            trial.passes = kept

    found = check_failed_step(name, spoil, error, says, t=t)
    if error is fcco.NonFiniteError:
        assert found.blocks == [3]


@pytest.mark.parametrize("name", FINITE_SUM)
def test_full_pass_that_is_used_up_after_one_pass(name):
    """The classic: a function that hands out the same iterator again. The second pass finds it empty."""
    used = iter(list(full_pass(X)))
    trial = Trial(name, full_pass=lambda: used)
    before = trial.snapshot()
    with pytest.raises(ValueError, match=r"full_pass .*did not visit blocks"):
        trial.solver.step(*trial.batch(1))
    assert_same(before, trial.snapshot())


@pytest.mark.parametrize("case", FULL)
def test_diagnose_with_a_bad_full_pass(case):
    bad, error, says = FULL[case]
    trial = Trial("sox").run(1, 2)
    before = trial.snapshot()
    with pytest.raises(error, match=says):
        trial.solver.diagnose(bad)
    assert_same(before, trial.snapshot())


def test_diagnose_without_full_pass():
    with pytest.raises(ValueError, match=r"full_pass.*None"):
        Trial("sox").solver.diagnose()


def test_diagnose_changes_nothing():
    trial = Trial("soap").run(1, 2)
    before = trial.snapshot()
    trial.solver.diagnose(lambda: full_pass(trial.x))
    assert_same(before, trial.snapshot())


# ---------------------------------------------------------------------- halves that are means themselves


def halves(x, weighted):
    """Every block in two rows: the mean over the half of its samples each, weighted or not."""
    index = torch.arange(len(x))
    for half in x.chunk(2, dim=1):
        share = half.shape[1] / x.shape[1]
        yield index, half, torch.tensor(share if weighted else 1.0)


def solver_on_halves(log_domain, weighted, spread):
    x = 2.0 + spread * torch.randn(12, 8, generator=torch.Generator().manual_seed(0))
    w = torch.nn.Parameter(torch.ones(()))

    def inner(index, rows, weight):
        g = (w * rows).mean(1, keepdim=True) * weight
        return g.log() if log_domain else g

    objective = fcco.objective(
        inner, lambda i, u: u.square().squeeze(1), num_blocks=12, parameters=[w], log_domain=log_domain
    )
    solver = fcco.Solver(
        objective, torch.optim.SGD([w], lr=0.01), fcco.msvr_v3(), full_pass=lambda: halves(x, weighted)
    )
    return solver, x


@pytest.mark.parametrize("log_domain", [False, True])
@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_halves_without_weights_are_noticed_at_the_first_pass(log_domain, spread):
    solver, x = solver_on_halves(log_domain, False, spread)
    with pytest.warns(UserWarning, match="full_pass yields several rows per block that seem to be means") as caught:
        solver.step(torch.arange(6), x[:6, ::3], torch.tensor(1.0))
    assert caught[0].filename == __file__
    solver.step(torch.arange(6), x[:6, ::3], torch.tensor(1.0))  # once is enough


@pytest.mark.parametrize("log_domain", [False, True])
@pytest.mark.parametrize("spread", [0.0, 0.5, 2.0])
def test_halves_with_weights_are_right(log_domain, spread):
    spread = min(spread, 0.5) if log_domain else spread
    solver, x = solver_on_halves(log_domain, True, spread)
    solver.step(torch.arange(6), x[:6, ::3], torch.tensor(1.0))  # warnings are errors
    assert solver.diagnose().tracking_error is not None
