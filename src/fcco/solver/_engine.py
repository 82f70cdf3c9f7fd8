"""Engine: turns a batch into a gradient. Two stand behind this protocol: tracked blocks and the output memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Unpack, final

import torch
from torch import Tensor

from fcco._objective import Objective
from fcco._support.module_state import Snapshot
from fcco.data._epochs import EpochLoader, LoaderOptions
from fcco.methods import Method
from fcco.methods._rates import Rates, fits_device, split_numbers, step_numbers, varies
from fcco.methods.estimators import Weights
from fcco.solver._evaluator import Evaluator
from fcco.solver._full_pass import FullPass
from fcco.solver._gradients import NonFiniteError
from fcco.solver._report import Diagnosis, Oracle
from fcco.solver._transaction import Transaction


class Counters(Protocol):
    """The solver's counters, for passes that an engine makes outside of steps."""

    @property
    def t(self) -> int:
        """The number of steps taken."""

    def charge(self, samples: int, oracle: Oracle) -> None:
        """Count samples and oracle calls."""


@final
@dataclass(frozen=True)
class Parts:
    """What an engine is made from.

    Args:
        objective: the user's f and g.
        method: the tracker (or the settings of the memory) and the lag.
        evaluator: of the objective.
        full_pass: a pass over all data; None: there is none.
        u0: start rows; None: a block starts at its first probe.
        raises: whether something that is not finite raises; else the step is skipped.
        counters: the solver's.
    """

    objective: Objective
    method: Method
    evaluator: Evaluator
    full_pass: FullPass | None
    u0: float | Tensor | None
    raises: bool
    counters: Counters


@final
class Request(NamedTuple):
    """One step to be probed.

    Args:
        t: its number, from 1.
        data: what the caller gave: a batch, or ``(index, *data)``.
        chunk: examples or blocks per piece; None: the whole batch at once.
        before: buffers and random state before the step; None in a captured step.
        rates: the numbers of the step.
        clock: gives t () on the device, in a captured step; None otherwise.
        trusted: whether the library drew the blocks itself, so that nobody need look at them.
    """

    t: int
    data: tuple[Any, ...]
    chunk: int | None
    before: Snapshot | None
    rates: Rates
    clock: Callable[[], Tensor] | None = None
    trusted: bool = False


@final
class Probed(NamedTuple):
    """What an engine found; ``p.grad`` holds the gradients, weighted and added up.

    Args:
        samples: how many examples were drawn.
        oracle: the calls that it took.
        seen: tensors that must be finite.
        finite: () bool, whether this rank saw nothing else.
        blame: makes the error where something is not finite.
        commit: stores what the step found, in place; called once z and the weights have moved. Its argument is a ()
            bool on the device in a captured step, where the host does not know whether the step is to be taken: what
            is written is then masked by it. None: it is.
        full_gradient: Gfull_tau, where the estimator wants it.
        weights: a copy of w_t, where one was made already.
        f: (B,) f_i at the u that weighed the gradient.
        u: (B, dim) the new rows.
        g: (B, dim) the fresh probe.
        valid: () bool on the device, whether the blocks are such; None: the host has looked.
    """

    samples: int
    oracle: Oracle
    seen: Sequence[Tensor]
    finite: Callable[[], Tensor]
    blame: Callable[[], NonFiniteError]
    commit: Callable[[Tensor | None], None]
    full_gradient: list[Tensor] | None = None
    weights: list[Tensor] | None = None
    f: Tensor | None = None
    u: Tensor | None = None
    g: Tensor | None = None
    valid: Tensor | None = None


class Engine(ABC):
    """Turns a batch into a gradient; abstract.

    An engine keeps what it carries between steps in ``state``, a record (:mod:`fcco.solver._state`) that the solver
    forks before a step and puts back where it fails.

    Args:
        parts: what an engine is made of: the method, the evaluator of g, the blocks and the pass over all data.
    """

    #: what it carries between steps
    state: Any

    def __init__(self, parts: Parts) -> None:
        self.method = parts.method  # whose rates the next step takes
        self._evaluator = parts.evaluator
        self._full_pass = parts.full_pass

    def rates(self, t: int, data: tuple[Any, ...]) -> Rates:
        """The numbers of step t; on an accelerator those of schedules as a captured step has them, to the last bit.

        Args:
            t: number of the step.
            data: what the caller gave.
        """
        plain = Rates(self.method, t, getattr(data[0], "large", None))
        device = self._evaluator.device
        if device.type == "cpu" or not varies(self.method) or not fits_device(self.method):
            return plain
        ratio = self.ratio(data)
        if ratio is None:
            return plain
        row = torch.tensor(step_numbers(self.method, t, ratio, plain.large), dtype=torch.float64)
        return plain._replace(on_device=split_numbers(self.method, row.to(device)))

    def prepare(self, request: Request) -> Renewal | None:
        """What comes before the probes of a step: v3's pass over all data, where it is due.

        Args:
            request: the step to come.
        """
        return None

    @abstractmethod
    def probe(self, request: Request, weights: Weights, transaction: Transaction) -> Probed:
        """Put weights.now G + weights.previous G- + ... into ``p.grad``; nothing is stored before ``commit``.

        Args:
            request: the step to be probed.
            weights: how much each gradient counts in z.
            transaction: takes what has to be undone where the step fails.
        """

    def join(self, error: Exception) -> None:
        """Take this rank's failure to where the other ranks meet first in a step; raises it.

        Args:
            error: what went wrong here.
        """
        self._evaluator.join_average(error)

    @abstractmethod
    def samples(self, request: Request) -> int:
        """How many examples the request holds, for a step that was skipped.

        Args:
            request: the step that was skipped.
        """

    @abstractmethod
    def loader(self, blocks: int, samples: int, **options: Unpack[LoaderOptions]) -> EpochLoader:
        """The loader that suits the engine.

        Args:
            blocks: B1, over all ranks.
            samples: B2.
            options: what the loader takes besides.
        """

    def keep_weights(self, weights: list[Tensor] | None) -> None:
        """w_t is about to become w_{t-1}; ``weights``: a copy of it, where one was made already.

        Args:
            weights: a copy of w_t, where one was made already.
        """
        return None  # most engines need no earlier weights

    def after_step(self, t: int, stacklevel: int) -> None:
        """What is due once step t was taken; what goes wrong here undoes nothing.

        Args:
            stacklevel: of warnings, for the caller of ``Solver.step``.
            t: number of the step.
        """
        return None

    # ------------------------------------------------------------------ captured steps

    def obstacle(self) -> str | None:
        """Why steps cannot be captured, as the end of a sentence; None: they can."""
        return None

    def ratio(self, data: tuple[Any, ...]) -> float | None:
        """m/B1 of a step's data, where it is known without reading them; 1 where nothing depends on it.

        Args:
            data: as :meth:`Solver.step` got it.
        """
        return 1.0

    def is_due(self, t: int) -> bool:
        """Whether step t begins with something that the host has to do: it is then taken eagerly.

        Args:
            t: number of the step.
        """
        return False

    def is_due_after(self, t: int) -> bool:
        """Whether :meth:`after_step` has something to do after step t.

        Args:
            t: number of the step.
        """
        return False

    def fingerprint(self) -> Any:
        """What a captured step depends on besides the record's tensors, as something that can be compared."""
        return None

    def written_in_place(self) -> list[Tensor]:
        """What a step writes in place besides the record's tensors that have places."""
        return []

    def begin_capture(self, t: int) -> None:
        """The steps after t are captured: what the host counted is counted on the device.

        Args:
            t: the last eager step.
        """
        return None

    def read_device(self) -> None:
        """Take over what captured steps have counted on the device; the host waits for it."""
        return None

    @abstractmethod
    def diagnose(self, full_pass: FullPass | None, z: list[Tensor] | None, gradient: bool) -> Diagnosis:
        """Exact figures from passes over all data; without those of the gradient where ``gradient`` is False.

        Args:
            full_pass: gives all data; None: the engine's own.
            z: the estimate of the gradient, to be compared.
            gradient: whether the exact gradient is wanted.
        """

    @abstractmethod
    def rows(self) -> Tensor:
        """u of this rank's blocks (owned, dim)."""

    def renew_reference(self) -> None:
        """Renew the reference at the next step, where there is one."""
        return None

    def check_state(self, state: dict[str, Any]) -> None:
        """Refuse a saved state for reasons that its fields do not tell.

        Args:
            state: as saved.
        """
        return None

    def after_load(self) -> None:
        """Make anew what follows from the state."""
        return None


@final
@dataclass(frozen=True)
class Renewal:
    """A pass over all data at w_t: its gradient, and how many samples it took."""

    gradient: list[Tensor]
    samples: int


_FACTORIES: dict[bool, Callable[[Parts], Engine]] = {}  # by whether the method has an output memory


def register_engine(*, memory: bool, factory: Callable[[Parts], Engine]) -> None:
    """Say what makes the engine of methods with (or without) an output memory.

    Each engine registers itself when it is imported, so that the solver knows neither of them from inside.
    """
    _FACTORIES[memory] = factory


def make_engine(parts: Parts) -> Engine:
    """The engine of a method."""
    has_memory = parts.method.memory is not None
    if has_memory not in _FACTORIES:
        # Engines register on import. Whoever imported one part of fcco alone may not have loaded them all yet.
        import fcco

        _ = fcco.memory
    return _FACTORIES[has_memory](parts)
