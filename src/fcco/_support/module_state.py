"""What a pass changes besides its result: buffers and random state, which are put back after it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from operator import is_
from typing import Any, NamedTuple, final

from torch import Tensor, nn

from fcco._support.grad_mode import without_graph
from fcco._support.randomness import Randomness

Snapshot = tuple[list[tuple[nn.Module, str, Tensor | None]], dict[str, Any]]


class BufferPlace(NamedTuple):
    """A buffer and where it hangs."""

    module: nn.Module
    name: str
    value: Tensor


@final
class ModuleState:
    """What a pass changes beside its result: buffers (BatchNorm's statistics, ...) and random state."""

    def __init__(self, module: nn.Module) -> None:
        self._parts = list(module.modules())  # as fixed as the list of parameters; walking the tree takes time
        self.randomness = Randomness(module)

    def renew(self, module: nn.Module) -> None:
        """Look at the tree again, after modules have come or gone."""
        self._parts = list(module.modules())

    def buffers(self) -> list[BufferPlace]:
        """Return every buffer that a pass may change."""
        found = []
        for part in self._parts:
            for name, buffer in part._buffers.items():
                if buffer is not None and name not in getattr(part, "fixed_buffers", ()):
                    found.append(BufferPlace(part, name, buffer))
        return found

    def capture(self) -> Snapshot:
        """Return a copy of all buffers and random states."""
        buffers: list[tuple[nn.Module, str, Tensor | None]] = []
        for part in self._parts:
            # Most modules have none, and to be asked for an attribute that it lacks takes a module a microsecond.
            if not part._buffers:
                continue
            # Maps and weights that no pass changes may have a row per example: copying them would cost every step.
            fixed = getattr(part, "fixed_buffers", ())
            for name, buffer in part._buffers.items():
                if name not in fixed:
                    buffers.append((part, name, _copy_of(buffer)))
        return buffers, self.randomness.capture()

    def restore(self, saved: Snapshot) -> None:
        """Put them back, in place where the shape is still the same."""
        buffers, states = saved
        with without_graph():
            for part, name, value in buffers:
                current = part._buffers.get(name)
                if current is not None and value is not None and current.shape == value.shape:
                    current.copy_(value)  # in place: DDP and captured graphs hold on to it
                else:  # a lazy layer made it during the pass, or gave it another size
                    part._buffers[name] = _copy_of(value)
        self.randomness.restore(states)

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Within the block, let passes such as those over all data leave no trace in buffers and random state."""
        before = self.capture()
        try:
            yield
        finally:
            self.restore(before)


def _copy_of(buffer: Tensor | None) -> Tensor | None:
    if buffer is None:
        return None
    return buffer.detach().clone()


@final
class Tree:
    """Which modules and parameters hang where in a module, as they are now."""

    def __init__(self, module: nn.Module) -> None:
        self._places: list[dict[str, Any]] = []
        for part in module.modules():
            self._places.append(part._modules)
            self._places.append(part._parameters)
        self._before = self._held()
        self._sizes = self._sizes_now()

    def _held(self) -> list[Any]:
        return list(itertools.chain.from_iterable(map(dict.values, self._places)))

    def has_changed(self) -> bool:
        """Return whether anything was added, removed or replaced since; cheap enough for every step."""
        # Sizes as well: the same parts in another module are a change, too.
        return self._sizes_now() != self._sizes or not all(map(is_, self._held(), self._before))

    def _sizes_now(self) -> list[int]:
        return list(map(len, self._places))
