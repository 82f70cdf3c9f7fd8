"""System calls of a save, of a run's folder and of a sweep's record fail, and the process is killed at them, in turn.

By a library that LD_PRELOAD puts between the process and the C library (tests/helpers/faults.c): Python and torch write
through it alike. After every single case the old or the new file is there, whole, and the run ends in the same bits.
"""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fcco.checkpoint import read
from tests.helpers import fault_worker
from tests.helpers.same import assert_same

ROOT = Path(__file__).parents[2]
ERRORS = {name: getattr(errno, name) for name in ("ENOSPC", "EIO", "EACCES", "EINTR")}
KILLED = -1
CASES = [pytest.param(name, marks=pytest.mark.slow) for name in ("EIO", "EACCES", "EINTR")] + ["ENOSPC", "killed"]
COMPILER = shutil.which("cc") or shutil.which("gcc")

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD as Linux has it"),
    pytest.mark.skipif(COMPILER is None, reason="no C compiler to build the shim with"),
]


class Workers:
    """Processes with the shim."""

    def __init__(self, folder):
        shim = folder / "faults.so"
        source = Path(fault_worker.__file__).with_name("faults.c")
        assert COMPILER is not None
        subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", shim, source, "-ldl"], check=True, timeout=60)
        path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        environment = {"LD_PRELOAD": str(shim), "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore::DeprecationWarning", fault_worker.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )

    def run(self, task, folder, at=0, error=0):
        """How the worker ended, how many calls it made and which, and what it said."""
        self._process.stdin.write(json.dumps([task, str(folder), at, error]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the workers are gone"
        return json.loads(line)

    def close(self):
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    workers = Workers(tmp_path_factory.mktemp("shim"))
    try:
        yield workers
    finally:
        workers.close()


@pytest.fixture(scope="module")
def saved(workers, tmp_path_factory):
    """A folder after one save, the content after two, and the calls of the second."""
    folder = tmp_path_factory.mktemp("saved")
    assert workers.run("save", folder)[0] == 0
    old = (folder / "run.pt").read_bytes()
    status, calls, letters, _ = workers.run("save", folder)
    assert status == 0
    return old, read(folder / "run.pt"), calls, letters


def test_the_calls_of_a_save(saved, capsys):
    """One file of its own: opened, written, flushed, closed, renamed; then the folder: opened, flushed, closed."""
    _, _, calls, letters = saved
    with capsys.disabled():
        sys.stdout.write(f"\na save makes {calls} calls: {letters}\n")
    assert letters.replace("w", "") == "oscrosc"
    assert letters.count("w") >= 1


@pytest.mark.parametrize("error", CASES)
def test_every_call_of_a_save(error, workers, saved, tmp_path):
    old, new, calls, letters = saved
    code = ERRORS.get(error, KILLED)
    for at in range(1, calls + 1):
        folder = tmp_path / str(at)
        folder.mkdir()
        (folder / "run.pt").write_bytes(old)
        status, _, _, said = workers.run("save", folder, at, code)
        case = f"call {at} ({letters[at - 1]}) of {letters}: {said}"
        if error == "killed":
            assert status == -signal.SIGKILL, case
        elif status:
            assert said.startswith(("OSError", "PermissionError", "InterruptedError")), case
            assert "partial" not in said, case
            assert [path.name for path in folder.iterdir()] == ["run.pt"], case  # nothing is left behind
        # The old file or the new one, whole.
        found = read(folder / "run.pt")
        is_new = found["digest"] == new["digest"]
        if not is_new:
            assert (folder / "run.pt").read_bytes() == old, case
            assert workers.run("save", folder)[0] == 0, case
        if status == 0:
            assert is_new, case
        assert_same(new, read(folder / "run.pt"))


@pytest.fixture(scope="module")
def begun(workers, tmp_path_factory):
    """What a run's folder holds in the end, and the calls that it took."""
    folder = tmp_path_factory.mktemp("begun")
    status, calls, letters, said = workers.run("run folder", folder)
    assert status == 0, said
    return content_of(folder), calls, letters


def content_of(folder):
    """Every file's content by its name, but for what a killed process left aside."""
    files = sorted(path for path in (folder / "run").iterdir() if path.suffix != ".partial")
    return {path.name: path.read_bytes() for path in files}


def test_the_calls_of_a_run_folder(begun, capsys):
    _, calls, letters = begun
    with capsys.disabled():
        sys.stdout.write(f"\na run's folder with three evaluations makes {calls} calls: {letters}\n")
    assert letters.count("m") >= 1
    assert letters.count("r") == 4  # environment, configuration, the rows that are kept, status


@pytest.mark.parametrize("error", CASES)
def test_every_call_of_a_run_folder(error, workers, begun, tmp_path):
    """A run whose folder's start, evaluation or end fails is begun again, or gone on with, to the same files."""
    wanted, calls, letters = begun
    code = ERRORS.get(error, KILLED)
    for at in range(1, calls + 1):
        folder = tmp_path / str(at)
        folder.mkdir()
        status, _, _, said = workers.run("run folder", folder, at, code)
        case = f"call {at} ({letters[at - 1]}) of {letters}: {said}"
        if error == "killed":
            assert status == -signal.SIGKILL, case
        elif status:
            assert said.startswith(("StorageError", "LabError")), case
        status, _, _, said = workers.run("run folder", folder)
        assert status == 0, f"{case}; then {said}"
        assert content_of(folder) == wanted, case


SWEEPS = [
    # Which call of how many: all of them would take hours, and the next ones are of the same kind.
    pytest.param("sweep, journal", "ENOSPC", 23),
    pytest.param("sweep, journal", "killed", 23),
    pytest.param("sweep, journal", "ENOSPC", 4, marks=pytest.mark.slow),
    pytest.param("sweep, journal", "EIO", 9, marks=pytest.mark.slow),
    pytest.param("sweep, journal", "EACCES", 9, marks=pytest.mark.slow),
    pytest.param("sweep, journal", "EINTR", 9, marks=pytest.mark.slow),
    pytest.param("sweep, journal", "killed", 4, marks=pytest.mark.slow),
    pytest.param("sweep", "ENOSPC", 31, marks=pytest.mark.slow),
    pytest.param("sweep", "EIO", 47, marks=pytest.mark.slow),
    pytest.param("sweep", "killed", 31, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("task", "error", "stride"), SWEEPS)
def test_calls_of_a_sweeps_record(task, error, stride, workers, tmp_path, capsys):
    """The sweep says so in a sentence, and the same command goes on: every point is recorded once in the end."""
    pytest.importorskip("optuna")
    whole = tmp_path / "whole"
    whole.mkdir()
    status, calls, letters, said = workers.run(task, whole)
    assert status == 0, said
    code = ERRORS.get(error, KILLED)
    tried = range(1 + stride // 2, calls + 1, stride)
    for at in tried:
        folder = tmp_path / str(at)
        folder.mkdir()
        status, _, _, said = workers.run(task, folder, at, code)
        case = f"call {at} ({letters[at - 1]}) of {calls}: {said}"
        if error == "killed":
            assert status == -signal.SIGKILL, case
        elif status:
            assert said.startswith(("StorageError", "LabError")), case
        status, _, _, said = workers.run(task, folder)
        assert status == 0, f"{case}; then {said}"
        assert (folder / "sweep" / "best.toml").read_bytes() == (whole / "sweep" / "best.toml").read_bytes(), case
    with capsys.disabled():
        sys.stdout.write(f"\na record of a {task} with two points makes {calls} calls; {len(tried)} tried by {error}\n")
