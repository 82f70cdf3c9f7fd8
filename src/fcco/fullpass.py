"""Passes over all data: exact g_i(w) for every block, and exact gradients for given slopes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from fcco import _checks
from fcco.blocks import BlockTable
from fcco.evaluate import Evaluator

FullPass = Callable[[], Iterable[tuple[Any, ...]]]


def batches(full_pass: FullPass, table: BlockTable) -> Iterable[tuple[Tensor, tuple[Any, ...]]]:
    """The pass's batches as (index, data), checked."""
    for batch in full_pass():
        if not isinstance(batch, (tuple, list)) or not batch:
            raise TypeError(f"full_pass must yield (index, *data) tuples, got {type(batch).__name__}")
        index, *data = batch
        yield table.check(index, name="index of full_pass", repeats=True), tuple(data)


@torch.no_grad()
def full_values(evaluator: Evaluator, table: BlockTable, full_pass: FullPass) -> tuple[Tensor, int]:
    """g_i(w) of every owned block (owned, dim), rows of one block added up, and the samples that it took."""
    total = torch.zeros_like(table.rows)
    if evaluator.log is not None:
        total = torch.where(evaluator.log, -torch.inf, total)
    seen, samples = torch.zeros_like(table.visited), 0
    for index, data in batches(full_pass, table):
        local = index // table.world
        _add_up(total, local, evaluator.rows(evaluator.inner(index, data)), evaluator.log)
        seen[local] = True
        samples += evaluator.objective.samples(index, *data)
    if not bool(seen.all()):
        missing = [i * table.world + table.rank for i in (~seen).nonzero()[:, 0].tolist()]
        raise ValueError(f"full_pass must visit every block, but never came to blocks {_checks.some(missing)}")
    wrong = [i * table.world + table.rank for i in (~torch.isfinite(total).all(1)).nonzero()[:, 0].tolist()]
    if wrong:
        raise ValueError(f"full_pass gave a g that is not finite for blocks {_checks.some(wrong)}")
    return total, samples


def _add_up(total: Tensor, local: Tensor, rows: Tensor, log: Tensor | None) -> None:
    blocks, place = local.unique(return_inverse=True)
    added = total[blocks].index_add(0, place, rows)
    if log is not None:
        top = total[blocks].scatter_reduce(0, place.unsqueeze(1).expand_as(rows), rows, "amax")
        mass = (total[blocks] - top).exp().index_add(0, place, (rows - top[place]).exp())
        added = torch.where(log, top + mass.log(), added)
    total[blocks] = added


def full_gradient(
    evaluator: Evaluator, table: BlockTable, full_pass: FullPass, u: Tensor
) -> tuple[Tensor, Tensor, int]:
    """Add (1/m) sum_i grad f_i(u_i) grad g_i(w) to ``p.grad`` (averaged over ranks it is exact).

    Returns:
        f_i(u_i) (owned,), g_i(w) (owned, dim) from the same pass (plain components only), the samples.
    """
    everything = torch.arange(table.rank, table.num_blocks, table.world, device=table.device)
    f, slope = evaluator.outer(everything, u, table.world / table.num_blocks)
    total, samples = torch.zeros_like(table.rows), 0
    with evaluator.no_sync():
        for index, data in batches(full_pass, table):
            local = index // table.world
            g = evaluator.inner(index, data)
            evaluator.backward(g, u[local], slope[local])
            total.index_add_(0, local, evaluator.rows(g))
            samples += evaluator.objective.samples(index, *data)
    return f, total, samples
