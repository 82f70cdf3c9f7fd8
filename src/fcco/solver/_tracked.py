"""TrackedBlocks: the engine that tracks every g_i by a row u_i, and probes where the method asks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack, final

import torch
from torch import Tensor

from fcco._support.sharded import copies
from fcco.data import Batch, Loader
from fcco.data._epochs import LoaderOptions
from fcco.data._pending import PendingBatch
from fcco.methods._box import Box, Boxed, Drawn, Point
from fcco.methods.estimators import Sarah, Weights
from fcco.methods.trackers import MSVR, Coefficients, Values
from fcco.objectives._base import OverData
from fcco.solver._bad_rows import bad_rows, told
from fcco.solver._blocks import BlockTable
from fcco.solver._chunks import make_pieces
from fcco.solver._diagnose import exact_figures
from fcco.solver._draw import Draw
from fcco.solver._engine import Engine, Parts, Probed, Renewal, Request, register_engine
from fcco.solver._full_pass import FullPass, looks_unweighted
from fcco.solver._gradients import NonFiniteError, name_blocks
from fcco.solver._reference import Reference, make_reference, steps_per_epoch
from fcco.solver._report import Diagnosis, Oracle
from fcco.solver._state import Layout, saved
from fcco.solver._transaction import Transaction
from fcco.solver._watch import CorrectionWatch

LARGE = 4  # times the blocks and samples of BSpiderBoost's large batches, where the user says nothing else


@final
@dataclass
class TrackedState:
    """What tracked blocks carry between steps.

    Args:
        table: the rows u.
        previous: w_{t-1}, one tensor per parameter; None: not needed, or before the first step.
        reference: w_tau of the finite-sum forms.
        renew: the reference is to be renewed at the next step.
        watch: over MSVR's correction; None for other trackers.
    """

    table: BlockTable = saved(Layout.NESTED)
    previous: list[Tensor] | None = saved(Layout.PER_PARAMETER, default=None)
    reference: Reference | None = saved(Layout.NESTED, record=Reference, default=None)
    renew: bool = saved(default=False)
    watch: CorrectionWatch | None = saved(Layout.NESTED, default=None)


@final
class TrackedBlocks(Engine):
    """Probes the objective where the method asks, and tracks g_i by u_i."""

    state: TrackedState

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._objective = parts.objective
        objective = parts.objective
        # Asked here, not in every step: a look at each attribute of the protocol takes its time.
        self._over_data = objective if isinstance(objective, OverData) else None
        like = torch.empty(0, dtype=self._evaluator.dtype, device=self._evaluator.device)
        table = BlockTable.empty(
            objective.num_blocks,
            objective.dim,
            like=like,
            log_domain=self._evaluator.log_domain,
            decays=parts.method.tracker.decay(1) != 1.0,
        )
        if parts.u0 is not None:
            table.fill(parts.u0)
        self._last: Coefficients | None = None  # of the last captured step
        self._row_counts: Tensor | None = None  # (owned,) of the user's first full pass, until a draw is there
        self._unweighted = False  # whether that pass seems to lack its weights
        self.state = TrackedState(table)
        if isinstance(parts.method.tracker, MSVR):
            self.state.watch = CorrectionWatch()

    # ------------------------------------------------------------------ the algorithm box

    def probe(self, request: Request, weights: Weights, transaction: Transaction) -> Probed:
        method = self.method
        state = self.state
        table = state.table
        index, data = self._read(request)
        valid = self._valid(request, index)
        if valid is not None:
            index = index.clamp(0, table.geometry.num_blocks - 1)  # a number outside would end the device's work
        if state.previous is None and method.probes_previous:
            state.previous = copies(self._evaluator.parameters)  # w_0 = w_1
        u, new = table.read(index)  # u_{t-1} (B, dim), and which blocks are new (B, 1)
        c = request.rates.coefficients(table.geometry.owned / index.shape[0], u)
        drawn = self._drawn(index, u, new, c)
        draw = self._draw(request, index, data, c)
        boxed = Box(method, c, drawn).run(weights, draw.probe)
        self._compare_pass(index, boxed)
        draw.seen.append(boxed.u)  # a correction may overflow where every g is finite

        def commit(ok: Tensor | None) -> None:
            table.write(index, boxed.replaced, boxed.u, request.rates.decay(), ok)
            self._watch(request, c, boxed.values, new, ok)

        return self._probed(request, draw, boxed, commit, valid)

    def _compare_pass(self, index: Tensor, boxed: Boxed) -> None:
        """Note whether the user's pass over all data seems to lack its weights."""
        counts = self._row_counts
        reference = self.state.reference
        self._row_counts = None
        if counts is None or reference is None:
            return
        local = self.state.table.geometry.local(index)
        drawn = boxed.probes[Point.NOW].g
        log_domain = self._evaluator.log_domain
        self._unweighted = looks_unweighted(reference.g[local], drawn, counts[local], log_domain)

    def _watch(self, request: Request, c: Coefficients, values: Values, new: Tensor | None, ok: Tensor | None) -> None:
        watch = self.state.watch
        if watch is None:
            return
        log_domain = self._evaluator.log_domain
        if ok is None or request.clock is None:
            watch.follow(request.t, c, values, new, log_domain)
        else:
            self._last = c
            watch.follow_on_device(request.clock(), ok, c, values, new, log_domain)

    def _valid(self, request: Request, index: Tensor) -> Tensor | None:
        """Which entries are blocks (B,), where the host has not looked and nobody vouches for them."""
        if index.device.type == "cpu" or request.trusted or _is_on_host(request):
            return None
        return self.state.table.valid(index)

    def _read(self, request: Request) -> tuple[Tensor, tuple[Any, ...]]:
        """The blocks and their data: of a batch, or as the user gave them."""
        first, *rest = request.data
        if not isinstance(first, Batch):
            return self.state.table.check(first), tuple(rest)
        batch = first
        if batch.probability is not None:
            raise ValueError(
                f"the batch was drawn by importance, for the output memory; {self.method.name} needs a batch of "
                "its own "
                "solver.loader(...)"
            )
        if self._over_data is not None:
            batch = self._over_data.complete(batch)
            if batch.index is not None and not batch.index.numel():
                raise ValueError(
                    f"the batch holds no block of {type(self._objective).__name__} with an example to compare it with: "
                    "draw more examples per batch, or some of each class"
                )
        batch = batch.to(self.state.table.device)
        return self.state.table.check(batch.index), (batch,)

    def _drawn(self, index: Tensor, u: Tensor, new: Tensor | None, c: Coefficients) -> Drawn:
        table = self.state.table
        reference = self.state.reference
        reference_u = None
        full = None
        if reference is not None:
            local = table.geometry.local(index)  # (B,)
            reference_u = reference.u[local]  # (B, dim)
            if c.full is not None:
                full = reference.g[local]  # (B, dim)
        return Drawn(
            u=u,
            earlier=lambda: table.read_earlier(index),
            new=new,
            reference_u=reference_u,
            full=full,
            log_domain=self._evaluator.log_components,
            project=self._evaluator.project,
        )

    def _draw(self, request: Request, index: Tensor, data: tuple[Any, ...], c: Coefficients) -> Draw:
        evaluator = self._evaluator
        geometry = self.state.table.geometry
        if request.chunk is not None and c.jvp is not None:
            raise ValueError(f"chunk must be None for {self.method.name}: it needs Jacobian-vector products")
        weights_at: dict[Point, list[Tensor] | None] = {Point.NOW: None, Point.PREVIOUS: self.state.previous}
        if self.state.reference is not None:
            weights_at[Point.REFERENCE] = self.state.reference.weights
        tangents = self._moved() if c.jvp is not None else None
        share = geometry.owned * geometry.world / geometry.num_blocks  # ranks may own unequal numbers of blocks
        pieces = None
        if request.chunk is not None:
            pieces = make_pieces(evaluator, index, data, request.chunk)
        evaluator.begin()
        return Draw(evaluator, index, data, share / index.shape[0], request.before, weights_at, tangents, pieces)

    @torch.no_grad()
    def _moved(self) -> list[Tensor]:
        """w_t - w_{t-1}."""
        assert self.state.previous is not None
        return [p - before for p, before in zip(self._evaluator.parameters, self.state.previous, strict=True)]

    def _probed(
        self,
        request: Request,
        draw: Draw,
        boxed: Boxed,
        commit: Callable[[Tensor | None], None],
        valid: Tensor | None,
    ) -> Probed:
        samples = self._evaluator.samples(draw.index, draw.data)
        gradients = 0
        products = 0
        for probe in boxed.probes.values():
            gradients += probe.f is not None  # f is known where a gradient was taken
            products += probe.jvp is not None
        reference = self.state.reference
        now = boxed.probes[Point.NOW]
        if valid is not None:
            draw.seen.append(torch.where(valid, 0.0, torch.nan))
            valid = valid.all()
        return Probed(
            samples=samples,
            oracle=Oracle(g=samples * len(boxed.probes), j=samples * gradients, jvp=samples * products),
            seen=draw.seen,
            finite=lambda: draw.finite.all(),
            blame=lambda: self._blame(request, draw),
            commit=commit,
            full_gradient=None if reference is None else reference.gradient,
            weights=draw.now,
            f=now.f,
            u=boxed.u,
            g=now.g,
            valid=valid,
        )

    def _blame(self, request: Request, draw: Draw) -> NonFiniteError:
        self._check_blocks(request)
        bad = draw.index[~draw.finite].tolist()
        cause = told(bad_rows(draw.data))
        if bad:
            return NonFiniteError(f"g, f or u is not finite for {name_blocks(bad)}{cause}", bad)
        bad = draw.blame()
        if bad:
            return NonFiniteError(f"the gradient is not finite for {name_blocks(bad)}{cause}", bad)
        if self.state.table.geometry.world > 1:
            return NonFiniteError("g, f, u or the gradient is not finite on another rank, or in the sum over ranks", [])
        blocks = draw.index.tolist()
        return NonFiniteError(f"the gradient is not finite for some of {name_blocks(blocks)}", blocks)

    def _check_blocks(self, request: Request) -> None:
        """Raise where the blocks on a device are none, now that it waits anyway."""
        index = self._read(request)[0]
        self.state.table.geometry.check(index.tolist(), "index", repeats=False)

    def keep_weights(self, weights: list[Tensor] | None) -> None:
        """w_t becomes w_{t-1}, where the method needs it."""
        if self.state.previous is None:
            return
        if weights is None:
            weights = copies(self._evaluator.parameters)
        self.state.previous = weights

    def samples(self, request: Request) -> int:
        index, data = self._read(request)
        return self._evaluator.samples(index, data)

    # ------------------------------------------------------------------ the reference of the finite-sum forms

    def renew_reference(self) -> None:
        """Renew the reference at the next step, whatever the period; u is left alone (a new stage does this)."""
        self.state.renew = self.state.reference is not None  # before the first step a renewal is due anyway

    def prepare(self, request: Request) -> Renewal | None:
        """A pass over all data, where the reference is due: w_tau, g(w_tau), u_{tau-1} and Gfull."""
        t = request.t
        if not self._is_due(t):
            return None
        assert self._full_pass is not None
        table = self.state.table
        # Before the ranks meet: a batch that this one cannot read must not keep the others waiting.
        step_samples = self.samples(request)
        # beta alone is wanted, which depends on neither ratio nor rows (SCENT has no finite-sum form).
        beta = self.method.tracker.coefficients(t, 1.0, table.rows).beta
        is_first = self.state.reference is None
        reference, samples, row_counts = make_reference(self._evaluator, table, self._full_pass, beta, t)
        # The library's own passes are weighted; a user's first one is compared with the draw of this step.
        self._row_counts = None
        if is_first and self._over_data is None:
            self._row_counts = row_counts
        # An epoch in steps is known once a batch is there to compare the pass with.
        if self.method.period is None:
            reference.epoch = steps_per_epoch(samples, step_samples, table.device)
        self.state.reference = reference
        self.state.renew = False
        return Renewal(reference.gradient, samples)

    def _is_due(self, t: int) -> bool:
        if not self.method.finite_sum:
            return False
        reference = self.state.reference
        if reference is None or self.state.renew:
            return True
        period = self.method.period
        if period is None:
            period = reference.epoch
        return t - reference.step >= period

    # ------------------------------------------------------------------ loaders and figures

    def loader(self, blocks: int, samples: int, **options: Unpack[LoaderOptions]) -> Loader:
        objective = self._objective
        if not isinstance(objective, OverData):
            raise TypeError(
                f"{type(objective).__name__} has no data to draw from: draw blocks with fcco.BlockSampler and call "
                "solver.step(index, *data)"
            )
        estimator = self.method.estimator
        large = None
        if isinstance(estimator, Sarah):
            large = (estimator.period, LARGE)
        return objective.loader(blocks, samples, large=large, **options)

    # ------------------------------------------------------------------ captured steps

    def obstacle(self) -> str | None:
        if getattr(self.method.tracker, "single_point", False):
            return "Jacobian-vector products are not captured"
        return None

    def ratio(self, data: tuple[Any, ...]) -> float | None:
        index = data[0]
        owned = self.state.table.geometry.owned
        if isinstance(index, PendingBatch):
            return owned / index.blocks
        if isinstance(index, Batch):
            index = index.index
        if index is None:
            return None
        return owned / len(index)

    def is_due(self, t: int) -> bool:
        return self._is_due(t)

    def is_due_after(self, t: int) -> bool:
        watch = self.state.watch
        return watch is not None and watch.is_full_after(t)

    def fingerprint(self) -> Any:
        return self.state.table.unvisited == 0

    def begin_capture(self, t: int) -> None:
        if self.state.watch is not None:
            self.state.watch.move_to_device(self.state.table.rows, t)

    def read_device(self) -> None:
        self.state.table.recount()
        if self.state.watch is not None:
            self.state.watch.read_device(self._last)

    def after_step(self, t: int, stacklevel: int) -> None:
        """Say where MSVR's correction does harm, or a full pass seems to lack its weights."""
        if self._unweighted:
            self._unweighted = False
            warnings.warn(
                "full_pass yields several rows per block that seem to be means themselves: weight them, so that "
                "the rows of "
                "a block SUM to g_i(w)",
                stacklevel=stacklevel,
            )
        if self.state.watch is not None:
            self.state.watch.warn(stacklevel + 1)

    def rows(self) -> Tensor:
        return self.state.table.current().clone()

    def diagnose(self, full_pass: FullPass | None, z: list[Tensor] | None, gradient: bool) -> Diagnosis:
        chosen = self._full_pass if full_pass is None else full_pass
        if chosen is None:
            raise ValueError("diagnose needs a full_pass, here or in the Solver; got None")
        return exact_figures(self._evaluator, self.state.table, chosen, z, gradient)


def _is_on_host(request: Request) -> bool:
    """Whether the blocks came on the host, where :meth:`BlockTable.check` has looked at them."""
    index = request.data[0]
    if isinstance(index, Batch):
        index = index.index
    return not isinstance(index, Tensor) or index.device.type == "cpu"


register_engine(memory=False, factory=TrackedBlocks)
