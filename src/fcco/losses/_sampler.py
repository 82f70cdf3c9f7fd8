"""Batch samplers for a DataLoader of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, final

from torch import Tensor
from torch.utils.data import Sampler

from fcco.data import Batch
from fcco.memory import MemoryLoader


@final
class ImportanceBatches(Sampler[list[int]]):
    """Draws by importance for ``DataLoader(Indexed(dataset), batch_sampler=...)``; made by ``loss.sampler(...)``.

    Draws are made a few batches ahead of their use and remembered with their probabilities, in order: workers may
    fetch ahead, and an example that is in several batches in flight has the probability of each. The loss finds its
    batch again by its ids, so batches must reach it whole and in order.

    Args:
        loader: what draws.
        before_draw: renews the probabilities where that is due.
    """

    def __init__(self, loader: MemoryLoader, before_draw: Callable[[], None]) -> None:
        self._loader = loader
        self._before_draw = before_draw

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[int]]:
        batches = self._loader.id_batches()
        while True:
            self._before_draw()
            ids = next(batches, None)
            if ids is None:
                return
            yield ids

    @property
    def batch_size(self) -> int:
        """K, examples per batch of this rank."""
        return self._loader.batch_size

    def claim(self, id: Tensor) -> Batch | None:
        """The batch of these ids (K,) as it was drawn, which is then used up; None: it is not one of these."""
        return self._loader.claim(id)

    def state_dict(self) -> dict[str, Any]:
        """Where the draws stand: batches that the loss has not seen count as not handed out."""
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there: the next iteration yields the rest of its epoch."""
        self._loader.load_state_dict(state)
