"""Failures of one rank, which all must hear of: run on each rank of tests/helpers/ranks.py's Pool."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

import fcco
from fcco import checkpoint
from fcco._support.parallel import rank_and_world
from tests.helpers.ranks import BLOCKS, batch, equal, full_pass, make, outcome


class Mine(Exception):
    """An error of the user's own."""


def told(function):
    """What a call raised, as (kind, message), and how many seconds it took."""
    began = time.monotonic()
    try:
        function()
        said = None
    except Exception as error:
        said = (type(error).__name__, str(error))
    return said, time.monotonic() - began


def raise_once(name, where, t=3):
    """A step t that raises on rank 1; then it and the next two as they should be."""
    solver, x = make(name)
    for step in range(1, t):
        solver.step(*batch(step, x))
    before = None if t == 1 else outcome(solver)
    index, rows, weight = batch(t, x)
    handle = None
    if rank_and_world()[0] == 1:
        if where == "index":
            index = index + BLOCKS
        elif where == "inner":
            handle = solver.objective.model.register_forward_pre_hook(_raise_mine)
        elif where == "outer":
            solver.objective.outer = _raise_mine
        elif where == "frozen":
            solver.objective.shift.requires_grad_(False)
    said, seconds = told(lambda: solver.step(index, rows, weight))
    if handle is not None:
        handle.remove()
    solver.objective.__dict__.pop("outer", None)
    solver.objective.shift.requires_grad_(True)
    unchanged = solver.t == t - 1 and (before is None or equal(before, outcome(solver)))
    for step in range(t, t + 3):
        solver.step(*batch(step, x))
    return said, seconds, unchanged, outcome(solver)


def _raise_mine(*_):
    raise Mine("mine")


def optimizer_raises(path, t=3):
    """An optimizer that raises on rank 1 alone: the next step must not be taken; a checkpoint mends it."""
    solver, x = make("msvr-v2")
    for step in range(1, t):
        solver.step(*batch(step, x))
    fcco.save(path, solver=solver)
    handle = None
    if rank_and_world()[0] == 1:
        handle = solver.optimizer.register_step_pre_hook(_raise_mine)
    first, _ = told(lambda: solver.step(*batch(t, x)))
    if handle is not None:
        handle.remove()
    second, seconds = told(lambda: solver.step(*batch(solver.t + 1, x)))
    fcco.load(path, solver=solver)
    for step in range(t, t + 3):
        solver.step(*batch(step, x))
    return first, second, seconds, outcome(solver)


def diagnose_fails():
    solver, x = make("sox")
    if rank_and_world()[0] == 1:
        solver.objective.model.register_forward_pre_hook(_raise_mine)
    return told(lambda: solver.diagnose(lambda: full_pass(x)))


class Fails:
    """A part whose state can be asked for, or given back, on rank 0 alone."""

    def __init__(self, how):
        self.how = how

    def state_dict(self):
        if self.how == "state_dict" and rank_and_world()[0] == 1:
            raise Mine("mine")
        return {}

    def load_state_dict(self, state):
        if self.how == "load_state_dict" and rank_and_world()[0] == 1:
            raise Mine("mine")


def save_fails(path, how):
    """Saves that fail on one rank; afterwards one that does not."""
    solver, x = make("sox")
    solver.step(*batch(1, x))
    extra = {}
    replace_file = checkpoint.replace_file
    rank = rank_and_world()[0]
    if how == "disk" and rank == 0:
        checkpoint.replace_file = _no_room
    elif how == "part":
        extra["mine"] = Fails("state_dict")
    elif how == "pending" and rank == 1:
        solver._is_pending = True
    elif how == "no state" and rank == 1:
        extra["mine"] = 3
    said, seconds = told(lambda: fcco.save(path, solver=solver, **extra))
    checkpoint.replace_file = replace_file
    solver._is_pending = False
    fcco.save(path, solver=solver)
    return said, seconds


def _no_room(*_):
    raise RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 704 vs 598")


def load_fails(path, how, t=3):
    """Loads that fail on one rank; the run goes on as if nobody had tried."""
    solver, x = make("msvr-v2")
    sampler = fcco.BlockSampler(BLOCKS, 4)
    for step in range(1, t):
        solver.step(*batch(step, x))
    rank = rank_and_world()[0]
    mine = f"{path}-{rank}"
    fcco.save(path, solver=solver, loader=sampler)
    extra = {"loader": sampler}
    if rank == 0:
        content = Path(path).read_bytes()
        for other in range(2):
            Path(f"{path}-{other}").write_bytes(content)
    dist.barrier()
    if how == "damaged" and rank == 1:
        with open(mine, "r+b") as file:
            file.truncate(900)
    elif how == "part":
        extra["mine"] = Fails("load_state_dict")
        mine = f"{path}-both"
        fcco.save(mine, solver=solver, **extra)
    elif how == "nowhere":
        os.unlink(mine)
    elif how == "another":
        next(sampler)
        fcco.save(f"{path}-later", solver=solver, loader=sampler)
        if rank == 1:
            os.replace(f"{path}-later", mine)
        dist.barrier()
    elif how == "kinds" and rank == 1:
        extra = {}
    for step in range(t, t + 2):
        solver.step(*batch(step, x))
    before = outcome(solver)
    said, seconds = told(lambda: fcco.load(mine, solver=solver, **extra))
    return said, seconds, equal(before, outcome(solver)), solver.t


def load_without_a_shared_disk(path, missing):
    """Each rank has a folder of its own, and one of them is empty: the file comes from the other."""
    solver, x = make("msvr-v2")
    for step in range(1, 4):
        solver.step(*batch(step, x))
    fcco.save(path, solver=solver)
    wanted = outcome(solver)
    for step in range(4, 6):
        solver.step(*batch(step, x))
    mine = path
    if rank_and_world()[0] == missing:
        mine = f"{path}-on-another-machine"
    fcco.load(mine, solver=solver)
    return equal(wanted, outcome(solver)), solver.t


def memory_raises(where):
    """A step of the output memory, and a scoring pass, that rank 1 cannot take; then two that it can."""
    torch.manual_seed(0)
    x = torch.randn(40, 3, dtype=torch.float64)
    y = (torch.arange(40) % 5 == 0).long()
    model = torch.nn.Linear(3, 1).double()
    objective = fcco.objectives.PartialAUC(model, fcco.data.Points(x, y))
    solver = fcco.Solver(objective, torch.optim.SGD(model.parameters(), lr=0.1), fcco.output_memory())
    loader = solver.loader(blocks=2, samples=4, steps_per_epoch=4)
    batches = iter(loader)
    if where == "later":
        solver.step(next(batches))
    handle = None
    if rank_and_world()[0] == 1 and where == "backward":
        handle = model.weight.register_hook(_raise_mine)
    elif rank_and_world()[0] == 1:
        handle = model.register_forward_pre_hook(_raise_mine)
    if where == "score":
        said, seconds = told(loader.score)
    else:
        batch = next(batches)
        said, seconds = told(lambda: solver.step(batch))
    if handle is not None:
        handle.remove()
    for _ in range(2):
        solver.step(next(batches))
    return said, seconds, [p.tolist() for p in model.parameters()]
