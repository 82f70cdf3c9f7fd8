"""A rank under ``torchrun --max-restarts`` that is killed at random in its first attempts, and then comes to its end.

As a script: ``elastic_worker.py MODE FOLDER SEED KILLS``. MODE "fcco" trains and resumes from its checkpoint; "control"
does nothing but reductions, without fcco: where that fails too, the failure is torchrun's own.
"""

import contextlib
import datetime
import os
import random
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

STEPS, EVERY = 14, 2  # how long a run is, and how often it saves


def main(mode, folder, seed, kills):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    draws = random.Random(100 * seed + attempt)
    victim = draws.randrange(dist.get_world_size())
    delay = draws.randint(1, STEPS // 2)
    run = train if mode == "fcco" else control
    for taken, _ in enumerate(run(Path(folder)), 1):
        if attempt < kills and dist.get_rank() == victim and taken == delay:
            os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


def train(folder):
    """Steps, with something to go wrong in between; the weights in a file at the end."""
    import fcco
    from tests.helpers.ranks import batch, make, outcome

    path = folder / "run.pt"
    solver, x = make("msvr-v2")
    with contextlib.suppress(FileNotFoundError):  # on every rank alike
        fcco.load(path, solver=solver)
    while solver.t < STEPS:
        solver.step(*batch(solver.t + 1, x))
        yield
        if solver.t % EVERY == 0:
            fcco.save(path, solver=solver)
    found = outcome(solver)
    if dist.get_rank() == 0:
        torch.save(found, folder / "outcome.pt")


def control(folder):
    for _ in range(STEPS):
        dist.all_reduce(torch.ones(4))
        yield
    (folder / f"done-{dist.get_rank()}").touch()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
