"""The process that tests/checkpoint/test_kill.py kills: trains, saves now and then, goes on from its file if restarted.

Run as a script it is a nursery: it loads torch once and forks workers, so that a start costs milliseconds. Each line of
its input is a command in JSON, each line of its output the answer: ``["start", arguments of train]`` a worker's id,
``["kill", null]`` and ``["wait", null]`` how it ended.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import fcco

STEPS, EVERY = 40, 3  # how long a run is, and how often it saves
BLOCKS, SAMPLES, FEATURES = 8, 6, 4
PLACES = ("half-written", "written", "flushed", "renamed")  # where a save can be held


class Scores(fcco.Objective):
    """A small network with BatchNorm and Dropout."""

    def __init__(self):
        super().__init__(num_blocks=BLOCKS, dim=1)
        self.model = nn.Sequential(
            nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 1)
        )

    def inner(self, index, x):
        return self.model(x.flatten(0, 1)).unflatten(0, x.shape[:2]).mean(1)

    def outer(self, index, u):
        return (1 + u.square()).sqrt().squeeze(1)


def make_run():
    """Everything that a run is made of: solver, sampler, scheduler, data."""
    torch.manual_seed(1)
    random.seed(1)
    objective = Scores()
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.05)
    solver = fcco.Solver(objective, optimizer, fcco.msvr_v2(alpha=0.3, beta=0.4), keep="uniform")
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5)
    sampler = fcco.BlockSampler(BLOCKS, 3, seed=4)
    x = torch.randn(BLOCKS, SAMPLES, FEATURES)
    return solver, sampler, scheduler, x


def train(folder, pause=None):
    """Go on from the folder's file, or begin, and run to the end; the file then holds the end.

    Args:
        pause: (number of the save, place in it): be held there for ever, having written a mark.
    """
    path = Path(folder) / "run.pt"
    solver, sampler, scheduler, x = make_run()
    if path.exists():
        fcco.load(path, solver=solver, loader=sampler, scheduler=scheduler)
    saves, progress = 0, os.open(Path(folder) / "progress", os.O_RDWR | os.O_CREAT)
    while solver.t < STEPS:
        os.pwrite(progress, solver.t.to_bytes(4), 0)
        index = next(sampler)
        solver.step(index, x[index][:, torch.randperm(SAMPLES)[:3]])
        scheduler.step()
        if solver.t % EVERY == 0 or solver.t == STEPS:
            saves += 1
            if pause is not None and saves == pause[0]:
                hold(folder, pause[1])
            fcco.save(path, solver=solver, loader=sampler, scheduler=scheduler)


def hold(folder, place):
    """From now on a save stops at the place and says so: a mark with the process's id."""

    def stop():
        mark = Path(folder) / "held"
        mark.with_name("mark").write_text(str(os.getpid()))
        os.replace(mark.with_name("mark"), mark)
        time.sleep(600)

    save, fsync, replace = torch.save, os.fsync, os.replace

    def half(content, file):
        save(content, file)
        size = file.tell()
        file.truncate(size // 2)
        file.flush()
        stop()

    def then_stop(function):
        def called(*arguments):
            function(*arguments)
            stop()

        return called

    if place == "half-written":
        torch.save = half
    elif place == "written":
        torch.save = then_stop(save)
    elif place == "flushed":
        os.fsync = then_stop(fsync)
    elif place == "renamed":
        os.replace = lambda *names: (replace(*names), setattr(os, "replace", replace), stop())


def worker(order):
    """A worker's whole life; the exit status is 0 where the run came to its end."""
    try:
        train(**order)
    except BaseException as error:
        sys.stderr.write(f"worker failed: {error!r}\n")
        os._exit(1)
    os._exit(0)


def nursery():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        train(folder)  # what torch loads when it is first used is then there in every worker
    pid = 0
    for line in sys.stdin:
        command, order = json.loads(line)
        if command == "start":
            pid = os.fork()
            if pid == 0:
                worker(order)
            answer = pid
        else:
            if command == "kill":
                os.kill(pid, signal.SIGKILL)  # not waited for yet, so the id is still the worker's
            answer = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    nursery()
