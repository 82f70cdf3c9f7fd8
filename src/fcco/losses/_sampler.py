"""Batch samplers for a DataLoader of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, final

import torch
from torch import Tensor
from torch.utils.data import Sampler

from fcco._support import checks
from fcco._support.parallel import rank_and_world
from fcco.data import Bags, Batch, Blocks, Groups, Queries
from fcco.data._draws import Lists
from fcco.data._share import Share, rank_seed
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


@final
class UniformBatches(Sampler[list[int]]):
    """Uniform draws within every class (query, group, bag), as a loss without a memory takes its batches to be.

    Made by ``loss.sampler(...)``. An epoch's batches follow from the seed and the number of the epoch; those that the
    loss has seen are counted, so that a state goes on after them whatever workers had fetched ahead.

    Args:
        blocks: of the objective.
        number: how many blocks a batch has, over all ranks.
        samples: as ``solver.loader`` counts them; for queries, groups and bags, how many items each has at most.
        seed: of the draws.
        steps_per_epoch: batches per epoch; None: as many as draw about N examples.
    """

    def __init__(self, blocks: Blocks, number: int, samples: int, seed: int, steps_per_epoch: int | None) -> None:
        checks.positive_int("blocks", number)
        checks.positive_int("samples", samples)
        self._seed = checks.whole("seed", seed)
        self._draws = _draws_of(blocks, number, samples)
        if steps_per_epoch is None:
            steps_per_epoch = max(1, blocks.data.num_examples // self._draws.size)
        self._steps = checks.positive_int("steps_per_epoch", steps_per_epoch)
        self._kind = {
            "examples": blocks.data.num_examples,
            "blocks": number,
            "samples": samples,
            "steps_per_epoch": self._steps,
        }
        self._rank, self._world = rank_and_world()
        self._epoch = 0  # of the batches in the plan; 0: before the first
        self._step = 0  # batches of it that the loss has seen
        self._given = 0  # batches of it that a DataLoader was given
        self._is_resumed = False
        self._plan: list[Tensor] = []

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[int]]:
        if not self._is_resumed:
            self._epoch += 1
            self._step = 0
        self._is_resumed = False
        self._plan = self._planned()
        self._given = self._step
        for id in self._plan[self._step :]:
            self._given += 1
            yield id.tolist()

    def _planned(self) -> list[Tensor]:
        """This rank's part of the epoch's batches."""
        generator = torch.Generator().manual_seed(rank_seed(self._seed, self._epoch))
        whole = self._draws.plan(self._steps, generator)
        return [id[self._rank :: self._world] for id in whole]

    def claim(self, id: Tensor) -> None:
        """Count the batch of these ids (K,) as seen, with those before it; other ids are somebody else's."""
        for place in range(self._step, self._given):
            if torch.equal(self._plan[place], id):
                self._step = place + 1
                return

    def state_dict(self) -> dict[str, Any]:
        """Where the draws stand: batches that the loss has not seen count as not handed out."""
        return {"kind": self._kind, "seed": self._seed, "epoch": self._epoch, "step": self._step}

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Refuse the state of batches of other sizes, whose places in an epoch mean something else."""
        missing = [name for name in ("seed", "epoch", "step") if name not in state]
        if missing:
            raise ValueError(f"the state is not one of a loss's sampler: it lacks {', '.join(missing)}")
        checks.same_kind("sampler", state.get("kind"), self._kind)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there: the next iteration yields the rest of its epoch, or a new one where nothing is left."""
        self.check_state_dict(state)
        self._seed = state["seed"]
        self._epoch = state["epoch"]
        self._step = state["step"]
        self._given = self._step
        self._is_resumed = self._epoch > 0 and self._step < self._steps


class _Draws(Protocol):
    """How the batches of an epoch are drawn."""

    @property
    def size(self) -> int:
        """Examples per batch, about."""

    def plan(self, steps: int, generator: torch.Generator) -> list[Tensor]:
        """The ids (K,) of every batch."""


def _draws_of(blocks: Blocks, number: int, samples: int) -> _Draws:
    data = blocks.data
    if isinstance(data, Queries):
        return _ListDraws(data.query, blocks.alive(), number, samples)
    if isinstance(data, Groups):
        return _ListDraws(data.group, blocks.alive(), number, samples)
    if isinstance(data, Bags):
        return _ListDraws(data.bag, blocks.alive(), number, samples)
    strata = [ids.cpu() for ids in blocks.strata()]
    if len(strata) == 2:
        return _ClassDraws(strata, (number, samples))
    # As many examples as a batch of solver.loader has.
    alone = Share(blocks.num_blocks, rank=0, world=1, size=min(number, blocks.num_blocks))
    return _ClassDraws(strata, (blocks.batch_size_of(alone, samples),))


@final
class _ClassDraws:
    """A fixed number of each class, in sweeps over it: none twice in a batch."""

    def __init__(self, members: list[Tensor], numbers: tuple[int, ...]) -> None:
        self._members = members
        self._numbers = [min(number, ids.shape[0]) for number, ids in zip(numbers, members, strict=True)]

    @property
    def size(self) -> int:
        return sum(self._numbers)

    def plan(self, steps: int, generator: torch.Generator) -> list[Tensor]:
        parts = []
        for ids, number in zip(self._members, self._numbers, strict=True):
            parts.append([ids[place] for place in _sweeps(ids.shape[0], number, steps, generator)])
        return [torch.cat(part) for part in zip(*parts, strict=True)]


@final
class _ListDraws:
    """Some lists (queries, groups, bags) in sweeps over all, and of each of them some items."""

    def __init__(self, member: Tensor, alive: Tensor, number: int, samples: int) -> None:
        numbers = member.masked_fill(~alive, -1).cpu()
        lists = Lists.by_label(numbers, int(numbers.max()) + 1)
        self._items = [ids for ids in lists.flat.split(lists.count.tolist()) if ids.numel()]
        self._number = min(number, len(self._items))
        self._samples = samples

    @property
    def size(self) -> int:
        mean = sum(min(self._samples, len(ids)) for ids in self._items) / len(self._items)
        return max(1, round(self._number * mean))

    def plan(self, steps: int, generator: torch.Generator) -> list[Tensor]:
        batches = []
        for places in _sweeps(len(self._items), self._number, steps, generator):
            chosen = [self._items[place] for place in places.tolist()]
            few = [ids[torch.randperm(len(ids), generator=generator)[: self._samples]] for ids in chosen]
            batches.append(torch.cat(few))
        return batches


def _sweeps(n: int, number: int, steps: int, generator: torch.Generator) -> Iterator[Tensor]:
    """``number`` of n places per step, in random order; those left over at the end of a round are left out."""
    order = torch.randperm(n, generator=generator)
    at = 0
    for _ in range(steps):
        if at + number > n:
            order = torch.randperm(n, generator=generator)
            at = 0
        yield order[at : at + number]
        at += number
