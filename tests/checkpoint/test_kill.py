"""SIGKILL: a training process killed at fifty moments, in saves and between them, ends in the same bits every time.

The processes are real ones, forked from a parent that has torch loaded already (tests/helpers/kill_worker.py).
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fcco.checkpoint import read
from tests.helpers import kill_worker
from tests.helpers.kill_worker import EVERY, PLACES, STEPS
from tests.helpers.same import assert_same

HELD, AT_RANDOM = 16, 34  # kills within a save, and at any moment: fifty in all
ROOT = Path(__file__).parents[2]


class Nursery:
    """Starts workers and tells how they ended."""

    def __init__(self):
        path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", kill_worker.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},  # no threads before the fork
        )

    def start(self, folder, pause=None):
        """Begin a worker on the folder; its process id."""
        return self._ask("start", {"folder": str(folder), "pause": pause})

    def kill(self):
        """SIGKILL it. How it ended: minus the signal's number, or 0 where it had come to its end before."""
        return self._ask("kill")

    def wait(self):
        """Let it come to its end; 0 where all went well."""
        return self._ask("wait")

    def _ask(self, command, order=None):
        self._process.stdin.write(json.dumps([command, order]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the nursery is gone"
        return int(line)

    def close(self):
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def nursery():
    nursery = Nursery()
    try:
        yield nursery
    finally:
        nursery.close()


@pytest.fixture(scope="module")
def uninterrupted(nursery, tmp_path_factory):
    """The end of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    nursery.start(folder)
    assert nursery.wait() == 0
    return read(folder / "run.pt")


def finish(nursery, folder, expected):
    """Let the run come to its end: the same bits."""
    nursery.start(folder)
    assert nursery.wait() == 0
    content = read(folder / "run.pt")
    assert content["states"]["solver"]["state"]["t"] == STEPS
    assert_same(expected, content)


def wait_until(happened, seconds=60):
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.001)


def reached(folder):
    """The step that the folder's file holds."""
    path = folder / "run.pt"
    return read(path)["states"]["solver"]["state"]["t"] if path.exists() else 0


@pytest.mark.parametrize("place", PLACES)
def test_killed_within_a_save(place, nursery, uninterrupted, tmp_path):
    """The worker holds still inside the save; what lies in the folder then must be the old state or the new one."""
    order, stepped = random.Random(place), 0
    for _ in range(HELD // len(PLACES)):
        number = order.randint(1, 3)
        pid = nursery.start(tmp_path, pause=(number, place))
        wait_until((tmp_path / "held").exists)
        assert int((tmp_path / "held").read_text()) == pid
        partial = list(tmp_path.glob("run.pt.*.partial"))
        assert len(partial) == (place != "renamed")
        assert nursery.kill() == -signal.SIGKILL
        for left in partial:
            left.unlink()
        (tmp_path / "held").unlink()
        stepped += EVERY * (number if place == "renamed" else number - 1)
        assert reached(tmp_path) == stepped
    finish(nursery, tmp_path, uninterrupted)


def test_killed_at_any_moment(nursery, uninterrupted, tmp_path):
    """Runs are killed, resumed, killed again, ... and begun anew where they came to their end.

    A moment is a step drawn at random, and a time drawn at random from there on, long enough for a save to fall
    into it: a time alone would mean another moment wherever the machine is busy.
    """
    moments, kills, runs = random.Random(0), 0, 0
    while kills < AT_RANDOM:
        folder = tmp_path / str(runs)
        folder.mkdir(exist_ok=True)
        step = reached(folder) + moments.randint(0, 12)
        nursery.start(folder)
        wait_until(lambda folder=folder, step=step: progress(folder) >= min(step, STEPS - 1))
        time.sleep(moments.uniform(0.0, 0.02))
        status = nursery.kill()
        if status == 0:
            runs += 1
            assert_same(uninterrupted, read(folder / "run.pt"))
            continue
        assert status == -signal.SIGKILL
        kills += 1
    finish(nursery, folder, uninterrupted)


def progress(folder):
    """The step that the folder's worker is at; what an earlier one left counts too, so that some die at once."""
    path = folder / "progress"
    return int.from_bytes(path.read_bytes()) if path.exists() else 0
