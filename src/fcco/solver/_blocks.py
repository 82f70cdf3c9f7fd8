"""BlockTable: the rows u_i. Cost per step does not depend on m; memory is one row per block plus B1 rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from fcco._support import checks
from fcco._support.parallel import rank_and_world
from fcco.data._draws import exact_dtype
from fcco.solver._state import Layout, OwnedRows, derived, saved

_FEW = 64  # blocks that Python looks up faster than a sort does
_NEVER = -1000.0  # log of a decay by 0: exp(-1000) is 0 in every float, and differences stay finite


@final
@dataclass(frozen=True)
class Geometry:
    """What never changes about a table.

    Args:
        num_blocks: m over all ranks.
        dim: p.
        rank: this rank, which owns the blocks i with i mod world = rank.
        world: how many ranks there are.
        log_domain: (dim,) bool, which components hold log u; None: none of them.
    """

    num_blocks: int
    dim: int
    rank: int
    world: int
    log_domain: Tensor | None

    @property
    def owned(self) -> int:
        """How many blocks this rank owns."""
        return len(range(self.rank, self.num_blocks, self.world))

    def local(self, index: Tensor) -> Tensor:
        """Where in this rank's rows the blocks stand."""
        if self.world == 1:
            return index
        return index // self.world

    def names(self, which: Tensor) -> list[int]:
        """The marked ones (owned,) of this rank's blocks, as the objective numbers them."""
        return [place * self.world + self.rank for place in which.nonzero()[:, 0].tolist()]

    def check(self, blocks: list[int], name: str, repeats: bool) -> None:
        """Raise where these are not blocks of this rank; the error names the block."""
        # For the few blocks of a step, Python's min, max and set beat tensor operations.
        for block in (min(blocks), max(blocks)):
            if not 0 <= block < self.num_blocks:
                raise ValueError(f"{name} must be in 0..{self.num_blocks - 1}, got block {block}")
        if not repeats and len(set(blocks)) < len(blocks):
            again = next(block for block in sorted(blocks) if blocks.count(block) > 1)
            raise ValueError(f"{name} must name each block once, got block {again} more than once")
        if self.world == 1:
            return
        foreign = [block for block in blocks if block % self.world != self.rank]
        if foreign:
            raise ValueError(f"{name} names blocks that rank {self.rank} does not own: {checks.some(foreign)}")


@final
@dataclass
class BlockTable:
    """Rows u_t of this rank's blocks, and what is needed of u_{t-1}: the rows that the last step replaced.

    Args:
        geometry: what never changes.
        rows: (owned, dim) u_t, up to the decay that is still due.
        visited: (owned,) bool, which blocks have a row.
        log_decay: (owned,) what ``log_now`` was when the row was written; None: rows do not decay.
        log_now: () the sum of log(decay) over the steps up to t-1; ``log_before``: up to t-2.
        replaced: the blocks of the last step and their rows before it.
        unvisited: how many blocks have no row, as far as the host knows.
    """

    geometry: Geometry
    rows: Tensor = saved(Layout.PER_BLOCK)
    visited: Tensor = saved(Layout.PER_BLOCK)
    log_decay: Tensor | None = saved(Layout.PER_BLOCK)
    replaced: OwnedRows = saved(Layout.BY_OWNER)
    log_now: Tensor = saved()
    log_before: Tensor = saved()
    unvisited: int = derived(default=0)

    @classmethod
    def empty(cls, num_blocks: int, dim: int, *, like: Tensor, log_domain: Tensor | None, decays: bool) -> BlockTable:
        """A table without rows.

        Args:
            like: gives dtype and device.
            decays: whether undrawn rows decay (kept lazily: applied when read).
        """
        rank, world = rank_and_world()
        if num_blocks < world:
            raise ValueError(f"num_blocks must be at least the number of ranks {world}, got {num_blocks}")
        geometry = Geometry(num_blocks, dim, rank, world, log_domain)
        owned = geometry.owned
        rows = torch.zeros(owned, dim, dtype=like.dtype, device=like.device)
        log_decay = None
        if decays:
            log_decay = torch.zeros(owned, dtype=torch.float64, device=like.device)
        zero = torch.zeros((), dtype=exact_dtype(like.device), device=like.device)
        return cls(
            geometry=geometry,
            rows=rows,
            visited=torch.zeros(owned, dtype=torch.bool, device=like.device),
            log_decay=log_decay,
            replaced=OwnedRows(torch.empty(0, dtype=torch.int64, device=like.device), rows[:0].clone()),
            log_now=zero,
            log_before=zero,
            unvisited=owned,
        )

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self.rows.device

    def after_load(self) -> None:
        self.unvisited = int((~self.visited).sum())
        # Floats in the states of earlier versions.
        exact = exact_dtype(self.device)
        self.log_now = torch.as_tensor(self.log_now, dtype=exact, device=self.device)
        self.log_before = torch.as_tensor(self.log_before, dtype=exact, device=self.device)

    def recount(self) -> None:
        """Count the blocks without a row again (a device waits): once there are none, nobody asks for them."""
        if self.unvisited:
            self.unvisited = int((~self.visited).sum())

    def check(self, asked: Any, *, name: str = "index", repeats: bool = False) -> Tensor:
        """The blocks asked for as (B,) int64 on the table's device, or an error that names the block."""
        try:
            index = torch.as_tensor(asked)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"{name} must be a tensor or a list of block numbers, got {asked!r}") from error
        if index.numel() == 0:
            raise ValueError(f"{name} must name at least one block, got an empty {type(asked).__name__}")
        if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
            raise TypeError(f"{name} must hold integers, got dtype {index.dtype}")
        if index.dim() != 1:
            raise ValueError(f"{name} must have shape (B,), got {tuple(index.shape)}")
        # On an accelerator reading the numbers would make it wait: :meth:`valid` looks there.
        if index.device.type == "cpu":
            self.geometry.check(index.tolist(), name, repeats)
        return index.to(self.rows.device, torch.int64)

    def valid(self, index: Tensor) -> Tensor:
        """(B,) bool on the device: which of these are blocks of this rank, met for the first time in ``index``."""
        geometry = self.geometry
        inside = (index >= 0) & (index < geometry.num_blocks) & (index % geometry.world == geometry.rank)
        ordered, order = index.sort(stable=True)
        first = torch.ones_like(inside)
        first[1:] = ordered[1:] != ordered[:-1]
        return inside & torch.empty_like(first).scatter_(0, order, first)

    def fill(self, u: float | Tensor) -> None:
        """Give every row a start value: a number or (m, dim)."""
        geometry = self.geometry
        if not isinstance(u, Tensor):
            self.rows = torch.full_like(self.rows, checks.number("u0", u))
        else:
            shape = (geometry.num_blocks, geometry.dim)
            if tuple(u.shape) != shape:
                raise ValueError(f"u0 must have shape {shape}, got {tuple(u.shape)}")
            if u.is_complex():
                raise TypeError(f"u0 must hold real numbers, as g does, got {u.dtype}")
            wrong = (~torch.isfinite(u).all(1)).nonzero()[:, 0].tolist()
            if wrong:
                raise ValueError(f"u0 must be finite in every row, got other values in rows {checks.some(wrong)}")
            self.rows = u[geometry.rank :: geometry.world].to(self.rows, copy=True)
        self._visit_all()

    def fill_new(self, rows: Tensor) -> None:
        """u_0 of every owned block that was never visited, from a full pass (owned, dim)."""
        self.rows = torch.where(self.visited.unsqueeze(1), self.rows, rows)
        self._visit_all()

    def _visit_all(self) -> None:
        self.visited = torch.ones_like(self.visited)
        self.unvisited = 0

    def read(self, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """u_{t-1} of the blocks (B, dim), and which of them (B, 1) were never visited; None: all rows were."""
        local = self.geometry.local(index)
        new = None
        # Once every block has a row this is not asked again, and no device waits for the answer.
        if self.unvisited:
            new = ~self.visited[local].unsqueeze(1)
        return self._decayed(self.rows.index_select(0, local), local, self.log_now), new

    def read_earlier(self, index: Tensor) -> Tensor:
        """u_{t-2} of the blocks (B, dim): the replaced rows for those drawn at t-1, else the rows."""
        local = self.geometry.local(index)
        rows = self._decayed(self.rows.index_select(0, local), local, self.log_before)
        if self.replaced.index.numel() == 0:
            return rows
        if index.is_cpu and index.numel() <= _FEW:
            return self._with_replaced(rows, index.tolist())
        # Sorted, so that finding the drawn ones costs B log B, whatever m is.
        earlier, order = self.replaced.index.sort()
        place = torch.searchsorted(earlier, index).clamp_(max=earlier.numel() - 1)
        drawn = (earlier[place] == index).unsqueeze(1)  # (B, 1)
        return torch.where(drawn, self.replaced.rows[order[place]], rows)

    def _with_replaced(self, rows: Tensor, blocks: list[int]) -> Tensor:
        """The same for a few blocks: lists in Python take a quarter of the time of five operations on tensors."""
        place = {block: row for row, block in enumerate(self.replaced.index.tolist())}
        again = [row for row, block in enumerate(blocks) if block in place]
        if not again:
            return rows
        source = torch.tensor([place[blocks[row]] for row in again])
        return rows.index_copy_(0, torch.tensor(again), self.replaced.rows.index_select(0, source))

    def write(self, index: Tensor, old: Tensor, new: Tensor, decay: float | Tensor, ok: Tensor | None = None) -> None:
        """Put u_t in place of u_{t-1} for the drawn blocks, in place; the others decay.

        Args:
            index: (B,) the blocks.
            old: (B, dim) u_{t-1}.
            new: (B, dim) u_t.
            decay: what the other rows are multiplied by.
            ok: () bool on the device: False: nothing is written in place. None: all of it.
        """
        local = self.geometry.local(index)
        self.replaced = OwnedRows(index.clone(), old)
        self.log_before = self.log_now
        if self.log_decay is not None:
            # Rows of undrawn blocks decay when they are read: the sum of logs says by how much.
            self.log_now = self.log_now + _log_decay(decay)
            self._put(self.log_decay, local, self.log_now.expand(local.shape), ok)
        # In place, as the last thing before the commit: a copy of all rows would cost O(m) per step.
        self._put(self.rows, local, new, ok)
        if self.unvisited and ok is None:
            self._visit(local)
        elif self.unvisited:
            self._put(self.visited, local, torch.ones_like(local, dtype=torch.bool), ok)

    @staticmethod
    def _put(target: Tensor, place: Tensor, values: Tensor, ok: Tensor | None) -> None:
        """target[place] <- values, in place, where ``ok`` does not say otherwise."""
        if ok is not None:
            values = torch.where(ok, values, target[place])
        target.index_copy_(0, place, values)

    def _visit(self, local: Tensor) -> None:
        if self.device.type == "cpu":  # an accelerator would have to wait for this number
            self.unvisited -= int((~self.visited[local]).sum())
        self.visited[local] = True

    def current(self) -> Tensor:
        """All owned rows as of now (owned, dim)."""
        everything = torch.arange(self.geometry.owned, device=self.device)
        return self._decayed(self.rows, everything, self.log_now)

    def _decayed(self, rows: Tensor, local: Tensor, log_total: Tensor) -> Tensor:
        if self.log_decay is None:
            return rows
        decay = (log_total - self.log_decay[local]).unsqueeze(1)  # (B, 1)
        shrunk = rows * decay.exp().to(rows.dtype)
        log_domain = self.geometry.log_domain
        if log_domain is None:
            return shrunk
        return torch.where(log_domain, rows + decay.to(rows.dtype), shrunk)


def _log_decay(decay: float | Tensor) -> float | Tensor:
    if isinstance(decay, Tensor):
        return decay.log().clamp(min=_NEVER)
    if decay <= 0.0:
        return _NEVER
    return max(math.log(decay), _NEVER)
