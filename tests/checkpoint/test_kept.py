"""Checkpoints of earlier days: those of this format load for ever, those of the format before it are refused."""

import re

import pytest
import torch

import fcco
from tests.checkpoint import kept
from tests.helpers.same import assert_same

pytestmark = pytest.mark.usefixtures("one_thread")
KEPT = sorted(kept.FILES.glob("tracked-*.pt"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_a_kept_checkpoint_loads_and_goes_on_bit_for_bit(path):
    whole = kept.make_run()
    kept.run(*whole, kept.STEPS)
    expected = _numbers(whole[0].state_dict()), whole[0].kept(), whole[1].state_dict()
    solver, sampler = kept.make_run()
    torch.manual_seed(99)
    fcco.load(path, solver=solver, loader=sampler)
    assert solver.t == kept.CUT
    kept.run(solver, sampler, kept.STEPS - kept.CUT)
    assert_same(expected, (_numbers(solver.state_dict()), solver.kept(), sampler.state_dict()))


def _numbers(state):
    """A state without the global generators of Python and numpy, which this run never asks."""
    return state | {"random": [rank["torch"] for rank in state["random"]]}


def test_every_version_has_its_file():
    assert [path.name for path in KEPT] == [f"tracked-{kept.STATE_VERSION}.pt"]
    assert all(path.stat().st_size < 64_000 for path in KEPT)


def test_the_file_is_what_would_be_written_today(tmp_path):
    """A field that was added without a new version shows here."""
    now = torch.load(kept.write(tmp_path), weights_only=True)["states"]["solver"]
    then = torch.load(KEPT[-1], weights_only=True)["states"]["solver"]
    assert _names(now) == _names(then)


def _names(value, where=""):
    if isinstance(value, dict):
        return [name for key, item in value.items() for name in _names(item, f"{where}.{key}")]
    return [where]


def test_a_checkpoint_of_the_first_format_is_refused_in_one_sentence():
    """files/first-format.pt was written by fcco 0.1 before the record (commit ccff90b)."""
    path = kept.FILES / "first-format.pt"
    solver, sampler = kept.make_run()
    before = solver.state_dict()
    says = f"{path} was written by fcco 0.1, whose runs cannot be resumed by this version"
    with pytest.raises(fcco.CheckpointError, match=f"^{re.escape(says)}$"):
        fcco.load(path, solver=solver, loader=sampler)
    assert_same(before, solver.state_dict())


def test_a_state_of_the_first_format_is_refused_in_one_sentence():
    """The state alone, as people save it by themselves: it had no version."""
    state = torch.load(kept.FILES / "first-format.pt", weights_only=True)["states"][0]
    solver, _ = kept.make_run()
    with pytest.raises(ValueError, match=r"version None, but this fcco reads version 2: states of fcco 0.1 cannot"):
        solver.load_state_dict(state)
