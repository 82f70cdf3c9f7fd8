"""Solver: a transaction around an engine, an estimator, an optimizer and counters."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, NoReturn, Self, SupportsIndex, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from fcco._objective import Objective
from fcco._support.grad_mode import graph_kept
from fcco._support.interrupts import uninterrupted
from fcco._support.module_state import Snapshot
from fcco._support.optimizer_step import take_step
from fcco._support.parallel import together
from fcco._support.sharded import copies
from fcco.data._epochs import EpochLoader
from fcco.data._pending import as_batch
from fcco.methods import Method
from fcco.methods.estimators import Weights
from fcco.solver._arguments import (
    check_capture,
    check_pair,
    check_parts,
    check_rates,
    check_settings,
    choice,
    full_pass_of,
    start_z,
    warn_if_unbounded,
)
from fcco.solver._capture import StepCapture
from fcco.solver._engine import Parts, Probed, Request, make_engine
from fcco.solver._estimate import Bounds, estimate, mix, z_in_gradients
from fcco.solver._estimate import normalize as divide_by_norm
from fcco.solver._evaluator import Evaluator
from fcco.solver._full_pass import FullPass
from fcco.solver._gradients import NonFiniteError, gradients
from fcco.solver._meeting import nonfinite_everywhere
from fcco.solver._program import Works
from fcco.solver._record import Keep, NonFinite, Pending, SolverState
from fcco.solver._report import Counts, Diagnosis, Oracle, Report, report_of
from fcco.solver._reservoir import Reservoir
from fcco.solver._saving import check_saved, load_solver, save_solver
from fcco.solver._state import fork
from fcco.solver._transaction import Transaction

_FIXED = frozenset({"objective", "optimizer", "radius", "normalize", "keep"})


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
        objective: the user's f and g. Every parameter of it that requires a gradient is trained.
        optimizer: any torch optimizer over all those parameters. It finds z_t in ``p.grad``.
        method: what a recipe returns, for example ``fcco.msvr_v2(alpha=0.1, beta=0.1)``.
        radius: project z onto the ball of this radius (C_F in the paper). None: no projection.
        full_pass: needed by methods with a reference and by ``diagnose``. A function that returns an iterator of
            ``(index, *data)``, the arguments of ``step``. The rows that inner returns for them must SUM per block to
            g_i(w). None: the pass over the objective's own data, if it has any.
        normalize: step along z/||z||, for the constant-free schedules.
        u0: start rows, a number or (m, dim), used literally. None: a block starts at its first estimate of g.
        z0: start z, a number or one tensor per parameter, used literally. None: z_1 = G_1.
        nonfinite: "raise" (the default), or "skip" to skip the step and count it in ``skipped``.
        keep: which iterate ``kept()`` returns: "last", or "uniform" for one drawn uniformly over the run.
        seed: seed of that draw.
        capture: replay steps from a CUDA graph after a few eager ones, with the same numbers and one launch per step.
            The host then checks every 32 steps, or when you read a report. An error may come that much later, with
            the solver as it was before the step that failed (your loader and scheduler may be ahead). "auto": if
            possible. True: the same, and warn with the reason if not possible. False: never.

    Attributes:
        parameters: all parameters that are trained.
        device: the device of the solver's state.
        randomness: all sources of random numbers that a step may use, for loops that draw between steps.

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
        capture: bool | Literal["auto"] = False,
    ) -> None:
        check_parts(objective, optimizer, method)
        check_pair(method, objective)
        check_settings(radius, normalize, seed)
        self.objective = objective
        self.optimizer = optimizer
        self.radius = radius
        self.normalize = normalize
        self._nonfinite = choice(NonFinite, nonfinite, "nonfinite")
        self.keep = choice(Keep, keep, "keep")
        self._bounds = Bounds(radius, normalize)
        self._evaluator = Evaluator(objective, optimizer)
        self.parameters = self._evaluator.parameters
        self.device = self._evaluator.device
        self.randomness = self._evaluator.module_state.randomness
        full_pass = full_pass_of(objective, method, full_pass)
        raises = self.nonfinite is NonFinite.RAISE
        self._engine = make_engine(Parts(objective, method, self._evaluator, full_pass, u0, raises, counters=self))
        self._is_pending = False
        self._capture: StepCapture | None = None
        self.state = self._first_state(z0, seed)
        if check_capture(capture):
            self._capture = StepCapture(self._works(), self._replay_eagerly, insist=capture is True)
        warn_if_unbounded(method, radius, stacklevel=3)

    # ------------------------------------------------------------------ the algorithm box

    def step(self, index: Any, *data: Any, chunk: int | None = None) -> Report:
        """Take one step.

        Args:
            index: a batch of :meth:`loader`, or the blocks drawn (B,), each once.
            data: the blocks' samples, passed to ``objective.inner``. Nothing if ``index`` is a batch.
            chunk: process the batch in pieces of this many examples (or blocks, with your own objective), at
                the cost of a second forward pass. None: the whole batch at once.

        Raises:
            NonFiniteError: if g, f or the gradient is not finite. It names the blocks.
        """
        if self._capture is not None and chunk is None:
            self._check_idle()
            self._evaluator.check_trained()
            check_rates(self.optimizer)
            report = self._capture.step((index, *data))
            if report is not None:
                return report
        with self._gradient((index, *data), chunk, stacklevel=5) as pending:
            if not pending.skipped:
                take_step(self.optimizer)
        return pending.report

    def gradient(self, index: Any, *data: Any, chunk: int | None = None) -> AbstractContextManager[Pending]:
        """Take a step with your own ``optimizer.step()``: inside the ``with`` block, z is in ``p.grad``.

        The step is committed when the block ends, and dropped if the block raises (what your optimizer has moved
        by then stays moved). With ``nonfinite="skip"``, ``pending.skipped`` says that something was not finite: then
        do not step. Ctrl-C waits for the end of the block. The arguments are those of :meth:`step`.

        Args:
            index: a batch of :meth:`loader`, or the blocks drawn (B,), each once.
            data: the other arguments of ``inner``.
            chunk: examples (or blocks, with your own objective) per piece. None: the whole batch at once.

        Example:
            >>> import fcco
            >>> w = torch.nn.Parameter(torch.ones(1))
            >>> f = fcco.objective(
            ...     lambda i: w.expand(len(i), 1), lambda i, u: u.square().squeeze(1), num_blocks=2, parameters=[w]
            ... )
            >>> optimizer = torch.optim.SGD([w], lr=0.25)
            >>> solver = Solver(f, optimizer, fcco.sox(alpha=0.5, beta=0.5))
            >>> with solver.gradient([0, 1]) as pending:
            ...     if not pending.skipped:
            ...         optimizer.step()
            >>> w.item(), solver.t
            (0.5, 1)
        """
        return self._gradient((index, *data), chunk, stacklevel=4)

    @contextmanager
    def _gradient(self, data: tuple[Any, ...], chunk: int | None, stacklevel: int) -> Iterator[Pending]:
        """Everything in a step except the optimizer's, which is taken while this yields."""
        self._check_idle()
        self._catch_up()
        self._is_pending = True
        try:
            # Ctrl-C waits for the step to end, since the loader has given its batch away. A second one drops the step.
            with uninterrupted(patience=1):
                with Transaction() as transaction:
                    t = self._state.t + 1
                    probed = self._estimate_or_skip(t, data, chunk, transaction)
                    if probed is None:
                        yield Pending(True, report_of(self._state.counts(skipped=True)))
                        return
                    yield from self._move_and_commit(t, probed, transaction)
                # Outside the transaction, because a warning turned into an error must not undo a step that was taken.
                self._engine.after_step(t, stacklevel)
        finally:
            self._is_pending = False
            torch.clear_autocast_cache()  # half-precision copies of w_t are stale once the weights have moved

    def _estimate_or_skip(
        self, t: int, data: tuple[Any, ...], chunk: int | None, transaction: Transaction
    ) -> Probed | None:
        """Estimate z, or return None if the step is skipped; then only the counts differ from before."""
        meeting = self._evaluator.meeting
        meeting.set_out(t, self._engine.join)
        try:
            request = self._begin(t, data, chunk, transaction)
            with graph_kept(True):
                return self._estimate(request, transaction)
        except NonFiniteError:  # every rank has heard of it
            self._evaluator.check_weights()
            if self.nonfinite is NonFinite.RAISE:
                raise
        except Exception as error:
            meeting.tell(error)
            raise
        self._skip(request, transaction)
        return None

    def _begin(self, t: int, data: tuple[Any, ...], chunk: int | None, transaction: Transaction) -> Request:
        """Check what may have changed since the last step, and let this one work on a fork of the state."""
        self._evaluator.check_trained()
        check_rates(self.optimizer)
        data = tuple(as_batch(item) for item in data)
        before = self._fork_state(transaction)
        return Request(t, data, chunk, before, self._engine.rates(t, data))

    def _estimate(self, request: Request, transaction: Transaction) -> Probed:
        """Probe and track, then estimate: z_t is in ``p.grad`` afterwards, and nothing is stored yet."""
        self._prepare(request)
        starts = self.method.estimator.remembers and self._state.z is None
        weights = request.rates.weights(starts=starts)
        # Afterwards p.grad holds the gradients of all probes, weighted and added up, and ``probed`` the new u.
        probed = self._engine.probe(request, weights, transaction)
        self._evaluator.check_foreign_parameters()
        self._make_z(weights, probed)
        return probed

    def _prepare(self, request: Request) -> None:
        """Take v3's full pass, if it is due."""
        state = self._state
        renewal = self._engine.prepare(request)
        if renewal is None:
            return
        state.charge(renewal.samples, Oracle(g=renewal.samples, j=renewal.samples))
        # When v3 starts, z_0 is the full gradient, which it has just computed anyway.
        if state.z is None:
            state.z = copies(renewal.gradient)

    def _make_z(self, weights: Weights, probed: Probed) -> None:
        """Turn the weighted sum of gradients in ``p.grad`` into z_t, projected, or Nesterov's mixture."""
        evaluator = self._evaluator
        grads = gradients(self.parameters)
        # The weighted sum over all probes is one buffer, so one reduction over ranks is enough.
        finite_everywhere = evaluator.average_once(grads, probed.finite)
        found = estimate(evaluator, grads, weights, self._state.z, probed, self._bounds)
        # One wait for the device for everything that has to be finite.
        if not (evaluator.all_finite([*grads, *probed.seen, *found.norms]) and finite_everywhere):
            raise nonfinite_everywhere(probed.blame)
        if self.method.estimator.remembers:
            # A copy beside the old one, before the optimizer, which may write into p.grad.
            self._state.z = copies(grads)
        mix(evaluator, found, weights, self._bounds)

    def _move_and_commit(self, t: int, probed: Probed, transaction: Transaction) -> Iterator[Pending]:
        """Let the weights move, while this yields, and the state with them: so nothing may interrupt."""
        with uninterrupted():
            self._keep_iterate(t, probed)
            if self.normalize:
                self._state.norm = divide_by_norm(self._evaluator, gradients(self.parameters))
            yield Pending(False, self._report(t, probed))
            # Only now, since the optimizer may have raised.
            probed.commit(None)
            self._state.charge(probed.samples, probed.oracle)
            self._state.t = t
            transaction.commit()

    def _keep_iterate(self, t: int, probed: Probed) -> None:
        """Keep w_t as w_{t-1}, and offer it to the reservoir, before the weights move."""
        self._engine.keep_weights(probed.weights)
        if self._state.reservoir is not None:
            self._state.reservoir.offer(self.objective, t)

    def _report(self, t: int, probed: Probed) -> Report:
        """The report as of the step's end."""
        before = self._state.counts()
        counts = Counts(t, before.samples + probed.samples, before.oracle.plus(probed.oracle), skipped=False)
        return report_of(counts, f=probed.f, u=probed.u, g=probed.g)

    def _skip(self, request: Request, transaction: Transaction) -> None:
        transaction.roll_back()
        # The batch was drawn nevertheless, so it counts.
        self._state.samples += self._engine.samples(request)
        self._state.skipped += 1

    # ------------------------------------------------------------------ the state, and failing without a trace

    def _first_state(self, z0: float | Sequence[Tensor] | None, seed: int) -> SolverState:
        state = SolverState(self._engine.state)
        if z0 is not None and self.method.estimator.remembers:
            state.z = start_z(z0, self.parameters)
        if self.keep is Keep.UNIFORM:
            state.reservoir = Reservoir.seeded(seed)
        return state

    @property
    def state(self) -> SolverState:
        """Everything carried between steps. The engine's part is the engine's own record."""
        self._catch_up()
        return self._state

    @state.setter
    def state(self, state: SolverState) -> None:
        self._set_state(state)

    def _set_state(self, state: SolverState) -> None:
        self._state = state
        self._engine.state = state.engine

    def _check_idle(self) -> None:
        if self._is_pending:
            raise RuntimeError("a step is pending: leave its `with solver.gradient(...)` block before the next one")

    def _fork_state(self, transaction: Transaction) -> Snapshot:
        """Let the step work on a fork of the state; if it fails, everything is restored."""
        torch.clear_autocast_cache()  # the weights have moved since its half-precision copies were made
        before = self._state
        snapshot = self._evaluator.module_state.capture()
        grads: list[Any] = [None] * len(self.parameters)
        # Otherwise the old p.grad is not needed, and keeping it would cost as much memory as the model.
        if not self.method.estimator.remembers:  # then z is nowhere else
            grads = [p.grad for p in self.parameters]
        transaction.on_failure(self._restore, before, grads, snapshot)
        self._set_state(fork(before))
        return snapshot

    def _restore(self, before: SolverState, grads: list[Any], snapshot: Snapshot) -> None:
        self._set_state(before)
        for p, gradient in zip(self.parameters, grads, strict=True):
            p.grad = gradient
        self._evaluator.module_state.restore(snapshot)

    # ------------------------------------------------------------------ captured steps

    def _works(self) -> Works:
        """What captured steps need of the solver."""
        return Works(
            evaluator=self._evaluator,
            engine=self._engine,
            optimizer=self.optimizer,
            bounds=self._bounds,
            skips=self.nonfinite is NonFinite.SKIP,
            read=lambda: self._state,
            write=self._set_state,
        )

    def _replay_eagerly(self, data: tuple[Any, ...]) -> None:
        """Run a step that was not finite when it was replayed again eagerly, so that the error names its blocks."""
        nonfinite = self._nonfinite
        self._nonfinite = NonFinite.RAISE
        try:
            with contextlib.suppress(_Dropped), self._gradient(data, None, stacklevel=5):
                raise _Dropped
        finally:
            self._nonfinite = nonfinite

    def _catch_up(self) -> None:
        """Let the host catch up with captured steps."""
        if self._capture is not None and not self._is_pending:
            self._capture.look()

    def wait(self) -> None:
        """Wait until every captured step so far has run, and check the outcome.

        Raises:
            NonFiniteError: if a step was not finite. The solver is then as it was before that step.
        """
        self._catch_up()

    def _counts(self) -> Counts:
        """The counts so far. Captured steps count as taken, unless steps may be skipped."""
        if self._capture is not None and not self._is_pending:
            return self._capture.counts()
        return self._state.counts()

    @property
    def eager_because(self) -> str | None:
        """Why steps run eagerly although ``capture`` asked for graphs; None if they do not, or if nothing asked."""
        if self._capture is None:
            return None
        return self._capture.reason

    # ------------------------------------------------------------------ data

    def loader(
        self,
        blocks: int,
        samples: int,
        *,
        seed: int = 0,
        steps_per_epoch: int | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
    ) -> EpochLoader:
        """Make the loader that suits objective and method: ``for batch in solver.loader(...): solver.step(batch)``.

        Args:
            blocks: B1, blocks per step over all ranks.
            samples: B2; the docstring of :mod:`fcco.data` says what it counts for each kind of data.
            seed: seed of the loader's own generator.
            steps_per_epoch: batches per iteration; None: as many as draw about N examples in all.
            num_workers: processes that fetch from a data set. Their number does not change what is drawn.
            pin_memory: put batches into pinned memory, if there is an accelerator.
        """
        loader = self._engine.loader(
            blocks,
            samples,
            seed=seed,
            steps_per_epoch=steps_per_epoch,
            num_workers=num_workers,
            pin_memory=pin_memory,
        )
        if self._capture is not None and self._capture.reason is None:
            loader.hand_out_pending()
        return loader

    # ------------------------------------------------------------------ settings

    @property
    def method(self) -> Method:
        """The method. A stage may replace it by one with other rates."""
        return self._engine.method

    @method.setter
    def method(self, method: Method) -> None:
        self._catch_up()  # pending steps belong to the old method
        self._engine.method = method

    @property
    def nonfinite(self) -> NonFinite:
        """What to do if a step meets a number that is not finite."""
        return self._nonfinite

    @nonfinite.setter
    def nonfinite(self, value: NonFinite | str) -> None:
        chosen = choice(NonFinite, value, "nonfinite")
        if self._capture is not None and chosen is not self._nonfinite:
            raise ValueError(
                f"nonfinite must stay {self._nonfinite.value!r} while steps are captured, got {chosen.value!r}: create "
                "another Solver"
            )
        self._nonfinite = chosen

    def renew_reference(self) -> None:
        """Renew the reference of a finite-sum method at the next step, whatever the period. A new stage does this."""
        self._catch_up()
        self._engine.renew_reference()

    # ------------------------------------------------------------------ reading it

    @property
    def t(self) -> int:
        """The number of steps taken."""
        return self._counts().step

    @property
    def samples(self) -> int:
        """Examples drawn so far."""
        return self._counts().samples

    @property
    def skipped(self) -> int:
        """The number of steps skipped because something was not finite."""
        return self.state.skipped

    @property
    def oracle(self) -> Oracle:
        """Oracle calls so far."""
        return self._counts().oracle

    def charge(self, samples: int, oracle: Oracle) -> None:
        """Count a pass made outside of steps.

        Args:
            samples: examples that the pass drew.
            oracle: its oracle calls.
        """
        self.state.charge(samples, oracle)

    @property
    def correction_share(self) -> float | None:
        """rho, the share of u's error that MSVR's correction causes; above 0.5 it does harm. None: not known."""
        watch = getattr(self.state.engine, "watch", None)
        rho: float | None = getattr(watch, "rho", None)
        return rho

    @property
    def z(self) -> list[Tensor] | None:
        """z_t, one tensor per parameter, or None before the first step. Plain estimators keep it only in ``p.grad``.

        For parameters that fully_shard has sharded, it holds this rank's parts.
        """
        z = self.state.z
        if z is not None and self._capture is not None:
            return copies(z)  # captured steps write z in place
        if z is not None:
            return z
        grads = z_in_gradients(self.method, self.t, self.parameters)
        if grads is None or self.state.norm is None:
            return grads
        return [gradient * self.state.norm for gradient in grads]

    def u(self) -> Tensor:
        """The rows u_t of this rank's blocks (m, dim). Rows of blocks that were never visited are zero."""
        self._catch_up()
        return self._engine.rows()

    def kept(self) -> dict[str, Tensor]:
        """The objective's ``state_dict`` at the iterate that ``keep`` chose (weights and buffers)."""
        source = self.objective.state_dict()
        reservoir = self.state.reservoir
        if reservoir is not None and reservoir.kept is not None:
            source = reservoir.kept
        return {name: value.clone() for name, value in source.items()}

    def diagnose(self, full_pass: FullPass | None = None, *, gradient: bool = True) -> Diagnosis:
        """Compute F, ||grad F||, tracking error and ||z - grad F|| exactly, by two passes over all data.

        Args:
            full_pass: a pass over the data to use. None: the solver's own.
            gradient: False computes only F and the tracking error, by one forward pass.
        """
        torch.clear_autocast_cache()  # the weights may have moved since its half-precision copies were made
        return self._engine.diagnose(full_pass, self.z, gradient)

    # ------------------------------------------------------------------ resuming

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs, as plain values and tensors. Call it on every rank."""
        with together("to give its state"):
            self._check_idle()
            self._catch_up()
        return save_solver(self)

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise if a state does not fit. Nothing is changed.

        Args:
            state: what ``state_dict`` gave.
        """
        self._check_idle()
        check_saved(self, self._engine, state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved state. One that does not fit is refused, and nothing is changed.

        Args:
            state: what ``state_dict`` gave.
        """
        # Everything is checked before anything is changed.
        self.check_state_dict(state)
        load_solver(self, self._engine, state)

    # ------------------------------------------------------------------ as an object

    def __setattr__(self, name: str, value: Any) -> None:
        # Its parts were given these when it was created, so a change would reach only some of them.
        if name in _FIXED and name in self.__dict__:
            raise AttributeError(f"{name} of a Solver is fixed when it is created; create another Solver")
        super().__setattr__(name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            "a Solver cannot be pickled: use fcco.save(path, solver=solver), or pickle solver.state_dict(), and load "
            "that into a Solver made in the same way"
        )

    def __repr__(self) -> str:
        objective = self.objective
        size = f"m={objective.num_blocks}, dim={objective.dim}"
        return f"Solver({type(objective).__name__}({size}), {self.method}, step {self.t})"


class _Dropped(Exception):
    """Ends a step that was run only to find its error."""
