"""The processes whose system calls tests/checkpoint/test_faults.py fails: forked from one that has torch loaded.

A line of its input is ``[task, folder, at, error]`` in JSON: run the task with the call number ``at`` failing by
``error`` (-1: the process is killed there; at 0: none). The answer is ``[status, calls, letters, message]``.
"""

import ctypes
import json
import os
import random
import sys
import tempfile
from pathlib import Path

import torch

import fcco
from fcco.lab.config import TrainConfig
from fcco.lab.runs import RunFolder, read_json
from fcco.lab.train import Outcome
from tests.helpers.kill_worker import EVERY, make_run
from tests.helpers.kill_worker import SAMPLES as SAMPLES_PER_BLOCK

SHIM = ctypes.CDLL(None)  # LD_PRELOAD has put it among the process's own symbols


def save(folder):
    """Go on from the folder's file by three steps, and save."""
    solver, sampler, scheduler, x = make_run()
    path = Path(folder) / "run.pt"
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        fcco.load(path, solver=solver, loader=sampler, scheduler=scheduler)
    for _ in range(EVERY):
        index = next(sampler)
        solver.step(index, x[index][:, torch.randperm(SAMPLES_PER_BLOCK)[:3]])
        scheduler.step()
    yield
    fcco.save(path, solver=solver, loader=sampler, scheduler=scheduler)


def run_folder(folder):
    """Begin a run in a folder, or go on, append what evaluations are missing, and say that it is finished."""
    run = RunFolder(Path(folder) / "run")
    yield
    if not run.used:
        run.start(TrainConfig(steps=3), {"data_sha256": {"a": "b"}})
    else:
        run.lock()
        assert run.read_config().steps == 3
        assert read_json(run.environment) == {"data_sha256": {"a": "b"}}
    kept = run.keep_rows(99)
    for step in range(len(kept), 3):
        run.append({"step": step, "objective": 1.0 / (step + 1)})
    run.end("finished", "3 steps")
    run.release()


GRID = {"lr": (0.1, 0.2), "beta": (0.5,)}


def sweep(folder, storage):
    """Open a sweep, or go on with it, run what is left of its two points, and write the best one down."""
    from optuna.storages.journal import JournalFileSymlinkLock
    from rich.console import Console

    from fcco.lab import sweep as sweeping
    from fcco.lab.runs import write_aside
    from fcco.lab.values import to_toml

    def finish(config, path, watch=None):
        """A run's outcome, without the run: its folder has cases of its own."""
        with open(Path(folder).parent / f"runs of {Path(folder).name}", "a") as file:  # outside of the folder: no case
            file.write(f"{config.lr}\n")
        return Outcome(path, config, [{"step": 4, "objective": config.lr}])

    sweeping.finish = finish
    # A killed process holds the journal's lock for so many seconds: 30, but for here.
    JournalFileSymlinkLock.__init__.__defaults__ = (3,)
    yield
    out = Path(folder) / "sweep"
    opened = sweeping.open_sweep(TrainConfig(tensorboard=False, method="sox"), GRID, out, storage=storage)
    sweeping.carry_out(opened, None, Console(quiet=True))
    best, _ = opened.best()
    assert best.lr == 0.1
    with sweeping.recording(out):  # a read of our own may be what fails
        done = [trial for trial in opened.study.get_trials() if trial.state.name == "COMPLETE"]
    assert sorted(json.loads(trial.user_attrs["point"])["lr"] for trial in done) == [0.1, 0.2]  # each once
    write_aside(out / "best.toml", to_toml(best))


TASKS = {
    "save": save,
    "run folder": run_folder,
    "sweep": lambda folder: sweep(folder, None),
    "sweep, journal": lambda folder: sweep(folder, "journal"),
}


def worker(task, folder, at, error, report):
    """A worker's whole life: what its calls were goes down the pipe."""
    letters = ctypes.create_string_buffer(4096)
    message = ""
    calls = 0
    try:
        run = TASKS[task](folder)
        next(run)
        SHIM.fcco_arm(str(folder).encode(), at, error)
        next(run, None)
    except BaseException as problem:
        message = f"{type(problem).__name__}: {problem}"
    calls = SHIM.fcco_calls(letters, len(letters))
    os.write(report, json.dumps([calls, letters.value.decode(), message]).encode())
    os._exit(bool(message))


def main():
    torch.set_num_threads(1)
    random.seed(0)
    warm = set()
    for line in sys.stdin:
        task, folder, at, error = json.loads(line)
        if task not in warm:  # what it loads when it is first run is then there in every worker
            warm.add(task)
            with tempfile.TemporaryDirectory() as inside:
                for _ in TASKS[task](f"{inside}/warm"):
                    pass
        out, inlet = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(out)
            worker(task, folder, at, error, inlet)
        os.close(inlet)
        with os.fdopen(out, "rb") as pipe:
            said = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        answer = [status, *(json.loads(said) if said else [0, "", ""])]
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
