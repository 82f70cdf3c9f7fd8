"""Whether MSVR's correction pays: the share of u's error that the correction has put there itself."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fcco.methods.trackers import Coefficient, Coefficients, Values
from fcco.solver._state import Layout, derived, saved

EVERY = 4  # steps between two figures
WINDOW = 200  # steps between two answers
THRESHOLD = 0.5  # of rho, read off the map of experiment 5 of `fcco rates`; docs/theory.md shows it
_TOP = 20.0  # exponents are cut here: e^20 is far beyond any threshold, and its square is finite


class CorrectionWarning(UserWarning):
    """MSVR's correction adds more noise to u than it removes."""


@final
class WatchOnDevice:
    """The same figures where steps are captured: added up on the device, read when the host looks.

    Args:
        like: gives the device.
    """

    def __init__(self, like: Tensor) -> None:
        self.totals = like.new_zeros(3)  # of the two mean squares, and how many steps they are over
        self._one = like.new_ones(1)

    @torch.no_grad()
    def add(self, due: Tensor, both: Tensor) -> None:
        """Take in the two mean squares (2,) of a step, where ``due`` () says so."""
        self.totals += torch.where(due, torch.cat([both, self._one]), 0.0)


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
        on_device: what takes the figures in while steps are captured.
        since: the step after which it does.
    """

    rho: float | None = saved(Layout.PER_RANK, default=None)
    figures: int = saved(Layout.PER_RANK, default=0)
    warned: bool = saved(Layout.PER_RANK, default=False)
    sums: Tensor | None = saved(Layout.PER_RANK, host_only=True, default=None)
    gamma: float = saved(Layout.PER_RANK, default=0.0)
    on_device: WatchOnDevice | None = derived(default=None)
    since: int = derived(default=0)

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
        sums = _mean_squares(c, gamma, v, moved, new, log_domain)
        if self.sums is not None:
            sums = sums + self.sums
        self.sums = sums
        self.figures += 1
        if self.figures * EVERY >= WINDOW:
            self._answer(sums, float(gamma))

    @torch.no_grad()
    def follow_on_device(
        self, t: Tensor, ok: Tensor, c: Coefficients, v: Values, new: Tensor | None, log_domain: Tensor | None
    ) -> None:
        """The same in a captured step: t () and whether the step is taken () are known to the device alone."""
        gamma, moved = _correction(c, v)
        if moved is None:
            return
        assert self.on_device is not None
        both = _mean_squares(c, gamma, v, moved, new, log_domain)
        self.on_device.add(ok & (t % EVERY == 0), both)

    def move_to_device(self, like: Tensor, t: int) -> None:
        """The steps after t are captured; ``like`` gives device and dtype."""
        if self.on_device is None:
            self.on_device = WatchOnDevice(like)
        totals = self.on_device.totals  # graphs know its address: it is written, not replaced
        totals.zero_()
        if self.sums is not None:
            totals[:2].copy_(self.sums)
        totals[2:].fill_(self.figures)
        self.since = t

    def is_full_after(self, t: int) -> bool:
        """Whether there is an answer after captured step t, if every step since the last look was taken."""
        return t % EVERY == 0 and (self.figures + t // EVERY - self.since // EVERY) * EVERY >= WINDOW

    def read_device(self, c: Coefficients | None) -> None:
        """What the captured steps have found (a device waits).

        Args:
            c: the coefficients of the last one; None: there was none.
        """
        if self.on_device is None:
            return
        self.figures = int(self.on_device.totals[2])
        self.sums = None
        if self.figures:
            self.sums = self.on_device.totals[:2].clone()
        if self.sums is not None and self.figures * EVERY >= WINDOW:
            self._answer(self.sums, _gamma(c))

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
            f"the correction of MSVR caused {self.rho:.2g} of u's error itself (rho, over the last {WINDOW} "
            f"steps; gamma = {self.gamma:.3g}): above {THRESHOLD} it does harm. Use a smaller learning rate, more "
            "blocks per step, a larger beta, or gamma=0 (SOX's moving average); docs/theory.md has the map",
            CorrectionWarning,
            stacklevel=stacklevel,
        )


def _gamma(c: Coefficients | None) -> float:
    """The weight of the correction, as a number."""
    if c is None or c.previous is None:
        return 0.0
    return -float(c.previous)


def _correction(c: Coefficients, v: Values) -> tuple[Coefficient, Tensor | None]:
    """gamma, and what it multiplies: g - g-, or J(w_t - w_{t-1})."""
    if c.jvp is not None:
        return c.jvp, v.jvp
    if v.previous is None:
        return 0.0, None
    gamma: Coefficient = 0.0  # a moving average by choice, whose estimator probes w_{t-1} all the same
    if c.previous is not None:
        gamma = -c.previous
    return gamma, v.now - v.previous


def _mean_squares(
    c: Coefficients, gamma: Coefficient, v: Values, moved: Tensor, new: Tensor | None, log_domain: Tensor | None
) -> Tensor:
    """(2,): what the correction has put into u's squared error, and that error with the noise of a probe."""
    apart = v.now - v.u  # (B, dim)
    if log_domain is not None:  # relative to u
        ratio = apart.clamp(max=_TOP).exp()
        change = moved
        if c.jvp is None:
            change = -torch.expm1((-moved).clamp(max=_TOP))
        moved = torch.where(log_domain, ratio * change, moved)
        apart = torch.where(log_domain, ratio - 1.0, apart)
    # What a correction leaves in u decays by (1 - beta)^2 per visit: a geometric series.
    left = gamma / (c.beta * (2.0 - c.beta)) ** 0.5
    both = torch.stack([(left * moved).square(), apart.square()])  # (2, B, dim)
    if new is not None:
        both = both.masked_fill(new, 0.0)  # a block met for the first time has u = g
    return both.mean((1, 2))
