"""Batches that are made when somebody looks at them, or by a captured step: PendingBatch and PlannedBatch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from fcco.data._batch import Batch


class LazyBatch(ABC):
    """Stands for a :class:`Batch` that is not there yet: look at any part of it and it is made; abstract.

    Attributes:
        large: whether it is one of the loader's large batches; None: there are none.
    """

    large: bool | None

    @property
    @abstractmethod
    def is_drawn(self) -> bool:
        """Whether a random stream has gone past it, so that no captured step may draw it again."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self) -> Batch:
        """The batch itself."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle ask for methods that a batch does not have
            raise AttributeError(name)
        return getattr(self.batch(), name)


@final
class PendingBatch(LazyBatch):
    """Stands for a batch that is still to be drawn.

    A captured step draws the batch itself, as a part of its graph, and never makes this one.

    Args:
        draw: draws the batch from the given generator.
        generator: of the loader.
        size: K, how many examples it has.
        blocks: B1, how many blocks.
        large: whether it is one of the loader's large batches; None: there are none.
    """

    def __init__(
        self,
        draw: Callable[[torch.Generator], Batch],
        generator: torch.Generator,
        *,
        size: int,
        blocks: int,
        large: bool | None,
    ) -> None:
        self.draw = draw
        self.generator = generator
        self.blocks = blocks
        self.large = large
        self._size = size
        self._before: Tensor | None = None  # the generator's state from which a captured step drew it
        self._batch: Batch | None = None

    def __len__(self) -> int:
        return self._size

    @property
    def is_drawn(self) -> bool:
        return self._batch is not None or self._before is not None

    def mark_drawn(self, before: Tensor | None) -> None:
        """A captured step has drawn it, with the generator in the state ``before``; None: it has not, after all."""
        self._before = before

    def batch(self) -> Batch:
        if self._batch is None and self._before is not None:
            again = torch.Generator(self.generator.device)
            again.set_state(self._before)
            self._batch = self.draw(again)
        elif self._batch is None:
            self._batch = self.draw(self.generator)
        return self._batch

    def ensure_drawn(self) -> None:
        """Draw it, where nobody has: the stream goes on behind it."""
        if not self.is_drawn:
            self.batch()

    def __repr__(self) -> str:
        return f"PendingBatch({self._size} examples for {self.blocks} blocks)"


@final
class PlannedBatch(LazyBatch):
    """Stands for a batch whose examples are known and not fetched yet.

    Args:
        fetch: the batch of the examples (K,), drawn with these probabilities (K,).
        id: the examples.
        probability: of each.
    """

    large = None

    def __init__(self, fetch: Callable[[Tensor, Tensor], Batch], id: Tensor, probability: Tensor) -> None:
        self.fetch = fetch
        self.id = id
        self.probability = probability
        self._batch: Batch | None = None

    @property
    def is_drawn(self) -> bool:
        return False  # its examples are known: fetching them again gives the same

    def __len__(self) -> int:
        return int(self.id.shape[0])

    def batch(self) -> Batch:
        if self._batch is None:
            self._batch = self.fetch(self.id, self.probability)
        return self._batch

    def __repr__(self) -> str:
        return f"PlannedBatch({len(self)} examples)"


def as_batch(value: Any) -> Any:
    """A batch that is still to come as the batch that it stands for; anything else as it is."""
    if isinstance(value, LazyBatch):
        return value.batch()
    return value
