"""Whether MSVR's correction pays: the share of u's error that the correction has put there itself."""

from __future__ import annotations

import math
import warnings
from typing import Any, final

import torch
from torch import Tensor

from fcco.methods.trackers import Coefficients, Values

EVERY, WINDOW = 4, 200  # a look every few steps, an answer every so many
THRESHOLD = 0.5  # of rho, read off the map of experiment 5 of `fcco rates`; docs/theory.md shows it
_TOP = 20.0  # exponents are cut here: e^20 is far beyond any threshold, and its square is finite


class CorrectionWarning(UserWarning):
    """MSVR's correction adds more noise to u than it removes."""


@final
class CorrectionWatch:
    """Keeps rho = gamma^2 mean (g - g-)^2 / (beta (2 - beta) mean (g - u)^2) over the last steps.

    A correction gamma (g - g-) that points nowhere in particular leaves gamma^2 (g - g-)^2/(beta (2 - beta)) in the
    squared error of u; (g - u)^2 is that error and the noise of one look. In log components everything is relative
    to u. It costs a few operations on the drawn rows every fourth step, and one wait for the device in 200.

    Args:
        log: (dim,) bool, which components are in the log domain; None: none.
    """

    def __init__(self, log: Tensor | None) -> None:
        self.rho: float | None = None
        self._log, self._warned, self._looks = log, False, 0
        self._sums: Tensor | None = None  # (2,)

    @torch.no_grad()
    def look(self, t: int, c: Coefficients, v: Values, new: Tensor | None) -> None:
        """Take in step t.

        Args:
            c: the step's coefficients.
            v: u_{t-1}, g and g- (or J(w_t - w_{t-1})) of the drawn blocks.
            new: (B,) which blocks are met for the first time; None: none.
        """
        if t % EVERY:
            return
        single_point = c.jvp is not None
        gamma, beta = float(c.jvp or 0.0) if single_point else -float(c.previous or 0.0), float(c.beta)
        apart = v.now - v.u
        moved = v.jvp if single_point else None if v.previous is None else v.now - v.previous
        if moved is None:
            return
        if self._log is not None:  # relative to u
            ratio = apart.clamp(max=_TOP).exp()
            change = ratio * (moved if single_point else -torch.expm1((-moved).clamp(max=_TOP)))
            moved, apart = torch.where(self._log, change, moved), torch.where(self._log, ratio - 1.0, apart)
        left = gamma / math.sqrt(beta * (2.0 - beta))
        both = torch.stack([(left * moved).square(), apart.square()])  # (2, B, dim)
        if new is not None:
            both = both.masked_fill(new.unsqueeze(1), 0.0)
        sums = both.mean((1, 2))
        self._sums = sums if self._sums is None else self._sums + sums
        self._looks += 1
        if self._looks * EVERY >= WINDOW:
            self._answer(gamma)

    def state_dict(self) -> dict[str, Any]:
        return {
            "rho": self.rho,
            "looks": self._looks,
            "warned": self._warned,
            "sums": None if self._sums is None else self._sums.cpu().clone(),
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self.rho, self._looks, self._warned = state["rho"], state["looks"], state["warned"]
        self._sums = None if state["sums"] is None else state["sums"].to(device)

    def _answer(self, gamma: float) -> None:
        assert self._sums is not None
        moved, apart = self._sums.tolist()
        self.rho = moved / apart if apart > 0.0 else 0.0
        self._sums, self._looks = None, 0
        if self.rho > THRESHOLD and not self._warned:
            self._warned = True
            warnings.warn(
                f"the correction of MSVR has put {self.rho:.2g} of u's error there itself (rho, over the last {WINDOW} "
                f"steps; gamma = {gamma:.3g}): above {THRESHOLD} it does harm. Take a smaller learning rate, more "
                "blocks a step, a larger beta, or gamma=0 (SOX's moving average); docs/theory.md has the map",
                CorrectionWarning,
                stacklevel=6,  # the caller of Solver.step
            )
