"""Every source of random numbers that a module may use, captured and put back."""

from __future__ import annotations

import ctypes
import itertools
import random
import sys
from collections.abc import Iterable, Iterator
from typing import Any, final

import torch
from torch import Tensor, nn


@final
class Randomness:
    """Every source of random numbers that a module may use: torch's (CPU and the devices at hand), Python's,
    numpy's where it is loaded, and generators of all three that the module holds itself, in lists and dicts too."""

    def __init__(self, module: nn.Module) -> None:
        devices = {tensor.device for tensor in itertools.chain(module.parameters(), module.buffers())}
        kinds = {device.type for device in devices}
        self._cuda = sorted({device.index or 0 for device in devices if device.type == "cuda"})
        self._others = [OtherDevice(kind) for kind in sorted(kinds - {"cpu", "cuda"})]
        # A step reads all of these twice or more: both are read only where they have changed.
        self._python = PythonState()
        self._numpy = NumpyState()
        # A module may hold a generator of its own, for an augmentation, say.
        held: dict[int, Any] = {}
        for part in module.modules():
            for generator in _generators(vars(part).values()):
                held[id(generator)] = generator
        self._generators = list(held.values())

    def capture(self) -> dict[str, Any]:
        """Return the states as they are, cheaply."""
        return {
            "torch": torch.default_generator.get_state(),
            "cuda": [torch.cuda.get_rng_state(index) for index in self._cuda],
            "others": [device.get() for device in self._others],
            "python": self._python.get(),
            "own": [_state_of(generator) for generator in self._generators],
            "numpy": self._numpy.get(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the states as tensors and plain values (they load with ``weights_only=True``)."""
        state = self.capture()
        state["own"] = [_plain(own) for own in state["own"]]
        if isinstance(state["numpy"], dict):  # of another generator than the usual one
            state["numpy"] = _plain(state["numpy"])
        elif state["numpy"] is not None:
            name, keys, *rest = state["numpy"]
            state["numpy"] = (str(name), torch.from_numpy(keys.astype("int64")), *rest)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put the states of :meth:`state_dict` back."""
        numpy = state["numpy"]
        if isinstance(numpy, tuple):
            numpy = (numpy[0], numpy[1].numpy().astype("uint32"), *numpy[2:])
        self.restore(state | {"numpy": numpy})

    def restore(self, state: dict[str, Any]) -> None:
        """Put the states back; those of devices that are not here are passed over."""
        torch.default_generator.set_state(state["torch"])
        for index, cuda in zip(self._cuda, state["cuda"], strict=False):
            torch.cuda.set_rng_state(cuda, index)
        for device, other in zip(self._others, state.get("others", ()), strict=False):
            device.set(other)
        for generator, own in zip(self._generators, state["own"], strict=False):
            _set_state(generator, own)
        # Writing these two takes longer than everything else in a small step, and most passes leave them alone.
        if self._python.get() is not state["python"]:
            random.setstate(state["python"])
        if state["numpy"] is not None and "numpy" in sys.modules and self._numpy.get() is not state["numpy"]:
            sys.modules["numpy"].random.set_state(state["numpy"])


@final
class OtherDevice:
    """The random state of a kind of device that is neither the CPU nor CUDA: of its current device.

    Args:
        kind: mps, xpu, ...

    Raises:
        ValueError: where torch cannot read and write it: a probe at other weights could then not replay its numbers.
    """

    def __init__(self, kind: str) -> None:
        module: Any = getattr(torch, kind, None)
        if not hasattr(module, "get_rng_state") or not hasattr(module, "set_rng_state"):
            raise ValueError(
                f"parameters must be on the CPU, CUDA or a device whose random state can be set, got {kind}"
            )
        self.get = module.get_rng_state
        self.set = module.set_rng_state


def _generators(values: Iterable[Any], depth: int = 3) -> Iterator[Any]:
    """Yield the generators among some values, and in lists, tuples and dicts of them, ``depth`` levels down."""
    numpy: Any = sys.modules.get("numpy")
    kinds: tuple[Any, ...] = (torch.Generator, random.Random)
    if numpy is not None:
        kinds += (numpy.random.Generator, numpy.random.RandomState)
    for value in values:
        if isinstance(value, kinds):
            yield value
        elif isinstance(value, dict) and depth:
            yield from _generators(value.values(), depth - 1)
        elif isinstance(value, list | tuple) and depth:
            yield from _generators(value, depth - 1)


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.get_state(legacy=False)


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


@final
class PythonState:
    """The state of Python's global generator, 625 numbers: read only where its memory has changed."""

    def __init__(self) -> None:
        self._told = _memory_tells()
        self._memory: Memory | None = None
        self._seen: object = None
        self._state: Any = None

    def get(self) -> Any:
        """Return the state as ``random.getstate`` gives it: the same object until it changes."""
        if not self._told:
            return random.getstate()
        generator: Any = random.getstate.__self__  # type: ignore[attr-defined]
        if self._memory is None or self._memory.owner is not generator:
            self._memory = Memory(generator, id(generator), generator.__sizeof__())
        # A second normal number is kept elsewhere.
        seen = (self._memory.read(), getattr(generator, "gauss_next", None))
        if seen != self._seen:
            self._state = random.getstate()
            self._seen = seen
        return self._state


@final
class Memory:
    """The memory in which a generator keeps its state, to be compared with what it was.

    Args:
        owner: what must live for as long as this does.
        address: where it starts.
        size: how many bytes it has.
    """

    def __init__(self, owner: Any, address: int, size: int) -> None:
        self.owner = owner
        self._view = (ctypes.c_char * size).from_address(address)

    def read(self) -> bytes:
        """Return what it holds."""
        return self._view.raw


def _own_memory(generator: random.Random) -> object:
    memory = Memory(generator, id(generator), generator.__sizeof__())
    return memory.read(), getattr(generator, "gauss_next", None)


def _memory_tells() -> bool:
    """Return whether a generator keeps its state in its own memory, as CPython's does: tried, not assumed."""
    trial = random.Random(0)
    before = _own_memory(trial)
    trial.random()
    after = _own_memory(trial)
    trial.seed(0)
    return before != after and before == _own_memory(trial)


@final
class NumpyState:
    """The state of numpy's global generator; reading it takes 0.1 ms, so it is read only where it has changed."""

    def __init__(self) -> None:
        self._memory: Memory | None = None
        self._seen: bytes | None = None
        self._state: Any = None

    def get(self) -> Any:
        """Return the state as ``numpy.random.get_state`` gives it: the same object until it changes.

        None where numpy is not loaded.
        """
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return None
        memory = self._current(numpy)
        if memory is None:
            self._seen = None
            self._state = numpy.random.get_state(legacy=False)
            return self._state
        seen = memory.read()
        if seen != self._seen:
            self._seen = seen
            self._state = numpy.random.get_state(legacy=True)
            has_normal = self._state[3]
            if has_normal:  # a second normal number, kept for later: it lies elsewhere, so the memory does not tell
                self._seen = None
        return self._state

    def _current(self, numpy: Any) -> Memory | None:
        """Return the memory of the generator as it is now; None where it does not tell."""
        get_generator = getattr(numpy.random, "get_bit_generator", None)  # from numpy 1.24 on
        if get_generator is None:
            return None
        generator = get_generator()
        if self._memory is None or self._memory.owner is not generator:
            self._memory = _memory(generator)
        return self._memory


def _plain(state: Any) -> Any:
    """Return a state with its arrays as lists, through all levels."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    if isinstance(state, Tensor) or not hasattr(state, "tolist"):
        return state
    return state.tolist()


def _memory(generator: Any) -> Memory | None:
    """Return the 624 words and the position of a Mersenne Twister; None for any other generator."""
    if type(generator).__name__ != "MT19937":
        return None
    return Memory(generator, generator.ctypes.state_address, 4 * 625)
