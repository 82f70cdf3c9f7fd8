"""Captured steps: when a step is replayed from a graph, when it is taken eagerly, and what the host sees of it when."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from fcco._support.interrupts import uninterrupted
from fcco._support.parallel import rank_and_world
from fcco.data import Batch
from fcco.methods._rates import fits_device, varies
from fcco.methods.estimators import Sarah
from fcco.solver._clock import LOOK, Clock, Rows
from fcco.solver._fingerprint import Fingerprint
from fcco.solver._gradients import NonFiniteError
from fcco.solver._graph import Calls, CudaGraph, Recording, default_generator
from fcco.solver._inputs import CopiedInputs, DrawnInputs, inputs_for, is_pending, layout, with_tensor_index
from fcco.solver._places import BufferReplaced
from fcco.solver._program import POINTS, Program, Works
from fcco.solver._report import Counts, Oracle, Report
from fcco.solver._state import FixedPlaces, NoPlace

WARM_UP = 3  # eager steps before a capture: kernels are chosen, and the optimizer makes its state
MOST = 8  # graphs that are kept
CAPTURING = {"cuda"}  # devices that have graphs
TRIALS = 2  # programs that may fail when they are tried out, before steps are taken eagerly for good
LAYOUTS = 1000  # of data, after which no two steps are taken to be alike
PATIENCE = 8  # graphs for the same inputs, after which something is taken to change all the time


@final
@dataclass
class _Attempt:
    """A replay: its data (a pending batch, or nothing), the default generator before it, and what became of it."""

    program: Program
    data: tuple[Any, ...]
    random: Tensor
    counts: Counts | None = None  # None: the host has not looked yet


@final
@dataclass
class _Prepared:
    """A program, what runs it, and how often it was run."""

    key: Any
    program: Program
    recording: Recording
    runs: int = 0


@final
@dataclass
class _Ahead:
    """What the attempts since the last look will have cost, if all of them are taken."""

    samples: int = 0
    oracle: Oracle = field(default_factory=Oracle)


@final
class StepCapture:
    """Replays steps from graphs, and lets the host catch up.

    The host looks every 32 steps, and whenever somebody reads what only the device knows. Between two looks a step is
    one launch, and nothing waits.

    Args:
        works: the solver's parts.
        replay_eagerly: takes the step of some data eagerly, to find out what is wrong with it, and drops it.
        insist: whether the user asked for captured steps, and is told where they cannot be had.
    """

    def __init__(self, works: Works, replay_eagerly: Callable[[tuple[Any, ...]], None], *, insist: bool) -> None:
        self._works = works
        self._replay_eagerly = replay_eagerly
        self._insist = insist
        device = works.evaluator.device
        self._device = device
        self._random = default_generator(device)
        self._places = FixedPlaces(device)
        self._clock = Clock(device, skips=works.skips)
        self._fingerprint = Fingerprint(works)
        self._eager_steps: Counter[Any] = Counter()  # by the layout of their data
        self._captures: Counter[Any] = Counter()  # likewise
        self._programs: dict[Any, _Prepared] = {}
        self._impossible: set[Any] = set()  # what cannot be captured, though the next step may be
        self._failures = 0  # of trials and recordings
        self._pool: Any = None
        self._attempts: list[_Attempt] = []
        self._ahead = _Ahead()
        self.reason: str | None = None
        self._stop(obstacle(works))

    # ------------------------------------------------------------------ steps

    def step(self, data: tuple[Any, ...]) -> Report | None:
        """Take the step from a graph; None: it is to be taken eagerly, and the host has looked."""
        if self.reason is None:
            if is_pending(data) and data[0].is_drawn:
                data = (data[0].batch(),)  # somebody has looked at it
            data = _tensors_where_possible(data)
            prepared = None
            if self._is_possible(data):
                prepared = self._prepared(data)
            if prepared is not None and self._has_numbers(prepared):
                return self._attempt(prepared, data)
        self.look()
        return None

    def _has_numbers(self, prepared: _Prepared) -> bool:
        """Whether the device has the numbers of the next step, or gets them before it."""
        if not self._attempts:
            self._begin_window()
        known_until = prepared.program.known_until
        return known_until is None or self.steps() < known_until

    def _is_possible(self, data: tuple[Any, ...]) -> bool:
        """Whether this step needs nothing that the host alone can do."""
        method = self._works.engine.method
        if isinstance(method.estimator, Sarah) and getattr(data[0], "large", None) is None:
            self._stop(f"{method.name} counts its steps on the host where its batches come from elsewhere")
            return False
        if varies(method) and (not fits_device(method) or self._works.engine.ratio(data) is None):
            self._stop(f"the schedule of {method.name} cannot be read on the device")
            return False
        if self._works.engine.obstacle() is not None:
            return False  # for now: a form may come to fixed shapes later
        t = self.steps() + 1
        if t == 1:
            return False  # z and the optimizer's state come with the first step that is taken
        if not self._works.engine.is_due(t):
            return True
        self.look()  # with steps that were skipped it may not be due yet
        return not self._works.engine.is_due(self.steps() + 1)

    def _prepared(self, data: tuple[Any, ...]) -> _Prepared | None:
        """What replays this step; None: it is not time yet, or cannot be."""
        if isinstance(data[0], Batch) and data[0].index is None and data[0].probability is None:
            return None  # blocks are found in the data, and their number varies
        try:
            shape = layout(data)
            hash(shape)
        except TypeError as error:
            self._stop(str(error))
            return None
        if len(self._eager_steps) > LAYOUTS:
            self._stop("the data change their layout all the time")
            return None
        if self._eager_steps[shape] < WARM_UP:
            self._eager_steps[shape] += 1
            return None
        if not self._attempts:
            self._works.engine.begin_capture(self._works.read().t)
        # Values that an eager step put elsewhere are copied to the places that graphs know.
        self._places.move_in(self._works.read())
        key = (shape, self._fingerprint.take(), self._places.used())
        if key in self._impossible:
            return None
        found = self._programs.get(key)
        if found is not None:
            return found
        self._captures[shape] += 1
        if self._captures[shape] > PATIENCE:
            self._stop(
                "the learning rate, a constant or an address changes all the time (a learning rate in a tensor, with "
                "fused=True or capturable=True, may change freely)"
            )
            return None
        self.look()
        return self._new_program(key, data)

    def _new_program(self, key: Any, data: tuple[Any, ...]) -> _Prepared:
        """A program for such data; the oldest one makes room for it."""
        while len(self._programs) >= MOST:
            self._programs.pop(next(iter(self._programs)))
        trial = Calls(self._device)
        ratio = self._works.engine.ratio(data)
        large = getattr(data[0], "large", None)
        inputs = inputs_for(data, self._device)
        program = Program(self._works, inputs, self._places, self._clock, trial, ratio, large)
        self._programs[key] = _Prepared(key, program, trial)
        return self._programs[key]

    def _attempt(self, prepared: _Prepared, data: tuple[Any, ...]) -> Report | None:
        """Replay; the first time the program is tried out, the second time it is recorded."""
        random = self._random.get_state()
        # A Ctrl-C waits until the host has counted what the device was told to do: else the two count apart for ever.
        with uninterrupted():
            try:
                self._run(prepared, data)
            except Exception as error:
                self._give_up(prepared, error)
                return None
            report = self._counted(prepared.program, data, random)
            if self._is_time_to_look(random):
                self.look()
        return report

    def _counted(self, program: Program, data: tuple[Any, ...], random: Tensor) -> Report:
        """The report of a replay, which counts as an attempt from here on."""
        # Other data are not held on to: the program's inputs keep a copy of what stopped the run.
        kept: tuple[Any, ...] = ()
        if is_pending(data):
            kept = data
        attempt = _Attempt(program, kept, random)
        rows = program.ring.reader(len(self._attempts))
        self._attempts.append(attempt)
        self._ahead.samples += program.samples
        self._ahead.oracle = self._ahead.oracle.plus(program.oracle)
        return self._report(attempt, rows)

    def _give_up(self, prepared: _Prepared, error: Exception) -> None:
        """The step is to be taken eagerly: this once, or from now on."""
        self._programs.pop(prepared.key, None)
        self._failures += 1
        if isinstance(error, NoPlace):
            self._impossible.add(prepared.key)  # after a batch of another size, say
        elif prepared.runs > 0 or isinstance(error, BufferReplaced) or _is_wait(error) or self._failures > TRIALS:
            self._stop(_sentence(error))
        # Else the user's own code may have raised: the eager step will say so.
        self.look()

    def _is_time_to_look(self, random: Tensor) -> bool:
        """Whether the host has to know now what became of the attempts."""
        if len(self._attempts) == LOOK or self._works.engine.is_due_after(self.steps()):
            return True
        # Random numbers of a step that is skipped are drawn again by the next one, and the host counts them.
        return self._works.skips and not torch.equal(random, self._random.get_state())

    def _begin_window(self) -> None:
        """The first attempt after a look: the device starts to count from what the host knows."""
        t = self._works.read().t
        self._clock.reset(t)
        for prepared in self._programs.values():
            prepared.program.upload_numbers(t)

    def _run(self, prepared: _Prepared, data: tuple[Any, ...]) -> None:
        program = prepared.program
        program.take_gradients()
        if prepared.runs == 1:
            prepared.recording = self._recorded(program)
        program.inputs.load(data)
        if prepared.runs == 0:
            self._try_out(prepared)
        else:
            prepared.recording.replay()
        prepared.runs += 1
        for p, gradient in zip(self._works.parameters, program.grads, strict=True):
            if p.grad is not gradient:
                p.grad = gradient

    def _recorded(self, program: Program) -> Recording:
        recording: Recording = Calls(self._device)
        if self._device.type == "cuda":
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            others = []
            if isinstance(program.inputs, DrawnInputs):
                others.append(program.inputs.generator)
            recording = CudaGraph(self._device, others, POINTS, self._pool)
        grads = [p.grad for p in self._works.parameters]
        try:
            program.record_with(recording)
        except Exception:
            for p, gradient in zip(self._works.parameters, grads, strict=True):
                p.grad = gradient  # not memory of a graph that there will never be
            raise
        return recording

    # ------------------------------------------------------------------ the first time

    def _try_out(self, prepared: _Prepared) -> None:
        """Take the step by calling the program, where nothing may wait; where it fails, all is as it was."""
        works = self._works
        randomness = works.evaluator.module_state.randomness
        before = randomness.capture()
        numbers = _numbers_of(works)
        entries = _entries_of(works)
        tensors = [*works.parameters, *works.optimizer_tensors(), *self._places.tensors()]
        tensors += works.engine.written_in_place()
        tensors += [place.value for place in works.evaluator.module_state.buffers()]
        copies = [tensor.detach().clone() for tensor in tensors]
        grads = [p.grad for p in works.parameters]
        try:
            with _nothing_waits(self._device):
                prepared.recording.record(prepared.program.run)
                prepared.recording.replay()
        except Exception:
            with torch.no_grad():
                torch._foreach_copy_(tensors, copies)
            for p, gradient in zip(works.parameters, grads, strict=True):
                p.grad = gradient
            _restore_entries(works, entries)
            randomness.restore(before)
            prepared.program.inputs.undo()
            raise
        self._check_host(before, numbers)

    def _check_host(self, before: dict[str, Any], numbers: Any) -> None:
        """Notice what the step changed on the host, which no replay would."""
        after = self._works.evaluator.module_state.randomness.capture()
        sources = {"python": "Python's", "numpy": "NumPy's", "own": "an objective's own"}
        if self._device.type != "cpu":
            sources["torch"] = "the CPU's"
        for name, whose in sources.items():
            if not _is_same(before[name], after[name]):
                self._stop(f"a step draws from {whose} generator, which a graph does not move")
        if numbers != _numbers_of(self._works):
            name = type(self._works.optimizer).__name__
            self._stop(f"{name} keeps numbers on the host, which a graph does not change")

    # ------------------------------------------------------------------ looking

    def look(self) -> None:
        """Let the host catch up with the device, for which it waits.

        Raises:
            NonFiniteError: if a step was not finite. The solver is then as it was before that step.
        """
        if not self._attempts:
            return
        # Ctrl-C mostly comes while the host waits here: what the device has done must be counted first.
        with uninterrupted():
            self._look()

    def _look(self) -> None:
        attempts = self._attempts
        self._attempts = []
        self._ahead = _Ahead()
        reading = self._clock.read(len(attempts))
        # What comes after an attempt that stopped the run has done nothing.
        for attempt, taken in zip(attempts, reading.taken, strict=False):
            self._count(attempt, taken)
        state = self._works.read()
        for attempt in attempts[len(reading.taken) :]:
            attempt.counts = state.counts(skipped=True)
        self._works.engine.read_device()
        for program in dict.fromkeys(attempt.program for attempt in attempts):
            program.ring.retire()
        if reading.stopped_at is not None:
            self._raise(attempts[reading.stopped_at])
        self._works.engine.after_step(state.t, stacklevel=6)

    def _count(self, attempt: _Attempt, taken: bool) -> None:
        state = self._works.read()
        if taken:
            state.t += 1
            state.charge(attempt.program.samples, attempt.program.oracle)
        else:
            state.samples += attempt.program.samples
            state.skipped += 1
            self._random.set_state(attempt.random)
        attempt.counts = state.counts(skipped=not taken)

    def _raise(self, attempt: _Attempt) -> None:
        """Find out by an eager replay what was wrong, with the random numbers of the step that failed."""
        data = attempt.data
        inputs = attempt.program.inputs
        if isinstance(inputs, CopiedInputs):
            data = inputs.stopped_data
        self._random.set_state(attempt.random)
        self._replay_eagerly(data)
        t = self._works.read().t + 1
        raise NonFiniteError(f"step {t} was not finite when it was replayed, but is finite when run eagerly", [])

    def __deepcopy__(self, memo: dict[int, Any]) -> StepCapture:
        raise TypeError(
            "a solver that captures its steps cannot be copied; save its state and load it into another solver"
        )

    def steps(self) -> int:
        """t, if every attempt is taken."""
        t: int = self._works.read().t
        return t + len(self._attempts)

    def counts(self) -> Counts:
        """The solver's counts; where steps may be skipped the host looks first."""
        if self._works.skips:
            self.look()
        known: Counts = self._works.read().counts()
        samples = known.samples + self._ahead.samples
        return Counts(self.steps(), samples, known.oracle.plus(self._ahead.oracle), skipped=False)

    def _report(self, attempt: _Attempt, rows: Rows) -> Report:
        def looked_at() -> Counts:
            self.look()
            assert attempt.counts is not None
            return attempt.counts

        def read(name: str) -> Tensor | None:
            if looked_at().skipped:
                return None
            return rows.get(name)

        if self._works.skips:
            return Report(looked_at, read)
        counts = self.counts()  # as if every step were taken: where one is not, an error says so
        return Report(lambda: counts, read)

    # ------------------------------------------------------------------ giving up

    def _stop(self, reason: str | None) -> None:
        """Take every step eagerly from here on."""
        if reason is None or self.reason is not None:
            return
        self.reason = reason
        if self._insist:
            warnings.warn(f"capture=True has no effect and steps run eagerly: {reason}", stacklevel=4)


def _tensors_where_possible(data: tuple[Any, ...]) -> tuple[Any, ...]:
    """Blocks given as a list of numbers as a tensor; what is none stays for the eager step to refuse."""
    try:
        return with_tensor_index(data)
    except (TypeError, ValueError, RuntimeError):
        return data


def obstacle(works: Works) -> str | None:
    """Why steps cannot be captured, as the end of a sentence; None: they can."""
    evaluator = works.evaluator
    if evaluator.device.type not in CAPTURING:
        return "the parameters are not on a CUDA device"
    if any(p.device != evaluator.device for p in evaluator.parameters):
        return "the parameters are on several devices"
    if rank_and_world()[1] > 1 or evaluator.is_sharded or evaluator.is_wrapped:
        return "there are several ranks, or a model wrapped for them"
    if works.read().reservoir is not None:
        return "keep='uniform' draws on the host"
    for group in works.optimizer.param_groups:
        if group.get("capturable", True) is False:
            return f"{type(works.optimizer).__name__} needs capturable=True"
    return works.engine.obstacle()


@contextmanager
def _nothing_waits(device: torch.device) -> Iterator[None]:
    """Within the block an operation for which the host would have to wait raises."""
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this mode of torch's is new
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _is_wait(error: Exception) -> bool:
    """Whether the error is that of :func:`_nothing_waits`."""
    return "synchroniz" in str(error)


def _sentence(error: Exception) -> str:
    """The first line of an error, as the end of a sentence."""
    text = (str(error).splitlines() or [""])[0]
    if _is_wait(error):
        return "a step makes the host wait for the device (by .item(), nonzero, a boolean mask, a copy to the CPU, ...)"
    return f"capturing failed with {type(error).__name__}: {text}"


def _numbers_of(works: Works) -> list[Any]:
    """What the optimizer keeps on the host."""
    found: list[Any] = []
    for entries in works.optimizer.state.values():
        for name, value in entries.items():
            if not isinstance(value, Tensor):
                found.append((name, value))
            elif value.device != works.evaluator.device:
                found.append((name, value.tolist()))
    return found


def _entries_of(works: Works) -> dict[Any, dict[str, Any]]:
    """The optimizer's state: numbers and tensors of the host as they are, those of the device by reference."""
    found: dict[Any, dict[str, Any]] = {}
    for p, entries in works.optimizer.state.items():
        found[p] = {}
        for name, value in entries.items():
            if isinstance(value, Tensor) and value.device != works.evaluator.device:
                value = value.clone()
            found[p][name] = value
    return found


def _restore_entries(works: Works, before: dict[Any, dict[str, Any]]) -> None:
    """Put that back: what a trial made is dropped, and what it counted on the host is taken back."""
    state = works.optimizer.state
    for p in list(state):
        if p not in before:
            del state[p]
    for p, entries in before.items():
        state[p].clear()
        state[p].update(entries)


def _is_same(before: Any, after: Any) -> bool:
    """Whether two random states are equal: tensors, arrays, tuples and dicts of them."""
    if before is after:
        return True
    if isinstance(before, Tensor):
        return torch.equal(before, after)
    if isinstance(before, (list, tuple)):
        return all(_is_same(one, other) for one, other in zip(before, after, strict=True))
    if isinstance(before, dict):
        return all(_is_same(value, after[name]) for name, value in before.items())
    equal = before == after
    if hasattr(equal, "all"):  # of arrays
        return bool(equal.all())
    return bool(equal)
