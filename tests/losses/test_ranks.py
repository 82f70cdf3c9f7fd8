"""Two gloo ranks under DDP take the steps of one with the whole batch, and have the same u."""

import os
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import fcco
from fcco.methods import OutputMemory
from tests import old_torch  # noqa: F401
from tests.losses.cases import LOSSES, Loop, batches
from tests.objectives.cases import LABEL, X

MEMORIES = ("pAUC", "pAUC, two-way", "NDCG")
STEPS = 8


def tracked(name):
    """Weights, own variables and u after some steps; each rank has its part of every batch, one of them more."""
    loop = Loop(name, beta=0.3)
    rank, world = (dist.get_rank(), 2) if dist.is_initialized() else (0, 1)
    if world == 2:
        loop.model = DistributedDataParallel(loop.model)
    values = [loop.step(id[rank::world]) for id in batches(STEPS, size=7)]
    return [torch.tensor(values), *loop.outcome()]


def with_memory(name):
    """The loss's own draws, shared out among ranks, fetched by a DataLoader."""
    loop = Loop(name, memory=OutputMemory(refresh=2))
    sampler = loop.loss.sampler(blocks=3, samples=4, seed=5, steps_per_epoch=STEPS)
    if dist.is_initialized():
        loop.model = DistributedDataParallel(loop.model)
    for _, id in DataLoader(fcco.data.Indexed(TensorDataset(X)), batch_sampler=sampler):
        loop.step(id)
    weights = [p.detach() for p in [*loop.model.parameters(), *loop.loss.parameters()]]
    return [*weights, loop.loss.state_dict()["memory.values"]]


def nothing_on_one_rank():
    """A rank whose part holds no positive still takes part."""
    loop = Loop("pAUC")
    positive = LABEL.nonzero()[:, 0]
    negative = (LABEL == 0).nonzero()[:, 0]
    id = torch.cat([positive, negative])
    if dist.is_initialized():
        loop.model = DistributedDataParallel(loop.model)
        id = (positive, negative)[dist.get_rank()]
    return [torch.tensor(loop.step(id)), *loop.outcome()]


def everything():
    found = {f"tracked {name}": tracked(name) for name in LOSSES}
    found |= {f"memory {name}": with_memory(name) for name in MEMORIES}
    return found | {"one rank without a positive": nothing_on_one_rank()}


def work(rank, folder):
    warnings.simplefilter("error")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.save(everything(), f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(work, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


@pytest.mark.parametrize("name", LOSSES)
def test_two_ranks_equal_one(of_two, name):
    wanted = tracked(name)
    for found in of_two:
        for one, other in zip(found[f"tracked {name}"], wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    for one, other in zip(*(found[f"tracked {name}"] for found in of_two), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", MEMORIES)
def test_two_ranks_with_a_memory_equal_one(of_two, name):
    wanted = with_memory(name)
    for found in of_two:
        for one, other in zip(found[f"memory {name}"], wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_a_rank_without_a_positive(of_two):
    wanted = nothing_on_one_rank()
    assert wanted[0] != 0.0
    for found in of_two:
        for one, other in zip(found["one rank without a positive"], wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
