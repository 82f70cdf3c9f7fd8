"""The scoring pass: the output of every example at the weights as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from fcco._support import checks
from fcco._support.parallel import together
from fcco.data import Batch
from fcco.data._pass import Plan, fetched
from fcco.data._reader import Reader
from fcco.memory._exchange import broadcast_from_rank0
from fcco.memory._forward import one_row_each
from fcco.memory._table import OutputTable
from fcco.objectives import OutputObjective
from fcco.solver._evaluator import Evaluator
from fcco.solver._gradients import NonFiniteError, finite_rows


@torch.no_grad()
def scored_table(
    evaluator: Evaluator,
    objective: OutputObjective,
    table_to_fill: Callable[[tuple[int, ...]], OutputTable],
    reader: Reader,
    chunk: int,
    step: int,
    raises: bool,
) -> OutputTable:
    """A table with the output of every example; buffers and random state are left alone.

    Args:
        table_to_fill: makes it, from the shape of one output.
        reader: fetches x.
        chunk: examples per batch.
        step: when they are written.
        raises: whether an output that is not finite raises; else it is left out.
    """
    table = None  # its shape is that of the first outputs
    with together("in the scoring pass"), evaluator.module_state.preserved():
        for batch in _batches(objective, reader, chunk):
            batch = batch.to(evaluator.device)
            fresh = one_row_each(objective.outputs(batch.x), len(batch))  # (K, ...)
            finite = finite_rows([fresh])
            if raises and not bool(finite.all()):
                bad = batch.id[~finite].tolist()
                raise NonFiniteError(f"the output is not finite for example {checks.some(bad)}", bad)
            if table is None:
                table = table_to_fill(tuple(fresh.shape[1:]))
            if table.shape != tuple(fresh.shape[1:]):
                raise ValueError(f"outputs must keep the shape {table.shape}, got {tuple(fresh.shape[1:])}")
            table.write(batch.id[finite], fresh[finite], step)
    assert table is not None
    # Each rank has random numbers of its own, for dropout and the like.
    broadcast_from_rank0(table.values)
    broadcast_from_rank0(table.written)
    return OutputTable(table.values, table.written, table.counted)


def _batches(objective: OutputObjective, reader: Reader, chunk: int) -> Iterator[Batch]:
    """All examples in random order: where batch statistics matter, a batch of one class would not do."""
    size = objective.data.num_examples
    order = torch.randperm(size, generator=torch.Generator().manual_seed(0)).to(objective.data.device)
    plans = (Plan(Batch(None, ids), number) for number, ids in enumerate(order.split(chunk)))
    for _, batch in fetched(plans, reader, dtype=objective.input_dtype(), keep=False):
        yield batch
