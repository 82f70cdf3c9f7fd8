"""Two ranks take the steps of one: fresh outputs are exchanged, draws are shared out."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

import fcco
from fcco._support.sharded import whole
from fcco.data import Points
from fcco.objectives import PartialAUC
from tests.memory.cases import CASES, solver_for, state_of

NAMES = ("pauc", "two-way", "ap", "cox", "ndcg", "tasks")


def values_of(solver: fcco.Solver) -> Tensor:
    values = state_of(solver).values
    assert values is not None
    return values


def trained(name: str, folder: str | None = None) -> list[Tensor]:
    solver, loader = solver_for(CASES[name](), fcco.output_memory(refresh=2))
    for epoch in range(2):
        for batch in loader:
            solver.step(batch)
        if folder is not None and epoch == 0:
            fcco.save(os.path.join(folder, name), solver=solver, loader=loader)
            dist.barrier()
            solver, loader = solver_for(CASES[name](), fcco.output_memory(refresh=2))
            fcco.load(os.path.join(folder, name), solver=solver, loader=loader)
    return [*(p.detach() for p in solver.parameters), values_of(solver)]


def own_batches() -> list[Tensor]:
    """Batches of one's own DataLoader, of which each rank has its part."""
    case = CASES["pauc"]()
    solver, _ = solver_for(case, fcco.output_memory(refresh=2))
    rank, world = (dist.get_rank(), 2) if dist.is_initialized() else (0, 1)
    for ids in torch.arange(40).split(10):
        mine = ids[rank::world]
        solver.step(case.data.batch(mine, case.data.source.take(mine)))
    return [*(p.detach() for p in solver.parameters), values_of(solver)]


def sharded(wrap: bool) -> list[Tensor]:
    """The same with the weights spread over ranks by FSDP2; the period is chosen at the first step."""
    case = CASES["pauc"]()
    if wrap:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(case.model, mesh=init_device_mesh("cpu", (2,)))
    solver, loader = solver_for(case, fcco.output_memory(alpha=0.5))
    for batch in loader:
        solver.step(batch)
    return [*(whole(p.detach()) for p in solver.parameters), values_of(solver)]


def larger() -> tuple[fcco.Solver, fcco.memory.MemoryLoader]:
    """A problem whose period is chosen, with parts of different size."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3000, 5, generator=generator).double()
    y = (torch.arange(3000) % 20 == 0).long()
    torch.manual_seed(0)
    objective = PartialAUC(torch.nn.Linear(5, 1).double(), Points(x, y))
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.01)
    solver = fcco.Solver(objective, optimizer, fcco.output_memory(), nonfinite="skip")
    loader = solver.loader(blocks=4, samples=5, steps_per_epoch=30)
    assert isinstance(loader, fcco.memory.MemoryLoader)
    return solver, loader


def counted(missing: bool) -> list[Tensor]:
    """The period, steps and skips after the loader's steps, and the weights; one input may not be a number."""
    solver, loader = larger()
    for number, batch in enumerate(loader):
        if missing and number == 3:
            batch.x[0] = torch.nan
        solver.step(batch)
    figures = torch.tensor([state_of(solver).period, solver.t, solver.skipped])
    return [figures, *(p.detach() for p in solver.parameters)]


def scored(rank: int) -> Tensor:
    """The table after a scoring pass with dropout, whose random numbers are each rank's own."""
    case = CASES["pauc"]()
    case.model = torch.nn.Sequential(torch.nn.Dropout(0.5), case.model)
    solver, loader = solver_for(case, fcco.output_memory())
    torch.manual_seed(rank)
    loader.score()
    return values_of(solver)


def _rank(rank: int, folder: str) -> None:
    warnings.simplefilter("error")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        found = {name: trained(name, folder) for name in NAMES}
        found |= {"larger": counted(False), "sharded": sharded(True), "own": own_batches()}
        found |= {"scored": [scored(rank)]}
        found |= {"one rank sees what is not a number": counted(rank == 1)}
        torch.save(found, os.path.join(folder, f"found-{rank}"))
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_equal_one_and_resume(tmp_path: Path) -> None:
    mp.spawn(_rank, args=(str(tmp_path),), nprocs=2)
    first = torch.load(tmp_path / "found-0", weights_only=True)
    alone = {name: trained(name) for name in NAMES}
    alone |= {"larger": counted(False), "sharded": sharded(False), "own": own_batches()}
    for rank in range(2):
        found = torch.load(tmp_path / f"found-{rank}", weights_only=True)
        assert torch.equal(found["scored"][0], first["scored"][0])
        for name, wanted in alone.items():
            for mine, theirs in zip(found[name], wanted, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-10)
        assert found["one rank sees what is not a number"][0].tolist()[1:] == [29, 1]
