"""Memory: the table, Phi at it, and the chances of the next draws; shared by the solver and its loader."""

from __future__ import annotations

from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from fcco._support.interrupts import uninterrupted
from fcco.memory._diagnostics import warn_if_stale
from fcco.memory._draws import Chances, Stratum, balanced, capped, pushes
from fcco.memory._exchange import agreed
from fcco.memory._features import contrastive_phi
from fcco.memory._generic import GenericPhi
from fcco.memory._lists import list_phi
from fcco.memory._moments import moment_phi
from fcco.memory._pairs import pair_phi
from fcco.memory._phi import Coefficients, Phi
from fcco.memory._settings import OutputMemory
from fcco.memory._table import Entries, OutputTable
from fcco.objectives._base import OutputObjective
from fcco.objectives._ndcg import PairObjective
from fcco.sampling.loader import Loader


def phi_of(objective: OutputObjective, loader: Loader, table: OutputTable) -> Phi:
    """Phi in the fastest form that there is."""
    for form in (pair_phi, list_phi, moment_phi, contrastive_phi):
        phi: Phi | None = form(objective, loader, table)
        if phi is not None:
            return phi
    return GenericPhi(objective, loader, table)


STATE = ("shape", "table", "rows", "total", "shares", "refreshed", "lag", "period")  # what a state holds


class Figures(NamedTuple):
    """What the last step saw; () tensors, no device waits for them."""

    known: int  # how many of the drawn examples had an entry
    change: Tensor  # root mean square of fresh - stale over the drawn examples that had an entry
    spread: Tensor  # root mean square of their stale outputs about the mean
    cut: Tensor  # share of the pushes that were capped


@final
class Memory:
    """State and rules of the output memory.

    Args:
        objective: F.
        loader: gives the data's structure (who is compared with whom).
        strata: what the draws are made from.
        settings: see :class:`OutputMemory`.
        like: gives dtype and device of the table.
    """

    def __init__(
        self, objective: OutputObjective, loader: Loader, strata: list[Stratum], settings: OutputMemory, like: Tensor
    ) -> None:
        self.objective, self.loader, self.settings, self._like = objective, loader, settings, like
        self.chances = [Chances(stratum, like.device) for stratum in strata]
        # (S, N), who is in which
        self._strata = torch.zeros(len(strata), loader.num_examples, dtype=torch.bool, device=like.device)
        for mask, chances in zip(self._strata, self.chances, strict=True):
            mask[chances.members] = True
        self.table: OutputTable | None = None
        self.phi: Phi | None = None
        self.total: Tensor | None = None  # what the upward pushes add up to in the whole table, a number a column
        self.refreshed = 0  # when the chances were last renewed
        self.figures: Figures | None = None
        self.lag, self.warned = like.new_zeros(()), False  # running mean of |fresh - stale| over the spread
        self.period = settings.refresh or 0  # 0: chosen at the first step
        # within queries of a few items most draws have nobody of the other side to set them off against
        self._balances = objective.shift_invariant and not isinstance(objective, PairObjective)

    def begin(self, shape: tuple[int, ...]) -> OutputTable:
        """The table, made when the shape of an output is known."""
        if self.table is None:
            self.table = OutputTable(self.loader.num_examples, shape, like=self._like, wanted=self._strata.any(0))
            self.phi = phi_of(self.objective, self.loader, self.table)
        if self.table.values.shape[1:] != shape:
            raise ValueError(f"outputs must keep the shape {tuple(self.table.values.shape[1:])}, got {shape}")
        return self.table

    def check_ids(self, id: Tensor) -> None:
        """Refuse examples (K,), on the CPU, that are none, or that come twice."""
        n = self.loader.num_examples
        if id.numel() and not 0 <= int(id.min()) <= int(id.max()) < n:
            raise ValueError(f"batch.id must be in 0..{n - 1}, got {int(id.min())}..{int(id.max())}")
        if id.unique().shape[0] < id.shape[0]:
            raise ValueError("batch.id must name an example once: its draws are merged, as a MemoryLoader does")

    def coefficients(self, id: Tensor, old: Entries | None = None) -> Coefficients:
        """c of the examples (K,) at the table; ``old``: what they had before they were written."""
        assert self.phi is not None
        with torch.no_grad():
            return self.phi.at(id, old)

    def undo(self, old: list[Entries], period: int, begun: bool) -> None:
        """Put back what a step that failed has changed: entries, the period that it chose, the table that it made."""
        self.period = period
        if not begun:
            self.table = self.phi = None
        elif old and self.table is not None and self.phi is not None:
            self.table.put_back(old[0])
            self.phi.undo()

    def forget(self, before: dict[str, Any] | None) -> None:
        """A scoring pass failed: the table as it was before; None: there was none."""
        if before is None:
            self.table = self.phi = None
        elif self.table is not None:
            self.table.load_state_dict(before)

    def settle(self) -> None:
        """The step was taken: from now on nothing of it is put back."""
        if self.phi is not None:
            self.phi.settle()

    def weigh(self, id: Tensor, probability: Tensor, weight: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """v = c weight/q (K, ...), capped within each stratum and balanced; and the share that was capped.

        With examples missing, Phi is a mean over those seen, and c is of the order of 1 over their number; q is over
        all of them, so c is brought to their scale first. Else the first steps would push far too much.
        """
        strata, ratio = self._strata[:, id], weight / probability
        if self.table is not None and self.table.missing:
            ratio = ratio * (self._shares_seen(self.table).unsqueeze(1) * strata).sum(0)
        v = c * ratio.to(c.dtype).reshape(-1, *[1] * (c.dim() - 1))
        if self.settings.cap is None:
            cut = v.new_zeros(())
        elif self.objective.features:
            length = v.flatten(1).norm(dim=1)
            shorter, cut = capped(length, weight, self.settings.cap, strata=strata)
            v = v * (shorter / length.clamp(min=1e-30)).reshape(-1, *[1] * (v.dim() - 1))
        else:
            v, cut = capped(v, weight, self.settings.cap, by_sign=len(self.chances) == 1, strata=strata)
        if self.settings.balance and self._balances:
            v = balanced(v, self.total)
        return v, cut

    def _shares_seen(self, table: OutputTable) -> Tensor:
        """(S,) the share of each stratum that has an entry in the table."""
        return torch.stack([table.seen[chances.members].double().mean() for chances in self.chances])

    def choose_period(self, work: int) -> None:
        """Settle how often the whole table is evaluated, from the network's operations a step over all ranks.

        Often enough that a 25th of the table changes between two evaluations, and seldom enough that they take less
        than a tenth of the step (a pair counts like 200 operations of a network); but never so seldom that more
        changes than Phi can do without. It depends on no clock, so that runs repeat.
        """
        assert self.phi is not None
        turn = self.loader.num_examples / sum(chances.draws for chances in self.chances)
        cheap = 200.0 * self.phi.pairs() / (0.1 * max(work, 1))
        self.period = max(1, round(min(max(turn / 25, cheap), turn * self.phi.stretch)))

    def add_own(self, found: Coefficients) -> None:
        """Add the gradients of the objective's own variables to ``p.grad``.

        A variable that each block has for itself is felt by one of those seen, not by the mean over them: brought to
        the scale that it has once all were seen, like the pushes.
        """
        assert self.phi is not None
        m = self.objective.num_blocks
        for p, gradient in zip(self.phi.own, found.own, strict=True):
            part = found.f.shape[0] / m if p.dim() and p.shape[0] == m else 1.0
            gradient = part * gradient.to(p.dtype)
            p.grad = gradient if p.grad is None else p.grad + gradient

    def refresh(self, step: int, *, due: bool = False) -> None:
        """Evaluate Phi at the whole table and renew the chances, where it is time to; ``due``: now, and all of them."""
        time = due or (self.period > 0 and step - self.refreshed >= self.period)
        if self.phi is None or self.table is None or not time:
            return
        with torch.no_grad():
            c = self.phi.everything().c
        self.total = c.clamp(min=0).sum(0)
        seen = self.table.seen if self.table.missing else None
        found = [agreed(pushes(c, chances, seen)) for chances in self.chances]
        with uninterrupted():  # a mean that took one of them twice would not be one
            for chances, push in zip(self.chances, found, strict=True):
                chances.update(push, 1.0 if due else self.settings.renewal)
            self.refreshed = step
        warn_if_stale(self, step)

    def value(self) -> float:
        """F at the table; nothing is changed by looking."""
        if self.phi is None:
            raise RuntimeError("the table is empty: no step was taken yet")
        rows = getattr(self.phi, "rows", [])
        before = [row.clone() for row in rows]
        with torch.no_grad():
            value = float(self.phi.everything().f.mean())
        for row, old in zip(rows, before, strict=True):
            row.copy_(old)
        return value

    # ------------------------------------------------------------------ resuming

    def state_dict(self) -> dict[str, Any]:
        return {
            "shape": None if self.table is None else list(self.table.values.shape[1:]),
            "table": None if self.table is None else self.table.state_dict(),
            "rows": [rows.clone() for rows in getattr(self.phi, "rows", [])],
            "total": None if self.total is None else self.total.clone(),
            "shares": [chances.share.clone() for chances in self.chances],
            "refreshed": self.refreshed,
            "lag": float(self.lag),
            "period": self.period,
        }

    def check(self, state: dict[str, Any]) -> None:
        """Refuse a state that does not fit."""
        missing = [name for name in STATE if name not in state]
        if missing:
            raise ValueError(f"the state is not one of an output memory of this version: it lacks {', '.join(missing)}")
        if len(state["shares"]) != len(self.chances):
            raise ValueError(f"the state has {len(state['shares'])} strata, this memory {len(self.chances)}")
        for chances, share in zip(self.chances, state["shares"], strict=True):
            if share.shape[0] not in (0, chances.members.shape[0]):
                raise ValueError(
                    f"the state has strata of {share.shape[0]} examples, the data of {len(chances.members)}"
                )
        if state["shape"] is None:
            return
        size, shape = self.loader.num_examples, tuple(state["shape"])
        if state["table"]["values"].shape[0] != size:
            raise ValueError(f"the state is of {state['table']['values'].shape[0]} examples, the data has {size}")
        if self.table is not None and self.table.values.shape[1:] != shape:
            raise ValueError(f"the state has outputs of shape {shape}, the model {tuple(self.table.values.shape[1:])}")
        phi = self.phi or phi_of(self.objective, self.loader, OutputTable(size, shape, like=self._like))
        wanted, found = [list(r.shape) for r in getattr(phi, "rows", [])], [list(r.shape) for r in state["rows"]]
        if wanted != found:
            raise ValueError(f"the state is of another objective: its rows have shapes {found}, not {wanted}")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.check(state)
        self.table = self.phi = None
        if state["shape"] is not None:
            self.begin(tuple(state["shape"])).load_state_dict(state["table"])
            for rows, saved in zip(getattr(self.phi, "rows", []), state["rows"], strict=True):
                rows.copy_(saved)
        for chances, share in zip(self.chances, state["shares"], strict=True):
            chances.set(share.cpu())
        self.total = None if state["total"] is None else state["total"].to(self._like.device)
        self.refreshed, self.period = state["refreshed"], self.settings.refresh or state["period"]
        self.lag = torch.full_like(self.lag, state["lag"])
