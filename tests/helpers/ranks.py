"""Two ranks that stand ready: processes joined by gloo, which run the functions of this or other files."""

import datetime
import importlib
import os
import time
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fcco
from fcco import checkpoint
from fcco._support.parallel import rank_and_world
from fcco._support.sharded import joined, whole
from tests import old_torch  # noqa: F401
from tests.helpers.methods import TABLE, recipe

BLOCKS, SAMPLES, FEATURES = 8, 5, 3
LAST = 8  # steps of a run; v3 renews its reference at 1 and at 5


class Pool:
    """One process per rank; ``run(function, **arguments)`` gives the answers in the order of ranks."""

    def __init__(self, folder, world=2, patience=60):
        context = mp.get_context("spawn")
        self._patience, store = patience, f"file://{folder}/store"
        self._pipes, self._processes = [], []
        for rank in range(world):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(rank, world, store, there), daemon=True)
            process.start()
            self._pipes.append(here)
            self._processes.append(process)

    def run(self, function, **arguments):
        """What ``function`` returned on each rank; what it raised comes back as (type, message, blocks)."""
        for pipe in self._pipes:
            pipe.send((function.__module__, function.__name__, arguments))
        answers = []
        for rank, pipe in enumerate(self._pipes):
            assert pipe.poll(self._patience), f"rank {rank} does not answer"
            answers.append(pipe.recv())
        return answers

    def close(self):
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()


def serve(rank, world, store, pipe):
    """A rank's life: do what is asked, answer, until there is nothing more to do."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "`torch.jit.script` is")  # torch's own, as in pyproject.toml
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)  # nobody writes into it
    warnings.filterwarnings("ignore", "DTensor random operators may not have complete support")  # older versions
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=30)
    )
    while (asked := pipe.recv()) is not None:
        module, name, arguments = asked
        try:
            pipe.send(getattr(importlib.import_module(module), name)(**arguments))
        except Exception as error:
            pipe.send((type(error).__name__, str(error), getattr(error, "blocks", None)))
    dist.destroy_process_group()


class Curved(fcco.Objective):
    """A small network without anything that ties blocks together, in float64; outer has a parameter too."""

    def __init__(self, log_domain=False, dropout=0.0, num_blocks=BLOCKS):
        super().__init__(num_blocks=num_blocks, dim=2, log_domain=log_domain)
        self.model = nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Dropout(dropout), nn.Linear(4, 2))
        self.shift = nn.Parameter(torch.full((2,), 0.1))
        self.double()
        self.spoilt = None  # a block whose g, or gradient, is not finite

    def inner(self, index, x, weight):
        y = self.model(x)
        if all(self.log_domain):
            g = torch.logsumexp(y + weight.log().unsqueeze(2), 1)
        else:
            g = (y * weight.unsqueeze(2)).sum(1)
        if self.spoilt is None:
            return g
        block, how = self.spoilt
        hit = (index == block).unsqueeze(1)
        if how == "g":
            return g.masked_fill(hit, torch.nan)
        return g + (torch.where(hit, 0.0, 1.0) * g.square()).sqrt()

    def outer(self, index, u):
        return (1 + (u - self.shift).square()).sqrt().sum(1) * (1 + index / self.num_blocks)


def data():
    return torch.randn(BLOCKS, SAMPLES, FEATURES, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def own(index):
    """Those of the blocks that this rank owns."""
    rank, world = rank_and_world()
    return index[index % world == rank]


def batch(t, x):
    """This rank's part of step t: four of the eight blocks, two of each rank's, three samples of each."""
    draws = torch.Generator().manual_seed(100 + t)
    pairs = [torch.randperm(BLOCKS // 2, generator=draws)[:2] * 2 + rank for rank in range(2)]
    rows = torch.stack([torch.randperm(SAMPLES, generator=draws)[:3] for _ in range(BLOCKS)])
    index = own(torch.cat(pairs))
    return index, x[index[:, None], rows[index]], torch.full((len(index), 3), 1 / 3, dtype=torch.float64)


def full_pass(x):
    index = own(torch.arange(BLOCKS))
    for part in (slice(0, 2), slice(2, None)):
        rows = x[index, part]
        yield index, rows, torch.full(rows.shape[:2], 1 / SAMPLES, dtype=torch.float64)


def sharded(model):
    """FSDP2 over all ranks: the first layer by itself, the rest together."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (rank_and_world()[1],))
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


WRAPS = {"ddp": DistributedDataParallel, "fsdp": sharded}


def make(name, seed=0, dropout=0.0, wrap=None, forward_mode=True, **options):
    """A solver on this rank, and the data."""
    torch.manual_seed(seed)
    x = data()
    objective = Curved(log_domain=TABLE[name].log_domain, dropout=dropout)
    objective.forward_mode = forward_mode
    if wrap is not None:
        objective.model = WRAPS[wrap](objective.model)
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.03)
    if TABLE[name].finite_sum:
        options["full_pass"] = lambda: full_pass(x)
    if TABLE[name].single_point:
        options["radius"] = 2.0
    given = {"gamma": None} if "gamma" in TABLE[name].rates else {}
    return fcco.Solver(objective, optimizer, recipe(name, **given), **options), x


def outcome(solver):
    """What is compared: the same on every number of ranks."""
    state = solver.state_dict()
    engine = state["state"]["engine"]
    return {
        "t": solver.t,
        "weights": [whole(p.detach()).clone() for p in solver.parameters],
        "z": [whole(joined(z, p)).clone() for z, p in zip(solver.z, solver.parameters, strict=True)],
        "previous": engine["previous"],
        "rows": engine["table"]["rows"],
        "visited": engine["table"]["visited"],
        "adam": [s["exp_avg_sq"] for s in state["optimizer"]["state"].values()],
    }


def train(name, first=1, last=LAST, load=None, save=None, **options):
    """Steps first..last, from a file and to a file where told so."""
    solver, x = make(name, seed=0 if load is None else 7, **options)
    if load is not None:
        fcco.load(load, solver=solver)
    for t in range(first, last + 1):
        solver.step(*batch(t, x))
    if save is not None:
        fcco.save(save, solver=solver)
        if rank_and_world()[1] > 1:
            dist.barrier()  # rank 0 has written it
    return outcome(solver)


def train_on_draws(load=None, save=None, steps=5, seed=0, **options):
    """Dropout, a BlockSampler and samples from the global generator: every rank has its own randomness."""
    solver, x = make("msvr-v2", seed=seed, dropout=0.3, **options)
    torch.manual_seed(50 * seed + rank_and_world()[0])
    sampler = fcco.BlockSampler(BLOCKS, 4, seed=seed)
    if load is not None:
        fcco.load(load, solver=solver, loader=sampler)
    drawn = []
    for _ in range(steps):
        index = next(sampler)
        drawn.append(index)
        rows = x[index][:, torch.randperm(SAMPLES)[:3]]
        solver.step(index, rows, torch.full(rows.shape[:2], 1 / 3, dtype=torch.float64))
    if save is not None:
        fcco.save(save, solver=solver, loader=sampler)
        dist.barrier()
    kept = {name: whole(value) for name, value in solver.kept().items()}
    return outcome(solver), drawn, torch.get_rng_state(), (solver.samples, solver.oracle.g), kept


def fail_once(name, how, t, nonfinite="raise", wrap=None):
    """A step t that one rank cannot take; then it and the next two as they should be.

    Returns:
        what was raised (or whether it was skipped), whether anything had changed, and the outcome.
    """
    solver, x = make(name, nonfinite=nonfinite, wrap=wrap)
    for step in range(1, t):
        solver.step(*batch(step, x))
    before = None if t == 1 else outcome(solver)
    solver.objective.spoilt = (1, how)
    index, rows, weight = batch(t, x)
    if 1 not in index and rank_and_world()[0] == 1:
        index = torch.cat([torch.tensor([1]), index[1:]])
    raised = None
    try:
        raised = solver.step(index, rows, weight).skipped
    except fcco.NonFiniteError as error:
        raised = (str(error), error.blocks)
    solver.objective.spoilt = None
    unchanged = solver.t == t - 1 and (before is None or equal(before, outcome(solver)))
    for step in range(t, t + 3):
        solver.step(*batch(step, x))
    return raised, unchanged, outcome(solver)


def refuse_once(name, wrap, t=3):
    """An optimizer that raises at step t; then it and the next two as they should be."""
    solver, x = make(name, wrap=wrap)
    for step in range(1, t):
        solver.step(*batch(step, x))
    before, raised = outcome(solver), None

    def refuse(*_):
        raise MemoryError("refused")

    handle = solver.optimizer.register_step_pre_hook(refuse)
    try:
        solver.step(*batch(t, x))
    except MemoryError as error:
        raised = str(error)
    handle.remove()
    unchanged = solver.t == t - 1 and equal(before, outcome(solver))
    for step in range(t, t + 3):
        solver.step(*batch(step, x))
    return raised, unchanged, outcome(solver)


def shard_badly(how):
    """Parameters spread over ranks in ways that the solver does not know."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    objective = Curved()
    if how == "single point":
        sharded(objective.model)
    elif how == "objective":
        fully_shard(objective, mesh=init_device_mesh("cpu", (2,)))
    elif how == "tensor parallel":
        parallelize_module(objective.model, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel()})
    else:
        fully_shard(objective.model, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("a", "b"))["b"])
    name = "msvr-v1-sp" if how == "single point" else "msvr-v1"
    fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), recipe(name), radius=1.0)


def equal(a, b):
    lists = [(a[key], b[key]) for key in ("weights", "z", "previous", "adam") if a[key] is not None]
    return torch.equal(a["rows"], b["rows"]) and all(
        torch.equal(x, y) for left, right in lists for x, y in zip(left, right, strict=True)
    )


def diagnose(name, wrap=None):
    solver, x = make(name, wrap=wrap)
    for t in range(1, 4):
        solver.step(*batch(t, x))
    found = solver.diagnose(lambda: full_pass(x))
    return found.value, found.gradient_norm, found.tracking_error, found.gradient_error


def diagnose_spoilt():
    solver, x = make("sox")
    solver.objective.spoilt = (1, "g")
    solver.diagnose(lambda: full_pass(x))


class Unequal(Curved):
    """Counts the samples of a pass over all data twice on rank 1, as if it owned more of them."""

    def samples(self, index, *data):
        counted = super().samples(index, *data)
        in_a_step = len(index) == BLOCKS // 4
        return counted if in_a_step else counted * (1 + rank_and_world()[0])


def renew_per_epoch(steps=11):
    """The step of v3's reference after every step, without a period: the ranks must renew it together."""
    torch.manual_seed(0)
    objective, x = Unequal(), data()
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.03)
    method = recipe("msvr-v3", period=None)
    solver = fcco.Solver(objective, optimizer, method, full_pass=lambda: full_pass(x))
    found = []
    for t in range(1, steps + 1):
        solver.step(*batch(t, x))
        found.append(solver.state.engine.reference.step)
    return found


def foreign_block():
    solver, x = make("sox")
    rank, world = rank_and_world()
    index = torch.tensor([(rank + 1) % world])
    solver.step(index, x[index], torch.full((1, SAMPLES), 0.2, dtype=torch.float64))


def too_few_blocks():
    objective = Curved(num_blocks=1)
    fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), recipe("sox"))


def uneven_sampler():
    fcco.BlockSampler(BLOCKS, 3)


def save_and_read(path, delay=0.3):
    """Rank 0 writes slowly; what the other reads at once afterwards."""
    if rank_and_world()[0] == 0:
        write = checkpoint.replace_file

        def slowly(*arguments):
            time.sleep(delay)
            write(*arguments)

        checkpoint.replace_file = slowly
    try:
        fcco.save(path, solver=nn.Linear(2, 1))
    finally:
        if rank_and_world()[0] == 0:
            checkpoint.replace_file = write
    return checkpoint.read(path)["kinds"]
