"""Whether MSVR's correction pays: the share of u's error that the correction has put there itself."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fcco.methods.trackers import Coefficients, Values
from fcco.solver._state import Layout, saved

EVERY = 4  # steps between two figures
WINDOW = 200  # steps between two answers
THRESHOLD = 0.5  # of rho, read off the map of experiment 5 of `fcco rates`; docs/theory.md shows it
_TOP = 20.0  # exponents are cut here: e^20 is far beyond any threshold, and its square is finite


class CorrectionWarning(UserWarning):
    """MSVR's correction adds more noise to u than it removes."""


@final
@dataclass
class CorrectionWatch:
    """Keeps rho = gamma^2 mean (g - g-)^2 / (beta (2 - beta) mean (g - u)^2) over the last steps.

    A correction gamma (g - g-) that points nowhere in particular leaves gamma^2 (g - g-)^2/(beta (2 - beta)) in the
    squared error of u; (g - u)^2 is that error and the noise of one probe. In log components everything is relative
    to u. It costs a few operations on the drawn rows every fourth step, and one wait for the device in 200.

    Args:
        rho: the last answer; None: not known yet.
        figures: how many steps the sums are over.
        warned: whether the user was told.
        sums: (2,) of the two mean squares.
        gamma: the one behind ``rho``.
    """

    rho: float | None = saved(Layout.PER_RANK, default=None)
    figures: int = saved(Layout.PER_RANK, default=0)
    warned: bool = saved(Layout.PER_RANK, default=False)
    sums: Tensor | None = saved(Layout.PER_RANK, default=None)
    gamma: float = saved(Layout.PER_RANK, default=0.0)

    @torch.no_grad()
    def follow(self, t: int, c: Coefficients, v: Values, new: Tensor | None, log_domain: Tensor | None) -> None:
        """Take in step t.

        Args:
            c: the step's coefficients.
            v: u_{t-1}, g and g- (or J(w_t - w_{t-1})) of the drawn blocks.
            new: (B, 1) which blocks are met for the first time; None: none.
            log_domain: (dim,) bool, which components are in the log domain; None: none.
        """
        if t % EVERY:
            return
        gamma, moved = _correction(c, v)
        if moved is None:
            return
        beta = float(c.beta)
        apart = v.now - v.u  # (B, dim)
        if log_domain is not None:  # relative to u
            ratio = apart.clamp(max=_TOP).exp()
            change = moved if c.jvp is not None else -torch.expm1((-moved).clamp(max=_TOP))
            moved = torch.where(log_domain, ratio * change, moved)
            apart = torch.where(log_domain, ratio - 1.0, apart)
        # What a correction leaves in u decays by (1 - beta)^2 per visit: a geometric series.
        left = gamma / math.sqrt(beta * (2.0 - beta))
        both = torch.stack([(left * moved).square(), apart.square()])  # (2, B, dim)
        if new is not None:
            both = both.masked_fill(new, 0.0)  # a block met for the first time has u = g
        sums = both.mean((1, 2))
        if self.sums is not None:
            sums = sums + self.sums
        self.sums = sums
        self.figures += 1
        if self.figures * EVERY >= WINDOW:
            self._answer(sums, gamma)

    def _answer(self, sums: Tensor, gamma: float) -> None:
        moved, apart = sums.tolist()
        self.rho = 0.0
        if apart > 0.0:
            self.rho = moved / apart
        self.gamma = gamma
        self.sums = None
        self.figures = 0

    def warn(self, stacklevel: int) -> None:
        """Tell the user, once, that the correction does harm."""
        if self.warned or self.rho is None or self.rho <= THRESHOLD:
            return
        self.warned = True
        warnings.warn(
            f"the correction of MSVR has put {self.rho:.2g} of u's error there itself (rho, over the last {WINDOW} "
            f"steps; gamma = {self.gamma:.3g}): above {THRESHOLD} it does harm. Take a smaller learning rate, more "
            "blocks per step, a larger beta, or gamma=0 (SOX's moving average); docs/theory.md has the map",
            CorrectionWarning,
            stacklevel=stacklevel,
        )


def _correction(c: Coefficients, v: Values) -> tuple[float, Tensor | None]:
    """gamma, and what it multiplies: g - g-, or J(w_t - w_{t-1})."""
    if c.jvp is not None:
        return float(c.jvp), v.jvp
    if v.previous is None:
        return 0.0, None
    gamma = 0.0  # a moving average by choice, whose estimator probes w_{t-1} all the same
    if c.previous is not None:
        gamma = -float(c.previous)
    return gamma, v.now - v.previous
