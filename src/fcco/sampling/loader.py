"""Loader: what every loader shares: the random stream, epochs, workers, full passes and the state mid-epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from fcco._support import checks
from fcco._support.parallel import gather_objects
from fcco.sampling.batch import Average, Batch
from fcco.sampling.blocks import rank_seed, share_of
from fcco.sampling.draws import exact_dtype, join
from fcco.sampling.source import Request, source_of


class Options(TypedDict, total=False):
    """What every loader takes besides its own arguments, by keyword.

    Args:
        seed: of the loader's own generator (each rank derives its own); 0 where not given.
        steps_per_epoch: batches an iteration yields; where not given, as many as draw about N examples in all.
        chunk: examples a batch of ``full_pass`` has at most (twice that where the blocks are examples); 1024.
        inputs: how many leading parts of a data set's items make up x; 1. Two or more: x is a tuple (modalities).
        num_workers: processes that fetch from a data set; 0. They change nothing in what is drawn.
        pin_memory: put batches into pinned memory, where there is an accelerator to pin for; False.
    """

    seed: int
    steps_per_epoch: int | None
    chunk: int
    inputs: int
    num_workers: int
    pin_memory: bool


class _Plan(NamedTuple):
    """A batch drawn but not fetched: its examples stand in ``batch.id``."""

    blocks: Tensor
    batch: Batch
    seed: int
    after: Tensor | None  # the generator's state once this was drawn


class Loader(ABC):
    """An iterable of ``(index, Batch)`` for ``solver.step(index, batch)``; abstract.

    An iteration is an epoch: ``len(loader)`` steps. Blocks and samples are drawn afresh each step from the loader's
    own generator, in this process and on the device of the data; workers only fetch, so their number changes
    nothing. Each rank draws its own blocks only (i mod world = rank), ``blocks_per_step`` counts those of all ranks.

    Subclasses write :meth:`_draw` and :meth:`_chunks`.

    Args:
        dataset: tensors (N, ...), a tuple of them (modalities), or a map-style data set that yields x or (x, ...).
        options: see :class:`Options`.
    """

    #: (m,) the example that each block is, for loaders whose blocks are examples.
    block_example: Tensor
    #: what the mean in g runs over, where a loader offers a choice
    average: Average | None = None

    def __init__(self, dataset: Any, options: Options) -> None:
        unknown = [name for name in options if name not in Options.__annotations__]
        if unknown:
            raise TypeError(f"{type(self).__name__} does not take {', '.join(unknown)}")
        self._pin = bool(options.get("pin_memory", False)) and torch.accelerator.is_available()
        self._source = source_of(
            dataset,
            inputs=options.get("inputs", 1),
            num_workers=options.get("num_workers", 0),
            pin_memory=self._pin,
        )
        self._options = options
        self.num_examples = self._source.size
        self.device = self._source.device

    def _start(self, num_blocks: int, blocks_per_step: int, samples_per_step: int) -> None:
        """Settle the sizes and the generator, once the subclass knows its blocks.

        Args:
            samples_per_step: K over all ranks, about.
        """
        self._share = share_of(num_blocks, blocks_per_step)
        self.num_blocks, self.blocks_per_step = num_blocks, blocks_per_step
        self._about = samples_per_step
        steps = self._options.get("steps_per_epoch")
        steps = max(1, self.num_examples // samples_per_step) if steps is None else steps
        self.steps_per_epoch = checks.positive_int("steps_per_epoch", steps)
        self.chunk = checks.positive_int("chunk", self._options.get("chunk", 1024))
        self._seed = rank_seed(self._options.get("seed", 0), self._share.rank)
        self._random = torch.Generator(self.device).manual_seed(self._seed).get_state()
        self._epoch = self._step = self._turn = 0
        self._resumed = False

    @abstractmethod
    def _draw(self, index: Tensor, generator: torch.Generator) -> Batch:
        """The samples for the blocks (B,), without x."""

    @abstractmethod
    def _chunks(self, blocks: Tensor, size: int) -> Iterator[tuple[Tensor, Batch]]:
        """A pass over all data for the blocks (owned,), without x; weights make rows add up to the mean."""

    # ------------------------------------------------------------------ iterating

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Batch]]:
        """A new epoch; right after ``load_state_dict`` the rest of the epoch that was saved."""
        self._turn += 1
        turn, self._step, self._resumed = self._turn, self._step if self._resumed else 0, False
        for plan, batch in self._fetched(self._plans(len(self) - self._step), keep=True):
            if turn != self._turn:
                raise RuntimeError("another iteration over this loader has begun")
            assert plan.after is not None
            self._step, self._random = self._step + 1, plan.after
            yield plan.blocks, batch
        self._step, self._epoch = 0, self._epoch + 1

    def full_pass(self, chunk: int | None = None) -> Iterator[tuple[Tensor, Batch]]:
        """One pass over all data for this rank's blocks, with weights that make rows SUM per block to the exact mean.

        A bound method as the solver wants it: ``fcco.Solver(..., full_pass=loader.full_pass)``. It draws nothing.

        Args:
            chunk: examples a batch has at most (twice that where blocks are examples); None: the loader's own.
        """
        size = self.chunk if chunk is None else checks.positive_int("chunk", chunk)
        pieces = enumerate(self._chunks(self._share.blocks(self.device), size))
        plans = (_Plan(index, batch, self._seed + number, None) for number, (index, batch) in pieces)
        return ((plan.blocks, batch) for plan, batch in self._fetched(plans, keep=False))

    def _plans(self, steps: int) -> Iterator[_Plan]:
        generator = torch.Generator(self.device)
        generator.set_state(self._random)
        for _ in range(steps):
            index = self._share.draw(generator)
            batch = self._draw(index, generator)
            seed = self._source.seed(generator)
            yield _Plan(index, batch, seed, generator.get_state())

    def _fetched(self, plans: Iterator[_Plan], *, keep: bool) -> Iterator[tuple[_Plan, Batch]]:
        ahead: deque[_Plan] = deque()  # drawn, but still with the workers

        def requests() -> Iterator[Request]:
            for plan in plans:
                ahead.append(plan)
                yield plan.seed, plan.batch.id

        for x in self._source.fetch(requests(), keep=keep):
            plan = ahead.popleft()
            batch = replace(plan.batch, x=x, average=self.average, num_blocks=self.num_blocks)
            if self._pin and self.device.type == "cpu":
                plan, batch = plan._replace(blocks=plan.blocks.pin_memory()), batch.pin_memory()
            yield plan, batch

    # ------------------------------------------------------------------ resuming

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, mid-epoch too: what the workers fetched ahead counts as not drawn.

        Under torch.distributed each rank must call this.
        """
        return {
            "kind": self._kind(),
            "epoch": self._epoch,
            "step": self._step,
            "random": gather_objects(self._random.clone()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state: the next iteration yields the rest of its epoch.

        On another number of ranks the draws are as good, but not the same.
        """
        missing = [name for name in ("kind", "epoch", "step", "random") if name not in state]
        if missing:
            raise ValueError(f"the state is not one of a loader: it lacks {', '.join(missing)}")
        if list(state["kind"]) != self._kind():
            raise ValueError(f"the state is of {list(state['kind'])}, this loader is {self._kind()}")
        rank, saved = self._share.rank, state["random"]
        if saved[0].shape != self._random.shape:
            raise ValueError(f"the state comes from another kind of device; this loader draws on {self.device}")
        if rank < len(saved):
            self._random = saved[rank].cpu().clone()
        else:
            fresh = self._seed + 1_000_033 * (state["epoch"] * self.steps_per_epoch + state["step"] + 1)
            self._random = torch.Generator(self.device).manual_seed(fresh % 2**63).get_state()
        self._epoch, self._step, self._resumed = state["epoch"], state["step"], True
        self._turn += 1  # an iteration under way ends here

    def _kind(self) -> list[Any]:
        return [type(self).__name__, self.num_examples, self.num_blocks, self.blocks_per_step, self.steps_per_epoch]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.num_examples} examples, {self.num_blocks} blocks, "
            f"{self.blocks_per_step} a step, step {self._step} of {self.steps_per_epoch})"
        )

    # ------------------------------------------------------------------ for subclasses

    def _ones(self, *shape: int) -> Tensor:
        return torch.ones(shape, dtype=exact_dtype(self.device), device=self.device)

    def _arange(self, size: int) -> Tensor:
        return torch.arange(size, device=self.device)

    def _labels_at(self, id: Tensor) -> Tensor | None:
        """What ``batch.y`` is for the examples (K,)."""
        return None

    def _cross(
        self, blocks: Tensor, samples: Tensor, size: int, weigh: Callable[[Tensor, Tensor], Tensor]
    ) -> Iterator[tuple[Tensor, Batch]]:
        """A full pass for blocks that are examples: chunks of blocks against chunks of samples.

        Args:
            weigh: how much samples (S,) count for blocks (B,): (B, S), rows of which add up to 1 over all samples.
        """
        for some in samples.split(size):
            for index in blocks.split(size):
                weight = weigh(index, some)
                present = (weight != 0).any(1)  # else a row of log g would be -inf
                index, weight = index[present], weight[present]
                if index.numel():
                    yield index, self._joined(index, some, weight)

    def _joined(self, index: Tensor, samples: Tensor, weight: Tensor) -> Batch:
        """The blocks' own examples and the samples (S,), each once, with weights (B, S) of the samples."""
        id, anchor, place = join(self.block_example[index], samples)
        spread = weight.new_zeros(index.shape[0], id.shape[0]).index_add_(1, place, weight)
        return Batch(None, id, self._labels_at(id), anchor, weight=spread)
