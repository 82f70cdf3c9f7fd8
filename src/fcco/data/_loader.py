"""Loader: the random stream, epochs, workers, full passes and the state mid-epoch, for blocks of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, final

import torch

from fcco._support import checks
from fcco._support.parallel import gather_objects
from fcco.data._batch import Batch
from fcco.data._blocks import Blocks
from fcco.data._epochs import EpochLoader
from fcco.data._pass import Plan, fetched
from fcco.data._pending import PendingBatch
from fcco.data._share import Share, rank_seed, share_of


@final
class Loader(EpochLoader):
    """An iterable of :class:`Batch` for ``solver.step(batch)``.

    An iteration is an epoch: ``len(loader)`` steps. Blocks and samples are drawn afresh each step from the loader's
    own generator, in this process and on the device of the data; workers only fetch, so their number changes
    nothing. Each rank draws only its own blocks (i mod world = rank).

    Args:
        structure: the blocks and their data, as an objective makes them (``objective.loader(...)`` gives a loader).
        blocks: B1, over all ranks.
        samples: B2; the table in :mod:`fcco.data` says of what.
        seed: of the loader's own generator (each rank derives its own).
        steps_per_epoch: batches per iteration; None: as many as draw about N examples in all.
        num_workers: processes that fetch from a data set.
        pin_memory: put batches into pinned memory, where there is an accelerator to pin for.
        dtype: of floating point x; None: as it is.
        large: (period, factor): batches 1, 1 + period, ... have ``factor`` times the blocks and samples, as far as
            there are that many (BSpiderBoost); None: all have the same size.

    Attributes:
        batch_size: K, examples per batch of this rank (of the ordinary ones).
        large_batch_size: K of the large ones; None: there are none.

    Example:
        >>> from fcco.data import PointBlocks, Points
        >>> data = Points(torch.randn(6, 4), [1, 0, 0, 1, 0, 1])
        >>> loader = Loader(PointBlocks(data, include_own_class=False), blocks=2, samples=2, seed=0)
        >>> batch = next(iter(loader))
        >>> batch.index.shape, batch.y, batch.weight
        (torch.Size([2]), tensor([1., 1., 0., 0.]), tensor([0.0000, 0.0000, 0.5000, 0.5000], dtype=torch.float64))
    """

    stream_fields: ClassVar[tuple[str, ...]] = ("batches", "random")

    def __init__(
        self,
        structure: Blocks,
        blocks: int,
        samples: int,
        *,
        seed: int = 0,
        steps_per_epoch: int | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        dtype: torch.dtype | None = None,
        large: tuple[int, int] | None = None,
    ) -> None:
        if not isinstance(structure, Blocks):
            raise TypeError(f"structure must be the blocks of an objective, got {type(structure).__name__}")
        blocks = checks.positive_int("blocks", blocks)
        samples = checks.whole("samples", samples)
        self.num_blocks = structure.num_blocks
        self.large = _checked_large(large)
        self.share = share_of(self.num_blocks, blocks)
        structure.check(self.share, samples)
        self.batch_size = structure.batch_size_of(self.share, samples)
        self._seed = rank_seed(seed, self.share.rank)
        super().__init__(
            structure,
            blocks,
            samples,
            draws=self.batch_size * self.share.world,
            seed=seed,
            pass_seed=self._seed,
            steps_per_epoch=steps_per_epoch,
            num_workers=num_workers,
            pin_memory=pin_memory,
            dtype=dtype,
        )
        self.large_batch_size: int | None = None
        if self.large is not None:
            self.large_batch_size = structure.batch_size_of(*self._sizes(0))
        # What follows from the sizes alone is made here: every draw is then the same sequence of operations.
        trial = torch.Generator(self.device).manual_seed(0)
        structure.draw(self.share.draw(trial), samples, self.share, trial)
        self._random = torch.Generator(self.device).manual_seed(self._seed).get_state()
        self._batches = 0  # handed out in all: says which are large
        self._generator = torch.Generator(self.device)  # of batches that are drawn later
        self._is_lazy = False
        self._pending: PendingBatch | None = None  # handed out, maybe not drawn yet

    def hand_out_pending(self) -> None:
        """From here on hand out batches that are drawn when they are looked at: a captured step draws its own.

        The draws are the same. Of a data set that is fetched item by item batches come drawn, as before.
        """
        self._is_lazy = self.structure.data.source.in_place

    def __iter__(self) -> Iterator[Batch]:
        # An iteration begins with its first batch, not before: trainers make iterators that they never use.
        turn = self._begin_turn()
        self._finish_pending()
        batches: Iterator[Any] = self._drawn_batches(turn)
        if self._is_lazy:
            batches = self._pending_batches(turn)
        yield from batches

    def _drawn_batches(self, turn: int) -> Iterator[Batch]:
        plans = self._plans(len(self) - self._step)
        for plan, batch in fetched(plans, self.reader, dtype=self.dtype, keep=True, origin=self._origin):
            self._check_turn(turn)
            assert plan.after is not None
            # Counted before it is handed out: a state saved during the step goes on after it.
            self._step += 1
            self._batches += 1
            self._random = plan.after
            yield self._pinned(batch)
        self._end_epoch()

    def _pending_batches(self, turn: int) -> Iterator[PendingBatch]:
        self._generator.set_state(self._random)
        for _ in range(len(self) - self._step):
            self._check_turn(turn)
            share, samples = self._sizes(self._batches)
            self._pending = PendingBatch(
                partial(self._drawn, self._batches),
                self._generator,
                size=self.structure.batch_size_of(share, samples),
                blocks=share.size,
                large=self._is_large(self._batches),
            )
            self._step += 1
            self._batches += 1
            yield self._pending
            self._finish_pending()
        self._end_epoch()

    def _finish_pending(self) -> None:
        """A batch that was handed out counts as drawn, whoever looked at it."""
        if self._pending is None:
            return
        self._pending.ensure_drawn()
        self._random = self._generator.get_state()
        self._pending = None

    def _drawn(self, number: int, generator: torch.Generator) -> Batch:
        """Batch ``number``, counted from 0, with its x."""
        return self._fetch(self._plan(number, generator))

    def _plans(self, steps: int) -> Iterator[Plan]:
        generator = torch.Generator(self.device)
        generator.set_state(self._random)
        first = self._batches  # plans run ahead of what is handed out, so they count by themselves
        for number in range(first, first + steps):
            plan = self._plan(number, generator)
            yield replace(plan, after=generator.get_state())

    def _plan(self, number: int, generator: torch.Generator) -> Plan:
        share, samples = self._sizes(number)
        index = share.draw(generator)
        batch = self.structure.draw(index, samples, share, generator)
        if self.large is not None:
            batch = replace(batch, large=self._is_large(number))
        return Plan(batch, self.structure.data.source.seed(generator))

    def _is_large(self, number: int) -> bool | None:
        if self.large is None:
            return None
        return number % self.large[0] == 0

    def _sizes(self, number: int) -> tuple[Share, int]:
        """The blocks and samples of a batch, counted from 0."""
        if self.large is None or number % self.large[0]:
            return self.share, self.samples
        factor = self.large[1]
        most = self.num_blocks // self.share.world  # what every rank has
        return replace(self.share, size=min(factor * self.share.size, most)), factor * self.samples

    # ------------------------------------------------------------------ resuming

    def _stream_state(self) -> dict[str, Any]:
        self._finish_pending()
        return {"batches": self._batches, "random": gather_objects(self._random.clone())}

    def _check_stream(self, state: dict[str, Any]) -> None:
        if state["random"][0].shape != self._random.shape:
            raise ValueError(f"the state comes from another kind of device; this loader draws on {self.device}")

    def _load_stream(self, state: dict[str, Any]) -> None:
        rank = self.share.rank
        saved = state["random"]
        if rank < len(saved):
            self._random = saved[rank].cpu().clone()
        else:
            # A rank that was not there before: a stream of its own that no earlier step of this run has used.
            fresh = self._seed + 1_000_033 * (state["epoch"] * self.steps_per_epoch + state["step"] + 1)
            self._random = torch.Generator(self.device).manual_seed(fresh % 2**63).get_state()
        self._batches = state["batches"]
        self._pending = None

    def kind(self) -> dict[str, Any]:
        return {
            "structure": type(self.structure).__name__,
            "examples": self.num_examples,
            "num_blocks": self.num_blocks,
            "blocks": self.blocks,
            "samples": self.samples,
            "steps_per_epoch": self.steps_per_epoch,
            "large": None if self.large is None else list(self.large),
        }

    def __repr__(self) -> str:
        return (
            f"Loader({type(self.structure).__name__}, {self.num_examples} examples, blocks={self.blocks} of "
            f"{self.num_blocks}, samples={self.samples}, step {self._step} of {self.steps_per_epoch})"
        )


def _checked_large(large: Any) -> tuple[int, int] | None:
    if large is None:
        return None
    if not isinstance(large, tuple) or len(large) != 2:
        raise TypeError(f"large must be (period, factor) or None, got {large!r}")
    return checks.positive_int("the period of large", large[0]), checks.positive_int("the factor of large", large[1])
