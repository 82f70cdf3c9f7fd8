"""One step as a fixed sequence of tensor operations, which a graph can replay: nothing in it is decided by the host."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fcco._support.flat import Flat, Kept
from fcco._support.remembered import one_program_run
from fcco.methods._rates import Rates, fits_device, split_numbers, step_numbers, varies
from fcco.solver._clock import LOOK, Clock, Ring
from fcco.solver._engine import Engine, Probed, Request
from fcco.solver._estimate import Bounds, estimate, mix, normalize
from fcco.solver._evaluator import Evaluator
from fcco.solver._gradients import finite_flag, gradients
from fcco.solver._graph import Recording
from fcco.solver._inputs import DrawnInputs, Inputs
from fcco.solver._places import SwappedPlaces
from fcco.solver._report import Oracle
from fcco.solver._state import FixedPlaces, changes, fork
from fcco.solver._transaction import Transaction

POINTS = 2  # probes at other weights per step, at most


@final
@dataclass(frozen=True)
class Works:
    """What a solver is made of, for captured steps.

    Args:
        evaluator: of the objective.
        engine: turns a batch into a gradient.
        optimizer: takes the step.
        bounds: what is done with z.
        skips: whether steps that are not finite are passed over.
        read: the solver's record.
        write: put another in its place.
    """

    evaluator: Evaluator
    engine: Engine
    optimizer: Optimizer
    bounds: Bounds
    skips: bool
    read: Callable[[], Any]
    write: Callable[[Any], None]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What is trained."""
        return self.evaluator.parameters

    def optimizer_tensors(self) -> list[Tensor]:
        """The optimizer's own state."""
        found = []
        for entries in self.optimizer.state.values():
            for value in entries.values():
                if isinstance(value, Tensor) and value.device == self.evaluator.device:
                    found.append(value)
        return found


@final
class Program:
    """A step for inputs of one layout.

    Everything that a failing step would have written is put back on the device by a flag that the step computes
    itself, so that it is all or nothing and nobody waits.

    Args:
        works: the solver's parts.
        inputs: the step's data.
        places: of the solver's record.
        clock: counts attempts.
        recording: runs the program; gives random numbers apart from the main stream.
        ratio: m/B1, which schedules may depend on; None: not known, and no rate follows a schedule.
        large: whether the batch is one of its loader's large ones.

    Attributes:
        samples: examples per step.
        oracle: oracle calls per step.
        ring: what reports read.
        grads: ``p.grad`` after a step.
    """

    samples: int
    oracle: Oracle
    ring: Ring
    grads: list[Tensor]

    def __init__(
        self,
        works: Works,
        inputs: Inputs,
        places: FixedPlaces,
        clock: Clock,
        recording: Recording,
        ratio: float | None,
        large: bool | None,
    ) -> None:
        self.works = works
        self.inputs = inputs
        self._places = places
        self._clock = clock
        self._ratio = ratio
        self._large = large
        self._method = works.engine.method
        evaluator = works.evaluator
        self._elsewhere = SwappedPlaces(evaluator.parameters, evaluator.module_state, recording, POINTS)
        self._weights = Kept(evaluator.parameters)
        self._optimizer = Kept(works.optimizer_tensors())
        self._new = Flat(evaluator.parameters)
        self._plain = Flat([])
        if not self._method.estimator.remembers:
            self._plain = Flat(evaluator.parameters)  # z, which is in p.grad alone
        self._stands_still = stands_still_at_zero(works.optimizer)
        nesterov = getattr(self._method.estimator, "nesterov", False)
        self._has_changed_z = nesterov or works.bounds.normalize
        self._scratch: dict[int, Flat] = {}  # for other lists of the record
        self._numbers: Tensor | None = None
        self.known_until: int | None = None  # the last step whose numbers the device has; None: they never change
        if varies(self._method):
            assert fits_device(self._method)
            count = len(step_numbers(self._method, 1, self._known_ratio(), large))
            self._numbers = torch.zeros(LOOK + 1, count, dtype=torch.float64, device=evaluator.device)

    def record_with(self, recording: Recording) -> None:
        """Have the program recorded; what draws apart from the main stream is the recording's from here on."""
        self._elsewhere.recording = recording
        recording.record(self.run)

    def _known_ratio(self) -> float:
        assert self._ratio is not None
        return self._ratio

    def upload_numbers(self, steps: int) -> None:
        """The numbers of the next steps, where they follow schedules, after so many steps."""
        if self._numbers is None:
            return
        rows: list[list[float]] = []
        for t in range(steps + 1, steps + LOOK + 2):
            try:
                rows.append(step_numbers(self._method, t, self._known_ratio(), self._large))
            except Exception:  # a schedule may have an end, and nobody may ever ask for what comes after it
                break
        self.known_until = steps + len(rows)
        if rows:
            self._numbers[: len(rows)].copy_(torch.tensor(rows, dtype=torch.float64))

    def take_gradients(self) -> None:
        """z of an estimator that keeps it in ``p.grad`` alone, where an eager step or another program has left it."""
        if self._method.estimator.remembers:
            return
        grads = [p.grad for p in self.works.parameters if p.grad is not None]
        if len(grads) == len(self._plain.views) and grads[0] is not self._plain.views[0]:
            self._plain.copy_from(grads)

    # ------------------------------------------------------------------ the step

    def run(self) -> None:
        """Take one step."""
        works = self.works
        fixed = works.read()
        before = works.evaluator.places
        works.evaluator.places = self._elsewhere
        works.write(fork(fixed))
        try:
            with _without_cache(works.evaluator.device), one_program_run():
                self._run(fixed)
        finally:
            works.evaluator.places = before
            works.write(fixed)
            self._elsewhere.hang_back()

    def _run(self, fixed: Any) -> None:
        works = self.works
        clock = self._clock
        running = clock.is_running()
        request = self._request(fixed.t)
        self._elsewhere.begin()
        if self._method.probes_previous or not self._stands_still:
            self._weights.keep()
        self._optimizer.keep()
        weights = request.rates.weights(starts=False)
        with torch.enable_grad():
            probed = works.engine.probe(request, weights, Transaction())
        works.evaluator.check_foreign_parameters()
        self._elsewhere.check_buffers()
        grads = gradients(works.parameters)
        found = estimate(works.evaluator, grads, weights, fixed.z, probed, works.bounds)
        ok = finite_flag([*grads, *probed.seen, *found.norms]) & running
        self._keep_z(ok, grads, fixed)
        mix(works.evaluator, found, weights, works.bounds)
        failed = ~ok
        self._move(ok, failed, grads, probed)
        self._commit(ok, failed, fixed)
        invalid = None
        if probed.valid is not None:
            invalid = ~probed.valid
        self.ring.store(clock.slot, self._rows(probed))
        self.inputs.keep(clock.tick(ok, running, invalid))

    def _request(self, t: int) -> Request:
        rates = Rates(self._method, t + 1, self._large)
        if self._numbers is not None:
            row = self._numbers.index_select(0, self._clock.rows_since())[0]
            rates = rates._replace(on_device=split_numbers(self._method, row))
        drawn = isinstance(self.inputs, DrawnInputs)
        return Request(t + 1, self.inputs.data(), None, None, rates, clock=self._clock.step, trusted=drawn)

    def _keep_z(self, ok: Tensor, grads: list[Tensor], fixed: Any) -> None:
        """z_t in its place, before the optimizer, which may write into ``p.grad``."""
        if not self._method.estimator.remembers:
            return  # z stays in p.grad, which has its place once it was divided by its norm
        self._new.copy_from(grads)
        self._places.flats[id(fixed.z)].take_where(ok, self._new)
        self.grads = grads

    def _move(self, ok: Tensor, failed: Tensor, grads: list[Tensor], probed: Probed) -> None:
        """w_t becomes w_{t-1}, and the optimizer takes its step."""
        works = self.works
        forked = works.read()
        works.engine.keep_weights(self._weights.before.views)
        if works.bounds.normalize:
            forked.norm = normalize(works.evaluator, grads)
        if not self._method.estimator.remembers:
            self._new.copy_from(grads)
            self._plain.take_where(ok, self._new)
            self.grads = self._plain.views
        if self._stands_still:
            self._mask(failed, grads)
        works.optimizer.step()
        probed.commit(ok)
        self._describe(probed)

    def _mask(self, failed: Tensor, grads: list[Tensor]) -> None:
        """Zero in place of the gradients where the step failed: the optimizer then stands still."""
        # Nesterov's mixture and normalisation have changed them since.
        if self._has_changed_z:
            self._new.copy_from(grads)
        self._new.zero_where(failed)
        for p, gradient in zip(self.works.parameters, self._new.views, strict=True):
            p.grad = gradient
        if self._method.estimator.remembers:
            self.grads = self._new.views

    def _commit(self, ok: Tensor, failed: Tensor, fixed: Any) -> None:
        """Weights, optimizer and buffers are put back where the step failed; the record takes what is new where not."""
        if not self._stands_still:
            self._weights.put_back(failed)
            self._optimizer.put_back(failed)
        self._elsewhere.kept.put_back(failed)
        places = {id(place) for place in self._places.tensors()}
        found = []
        for old, new in changes(fixed, self.works.read()):
            if id(new) in places:
                new = new.clone()  # what it is now, before its place is written
            found.append((old, new))
        for old, new in found:
            if isinstance(old, list):
                self._commit_list(ok, old, new)
            else:
                torch.where(ok, new, old, out=old)

    def _commit_list(self, ok: Tensor, old: list[Tensor], new: list[Tensor]) -> None:
        flat = self._places.flats[id(old)]
        if new is self._weights.before.views:
            flat.take_where(ok, self._weights.before)
            return
        if id(old) not in self._scratch:
            self._scratch[id(old)] = Flat(old)
        scratch = self._scratch[id(old)]
        scratch.copy_from(new)
        flat.take_where(ok, scratch)

    # ------------------------------------------------------------------ reports

    def _describe(self, probed: Probed) -> None:
        self.samples = probed.samples
        self.oracle = probed.oracle
        if not hasattr(self, "ring"):
            self.ring = Ring(self._rows(probed))

    def _rows(self, probed: Probed) -> dict[str, Tensor | None]:
        f = probed.f
        if f is not None and probed.u is None:
            f = f.mean().reshape(1)  # of an engine without rows: f may be of every block
        return {"f": f, "u": probed.u, "g": probed.g}


def stands_still_at_zero(optimizer: Optimizer) -> bool:
    """Whether a step with gradients of 0 changes nothing: plain SGD, which has no state of its own."""
    if type(optimizer) is not torch.optim.SGD:
        return False
    return not any(group["momentum"] or group["weight_decay"] for group in optimizer.param_groups)


def _without_cache(device: torch.device) -> AbstractContextManager[object]:
    """Autocast as it is, without its copies of weights: those of one replay would serve the next."""
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()
    dtype = torch.get_autocast_dtype(device.type)
    return torch.autocast(device.type, dtype=dtype, cache_enabled=False)
