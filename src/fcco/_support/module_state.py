"""What a pass changes besides its result, and evaluating at other weights: everything is put back after.

Values are copied in place, never swapped by pointer, so that DDP, FSDP2, torch.compile and hooks keep working.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, final

import torch
from torch import Tensor, nn

from fcco._support.interrupts import uninterrupted
from fcco._support.randomness import Randomness
from fcco._support.sharded import copies, parts

NOTHING: AbstractContextManager[None] = nullcontext()

Snapshot = tuple[list[tuple[nn.Module, str, Tensor | None]], dict[str, Any]]


@final
class ModuleState:
    """What a pass changes beside its result: buffers (BatchNorm's statistics, ...) and random state."""

    def __init__(self, module: nn.Module) -> None:
        self._parts = list(module.modules())  # as fixed as the list of parameters; walking the tree takes time
        self.randomness = Randomness(module)

    @torch.no_grad()
    def capture(self) -> Snapshot:
        """A copy of all buffers and random states."""
        buffers = [
            (part, name, None if buffer is None else buffer.clone())
            for part in self._parts
            for name, buffer in part._buffers.items()
            if name not in getattr(part, "fixed_buffers", ())
        ]
        return buffers, self.randomness.capture()

    @torch.no_grad()
    def restore(self, saved: Snapshot) -> None:
        """Put them back, in place where the shape is still the same."""
        buffers, states = saved
        for part, name, value in buffers:
            current = part._buffers.get(name)
            if current is not None and value is not None and current.shape == value.shape:
                current.copy_(value)
            else:
                part._buffers[name] = None if value is None else value.clone()
        self.randomness.restore(states)


@torch.no_grad()
def copy_into(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """targets <- sources, in place; of sharded tensors this rank's part."""
    torch._foreach_copy_(parts(targets), parts(sources))


def rewound(
    parameters: Sequence[Tensor], weights: Sequence[Tensor] | None, kept: Sequence[Tensor] | None = None
) -> AbstractContextManager[None]:
    """Within the block the parameters hold ``weights`` (None: as they are); after it, what they held before.

    Args:
        kept: a copy of what they hold, where there is one already.
    """
    if weights is None:
        return NOTHING
    if kept is None:
        kept = copies(parameters)
    return _rewound(parameters, weights, kept)


@contextmanager
def _rewound(parameters: Sequence[Tensor], weights: Sequence[Tensor], kept: Sequence[Tensor]) -> Iterator[None]:
    try:
        copy_into(parameters, weights)
        torch.clear_autocast_cache()  # else half-precision copies of the other weights would serve this pass
        yield
    finally:
        with uninterrupted():
            copy_into(parameters, kept)
            torch.clear_autocast_cache()
