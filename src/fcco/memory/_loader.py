"""MemoryLoader: draws examples by their current importance, a fixed number of steps ahead."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import Tensor

from fcco._support import checks
from fcco.memory._diagnostics import MemoryDiagnosis, diagnose
from fcco.memory._draws import Drawn, Stratum
from fcco.memory._memory import Memory
from fcco.memory._phi import sent
from fcco.memory._step import fill
from fcco.objectives._average_precision import AnchoredObjective
from fcco.objectives._base import OutputObjective
from fcco.objectives._ndcg import working_dtype
from fcco.sampling.batch import Batch
from fcco.sampling.blocks import rank_seed
from fcco.sampling.groups import GroupedLoader
from fcco.sampling.loader import Loader
from fcco.sampling.points import PointLoader
from fcco.sampling.source import DatasetSource, Request

if TYPE_CHECKING:
    from fcco.solver._solver import Solver


class _Plan(NamedTuple):
    """Examples drawn, but not fetched."""

    drawn: Drawn
    seed: int


@final
class MemoryLoader:
    """An iterable of ``(index, Batch)`` for a solver with :func:`fcco.output_memory`; index is ``batch.id``.

    It takes the place of the loader that it is made from, and shares the table of outputs with the solver. Each step
    draws a fixed number of examples from every stratum, by the chances of the last refresh. Draws
    happen in this process, ``ahead`` steps before they are used whatever the number of workers, and belong to the
    state. With several ranks all draw the same, and each fetches its part. ``batch.probability`` (K,) is q of each
    example, ``batch.weight`` (K,) how often it was drawn, over B.

    Args:
        solver: with the method :func:`fcco.output_memory`.
        loader: the objective's own loader; gives the data, the structure and the sizes.
        draws: examples a step where the loader's blocks are not the examples of one class; None: its blocks and
            samples of each class with a PointLoader, else about as many as the loader's own steps have.
        ahead: steps between a draw and its use; at least twice the number of workers.
        seed: of the draws; None: the loader's.

    Example:
        >>> import fcco
        >>> from fcco.objectives._partial_auc import PartialAUC
        >>> from fcco.sampling import Average, PointLoader
        >>> labels = torch.tensor([1, 0, 0, 1, 0, 0, 0, 0])
        >>> objective = PartialAUC(torch.nn.Linear(4, 1), num_blocks=2)
        >>> optimizer = torch.optim.Adam(objective.parameters())
        >>> solver = fcco.Solver(objective, optimizer, fcco.output_memory())
        >>> loader = MemoryLoader(solver, PointLoader(torch.randn(8, 4), labels, 1, 3, average=Average.OPPOSITE))
        >>> for index, batch in loader:
        ...     report = solver.step(index, batch)
        >>> report.step
        2
    """

    def __init__(
        self, solver: Solver, loader: Loader, *, draws: int | None = None, ahead: int = 4, seed: int | None = None
    ) -> None:
        settings, objective = solver.method.memory, solver.objective
        if settings is None or not isinstance(objective, OutputObjective):
            raise TypeError(f"solver must use fcco.output_memory with an OutputObjective, got {solver!r}")
        if not isinstance(loader, Loader):
            raise TypeError(f"loader must be one of fcco.sampling, got {type(loader).__name__}")
        if draws is not None:
            checks.positive_int("draws", draws)
        if isinstance(loader, GroupedLoader):
            raise TypeError(f"output_memory has no form for the groups and bags of a {type(loader).__name__} yet")
        if objective.features:
            warnings.warn(
                "the output memory does not pay for features: contrastive losses end far lower with fcco.sox, since "
                "what is drawn flees from where the others were (docs/memory.md)",
                stacklevel=2,
            )
        if loader.num_blocks != objective.num_blocks:
            raise ValueError(f"loader has {loader.num_blocks} blocks, the objective {objective.num_blocks}")
        if isinstance(objective, AnchoredObjective):
            objective.check_average(loader.average)
        self.ahead = checks.whole("ahead", ahead)
        workers = loader._options.get("num_workers", 0) if isinstance(loader._source, DatasetSource) else 0
        if self.ahead < max(0, 2 * workers):
            raise ValueError(f"ahead must be at least {2 * workers} (twice the workers), got {ahead}")
        self.loader, self._settings, self._solver = loader, settings, solver
        like = torch.empty(0, dtype=working_dtype(objective), device=solver.parameters[0].device)
        if solver.memory is not None and solver.t > 0:
            raise RuntimeError("this solver has taken steps with a MemoryLoader already, whose table would be lost")
        strata = strata_of(loader, draws)
        few = sum(min(stratum.draws, stratum.members.shape[0]) for stratum in strata)
        if few < loader._share.world:
            raise ValueError(f"every rank must get an example a step, got {few} draws for {loader._share.world} ranks")
        self.memory = Memory(objective, loader, strata, settings, like)
        solver.memory = self.memory
        start = loader._options.get("seed", 0) if seed is None else seed
        self._generator = torch.Generator().manual_seed(rank_seed(start, 0))  # the same on every rank
        self._queue: deque[_Plan] = deque()
        self._epoch = self._step = self._turn = 0
        self._resumed = False

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[Tensor, Batch]]:
        """A new epoch; right after ``load_state_dict`` the rest of the epoch that was saved."""
        if self._solver.memory is not self.memory:
            raise RuntimeError("another MemoryLoader was made for this solver, and only that one draws for it")
        self._turn += 1
        turn, self._step, self._resumed = self._turn, self._step if self._resumed else 0, False
        asked: deque[_Plan] = deque()
        first = self._step

        def requests(steps: int) -> Iterator[Request]:
            for number in range(steps):
                plan = self._queue[number - (self._step - first)]
                asked.append(plan)
                yield plan.seed, self._mine(plan.drawn).id

        fetched: Iterator[Any] | None = None
        while self._step < len(self):
            if turn != self._turn:
                raise RuntimeError("another iteration over this loader has begun")
            while len(self._queue) <= self.ahead:
                self._queue.append(self._plan())
            if fetched is None:
                fetched = iter(self.loader._source.fetch(requests(len(self) - first), keep=True))
            x = next(fetched)
            plan = asked.popleft()
            batch = self._batch(self._mine(plan.drawn), x)
            self._queue.popleft()
            self._step += 1
            yield batch.id, batch
        self._step, self._epoch = 0, self._epoch + 1

    def score(self, chunk: int | None = None) -> None:
        """Fill the table by one pass of the network over all data, and charge it to the solver's samples."""
        fill(self._solver, self.memory, self.loader, self.loader.chunk if chunk is None else chunk)

    def diagnose(self) -> MemoryDiagnosis:
        """Age and staleness of the table, the spread of the draws, the share of capped pushes."""
        return diagnose(self.memory, self._solver.t)

    def _plan(self) -> _Plan:
        drawn = self._draw(self._settings.importance)
        while drawn.id.shape[0] < self.loader._share.world:  # merged: a rank would have nothing to do
            drawn = self._draw(0.0)
        drawn = Drawn(*(sent(tensor, self.loader.device) for tensor in drawn))
        return _Plan(drawn, self.loader._source.seed(self._generator))

    def _draw(self, importance: float) -> Drawn:
        parts = [chances.draw(importance, self._generator) for chances in self.memory.chances]
        return Drawn(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))

    def _mine(self, drawn: Drawn) -> Drawn:
        """This rank's part of a step: every rank draws all of it, and fetches each world-th example."""
        share = self.loader._share
        return Drawn(*(tensor[share.rank :: share.world] for tensor in drawn))

    def _batch(self, drawn: Drawn, x: Any) -> Batch:
        batch = Batch(x, drawn.id, self.loader._labels_at(drawn.id), weight=drawn.weight)
        return replace(batch, probability=drawn.probability)

    # ------------------------------------------------------------------ resuming

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands; the draws in flight are part of it."""
        return {
            "kind": self._kind(),
            "epoch": self._epoch,
            "step": self._step,
            "random": self._generator.get_state(),
            "sweeps": [(chances.sweep.seed, chances.sweep.at) for chances in self.memory.chances],
            "queue": [([tensor.clone() for tensor in plan.drawn], plan.seed) for plan in self._queue],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state: the next iteration yields the rest of its epoch."""
        missing = [name for name in ("kind", "epoch", "step", "random", "sweeps", "queue") if name not in state]
        if missing:
            raise ValueError(f"the state is not one of a MemoryLoader: it lacks {', '.join(missing)}")
        if list(state["kind"]) != self._kind():
            raise ValueError(f"the state is of {list(state['kind'])}, this loader is {self._kind()}")
        self._generator.set_state(state["random"].cpu())
        for chances, (round_seed, at) in zip(self.memory.chances, state["sweeps"], strict=True):
            chances.sweep.go_to(round_seed, at)
        device = self.loader.device
        self._queue = deque(_Plan(Drawn(*(t.to(device) for t in drawn)), seed) for drawn, seed in state["queue"])
        self._epoch, self._step, self._resumed = state["epoch"], state["step"], True
        self._turn += 1

    def _kind(self) -> list[Any]:
        strata = [[chances.members.shape[0], chances.draws] for chances in self.memory.chances]
        return [type(self.loader).__name__, self.loader.num_examples, len(self), self.ahead, strata]

    def __repr__(self) -> str:
        return f"MemoryLoader({self.loader!r}, {self.ahead} steps ahead)"


def strata_of(loader: Loader, draws: int | None) -> list[Stratum]:
    """The two classes where the loader knows them, else all examples together."""
    if isinstance(loader, PointLoader) and draws is None:
        return [
            Stratum(loader.block_example, loader.blocks_per_step),
            Stratum(loader._other, loader.samples_per_step),
        ]
    everyone = torch.arange(loader.num_examples, device=loader.device)
    if isinstance(loader, PointLoader):
        everyone = torch.cat([loader.block_example, loader._other]).sort().values
    return [Stratum(everyone, max(2, loader._about) if draws is None else draws)]
