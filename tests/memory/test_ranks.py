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
from tests.memory.cases import CASES, solver_for

NAMES = ("pauc", "two-way", "ap", "cox")


def trained(name: str, folder: str | None = None) -> list[Tensor]:
    solver, loader = solver_for(CASES[name](), fcco.output_memory(refresh=2))
    for epoch in range(2):
        for index, batch in loader:
            solver.step(index, batch)
        if folder is not None and epoch == 0:
            fcco.save(os.path.join(folder, name), solver, loader)
            dist.barrier()
            solver, loader = solver_for(CASES[name](), fcco.output_memory(refresh=2))
            fcco.load(os.path.join(folder, name), solver, loader)
    assert loader.memory.table is not None
    return [*(p.detach() for p in solver.parameters), loader.memory.table.values]


def _rank(rank: int, folder: str) -> None:
    warnings.simplefilter("error")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        found = {name: trained(name, folder) for name in NAMES}
        torch.save(found, os.path.join(folder, f"found-{rank}"))
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_equal_one_and_resume(tmp_path: Path) -> None:
    mp.spawn(_rank, args=(str(tmp_path),), nprocs=2)
    for rank in range(2):
        found = torch.load(tmp_path / f"found-{rank}", weights_only=True)
        for name in NAMES:
            for mine, alone in zip(found[name], trained(name), strict=True):
                torch.testing.assert_close(mine, alone, rtol=1e-9, atol=1e-10)
