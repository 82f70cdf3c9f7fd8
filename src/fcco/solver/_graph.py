"""Running one fixed sequence of tensor operations again and again: recorded as a CUDA graph, or called each time."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, final

import torch
from torch import Tensor


class Recording(ABC):
    """A program of tensor operations that can be run again; abstract.

    Random numbers come from generators whose states move on with every run, as if the operations had been called one
    by one; those of :meth:`apart` start where the run starts and leave the main stream alone.
    """

    @abstractmethod
    def apart(self, number: int) -> AbstractContextManager[object]:
        """Within the block of the program the random numbers are those from its start.

        Args:
            number: which of the blocks, from 0.
        """

    @abstractmethod
    def record(self, program: Callable[[], None]) -> None:
        """Take the program in; nothing is run."""

    @abstractmethod
    def replay(self) -> None:
        """Run it once."""


@final
class Calls(Recording):
    """Calls the program each time: for trials before a capture, and for tests without a GPU.

    Args:
        device: whose default generator the program draws from.
    """

    def __init__(self, device: torch.device) -> None:
        self._generator = default_generator(device)
        self._program: Callable[[], None] | None = None
        self._start: Tensor | None = None

    @contextmanager
    def apart(self, number: int) -> Iterator[None]:
        assert self._start is not None
        left = self._generator.get_state()
        self._generator.set_state(self._start)
        yield
        self._generator.set_state(left)

    def record(self, program: Callable[[], None]) -> None:
        self._program = program

    def replay(self) -> None:
        assert self._program is not None
        self._start = self._generator.get_state()
        self._program()


@final
class CudaGraph(Recording):
    """A CUDA graph. The program's generators are pointed at states of the graph's own while it is recorded.

    So a recording that fails leaves every generator as it was.

    Args:
        device: whose default generator the program draws from.
        others: further generators that it draws from.
        apart: how many blocks draw apart from the main stream.
        pool: the memory that the graphs of a solver share.
    """

    def __init__(self, device: torch.device, others: Sequence[torch.Generator], apart: int, pool: Any) -> None:
        self._device = device
        self._pool = pool
        self._generators = [default_generator(device), *others]
        self._states = [generator.clone_state() for generator in self._generators]
        self._apart = [self._generators[0].clone_state() for _ in range(apart)]
        self._graph = torch.cuda.CUDAGraph()
        for state in [*self._states, *self._apart]:
            self._graph.register_generator_state(state)

    @contextmanager
    def apart(self, number: int) -> Iterator[None]:
        with _pointed_at(self._generators[0], self._apart[number]):
            yield

    def record(self, program: Callable[[], None]) -> None:
        # Whatever is collected while the recording runs may free memory of a device, which would end it.
        gc.collect()
        with ExitStack() as stack:
            stack.enter_context(_uncollected())
            for generator, state in zip(self._generators, self._states, strict=True):
                stack.enter_context(_pointed_at(generator, state))
            stack.enter_context(torch.cuda.device(self._device))
            stack.enter_context(torch.cuda.graph(self._graph, pool=self._pool, capture_error_mode="thread_local"))
            program()

    def replay(self) -> None:
        start = self._generators[0].get_state()
        for generator, state in zip(self._generators, self._states, strict=True):
            state.set_state(generator.get_state())
        for state in self._apart:
            state.set_state(start)
        self._graph.replay()
        for generator, state in zip(self._generators, self._states, strict=True):
            generator.set_state(state.get_state())


@contextmanager
def _uncollected() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _pointed_at(generator: torch.Generator, state: torch.Generator) -> Iterator[None]:
    own = generator.graphsafe_get_state()
    generator.graphsafe_set_state(state)
    try:
        yield
    finally:
        generator.graphsafe_set_state(own)


def default_generator(device: torch.device) -> torch.Generator:
    """What draws without a generator of its own."""
    if device.type != "cuda":
        return torch.default_generator
    index = torch.cuda.current_device()
    if device.index is not None:
        index = device.index
    generators: Any = torch.cuda.default_generators
    generator: torch.Generator = generators[index]
    return generator
