"""How many tensor operations a step runs, and whose they are: counts that the load of the machine does not touch."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

WARM_UP = 3  # steps before the one that is counted: optimizers and tables make their state in the first
PACKAGE = "fcco."
OUTSIDE = "elsewhere"  # no function of fcco has called: a plain loop's own


class Counting(TorchDispatchMode):
    """Counts every operation that torch dispatches, those of the backward pass included, by the caller in fcco."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found[_caller()] += 1
        return func(*args, **(kwargs or {}))


def _caller() -> str:
    """The innermost function of fcco on the stack, as module:function."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(PACKAGE) and module != __name__:
            return f"{module.removeprefix(PACKAGE)}:{frame.f_code.co_name}"
        frame = frame.f_back
    return OUTSIDE


def operations_by_caller(step: Callable[[], object]) -> Counter[str]:
    """The operations of one step, after a few that are not counted, by the function of fcco that runs them."""
    for _ in range(WARM_UP):
        step()
    counting = Counting()
    with counting:
        step()
    return counting.found


def operations(step: Callable[[], object]) -> int:
    """The operations of one step, after a few that are not counted."""
    return operations_by_caller(step).total()
