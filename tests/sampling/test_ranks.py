"""Two real ranks: a collective checkpoint holds both streams."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import fcco
from fcco.sampling import BlockLoader
from tests.sampling.cases import CLASSES, TARGETS, X, same


def _rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        loader = BlockLoader(X, TARGETS[:, [0, 1, 2, 0]], 2, 4, steps_per_epoch=6)
        stream = iter(loader)
        for _ in range(2):
            index, _ = next(stream)
            assert bool((index % 2 == rank).all())
        fcco.save(os.path.join(folder, "state"), loader)
        dist.barrier()
        fresh = BlockLoader(X, TARGETS[:, [0, 1, 2, 0]], 2, 4, steps_per_epoch=6, seed=3)
        fcco.load(os.path.join(folder, "state"), fresh)
        rest = list(fresh)
        assert len(rest) == 4
        assert all(map(same, rest, stream))
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_resume_their_own_streams(tmp_path: Path) -> None:
    mp.spawn(_rank, args=(str(tmp_path),), nprocs=2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_tensors_on_a_gpu_are_sampled_there() -> None:
    loader = BlockLoader(X.cuda(), CLASSES, 2, 5, steps_per_epoch=4)
    for index, batch in loader:
        assert index.is_cuda
        assert batch.x.is_cuda
        assert batch.serves.is_cuda
        assert batch.x[:, 0].tolist() == batch.id.tolist()
    for mine, on_cpu in zip(loader.full_pass(7), BlockLoader(X, CLASSES, 2, 5).full_pass(7), strict=True):
        assert same((mine[0].cpu(), mine[1].to("cpu")), on_cpu)
