"""MemoryLoader: draws examples by their current importance, a fixed number of steps ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor

from fcco._support import checks
from fcco._support.parallel import rank_and_world
from fcco.data import Batch, Blocks
from fcco.data._epochs import EpochLoader
from fcco.data._pass import Plan, fetched
from fcco.data._pending import PlannedBatch
from fcco.data._share import Share, rank_seed
from fcco.memory._sampler import ImportanceSampler
from fcco.memory._strata import Strata
from fcco.memory.forms._form import sent

if TYPE_CHECKING:
    from fcco.memory._keeper import TableKeeper  # which makes this loader

AHEAD = 4  # steps between a draw and its use; more than two workers need more


class _Drawn(NamedTuple):
    """Examples (K,) drawn for all ranks, but not fetched; q of each; a seed for the data set's own randomness."""

    id: Tensor
    probability: Tensor
    seed: int


class DrawPlan(NamedTuple):
    """The draws of some steps: what the batches of these steps hold besides x.

    Args:
        id: (n, K) the examples.
        probability: (n, K) q of each.
        weight: (n, K) 1/B of their strata.
        strata: how many of each step's are of each stratum; None: several ranks share them.
    """

    id: Tensor
    probability: Tensor
    weight: Tensor
    strata: tuple[int, ...] | None


@final
class MemoryLoader(EpochLoader):
    """An iterable of :class:`fcco.Batch` for a solver with :func:`fcco.output_memory`, made by ``solver.loader``.

    Each step draws a fixed number of examples from every stratum, by the probabilities of the last refresh: ``blocks``
    of the blocks' class and ``samples`` of the other where the data are Points with one label, else of all examples as
    many as a tracker's batch has. An example that is drawn twice is there twice, so every batch has the same K. Draws
    happen in this process, four steps before they are used (twice the number of workers, where that is more), and
    belong to the state. With several ranks all draw the same, and each fetches its part.

    ``batch.probability`` (K,) is q of each example, ``batch.weight`` (K,) is 1/B of its stratum.

    Args:
        memory: what keeps the table, whose strata and shares these are.
        structure: the blocks and their data.
        blocks: see above.
        samples: see above.
        seed: of the draws.
        steps_per_epoch: batches per iteration; None: as many as draw about N examples in all.
        num_workers: processes that fetch from a data set.
        pin_memory: put batches into pinned memory, where there is an accelerator to pin for.
        dtype: of floating point x; None: as it is.

    Attributes:
        batch_size: K, examples per batch of this rank.

    Example:
        >>> import fcco
        >>> data = fcco.data.Points(torch.randn(8, 4), torch.tensor([1, 0, 0, 1, 0, 0, 0, 0]))
        >>> objective = fcco.objectives.PartialAUC(torch.nn.Linear(4, 1), data)
        >>> optimizer = torch.optim.Adam(objective.parameters())
        >>> solver = fcco.Solver(objective, optimizer, fcco.output_memory())
        >>> for batch in solver.loader(blocks=1, samples=3):
        ...     report = solver.step(batch)
        >>> report.step, len(batch)
        (2, 4)
    """

    stream_fields: ClassVar[tuple[str, ...]] = ("random", "sweeps", "queue")

    def __init__(
        self,
        memory: TableKeeper,
        structure: Blocks,
        blocks: int,
        samples: int,
        *,
        seed: int = 0,
        steps_per_epoch: int | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        blocks = checks.positive_int("blocks", blocks)
        samples = checks.whole("samples", samples)
        self._memory = memory
        self._samplers = _samplers(memory.strata, structure, blocks, samples)
        self._rank, self._world = rank_and_world()
        draws = sum(sampler.draws for sampler in self._samplers)
        if draws < self._world:
            raise ValueError(f"every rank must get an example per step, got {draws} draws for {self._world} ranks")
        self.batch_size = len(range(self._rank, draws, self._world))
        super().__init__(
            structure,
            blocks,
            samples,
            draws=draws,
            seed=seed,
            pass_seed=seed,
            steps_per_epoch=steps_per_epoch,
            num_workers=num_workers,
            pin_memory=pin_memory,
            dtype=dtype,
        )
        inverse = [torch.full((sampler.draws,), 1.0 / sampler.draws).double() for sampler in self._samplers]
        self._weight = torch.cat(inverse).to(self.device)  # (K,) 1/B of each draw, over all ranks
        # On one rank; of several each has a part of every stratum, which is counted when all are gathered.
        self._strata_sizes: tuple[int, ...] | None = None
        if self._world == 1:
            self._strata_sizes = tuple(sampler.draws for sampler in self._samplers)
        self.ahead = max(AHEAD, 2 * num_workers)  # DataLoader asks for two batches per worker
        self._generator = torch.Generator().manual_seed(rank_seed(seed, 0))  # the same on every rank
        self._queue: deque[_Drawn] = deque()  # drawn, not handed out; the first is the next step's
        self._is_lazy = False
        self._planned = 0  # steps of the last plan that were not handed out
        self._lent = 0  # draws of the queue that a DataLoader was given

    def hand_out_pending(self) -> None:
        """From here on hand out batches that a captured step fetches itself, where x is indexed in place."""
        self._is_lazy = self.structure.data.source.in_place and self._world == 1

    def __iter__(self) -> Iterator[Batch]:
        if self._is_lazy:
            # Not typed: what stands for a batch has all of its attributes.
            planned: Iterator[Any] = self._planned_batches()
            return planned
        return self._fetched_batches()

    def _planned_batches(self) -> Iterator[PlannedBatch]:
        turn = self._begin_turn()
        while self._step < len(self):
            self._check_turn(turn)
            while len(self._queue) <= self.ahead:
                self._queue.append(self._draw())
            drawn = self._queue.popleft()
            self._planned = 0
            self._step += 1
            yield PlannedBatch(self._fetch_drawn, drawn.id, drawn.probability)
        self._end_epoch()

    def _fetch_drawn(self, id: Tensor, probability: Tensor) -> Batch:
        """The batch of some examples (K,) drawn with these probabilities (K,), with its x."""
        return self._fetch(Plan(self._unfetched(id, probability), 0))

    def _fetched_batches(self) -> Iterator[Batch]:
        turn = self._begin_turn()
        # Made after the first draws: workers ask at once for all that they may fetch ahead.
        batches: Iterator[tuple[Plan, Batch]] | None = None
        while self._step < len(self):
            self._check_turn(turn)
            while len(self._queue) <= self.ahead:
                self._queue.append(self._draw())
            if batches is None:
                batches = fetched(self._plans(), self.reader, dtype=self.dtype, keep=True, origin=self._origin)
            _, batch = next(batches)
            # Counted before it is handed out: a state saved during the step goes on after it.
            self._queue.popleft()
            self._planned = 0
            self._step += 1
            yield self._pinned(batch)
        self._end_epoch()

    def plan(self, most: int) -> DrawPlan:
        """The draws of the next steps, ``most`` of them at most, all at once: for steps that fetch their own x.

        They are those that iterating would hand out one by one. A plan ends with the epoch, and where the
        probabilities are renewed, since later draws depend on that. Nothing counts as handed out before
        :meth:`advance`, so a state saved in between goes on after the last step taken.

        Args:
            most: how many steps.
        """
        checks.positive_int("most", most)
        steps = min(most, len(self) - self._step, self._memory.steps_to_refresh())
        while len(self._queue) < steps + self.ahead:
            self._queue.append(self._draw())
        self._planned = steps
        drawn = [self._queue[number] for number in range(steps)]
        mine = slice(self._rank, None, self._world)
        return DrawPlan(
            id=torch.stack([part.id for part in drawn])[:, mine],
            probability=torch.stack([part.probability for part in drawn])[:, mine],
            weight=self._weight[mine].expand(steps, -1),
            strata=self._strata_sizes,
        )

    def advance(self, steps: int) -> None:
        """Count the first ``steps`` of a plan as handed out; an iteration under way ends.

        Args:
            steps: at most those left of the last plan.
        """
        checks.positive_int("steps", steps)
        if steps > self._planned:
            raise ValueError(f"steps must be at most those left of the last plan, {self._planned}, got {steps}")
        for _ in range(steps):
            self._queue.popleft()
        self._planned -= steps
        self._step += steps
        self._turn += 1
        self._resumed = True  # an iteration that begins now goes on from here
        if self._step == len(self):
            self._end_epoch()
            self._resumed = False

    # ------------------------------------------------------------------ for a DataLoader of one's own

    def id_batches(self) -> Iterator[list[int]]:
        """This rank's ids of an epoch's draws, as ``torch.utils.data.DataLoader(batch_sampler=)`` takes them.

        A DataLoader asks for some batches ahead of their use; they count as handed out once :meth:`claim` is told of
        them, so draws are the same however many workers there are (as long as they ask no further than ``ahead``).
        """
        turn = self._begin_turn()
        self._lent = 0
        for _ in range(self._step, len(self)):
            self._check_turn(turn)
            while len(self._queue) <= max(self.ahead, self._lent):
                self._queue.append(self._draw())
            drawn = self._queue[self._lent]
            self._lent += 1
            yield drawn.id[self._rank :: self._world].tolist()

    def claim(self, id: Tensor) -> Batch | None:
        """The batch of these ids (K,), without x, as it was drawn; None: :meth:`id_batches` gave none like it.

        Batches come back in the order in which they were given; those that were left out in between are forgotten.

        Args:
            id: positions (K,), on the CPU.
        """
        mine = slice(self._rank, None, self._world)
        # Workers that ran ahead to the end of the epoch ask no more, but the next epoch's first draws are due now.
        while len(self._queue) <= self.ahead:
            self._queue.append(self._draw())
        for place in range(self._lent):
            drawn = self._queue[place]
            if torch.equal(drawn.id[mine].cpu(), id):
                self._hand_out(place + 1)
                return self._unfetched(drawn.id[mine], drawn.probability[mine])
        return None

    def _hand_out(self, steps: int) -> None:
        """Count the first draws of the queue as handed out."""
        for _ in range(steps):
            self._queue.popleft()
        self._lent -= steps
        self._planned = 0
        self._step += steps
        if self._step >= len(self):
            self._end_epoch()

    def score(self, chunk: int = 1024) -> None:
        """Fill the table by one pass of the network over all data, and charge it to the solver's samples.

        Args:
            chunk: examples per batch.
        """
        self._memory.score(self.reader, checks.positive_int("chunk", chunk))

    def _plans(self) -> Iterator[Plan]:
        """The rest of the epoch for the reader, whose workers run ahead: as far as the queue reaches."""
        for number in range(self._step, len(self)):
            # Steps taken meanwhile have left the queue from its front.
            drawn = self._queue[number - self._step]
            mine = slice(self._rank, None, self._world)  # every rank draws all of it, and fetches each world-th
            yield Plan(self._unfetched(drawn.id[mine], drawn.probability[mine]), drawn.seed)

    def _unfetched(self, id: Tensor, probability: Tensor) -> Batch:
        """This rank's part of a draw, without x."""
        return Batch(
            None,
            id,
            y=self.structure.labels_at(id),
            weight=self._weight[self._rank :: self._world],
            probability=probability,
            strata=self._strata_sizes,
        )

    def _draw(self) -> _Drawn:
        importance = self._memory.settings.importance
        parts = []
        for sampler, share in zip(self._samplers, self._memory.state.shares, strict=True):
            parts.append(sampler.draw(share, importance, self._generator))
        id = torch.cat([part.id for part in parts])  # (K,), stratum by stratum, as the weights are
        probability = torch.cat([part.probability for part in parts])
        seed = self.structure.data.source.seed(self._generator)
        return _Drawn(sent(id, self.device), sent(probability, self.device), seed)

    # ------------------------------------------------------------------ resuming

    def _stream_state(self) -> dict[str, Any]:
        return {
            "random": self._generator.get_state(),
            "sweeps": [[sampler.sweep.seed, sampler.sweep.at] for sampler in self._samplers],
            "queue": self._saved_queue(),
        }

    def _saved_queue(self) -> dict[str, Any]:
        """The draws in flight: ids and q (Q, K), seeds (Q,)."""
        shape = (len(self._queue), self._weight.shape[0])  # (Q, K)
        ids = [drawn.id for drawn in self._queue]
        probabilities = [drawn.probability for drawn in self._queue]
        return {
            "id": torch.cat([self._weight.new_zeros(0, dtype=torch.int64), *ids]).reshape(shape),
            "probability": torch.cat([self._weight.new_zeros(0), *probabilities]).reshape(shape),
            "seed": [drawn.seed for drawn in self._queue],
        }

    def _load_stream(self, state: dict[str, Any]) -> None:
        self._generator.set_state(state["random"].cpu())
        for sampler, (round_seed, at) in zip(self._samplers, state["sweeps"], strict=True):
            # A round follows from its seed, so its order need not be saved.
            sampler.sweep.go_to(round_seed, at)
        queue = state["queue"]
        ids = queue["id"].to(self.device)
        probabilities = queue["probability"].to(self.device)
        self._planned = 0
        self._lent = 0
        self._queue = deque(_Drawn(*parts) for parts in zip(ids, probabilities, queue["seed"], strict=True))

    def kind(self) -> dict[str, Any]:
        return {
            "structure": type(self.structure).__name__,
            "examples": self.num_examples,
            "blocks": self.blocks,
            "samples": self.samples,
            "strata": self._memory.strata.sizes,
            "steps_per_epoch": self.steps_per_epoch,
        }

    def __repr__(self) -> str:
        return (
            f"MemoryLoader({type(self.structure).__name__}, {self.num_examples} examples, blocks={self.blocks}, "
            f"samples={self.samples}, step {self._step} of {self.steps_per_epoch})"
        )


def _samplers(strata: Strata, structure: Blocks, blocks: int, samples: int) -> list[ImportanceSampler]:
    """One per stratum: ``blocks`` of the first and ``samples`` of the second, or all from the only one."""
    if len(strata) == 1:
        if samples < structure.least_samples:
            raise ValueError(f"samples must be at least {structure.least_samples}, got {samples}")
        # As many examples as a tracker's loader has: another method is one changed word, at the same cost.
        alone = Share(structure.num_blocks, rank=0, world=1, size=min(blocks, structure.num_blocks))
        return [ImportanceSampler(strata.on_cpu[0], structure.batch_size_of(alone, samples))]
    checks.positive_int("samples", samples)
    samplers = []
    for members, asked in zip(strata.on_cpu, (blocks, samples), strict=True):
        samplers.append(ImportanceSampler(members, min(asked, members.shape[0])))  # trackers cut there too
    return samplers
