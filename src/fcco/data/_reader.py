"""Reader: what hands out x to a loader."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

Request = tuple[int, Tensor]  # a seed for the data set's own randomness, and the examples (K,)


class Reader(ABC):
    """Fetches examples for one loader, with that loader's workers."""

    @abstractmethod
    def fetch(self, requests: Iterable[Request], *, keep: bool) -> Iterator[Any]:
        """One x per request, in order; ``keep``: the workers may wait for the next call."""
