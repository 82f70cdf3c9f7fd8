"""Transaction: all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, final

from fcco._support.interrupts import uninterrupted


@final
class Transaction:
    """Within the block, what is done can be undone: where it fails before :meth:`commit`, every undo that was
    registered runs, the last one first, and nothing interrupts them.

    Example:
        >>> numbers = [1]
        >>> try:
        ...     with Transaction() as transaction:
        ...         numbers.append(2)
        ...         transaction.on_failure(numbers.pop)
        ...         raise ValueError
        ... except ValueError:
        ...     numbers
        [1]
    """

    def __init__(self) -> None:
        self._undo: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.committed = False

    def on_failure(self, undo: Callable[..., Any], *arguments: Any) -> None:
        """Register what puts something back."""
        self._undo.append((undo, arguments))

    def commit(self) -> None:
        """From now on nothing is undone: a Ctrl-C that was held back until here comes after the step."""
        self.committed = True

    def roll_back(self) -> None:
        """Undo everything now, without an error."""
        with uninterrupted(), ExitStack() as stack:  # where one of them fails, the others run all the same
            for undo, arguments in self._undo:
                stack.callback(undo, *arguments)
            self._undo = []
        self.committed = True

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not self.committed:
            self.roll_back()
