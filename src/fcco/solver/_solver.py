"""Solver: carries the state, looks at the objective where the method asks, leaves z in ``p.grad``, steps."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from typing import Any, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from fcco._objective import Objective
from fcco._support import checks
from fcco._support.interrupts import uninterrupted
from fcco._support.module_state import Snapshot
from fcco._support.sharded import copies, parts
from fcco.memory._memory import Memory
from fcco.memory._step import Pass, memory_step
from fcco.methods._recipes import Method
from fcco.methods.estimators import Weights
from fcco.methods.trackers import MSVR, Values, combine, floor
from fcco.solver import _state as state
from fcco.solver._arguments import check_parts, choice, start_z
from fcco.solver._blocks import BlockTable
from fcco.solver._diagnose import exact_figures
from fcco.solver._full_pass import FullPass
from fcco.solver._probe import Draw, Evaluator, Look, NonFiniteError, gradients, name_blocks
from fcco.solver._reference import Anchor, make_anchor
from fcco.solver._report import Diagnosis, Oracle, Report
from fcco.solver._reservoir import Reservoir
from fcco.solver._watch import CorrectionWatch


class NonFinite(StrEnum):
    """What to do where a step meets a number that is not finite."""

    RAISE = "raise"
    SKIP = "skip"


class Keep(StrEnum):
    """Which iterate ``kept()`` returns: the last one, or one drawn uniformly over the run, as in the theory."""

    LAST = "last"
    UNIFORM = "uniform"


@final
class Solver:
    r"""Minimises :math:`F(w) = \frac1m \sum_i f_i(g_i(w))` by any method of :data:`fcco.METHODS`.

    ::

        for t = 1, 2, ...:
            g, g- = g_i(w_t; xi), g_i(w_{t-1}; xi)                   for the drawn blocks i in B_t
            u_t   = tracker(u_{t-1}, g, g-)                          the other blocks keep u
            z_t   = estimator(z_{t-1}, G_t, G-_t)                    G = mean of grad f_i(u_i) grad g_i(w; xi)
            w_{t+1} = optimizer(w_t, z_t)

    Args:
        objective: the user's f and g; every parameter of it that requires a gradient is trained.
        optimizer: any torch optimizer over all those parameters; it finds z_t in ``p.grad``.
        method: a recipe's result, for example ``fcco.msvr_v2(alpha=0.1, beta=0.1)``.
        radius: project z onto the ball of this radius (C_F in the paper); None: do not.
        full_pass: for methods with an anchor: a function that returns an iterator of ``(index, *data)``, the
            arguments of ``step``; the rows that inner returns for them must SUM per block to g_i(w).
        normalize: step along z/||z||, for the constant-free schedules.
        u0: start rows, a number or (m, dim), taken literally; None: a block starts at its first look.
        z0: start z, a number or one tensor a parameter, taken literally; None: z_1 = G_1.
        nonfinite: raise (the default), or skip the step and count it in ``skipped``.
        keep: which iterate ``kept()`` returns.
        seed: of the reservoir behind ``keep``.

    Example:
        >>> import fcco
        >>> w = torch.nn.Parameter(torch.ones(2))
        >>> f = fcco.objective(
        ...     lambda i, x: (x @ w).mean(1, keepdim=True),
        ...     lambda i, u: u.square().squeeze(1),
        ...     num_blocks=4,
        ...     parameters=[w],
        ... )
        >>> solver = Solver(f, torch.optim.SGD([w], lr=0.1), fcco.msvr_v2(alpha=0.5, beta=0.5))
        >>> report = solver.step(torch.tensor([0, 3]), torch.ones(2, 8, 2))
        >>> report.step, report.samples, report.value
        (1, 16, 4.0)
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: Optimizer,
        method: Method,
        *,
        radius: float | None = None,
        full_pass: FullPass | None = None,
        normalize: bool = False,
        u0: float | Tensor | None = None,
        z0: float | Sequence[Tensor] | None = None,
        nonfinite: NonFinite | str = NonFinite.RAISE,
        keep: Keep | str = Keep.LAST,
        seed: int = 0,
    ) -> None:
        check_parts(objective, optimizer, method, full_pass)
        checks.flag("normalize", normalize)
        checks.whole("seed", seed)
        if radius is not None:
            checks.positive("radius", radius)
        self.objective, self.optimizer, self.method = objective, optimizer, method
        self.radius, self.full_pass, self.normalize = radius, full_pass, normalize
        self.nonfinite, self.keep = choice(NonFinite, nonfinite, "nonfinite"), choice(Keep, keep, "keep")
        first = next(p for p in objective.parameters() if p.requires_grad)
        like = torch.empty(0, dtype=_row_dtype(first, any(objective.log)), device=first.device)
        self.log = torch.tensor(objective.log, device=first.device) if any(objective.log) else None
        self._evaluator = Evaluator(objective, self.log, like.dtype, optimizer)
        self.parameters = self._evaluator.parameters
        decays = method.tracker.decay(1) != 1.0
        self.table = BlockTable(objective.num_blocks, objective.dim, like=like, log=self.log, decays=decays)
        self.t = self.samples = self.skipped = 0
        self.oracle = Oracle()
        self.previous: list[Tensor] | None = None  # w_{t-1}
        self.anchor: Anchor | None = None
        self._renew = False
        self._anchored_at = 0
        given = None if z0 is None else start_z(z0, self.parameters)
        self._z = given if method.estimator.remembers else None
        self._norm: Tensor | None = None  # what z in p.grad was divided by
        self.memory: Memory | None = None  # of the output memory; its loader sets it
        self._watch = CorrectionWatch(self.log) if isinstance(method.tracker, MSVR) else None
        if u0 is not None:
            if method.memory is not None:
                raise ValueError(f"u0 must be None for {method.name}: it tracks no u, got {u0!r}")
            self.table.fill(u0)
        self._reservoir = Reservoir(objective, seed) if self.keep is Keep.UNIFORM else None
        if radius is None and getattr(method.tracker, "single_point", False):
            warnings.warn(
                f"the theory of {method.name} needs a bounded step: give the Solver a radius (the paper's C_F)",
                stacklevel=2,
            )

    # ------------------------------------------------------------------ the algorithm box

    def step(self, index: Any, *data: Any) -> Report:
        """Take one step.

        Args:
            index: (B,) the blocks drawn, each once.
            data: their samples, handed to ``objective.inner``.

        Raises:
            NonFiniteError: where g, f or the gradient is not finite; names the blocks.
        """
        self._evaluator.check_trained()
        if self.method.memory is not None:
            return memory_step(self, data)
        index = self.table.check(index)
        try:
            with self._all_or_nothing() as before:
                return self._step(self.t + 1, index, data, before)
        except NonFiniteError:
            if self.nonfinite is NonFinite.RAISE:
                raise
        self.samples += self._evaluator.samples(index, data)
        self.skipped += 1
        return Report(self.t, self.samples, self.oracle, True, None, None, None)

    def _step(self, t: int, index: Tensor, data: tuple[Any, ...], before: Snapshot) -> Report:
        method = self.method
        if self.previous is None and (method.tracker.looks_back or method.estimator.looks_back):
            self.previous = copies(self.parameters)  # w_0 = w_1
        if self._anchor_is_due(t):
            self._renew_anchor(t)
        u, new = self.table.read(index)  # u_{t-1}
        c = method.tracker.coefficients(t, self.table.owned / index.shape[0], u)
        k = self._first_weights(method.estimator.weights(t))
        draw = Draw(self._evaluator, index, data, self.table.owned * self.table.world / self.table.num_blocks, before)
        self._evaluator.begin()
        tangents, log = None if c.jvp is None else self._moved(), self._evaluator.components

        def update(g: Tensor, previous: Tensor | None, anchor: Tensor | None, jvp: Tensor | None) -> Tensor:
            full = None if c.full is None or self.anchor is None else self.anchor.g[self.table.local(index)]
            u_t = combine(c, Values(u, g, previous, anchor, full, jvp), log)
            return self._evaluator.project(_first(new, g, u_t))

        def weighing(rows: Tensor, g: Tensor) -> Tensor:
            return floor(rows, g, c.beta, log)

        previous = anchor = None
        if method.lag == 1:
            now = draw.look(None, lambda g, _: weighing(_first(new, g, u), g), k.now, tangents)
            if c.previous is not None or k.previous is not None:
                u_earlier = _first(new, now.g, self.table.read_earlier(index))  # u_{t-2}
                previous = draw.look(self.previous, lambda g, _: weighing(u_earlier, g), k.previous)
            if self.anchor is not None and (c.anchor is not None or k.anchor is not None):
                u_anchor = self.anchor.u[self.table.local(index)]  # u_{tau-1}
                anchor = draw.look(self.anchor.weights, lambda _, __: u_anchor, k.anchor)
            u_t = update(now.g, previous and previous.g, anchor and anchor.g, now.jvp)
        else:
            if c.previous is not None or k.previous is not None:
                memoryless = method.tracker.memoryless
                previous = draw.look(
                    self.previous, lambda g, _: weighing(g if memoryless else _first(new, g, u), g), k.previous
                )
            seen = None if previous is None else previous.g
            now = draw.look(None, lambda g, jvp: update(g, seen, None, jvp), k.now, tangents)
            u_t = now.weighed_at()
        draw.seen.append(u_t)
        self._finish_z(k, draw)
        looks = [look for look in (now, previous, anchor) if look is not None]
        report = self._commit(t, draw, _first(new, now.g, u), u_t, looks)
        if self._watch is not None:
            self._watch.look(t, c, Values(u, now.g, previous and previous.g, jvp=now.jvp), new)
        return report

    def _finish_z(self, k: Weights, draw: Draw | Pass) -> None:
        """``p.grad`` holds the scaled sum of G's: make it z_t, projected; nothing is stored yet."""
        self._evaluator.refuse_strangers()
        grads = gradients(self.parameters)
        everywhere = True if self.table.world == 1 else self._evaluator.average(grads, draw.finite.all())
        watched = [*grads, *draw.seen]
        if self._z is not None and k.z != 0.0:
            torch._foreach_add_(grads, self._z, alpha=k.z)
        if self.anchor is not None and k.full is not None:
            torch._foreach_add_(grads, self.anchor.gradient, alpha=k.full)
        if self.radius is not None or self.normalize:
            norm = self._evaluator.norm(grads)
            watched.append(norm)  # z / inf would be a step that stands still
        if self.radius is not None:
            torch._foreach_mul_(grads, (self.radius / norm).clamp(max=1.0))
        if not (self._evaluator.all_finite(watched) and bool(everywhere)):
            self._raise_nonfinite(draw)

    def _commit(self, t: int, draw: Draw, u_old: Tensor, u_t: Tensor, looks: list[Look]) -> Report:
        """Take the optimizer's step and store u_t, z_t and w_t; nothing before this line was kept."""
        now, index = looks[0], draw.index
        drawn, decay = self._evaluator.samples(index, draw.data), self.method.tracker.decay(t)
        with uninterrupted():
            self._move(t, draw)
            self.table.write(index, u_old, u_t, decay)  # only now: the optimizer may have raised
            self.samples += drawn
            self.oracle = self.oracle.plus(
                g=drawn * len(looks),
                j=drawn * sum(look.f is not None for look in looks),
                jvp=drawn * sum(look.jvp is not None for look in looks),
            )
            self.t = t
        return Report(t, self.samples, self.oracle, False, now.f, u_t, now.g)

    def _move(self, t: int, draw: Draw | Pass) -> None:
        """Keep z_t and w_t, and let the optimizer step from there.

        Both are copies beside the old ones, not over them: ``_all_or_nothing`` goes back to those where the optimizer
        raises. They are made before it, since it may write into ``p.grad`` as well as into the weights.
        """
        draw.settle()
        grads = gradients(self.parameters)
        if self.method.estimator.remembers:
            self._z = copies(grads)
        if self.previous is not None:
            self.previous = copies(self.parameters) if draw.now is None else draw.now
        if self._reservoir is not None:
            self._reservoir.offer(t)
        if self.normalize:
            norm = self._evaluator.norm(grads)
            self._norm = torch.where(norm > 0, norm, 1.0)
            torch._foreach_div_(grads, self._norm)
        self.optimizer.step()

    def _first_weights(self, k: Weights) -> Weights:
        """z_1 = G_1 where no z_0 was given."""
        if self._z is not None or not self.method.estimator.remembers:
            return k
        return replace(k, z=0.0, now=1.0, previous=None if k.previous is None else 0.0)

    def _moved(self) -> list[Tensor]:
        assert self.previous is not None
        with torch.no_grad():
            return [p - before for p, before in zip(self.parameters, self.previous, strict=True)]

    # ------------------------------------------------------------------ the anchor of the finite-sum forms

    def renew_anchor(self) -> None:
        """Renew the anchor at the next step, whatever the period; u is left alone (a new stage does this)."""
        self._renew = self.method.period is not None and self.t > 0

    def _anchor_is_due(self, t: int) -> bool:
        period = self.method.period
        if period is None:
            return False
        return self.anchor is None or self._renew or t - self._anchored_at >= period

    def _renew_anchor(self, t: int) -> None:
        """tau = t: w_tau, g(w_tau), u_{tau-1} and Gfull; the very first pass also gives u_0 and z_0."""
        assert self.full_pass is not None
        beta = self.method.tracker.coefficients(t, 1.0, self.table.rows).beta
        self.anchor, samples = make_anchor(self._evaluator, self.table, self.full_pass, beta)
        if self._z is None:
            self._z = [gradient.clone() for gradient in self.anchor.gradient]
        self._anchored_at, self._renew = t, False
        self.samples += samples
        self.oracle = self.oracle.plus(g=samples, j=samples)

    # ------------------------------------------------------------------ failing without a trace

    @contextmanager
    def _all_or_nothing(self) -> Iterator[Snapshot]:
        """Where the step fails: weights, u, z, buffers, random state and counters as they were before it."""
        names = ("t", "samples", "oracle", "anchor", "previous", "_z", "_norm", "_renew", "_anchored_at")
        before = {name: getattr(self, name) for name in names}
        visited = self.table.visited.clone() if self._anchor_is_due(self.t + 1) else None
        z = None if self.method.estimator.remembers else [p.grad for p in self.parameters]  # it lies nowhere else
        reservoir = None if self._reservoir is None else self._reservoir.state_dict()
        saved = self._evaluator.module_state.capture()
        try:
            with torch.enable_grad():
                yield saved
        except BaseException:
            if self.t > before["t"]:  # a Ctrl-C that was held back until the step was taken
                raise
            with uninterrupted():
                for name, value in before.items():
                    setattr(self, name, value)
                if visited is not None:
                    self.table.unfill(visited)
                if self._reservoir is not None and reservoir is not None:
                    self._reservoir.load_state_dict(reservoir)
                for p, gradient in zip(self.parameters, z or [None] * len(self.parameters), strict=True):
                    p.grad = gradient
                self._evaluator.module_state.restore(saved)
            raise

    def _raise_nonfinite(self, draw: Draw | Pass) -> None:
        bad = draw.index[~draw.finite].tolist()
        if bad:
            raise NonFiniteError(f"g, f or u is not finite for {name_blocks(bad)}", bad)
        bad = draw.culprits()
        if bad:
            raise NonFiniteError(f"the gradient is not finite for {name_blocks(bad)}", bad)
        if self.table.world > 1:
            raise NonFiniteError("g, f, u or the gradient is not finite on another rank, or in the sum over ranks", [])
        blocks = draw.index.tolist()
        raise NonFiniteError(f"the gradient is not finite for some of {name_blocks(blocks)}", blocks)

    # ------------------------------------------------------------------ looking at it

    @property
    def correction_share(self) -> float | None:
        """rho of :class:`fcco.watch.CorrectionWatch`: above 0.5 MSVR's correction does harm; None: not known yet."""
        return None if self._watch is None else self._watch.rho

    @property
    def z(self) -> list[Tensor] | None:
        """z_t, a tensor a parameter; None before the first step. Plain estimators keep it in ``p.grad`` only.

        Of parameters that fully_shard has spread over ranks: this rank's parts.
        """
        if self._z is not None:
            return self._z
        grads = parts(p.grad for p in self.parameters if p.grad is not None)
        if self.t == 0 or len(grads) < len(self.parameters):
            return None
        return grads if self._norm is None else [gradient * self._norm for gradient in grads]

    def u(self) -> Tensor:
        """The rows u_t of this rank's blocks (m, dim); rows of blocks never visited are zero."""
        return self.table.current()[0].clone()

    def kept(self) -> dict[str, Tensor]:
        """The objective's ``state_dict`` at the iterate that ``keep`` chose (weights and buffers)."""
        chosen = None if self._reservoir is None else self._reservoir.kept
        source = self.objective.state_dict() if chosen is None else chosen
        return {name: value.clone() for name, value in source.items()}

    def diagnose(self, full_pass: FullPass | None = None) -> Diagnosis:
        """Exact F, ||grad F||, tracking error and ||z - grad F|| from two passes over all data; changes nothing."""
        passes = self.full_pass if full_pass is None else full_pass
        if passes is None:
            raise ValueError("diagnose needs a full_pass, here or in the Solver; got None")
        return exact_figures(self._evaluator, self.table, passes, self.z)

    # ------------------------------------------------------------------ resuming

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs, in plain values and tensors (call it on every rank)."""
        return state.solver_state(self) | ({} if self.memory is None else {"memory": self.memory.state_dict()})

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from a saved state; a state that does not fit is refused and nothing is changed."""
        if isinstance(saved, dict) and ("memory" in saved) != (self.memory is not None):
            raise ValueError("the state and this solver differ in whether a MemoryLoader was made for them")
        if self.memory is not None:
            self.memory.check(saved["memory"])
        state.load_solver_state(self, saved)
        if self.memory is not None:
            self.memory.load_state_dict(saved["memory"])

    def __repr__(self) -> str:
        size = f"m={self.table.num_blocks}, dim={self.table.dim}"
        return f"Solver({type(self.objective).__name__}({size}), {self.method}, step {self.t})"


def _row_dtype(parameter: Tensor, log: bool) -> torch.dtype:
    """Rows in the parameters' precision, single at least; log u in double: exponents of hundreds need its digits."""
    double = log and parameter.device.type != "mps"  # which has no double precision
    return torch.float64 if double else torch.promote_types(parameter.dtype, torch.float32)


def _first(new: Tensor | None, g: Tensor, u: Tensor) -> Tensor:
    """Rows of u, with g where a block is met for the first time (None: nowhere)."""
    return u if new is None else torch.where(new.unsqueeze(1), g, u)
