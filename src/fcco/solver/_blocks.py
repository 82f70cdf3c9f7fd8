"""BlockTable: the rows u_i. Cost per step does not depend on m; memory is one row a block plus B1 rows."""

from __future__ import annotations

import math
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from fcco._support import checks
from fcco._support.parallel import gather_objects, rank_and_world

_NEVER = -1000.0  # log of a decay by 0: exp(-1000) is 0 in every float, and differences stay finite


@final
class BlockTable:
    """Rows u_t (those of this rank), and what is needed of u_{t-1}: the rows that the last step replaced.

    Args:
        num_blocks: m over all ranks.
        dim: p.
        like: gives dtype and device.
        log: (dim,) bool, which components hold log u; None: none of them.
        decays: whether undrawn rows decay (kept lazily: one log-decay a row, applied when read).
    """

    def __init__(
        self, num_blocks: int, dim: int, *, like: Tensor, log: Tensor | None = None, decays: bool = False
    ) -> None:
        self.rank, self.world = rank_and_world()
        if num_blocks < self.world:
            raise ValueError(f"num_blocks must be at least the number of ranks {self.world}, got {num_blocks}")
        self.num_blocks, self.dim, self.log = num_blocks, dim, log
        self.device, self.dtype = like.device, like.dtype
        owned = len(range(self.rank, num_blocks, self.world))
        self.rows = torch.zeros(owned, dim, dtype=self.dtype, device=self.device)
        self.visited = torch.zeros(owned, dtype=torch.bool, device=self.device)
        self.log_decay = torch.zeros(owned, dtype=torch.float64, device=self.device) if decays else None
        self.log_now = self.log_before = 0.0  # running sums of log(decay), after steps t-1 and t-2
        self.old_index = torch.empty(0, dtype=torch.int64, device=self.device)
        self.old_rows = self.rows[:0].clone()
        self._unvisited = owned  # kept on the host; on an accelerator only a fill brings it to 0

    @property
    def owned(self) -> int:
        """How many blocks this rank owns."""
        return self.rows.shape[0]

    def fill(self, u: float | Tensor) -> None:
        """Give every row a start value: a number or (m, dim)."""
        if isinstance(u, Tensor):
            if u.shape != (self.num_blocks, self.dim):
                raise ValueError(f"u0 must have shape {(self.num_blocks, self.dim)}, got {tuple(u.shape)}")
            wrong = (~torch.isfinite(u).all(1)).nonzero()[:, 0].tolist()
            if wrong:
                raise ValueError(f"u0 must be finite in every row, got other values in rows {checks.some(wrong)}")
            self.rows.copy_(u[self.rank :: self.world])
        else:
            self.rows.fill_(checks.number("u0", u))
        self._visit_all()

    def check(self, asked: Any, *, name: str = "index", repeats: bool = False) -> Tensor:
        """The blocks asked for as (B,) int64 on the table's device, or an error that names the block."""
        index = _as_tensor(asked, name)
        if index.numel() == 0:
            raise ValueError(f"{name} must name at least one block, got an empty {type(asked).__name__}")
        if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
            raise TypeError(f"{name} must hold integers, got dtype {index.dtype}")
        if index.dim() != 1:
            raise ValueError(f"{name} must have shape (B,), got {tuple(index.shape)}")
        index = index if index.dtype == torch.int64 else index.to(torch.int64)
        blocks = index.tolist()  # for the few blocks of a step, Python's min, max and set beat tensor operations
        if min(blocks) < 0 or max(blocks) >= self.num_blocks:
            wrong = min(blocks) if min(blocks) < 0 else max(blocks)
            raise ValueError(f"{name} must be in 0..{self.num_blocks - 1}, got block {wrong}")
        if not repeats and len(set(blocks)) < len(blocks):
            again = next(block for block in sorted(blocks) if blocks.count(block) > 1)
            raise ValueError(f"{name} must name each block once, got block {again} more than once")
        foreign = [block for block in blocks if block % self.world != self.rank] if self.world > 1 else []
        if foreign:
            raise ValueError(f"{name} names blocks that rank {self.rank} does not own: {checks.some(foreign)}")
        return index if index.device == self.device else index.to(self.device)

    def local(self, index: Tensor) -> Tensor:
        """Where in this rank's rows the blocks stand."""
        return index if self.world == 1 else index // self.world

    def read(self, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """u_{t-1} of the blocks (B, dim), and which of them (B,) were never visited; None: all rows were."""
        local = self.local(index)
        new = ~self.visited[local] if self._unvisited else None
        return self._decayed(self.rows.index_select(0, local), local, self.log_now), new

    def read_earlier(self, index: Tensor) -> Tensor:
        """u_{t-2} of the blocks (B, dim): the replaced rows for those drawn at t-1, else the rows."""
        local = self.local(index)
        rows = self._decayed(self.rows.index_select(0, local), local, self.log_before)
        if self.old_index.numel() == 0:
            return rows
        earlier, order = self.old_index.sort()
        place = torch.searchsorted(earlier, index).clamp_(max=earlier.numel() - 1)
        drawn = (earlier[place] == index).unsqueeze(1)
        return torch.where(drawn, self.old_rows[order[place]], rows)

    def write(self, index: Tensor, old: Tensor, new: Tensor, decay: float) -> None:
        """Put u_t in place of u_{t-1} for the drawn blocks; the others decay."""
        local = self.local(index)
        self.old_index, self.old_rows = index.clone(), old
        self.rows.index_copy_(0, local, new)
        if self._unvisited:
            self._visit(local)
        self.log_before = self.log_now
        if self.log_decay is not None:
            self.log_now += max(math.log(decay), _NEVER) if decay > 0.0 else _NEVER
            self.log_decay[local] = self.log_now

    def fill_new(self, rows: Tensor) -> None:
        """u_0 of every owned block that was never visited, from a full pass (owned, dim)."""
        self.rows.copy_(torch.where(self.visited.unsqueeze(1), self.rows, rows))
        self._visit_all()

    def unfill(self, visited: Tensor) -> None:
        """Undo :meth:`fill_new`: only the rows marked (owned,) were visited."""
        self.rows.masked_fill_(~visited.unsqueeze(1), 0.0)
        self._set_visited(visited)

    def _visit(self, local: Tensor) -> None:
        if self.device.type == "cpu":  # on an accelerator this look would make it wait
            self._unvisited -= int((~self.visited[local]).sum())
        self.visited[local] = True

    def _visit_all(self) -> None:
        self.visited.fill_(True)
        self._unvisited = 0

    def _set_visited(self, visited: Tensor) -> None:
        self.visited.copy_(visited)
        self._unvisited = int((~self.visited).sum())

    def current(self) -> tuple[Tensor, Tensor]:
        """All owned rows as of now (owned, dim), and which of them were visited."""
        everything = torch.arange(self.owned, device=self.device)
        return self._decayed(self.rows, everything, self.log_now), self.visited

    def _decayed(self, rows: Tensor, local: Tensor, log_total: float) -> Tensor:
        if self.log_decay is None:
            return rows
        decay = (log_total - self.log_decay[local]).unsqueeze(1)
        shrunk = rows * decay.exp().to(rows.dtype)
        return shrunk if self.log is None else torch.where(self.log, rows + decay.to(rows.dtype), shrunk)

    def state_dict(self) -> dict[str, Any]:
        """The table over all ranks (each rank must call this), so that it loads on any number of ranks."""
        state = {
            "rows": self._gather(self.rows),
            "visited": self._gather(self.visited.to(torch.uint8)),
            "log_decay": None if self.log_decay is None else self._gather(self.log_decay),
            "log_now": self.log_now,
            "log_before": self.log_before,
        }
        old = gather_objects((self.old_index.cpu(), self.old_rows.cpu()))
        state["old_index"] = torch.cat([index for index, _ in old])
        state["old_rows"] = torch.cat([rows for _, rows in old])
        return state

    def _gather(self, mine: Tensor) -> Tensor:
        if self.world == 1:
            return mine.clone()
        whole = mine.new_zeros((self.num_blocks, *mine.shape[1:]))
        whole[self.rank :: self.world] = mine
        dist.all_reduce(whole)
        return whole

    def refuse(self, state: dict[str, Any]) -> None:
        """Raise where a state does not fit this table."""
        shape = tuple(state["rows"].shape)
        if shape != (self.num_blocks, self.dim):
            raise ValueError(f"the state has u of shape {shape}, this solver {(self.num_blocks, self.dim)}")
        if (state["log_decay"] is None) != (self.log_decay is None):
            raise ValueError("the state and this solver differ in whether undrawn rows decay")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take this rank's part of the state."""
        self.refuse(state)
        mine = slice(self.rank, None, self.world)
        self.rows.copy_(state["rows"][mine])
        self._set_visited(state["visited"][mine].bool())
        if self.log_decay is not None:
            self.log_decay.copy_(state["log_decay"][mine])
        self.log_now, self.log_before = state["log_now"], state["log_before"]
        kept = state["old_index"] % self.world == self.rank
        self.old_index = state["old_index"][kept].to(self.device)
        self.old_rows = state["old_rows"][kept].to(self.device, self.dtype)


def _as_tensor(index: Any, name: str) -> Tensor:
    try:
        return torch.as_tensor(index)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} must be a tensor or a list of block numbers, got {index!r}") from error
