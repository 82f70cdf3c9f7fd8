"""EpochLoader: what loaders have in common, whoever draws: epochs, their resumption, full passes and pinned memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, TypedDict

import torch

from fcco._support import checks
from fcco.data._batch import Batch
from fcco.data._blocks import Blocks
from fcco.data._pass import Plan, fetched, full_pass


class LoaderOptions(TypedDict):
    """What every loader takes besides the sizes of a step.

    Attributes:
        seed: of the draws.
        steps_per_epoch: batches per iteration; None: the loader's own.
        num_workers: processes that fetch examples.
        pin_memory: as in torch's DataLoader.
    """

    seed: int
    steps_per_epoch: int | None
    num_workers: int
    pin_memory: bool


class EpochLoader(ABC):
    """An iterable of :class:`Batch` with epochs and a state; abstract.

    Args:
        structure: the blocks and their data.
        blocks: B1, over all ranks.
        samples: B2.
        draws: examples per step, over all ranks; says how long an epoch is where ``steps_per_epoch`` does not.
        seed: of the draws.
        pass_seed: of the data set's own randomness in a full pass.
        steps_per_epoch: batches per iteration; None: as many as draw about N examples in all.
        num_workers: processes that fetch from a data set.
        pin_memory: put batches into pinned memory, where there is an accelerator to pin for.
        dtype: of floating point x; None: as it is.
    """

    batch_size: int  # K, examples per batch of this rank
    #: what a state holds besides the kind of loader, the epoch and the step
    stream_fields: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        structure: Blocks,
        blocks: int,
        samples: int,
        *,
        draws: int,
        seed: int,
        pass_seed: int,
        steps_per_epoch: int | None,
        num_workers: int,
        pin_memory: bool,
        dtype: torch.dtype | None,
    ) -> None:
        self.structure = structure
        self.num_examples = structure.data.num_examples
        self.device = structure.device
        self.blocks = blocks
        self.samples = samples
        self.seed = seed
        self.dtype = dtype
        self.num_workers = num_workers
        if steps_per_epoch is None:
            steps_per_epoch = max(1, self.num_examples // draws)
        self.steps_per_epoch = checks.positive_int("steps_per_epoch", steps_per_epoch)
        self._pin = checks.flag("pin_memory", pin_memory) and torch.accelerator.is_available()
        self.reader = structure.data.source.reader(num_workers, pin_memory=self._pin)
        self._pass_seed = pass_seed
        self._origin = structure.data.origin()  # here: reading the data would stop a capture
        self._epoch = 0
        self._step = 0  # of the epoch
        self._turn = 0  # counts iterations, so that an old one knows that it is over
        self._resumed = False

    def __len__(self) -> int:
        return self.steps_per_epoch

    @abstractmethod
    def __iter__(self) -> Iterator[Batch]:
        """A new epoch; right after ``load_state_dict`` the rest of the epoch that was saved."""

    def full_pass(self, chunk: int = 1024) -> Iterator[Batch]:
        """One pass over all data for this rank's blocks, with weights that make rows SUM per block to the exact mean.

        Args:
            chunk: examples per batch, at most (twice that where blocks are examples).
        """
        batches = full_pass(self.structure, chunk, dtype=self.dtype, seed=self._pass_seed, reader=self.reader)
        return (self._pinned(batch) for batch in batches)

    def hand_out_pending(self) -> None:
        """From here on hand out batches that a captured step draws itself, where the loader can."""
        return None  # most draw on the host

    # ------------------------------------------------------------------ for subclasses

    def _begin_turn(self) -> int:
        """Start an iteration; its number says later whether another one has begun."""
        self._turn += 1
        if not self._resumed:
            self._step = 0
        self._resumed = False
        return self._turn

    def _check_turn(self, turn: int) -> None:
        # Two iterations would share one stream of draws, and a state could stand for neither.
        if turn != self._turn:
            raise RuntimeError("another iteration over this loader has begun")

    def _end_epoch(self) -> None:
        self._step = 0
        self._epoch += 1

    def _fetch(self, plan: Plan) -> Batch:
        """Return the batch of one plan with its x, fetched in this process."""
        _, batch = next(fetched(iter([plan]), self.reader, dtype=self.dtype, keep=False, origin=self._origin))
        return batch

    def _pinned(self, batch: Batch) -> Batch:
        if self._pin and self.device.type == "cpu":
            return batch.pin_memory()
        return batch

    # ------------------------------------------------------------------ resuming

    @abstractmethod
    def kind(self) -> dict[str, Any]:
        """What a saved state must be of."""

    @abstractmethod
    def _stream_state(self) -> dict[str, Any]:
        """Where the draws stand: the ``stream_fields``."""

    @abstractmethod
    def _load_stream(self, state: dict[str, Any]) -> None:
        """Go on with the draws from there."""

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, mid-epoch too: what workers fetched ahead counts as not handed out.

        Under torch.distributed each rank must call this.
        """
        return {"kind": self.kind(), "epoch": self._epoch, "step": self._step} | self._stream_state()

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Refuse a state that does not fit; an iteration under way is not disturbed."""
        missing = [name for name in ("kind", "epoch", "step", *self.stream_fields) if name not in state]
        if missing:
            raise ValueError(f"the state is not one of a {type(self).__name__}: it lacks {', '.join(missing)}")
        checks.same_kind("loader", state["kind"], self.kind())
        self._check_stream(state)

    def _check_stream(self, state: dict[str, Any]) -> None:
        """Refuse ``stream_fields`` that do not fit."""
        return None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state: the next iteration yields the rest of its epoch.

        On another number of ranks the draws are as good, but not the same.
        """
        self.check_state_dict(state)
        self._load_stream(state)
        self._epoch = state["epoch"]
        self._step = state["step"]
        self._resumed = True
        self._turn += 1  # an iteration under way ends here
