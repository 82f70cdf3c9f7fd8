"""Passes over all data: exact g_i(w) for every block, and exact gradients for given slopes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor

from fcco.solver._blocks import BlockTable
from fcco.solver._probe import Evaluator, NonFiniteError, all_finite, clear, gradients, name_blocks

FullPass = Callable[[], Iterable[tuple[Any, ...]]]


def batches(full_pass: FullPass, table: BlockTable) -> Iterable[tuple[Tensor, tuple[Any, ...]]]:
    """The pass's batches as (index, data), checked."""
    passed: Any = full_pass()
    if not isinstance(passed, Iterable):
        raise TypeError(f"full_pass must return an iterator of (index, *data), got {type(passed).__name__}")
    for batch in passed:
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
        local = table.local(index)
        _add_up(total, local, evaluator.rows(evaluator.inner(index, data)), evaluator.log)
        seen[local] = True
        samples += evaluator.samples(index, data)
    _refuse_missing(table, seen)
    return total, samples


def _refuse_missing(table: BlockTable, seen: Tensor) -> None:
    missing = _named(table, ~seen)
    if missing:
        raise ValueError(f"full_pass must visit every block, but never came to {name_blocks(missing)}")


def _named(table: BlockTable, which: Tensor) -> list[int]:
    """The marked ones (owned,) of this rank's blocks, as the objective numbers them."""
    return [i * table.world + table.rank for i in which.nonzero()[:, 0].tolist()]


def refuse_nonfinite(table: BlockTable, g: Tensor, suspects: Callable[[], list[int]] = list) -> NoReturn:
    """Raise the error of a pass that was not finite on some rank; names this rank's blocks.

    Args:
        suspects: finds the blocks whose gradient is not finite, asked where every g is.
    """
    wrong = _named(table, ~torch.isfinite(g).all(1))
    if wrong:
        raise NonFiniteError(f"full_pass gave a g that is not finite for {name_blocks(wrong)}", wrong)
    wrong = suspects()
    if wrong:
        raise NonFiniteError(f"full_pass gave a gradient that is not finite among {name_blocks(wrong)}", wrong)
    elsewhere = "on another rank" if table.world > 1 else "in its sum over all blocks"
    raise NonFiniteError(f"full_pass gave values that are not finite {elsewhere}", [])


def suspects(evaluator: Evaluator, table: BlockTable, full_pass: FullPass, u: Tensor) -> list[int]:
    """The blocks of those batches of a pass whose gradient at u (owned, dim) is not finite."""
    if evaluator.is_sharded:  # a pass is taken by all ranks or by none, and only this one has come here
        return []
    found: set[int] = set()
    for index, data in batches(full_pass, table):
        clear(evaluator.parameters)
        at = u[index // table.world]
        _, slope = evaluator.outer(index, at, 1.0)
        evaluator.backward(evaluator.inner(index, data), at, slope)
        if not all_finite(gradients(evaluator.parameters)):
            found.update(index.tolist())
    return sorted(found)


def _add_up(total: Tensor, local: Tensor, rows: Tensor, log: Tensor | None) -> None:
    blocks, place = local.unique(return_inverse=True)
    added = total[blocks].index_add(0, place, rows)
    if log is not None:
        top = total[blocks].scatter_reduce(0, place.unsqueeze(1).expand_as(rows), rows, "amax")
        top = torch.where(top > -torch.inf, top, 0.0)  # nothing yet, and nothing new
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
    seen = torch.zeros_like(table.visited)
    with evaluator.no_sync():
        for index, data in batches(full_pass, table):
            local = table.local(index)
            g = evaluator.inner(index, data)
            evaluator.backward(g, u[local], slope[local])
            total.index_add_(0, local, evaluator.rows(g))
            seen[local] = True
            samples += evaluator.samples(index, data)
    _refuse_missing(table, seen)
    return f, total, samples
