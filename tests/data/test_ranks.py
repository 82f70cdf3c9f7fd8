"""Two real ranks: a collective checkpoint holds both streams; and draws on a GPU."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from fcco.data import Loader, TaskBlocks, Tasks
from tests.data.cases import CASES, CLASSES, TARGETS, Case, X, index_of, same
from tests.data.test_loader import EACH
from tests.helpers.waits import no_waiting


def _rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        blocks = TaskBlocks(Tasks(X, TARGETS[:, [0, 1, 2, 0]]))
        loader = Loader(blocks, 2, 4, steps_per_epoch=6)
        stream = iter(loader)
        for _ in range(2):
            assert bool((index_of(next(stream)) % 2 == rank).all())
        state = loader.state_dict()
        if rank == 0:
            torch.save(state, os.path.join(folder, "state"))
        dist.barrier()
        fresh = Loader(blocks, 2, 4, steps_per_epoch=6, seed=3)
        fresh.load_state_dict(torch.load(os.path.join(folder, "state"), weights_only=True))
        rest = list(fresh)
        assert len(rest) == 4
        assert all(map(same, rest, stream))
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_resume_their_own_streams(tmp_path: Path) -> None:
    mp.spawn(_rank, args=(str(tmp_path),), nprocs=2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@EACH
def test_tensors_on_a_gpu_are_sampled_there(case: Case) -> None:
    loader = case.make(X.cuda(), steps_per_epoch=4)
    for batch in loader:
        assert index_of(batch).is_cuda
        assert batch.x.is_cuda
        assert batch.weight is not None
        assert batch.weight.is_cuda
        assert batch.x[:, 0].tolist() == batch.id.tolist()
    for mine, on_cpu in zip(loader.full_pass(7), case.make().full_pass(7), strict=True):
        assert same(mine.to("cpu"), on_cpu)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_draw_makes_no_device_wait() -> None:
    for case in CASES.values():
        loader = case.make(X.cuda())
        generator = torch.Generator("cuda").manual_seed(0)
        loader.structure.draw(loader.share.draw(generator), loader.samples, loader.share, generator)
        torch.cuda.synchronize()
        with no_waiting():
            loader.structure.draw(loader.share.draw(generator), loader.samples, loader.share, generator)


def test_data_move_as_a_whole() -> None:
    data = Tasks(X, CLASSES, weight=torch.ones(len(X)))
    moved = data.to("cpu")
    assert moved.device == torch.device("cpu")
    assert moved.source.take(torch.tensor([3])).tolist() == [[3.0]]
