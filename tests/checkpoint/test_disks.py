"""Disks that fail while a checkpoint is written, and states that a file cannot hold."""

import errno
import io
import os
import resource
import signal
import sys

import numpy as np
import pytest
import torch

import fcco
from fcco.checkpoint import read
from tests.helpers.runs import Run
from tests.helpers.same import assert_same

pytestmark = pytest.mark.usefixtures("one_thread")


def survives(path, run, old):
    """The old file is whole and nothing of the run has changed."""
    assert path.read_bytes() == old
    read(path)
    fresh = Run(seed=9)
    fcco.load(path, **fresh.parts)


FAILURES = {
    "fsync": ("os.fsync", errno.EIO),
    "replace": ("os.replace", errno.EACCES),
    "torch.save": ("torch.save", errno.ENOSPC),
}


@pytest.mark.parametrize("where", FAILURES)
def test_error_while_saving(where, good_file, tmp_path, monkeypatch):
    name, number = FAILURES[where]
    path = tmp_path / "run.pt"
    path.write_bytes(good_file.read_bytes())
    run = Run(seed=2).steps(2)
    before = run.snapshot()

    def fails(*_, **__):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(name, fails)
        with pytest.raises(OSError, match=os.strerror(number)):
            fcco.save(path, **run.parts)
    assert_same(before, run.snapshot())
    survives(path, run, good_file.read_bytes())
    run = Run(seed=2).steps(2)
    fcco.save(path, **run.parts)  # and the next save works, over what the failed one left
    assert_same(read(path)["states"]["solver"], run.solver.state_dict())


# torch has threads, but the child only writes a file and leaves
forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def in_a_child(work):
    """Run ``work`` in a forked process; it returns what the parent gets to see, as text."""
    out, inlet = os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover
        try:
            os.write(inlet, work().encode())
        except BaseException as error:
            os.write(inlet, f"child failed: {error!r}".encode())
        finally:
            os._exit(0)
    os.close(inlet)
    with os.fdopen(out, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    return said


def error_of(path, parts):
    try:
        fcco.save(path, **parts)
    except BaseException as error:
        return f"{type(error).__name__} {getattr(error, 'errno', None)} {isinstance(error, OSError)}"
    return "no error"


@forks
@pytest.mark.skipif(sys.platform != "linux", reason="file size limits as Linux has them")
@pytest.mark.parametrize("part", [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99])
def test_disk_that_is_full(part, good_file, tmp_path):
    """A real one: the system lets the process write that much of the file and no more."""
    path, size = tmp_path / "run.pt", good_file.stat().st_size
    path.write_bytes(good_file.read_bytes())
    parts = Run(seed=2).steps(2).parts

    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = int(part * size)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return error_of(path, parts)

    assert in_a_child(work) == f"OSError {errno.EFBIG} True"
    survives(path, None, good_file.read_bytes())


@forks
def test_folder_that_is_not_writable(good_file, tmp_path):
    folder = tmp_path / "closed"
    folder.mkdir()
    path = folder / "run.pt"
    path.write_bytes(good_file.read_bytes())
    folder.chmod(0o555)
    parts = Run(seed=2).steps(2).parts

    def work():
        if os.getuid() == 0:  # root may write anywhere: be nobody
            os.setuid(65534)
        return error_of(path, parts)

    for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    try:
        assert in_a_child(work) == f"PermissionError {errno.EACCES} True"
    finally:
        folder.chmod(0o755)
    survives(path, None, good_file.read_bytes())


def test_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        fcco.save(tmp_path / "nowhere" / "run.pt", solver=Run().solver)


def test_part_without_a_state(tmp_path):
    with pytest.raises(TypeError, match=r"solver .*state_dict.*a int"):
        fcco.save(tmp_path / "run.pt", solver=3)
    assert not (tmp_path / "run.pt").exists()


class Odd:
    """A part whose state holds one value of any kind."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"best": [self.value]}

    def load_state_dict(self, state):
        self.value = state["best"][0]


ODD = {
    "a class": (io.StringIO, r"odd\['best'\]\[0\] is .*StringIO"),
    "an array": (np.ones(2), r"odd\['best'\]\[0\] is .* of type ndarray"),
    "a function": (len, r"odd\['best'\]\[0\] is .*len"),
    "a key": ({np.int64(3): 1}, "odd.* has the key .* of type int64"),
}


@pytest.mark.parametrize("case", ODD)
def test_state_that_could_not_be_loaded_is_refused_when_saving(case, tmp_path):
    """Better an error now than a file that cannot be read when it is needed; the old one stays."""
    run, path = Run().steps(1), tmp_path / "run.pt"
    fcco.save(path, solver=run.solver)
    old = path.read_bytes()
    with pytest.raises(TypeError, match=ODD[case][1]):
        fcco.save(path, solver=run.solver, odd=Odd(ODD[case][0]))
    assert path.read_bytes() == old


@pytest.mark.parametrize("value", [1, 0.5, True, None, "a", b"a", 1j, torch.float32, (1, 2), torch.ones(2).bfloat16()])
def test_what_a_state_may_hold(value, tmp_path):
    fcco.save(tmp_path / "run.pt", solver=Odd(value))
    other = Odd(None)
    fcco.load(tmp_path / "run.pt", solver=other)
    assert_same(value, other.value)


def test_infinities_and_nan_survive(tmp_path):
    """As ReduceLROnPlateau's best value at its start."""
    values = [float("inf"), float("-inf"), float("nan"), -0.0, torch.tensor([float("nan"), -0.0])]
    fcco.save(tmp_path / "run.pt", solver=Odd(values))
    other = Odd(None)
    fcco.load(tmp_path / "run.pt", solver=other)
    assert_same(values, other.value)
