"""GenericForm: F as a function of the table for every OutputObjective: its own values and outer, over all pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from fcco.data import Batch
from fcco.memory._table import Entries, OutputTable
from fcco.memory.forms._form import BlockShares, Evaluation, Form, Outer, TableObjective, add_to


@final
class GenericForm(Form):
    """Runs the objective over a full pass with outputs from the table in place of the network's.

    The reference for the fast forms, and what the other objectives use: exact, at the price of every pair. Blocks
    whose own example was never seen, and those with nothing to be compared with, take no part.

    Args:
        objective: gives g (``values``), f (``outer``), and by its blocks which examples are compared.
        table: where the outputs come from.
        chunk: examples per piece of the pass.
    """

    why_not = "the generic form runs over the blocks that the drawn examples are in, as many as there are"

    def __init__(self, objective: TableObjective, table: OutputTable, chunk: int = 1024) -> None:
        self._objective = objective
        self._blocks = objective.blocks
        self._table = table
        self._chunk = chunk
        self._outer = Outer(objective)
        self._shares = BlockShares(objective.blocks, table.device)
        self._log_domain = torch.tensor(objective.log_domain, device=table.device)
        self.objective_params = self._outer.params

    @property
    def capturable(self) -> bool:
        return False

    def cost(self) -> int:
        return 4 * self._objective.num_blocks * self._table.size

    def evaluate_all(self, rows: list[Tensor]) -> Evaluation:
        return self._evaluate(self._blocks.arange(self._objective.num_blocks))

    def evaluate(self, ids: Tensor, rows: list[Tensor], old: Entries | None = None) -> Evaluation:
        touched = None
        if self._table.complete:
            touched = self._blocks.touched(ids.to(self._blocks.device))
        if touched is None:
            found = self.evaluate_all(rows)
        else:
            found = self._evaluate(touched)
        return found._replace(c=found.c[ids])

    # ------------------------------------------------------------------ the two passes

    def _evaluate(self, blocks: Tensor) -> Evaluation:
        c = torch.zeros_like(self._table.values)
        gradients = [torch.zeros_like(p) for p in self.objective_params]
        factor = None
        if not self._table.complete:
            factor = self._factors(blocks)
        # First g of every block, then, with the slopes of f known, the pieces again for their gradients.
        with torch.no_grad():
            u, met = self._values(blocks, factor)
        index = met.nonzero()[:, 0]
        if not index.numel():
            return Evaluation(c, c.new_zeros(0), gradients, [])
        found = self._outer.at(index, u[index], self._shares.at(index, complete=factor is None))
        add_to(gradients, found.param_gradients)
        slope = torch.zeros_like(u).index_copy(0, index, found.slope)  # (m, dim), 0 for blocks that take no part
        for batch in self._pieces(blocks, factor):
            add_to(gradients, self._add_gradient(c, batch, u, slope))
        return Evaluation(c, found.f, gradients, [])

    def _add_gradient(self, c: Tensor, batch: Batch, u: Tensor, slope: Tensor) -> list[Tensor | None]:
        """Add what a piece of the pass makes of dPhi/ds to c, in place; the gradients of the own parameters."""
        assert batch.index is not None
        index = batch.index
        with torch.enable_grad():
            outputs = self._table.values[batch.id].requires_grad_()  # (K, ...)
            g = self._objective.values(index, outputs, batch)  # (B, dim), a part of the blocks' g
            rows = g.detach().to(u.dtype)
            # In log components d g = g d(log g), and a piece holds its part of g alone.
            weight = torch.where(self._log_domain, slope[index] * (rows - u[index]).exp(), slope[index])
            wanted = [outputs, *self.objective_params]
            by_output, *gradients = torch.autograd.grad(g, wanted, weight.to(g.dtype), allow_unused=True)
        if by_output is not None:
            c.index_add_(0, batch.id, by_output)
        return list(gradients)

    def _values(self, blocks: Tensor, factor: Tensor | None) -> tuple[Tensor, Tensor]:
        """g (m, dim), of the blocks asked for, and which of them (m,) were met."""
        device = self._table.device
        dtype = torch.promote_types(self._table.values.dtype, torch.float32)
        if any(self._objective.log_domain) and device.type != "mps":
            dtype = torch.float64
        u = torch.zeros(self._objective.num_blocks, self._objective.dim, dtype=dtype, device=device)
        u = torch.where(self._log_domain, -torch.inf, u)
        met = torch.zeros(u.shape[0], dtype=torch.bool, device=device)
        for batch in self._pieces(blocks, factor):
            assert batch.index is not None
            index = batch.index
            g = self._objective.values(index, self._table.values[batch.id], batch).to(dtype)
            u[index] = torch.where(self._log_domain, torch.logaddexp(u[index], g), u[index] + g)
            # Blocks with nothing to be compared with never come, and have no g.
            met[index] = True
        return u, met

    def _pieces(self, blocks: Tensor, factor: Tensor | None) -> Iterator[Batch]:
        """The pass without those never seen; every piece names a block once."""
        seen = self._table.seen
        for batch in self._blocks.chunks(blocks, self._chunk):
            batch = batch.to(self._table.device)
            if factor is not None:
                batch = self._without_unseen(batch, seen, factor)
            if batch.index is not None and batch.index.numel():
                yield batch

    # ------------------------------------------------------------------ examples never seen

    def _without_unseen(self, batch: Batch, seen: Tensor, factor: Tensor) -> Batch:
        assert batch.index is not None
        assert batch.weight is not None
        index = batch.index
        kept = seen[batch.id]
        own_factor = factor[index]  # (B, 2)
        weight = batch.weight * torch.where(self._positives(batch), own_factor[:, 1:], own_factor[:, :1])
        there = own_factor.isfinite().all(1) & ((weight * kept) != 0).any(1)
        block_pos = batch.block_pos
        if block_pos is not None:
            there = there & kept[block_pos]
            block_pos = (kept.cumsum(0) - 1)[block_pos][there]  # places move up where others have left
        y = batch.y
        if y is not None:
            y = y[kept]
        weight = weight[there][:, kept]
        return replace(batch, id=batch.id[kept], index=index[there], y=y, block_pos=block_pos, weight=weight)

    def _positives(self, batch: Batch) -> Tensor:
        """(B, K) bool: which examples are positives, where each class has a mean of its own."""
        assert batch.index is not None
        blocks = self._blocks
        found = blocks.positives_at(batch.index.to(blocks.device), batch.id.to(blocks.device))
        if found is None:
            return torch.zeros(batch.index.shape[0], len(batch), dtype=torch.bool, device=batch.id.device)
        return found.to(batch.id.device)

    def _factors(self, blocks: Tensor) -> Tensor:
        """(m, 2): what weights are multiplied by so that those seen stand for all; for negatives and positives."""
        seen = self._table.seen
        # What the weights of each block add up to over all examples, and over those seen.
        whole = torch.zeros(self._objective.num_blocks, 2, dtype=torch.float64, device=self._table.device)
        there = torch.zeros_like(whole)
        for batch in self._blocks.chunks(blocks, self._chunk):
            batch = batch.to(self._table.device)
            assert batch.index is not None
            assert batch.weight is not None
            positive = self._positives(batch)
            for place, mask in enumerate((~positive, positive)):
                weight = (batch.weight * mask).to(whole.dtype)
                whole[:, place].index_add_(0, batch.index, weight.sum(1))
                there[:, place].index_add_(0, batch.index, (weight * seen[batch.id]).sum(1))
        return torch.where(whole == 0, 1.0, whole / there)
