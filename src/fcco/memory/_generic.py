"""GenericPhi: F as a function of the table for every OutputObjective: its own values and outer, over all pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from fcco.memory._phi import STRETCH, Coefficients, add, own_variables, sent
from fcco.memory._table import Entries, OutputTable
from fcco.objectives._average_precision import AnchoredObjective
from fcco.objectives._base import OutputObjective
from fcco.objectives._multitask_auc import MultiTaskAUC, labelled
from fcco.objectives._ndcg import PairObjective
from fcco.sampling.batch import Batch
from fcco.sampling.loader import Loader


@final
class GenericPhi:
    """Runs the objective over the loader's full pass with outputs from the table in place of the network's.

    The reference for the fast forms, and what the other objectives use: exact, at the price of every pair. Blocks
    whose own example was never seen, and those with nobody to compare with, take no part.

    Args:
        objective: gives g (``values``) and f (``outer``).
        loader: its full pass says who is compared with whom.
        table: where the outputs come from.
        chunk: examples a piece of the pass has.
    """

    stretch = STRETCH

    def __init__(self, objective: OutputObjective, loader: Loader, table: OutputTable, chunk: int = 1024) -> None:
        self._objective, self._loader, self._table, self._chunk = objective, loader, table, chunk
        self.own = own_variables(objective)
        device = table.values.device
        self._log = torch.tensor(objective.log, device=device)
        self._blocks = torch.arange(objective.num_blocks, device=device)
        tasks = isinstance(objective, MultiTaskAUC) or getattr(objective, "block_task", None) is not None
        self._unsqueeze = tasks and table.values.dim() == 1

    def _outputs(self, id: Tensor) -> Tensor:
        """As the model gave them: the table has no column for one task."""
        outputs = self._table.values[id]
        return outputs.unsqueeze(1) if self._unsqueeze else outputs

    def pairs(self) -> int:
        return 4 * self._objective.num_blocks * self._loader.num_examples

    def everything(self) -> Coefficients:
        return self._evaluate(self._blocks)

    def at(self, id: Tensor, old: Entries | None = None) -> Coefficients:
        id = sent(id, self._blocks.device)
        if not isinstance(self._objective, PairObjective) or self._table.missing:
            result = self.everything()
            return result._replace(c=result.c[id])
        query = self._objective.item_query
        touched = torch.isin(query[self._objective.block_item], query[id])
        result = self._evaluate(self._blocks[touched])
        return result._replace(c=result.c[id])

    def undo(self) -> None:
        """Nothing is stored."""

    def settle(self) -> None:
        """Nothing is stored."""

    # ------------------------------------------------------------------ the two passes

    def _evaluate(self, blocks: Tensor) -> Coefficients:
        table, objective = self._table, self._objective
        c, own = torch.zeros_like(table.values), [torch.zeros_like(p) for p in self.own]
        factor = self._factors(blocks) if table.missing else None
        with torch.no_grad():
            u, met = self._rows(blocks, factor)
        index = blocks[met[blocks]]
        if not index.numel():
            return Coefficients(c, c.new_zeros(0), own)
        share = self._shares(index, blocks)
        with torch.enable_grad():
            leaf = u[index].requires_grad_()
            f = objective.outer(index, leaf)
            slopes, *parts = torch.autograd.grad((share * f).sum(), [leaf, *self.own], allow_unused=True)
        add(own, parts)
        assert slopes is not None
        slope = torch.zeros_like(u).index_copy(0, index, slopes)
        for some, batch in self._pieces(blocks, factor):
            with torch.enable_grad():
                outputs = self._outputs(batch.id).requires_grad_()
                g = objective.values(some, outputs, batch)
                rows = g.detach().to(u.dtype)
                weight = torch.where(self._log, slope[some] * (rows - u[some]).exp(), slope[some])
                push, *parts = torch.autograd.grad(g, [outputs, *self.own], weight.to(g.dtype), allow_unused=True)
            if push is not None:
                c.index_add_(0, batch.id, push.reshape(-1, *c.shape[1:]))
            add(own, parts)
        return Coefficients(c, f.detach(), own)

    def _shares(self, index: Tensor, blocks: Tensor) -> Tensor:
        """(B,) what the blocks that take part count in F: those of a task stand for all of it."""
        task = getattr(self._objective, "block_task", None)
        task = torch.zeros_like(self._blocks) if task is None else task
        asked, there = (task[part].bincount(minlength=int(task.max()) + 1) for part in (blocks, index))
        share = asked.to(self._table.values.dtype) / (there.clamp(min=1) * self._objective.num_blocks)
        return share[task[index]]

    def _rows(self, blocks: Tensor, factor: Tensor | None) -> tuple[Tensor, Tensor]:
        """g (m, dim), of the blocks asked for, and which of them (m,) were met."""
        objective = self._objective
        shape, device = (objective.num_blocks, objective.dim), self._table.values.device
        dtype = torch.promote_types(self._table.values.dtype, torch.float32)
        u = torch.where(self._log, -torch.inf, torch.zeros(shape, dtype=dtype, device=device))
        met = torch.zeros(shape[0], dtype=torch.bool, device=device)
        for some, batch in self._pieces(blocks, factor):
            g = objective.values(some, self._outputs(batch.id), batch).to(dtype)
            u[some] = torch.where(self._log, torch.logaddexp(u[some], g), u[some] + g)
            met[some] = True
        return u, met

    def _pieces(self, blocks: Tensor, factor: Tensor | None) -> Iterator[tuple[Tensor, Batch]]:
        """The pass without those never seen; every piece names a block once."""
        device, seen = self._table.values.device, self._table.seen
        for index, batch in self._loader._chunks(blocks.to(self._loader.device), self._chunk):
            index, batch = index.to(device), batch.to(device)
            if factor is not None:
                index, batch = self._without_unseen(index, batch, seen, factor)
            if index.numel():
                yield index, batch

    # ------------------------------------------------------------------ examples never seen

    def _without_unseen(self, index: Tensor, batch: Batch, seen: Tensor, factor: Tensor) -> tuple[Tensor, Batch]:
        kept = seen[batch.id]
        place = kept.cumsum(0) - 1
        assert batch.weight is not None
        weight = batch.weight * self._class_factor(index, batch, factor)
        there = factor[index].isfinite().all(1) & ((weight * kept) != 0).any(1)
        if batch.anchor is not None:
            there &= kept[batch.anchor]
        rest = Batch(
            None,
            batch.id[kept],
            None if batch.y is None else batch.y[kept],
            None if batch.anchor is None else place[batch.anchor][there],
            weight=weight[there][:, kept],
        )
        return index[there], rest

    def _class_factor(self, index: Tensor, batch: Batch, factor: Tensor) -> Tensor:
        return torch.where(self._classes(index, batch), factor[index][:, 1:], factor[index][:, :1])

    def _classes(self, index: Tensor, batch: Batch) -> Tensor:
        """(B, K) bool: which examples are positives, where each class has a mean of its own."""
        if isinstance(self._objective, MultiTaskAUC):
            return labelled(index, replace(batch, serves=None))[0]
        if isinstance(self._objective, AnchoredObjective):
            return self._objective._labelled(index, batch)[0].expand(index.shape[0], -1)
        return torch.zeros(index.shape[0], len(batch), dtype=torch.bool, device=index.device)

    def _factors(self, blocks: Tensor) -> Tensor:
        """(m, 2): what weights are multiplied by so that those seen stand for all; for negatives and positives."""
        device, seen = self._table.values.device, self._table.seen
        whole = torch.zeros(self._objective.num_blocks, 2, dtype=torch.float64, device=device)
        there = torch.zeros_like(whole)
        for index, batch in self._loader._chunks(blocks.to(self._loader.device), self._chunk):
            index, batch = index.to(device), batch.to(device)
            assert batch.weight is not None
            positive = self._classes(index, batch)
            for place, mask in enumerate((~positive, positive)):
                weight = (batch.weight * mask).to(whole.dtype)
                whole[:, place].index_add_(0, index, weight.sum(1))
                there[:, place].index_add_(0, index, (weight * seen[batch.id]).sum(1))
        return torch.where(whole == 0, 1.0, whole / there)
