"""Loss: an objective as a plain module for one's own loop, with u in its state_dict."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from fcco._support import checks
from fcco._support.digests import digest
from fcco._support.parallel import gather_outputs
from fcco.data import Batch
from fcco.data._convert import numbers_or_objects
from fcco.data._draws import exact_dtype
from fcco.losses._labels import KnownLabels
from fcco.losses._memory import LossMemory
from fcco.losses._sampler import ImportanceBatches, UniformBatches
from fcco.methods import OutputMemory, soap
from fcco.methods._box import Box, Drawn, Point, Probe, WeighAt
from fcco.methods.estimators import Plain
from fcco.methods.schedules import Schedule
from fcco.methods.trackers import with_derivative
from fcco.objectives import OutputObjective

_OF = "of"  # in a state_dict: what it is of
_MEMORY = "memory."  # how the memory's part of a state_dict begins


class Loss(nn.Module):
    r"""A loss that tracks its inner means across calls; abstract.

    ``loss(scores, y, id).backward()`` leaves :math:`\frac1B \sum_i f_i'(u_i) \nabla g_i` in the gradients, what
    :class:`fcco.Solver` with ``fcco.soap(beta=beta)`` computes on the same batch, step for step. The value is
    :math:`\frac1B \sum_i f_i(u_i)`. The blocks i are those of the batch (every positive with a negative to compare it
    with, and so on). Those present of a class (query, group, risk set) are treated as a uniform draw from it. A batch
    without a block gives zero, with a graph.

    u moves only in training mode, and only where it stays finite. After ``loss.eval()``, calls give just the value.
    Some losses train variables of their own: pass ``[*model.parameters(), *loss.parameters()]`` to the optimizer.

    Under torch.distributed, every rank gathers the scores and ids of all ranks, so the loss and u are the same
    everywhere, and gradients averaged over ranks (DDP does so) are those of one rank with the whole batch. In eval mode
    a rank uses only its own batch.

    With ``memory`` the loss keeps the last output of every example in place of u, takes exact weights from that table,
    and draws batches by them (:meth:`sampler`). These are the steps of ``fcco.Solver(..., fcco.output_memory())``, and
    the value is F at the table.

    Args:
        objective: an objective over data without inputs, whose model returns what it is given.
        y: the labels to compare with, as the user gave them. None: no comparison.
        beta: the weight of a fresh estimate in u, in (0, 1]; a number or a function of the call 1, 2, ... A memory has
            no u and ignores it.
        memory: True, or settings of the output memory.

    Attributes:
        objective: the objective behind the loss.
        u: (m, dim) the tracked means, or their logarithms if the objective tracks these; None with a memory.
        visited: (m,) bool, which blocks have a u; None with a memory.
        steps: () int64, the number of calls that moved u or wrote into the table.
    """

    u: Tensor
    visited: Tensor
    steps: Tensor

    def __init__(
        self, objective: OutputObjective, y: Any, *, beta: Schedule, memory: bool | OutputMemory = False
    ) -> None:
        super().__init__()
        self.objective = objective
        self._memory = _memory_of(objective, memory)
        self._batches: UniformBatches | None = None  # the last sampler that was made
        self._method = soap(beta=beta)
        self._labels: KnownLabels | None = None
        if y is not None:
            self._labels = KnownLabels(type(self).__name__, objective.data, y)
        device = objective.data.device
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device=device))
        self.register_buffer("u", None)
        self.register_buffer("visited", None)
        if self._memory is None:
            # In double precision whatever the scores: exponents of hundreds need its digits.
            self.u = torch.zeros(objective.num_blocks, objective.dim, dtype=exact_dtype(device), device=device)
            self.visited = torch.zeros(objective.num_blocks, dtype=torch.bool, device=device)
        self._steps = 0  # the same on the host: schedules ask for it, and a device would have to wait
        self.register_load_state_dict_post_hook(_read_steps)  # type: ignore[no-untyped-call]

    def forward(self, scores: Any, y: Any = None, id: Any = None) -> Tensor:
        """Compute the loss of a batch.

        Args:
            scores: (K, ...) the network's outputs, with their graph.
            y: (K, ...) the labels, compared with those that the loss was made with. None: no comparison.
            id: (K,) integers, the positions of the examples in the training data, preferably on the CPU.

        Returns:
            ().
        """
        outputs = self._outputs(scores)
        rows = self._checked_ids(id, outputs)
        if self._labels is not None:
            self._labels.check(y, rows)
        # Half precision has done its work in the network: differences of scores need more digits.
        with torch.autocast(outputs.device.type, enabled=False):
            if self._memory is None:
                value = self._value(outputs, rows)
            else:
                value = self._memory.value(outputs, rows, self.training)
                self._count()
        return value.to(torch.promote_types(outputs.dtype, torch.float32))

    def _value(self, outputs: Tensor, id: Tensor) -> Tensor:
        """() from the outputs (K, ...) of the examples (K,), which are on the CPU."""
        if self.training and self._batches is not None:
            self._batches.claim(id)
        if self.training:
            outputs, id = gather_outputs(outputs, id)
        batch = self._completed(id, outputs.device)
        index = batch.index
        assert index is not None
        if not index.numel():
            return self._nothing(outputs)
        g = self.objective.values(index, outputs, batch).to(self.u.dtype)  # (B, dim)
        u = self._tracked(index, g.detach())
        f = self.objective.outer(index, with_derivative(u, g, self._log_domain()))  # (B,)
        return f.mean()

    def _completed(self, id: Tensor, device: torch.device) -> Batch:
        """The blocks of the examples (K,), and how much each example counts for them."""
        data = self.objective.data
        rows = id.to(data.device)
        bare = Batch(None, rows, y=data.labels_at(rows))
        return self.objective.blocks.complete(bare, all_ranks=True).to(device, non_blocking=True)

    @torch.no_grad()
    def _tracked(self, index: Tensor, g: Tensor) -> Tensor:
        """u_t (B, dim) of the blocks (B,) from the fresh g (B, dim); in training mode it takes the place of u_{t-1}."""
        before = self.u[index]  # (B, dim)
        visited = self.visited[index]  # (B,)
        ratio = self.objective.num_blocks / index.shape[0]
        c = self._method.tracker.coefficients(self._steps + 1, ratio, before)
        drawn = Drawn(
            u=before,
            earlier=lambda: before,
            new=~visited.unsqueeze(1),
            log_domain=self._log_domain(),
            project=self.objective.project,
        )

        def probe(point: Point, weigh_at: WeighAt, weight: Any) -> Probe:
            return Probe(g, u=weigh_at(g, None))

        u = Box(self._method, c, drawn).run(Plain().weights(self._steps + 1), probe).u
        if self.training:
            # Half precision overflows now and then, and GradScaler skips that step: u must not keep it.
            finite = torch.isfinite(u).all(1)  # (B,)
            self.u.index_copy_(0, index, torch.where(finite.unsqueeze(1), u, before))
            self.visited.index_copy_(0, index, visited | finite)
        self._count()
        return u

    def _count(self) -> None:
        if self.training:
            self.steps += 1
            self._steps += 1

    def _log_domain(self) -> Tensor | bool | None:
        """Which components hold logarithms, as the trackers take it."""
        marks = self.objective.log_domain
        if all(marks):
            return True
        if not any(marks):
            return None
        return torch.tensor(marks, device=self.u.device)

    def _nothing(self, outputs: Tensor) -> Tensor:
        """0 with a graph to everything, for a batch without a block."""
        total = outputs.reshape(-1)[:0].sum()
        for p in self.objective.parameters():
            total = total + p.reshape(-1)[:0].sum().to(total.dtype)
        return total

    # ------------------------------------------------------------------ batches

    def sampler(
        self, blocks: int, samples: int, *, seed: int = 0, steps_per_epoch: int | None = None
    ) -> ImportanceBatches | UniformBatches:
        """Make a batch sampler for the loss: ``DataLoader(Indexed(dataset), batch_sampler=loss.sampler(16, 64))``.

        It draws uniformly within every class, or by importance with ``memory``. Batches must reach the loss whole.

        Args:
            blocks: the number of examples of the blocks' class in a batch, over all ranks (positives, except for
                PNormPush), or the number of queries, groups or bags.
            samples: the number of the other class, or of items of each query, group or bag. Otherwise (several labels,
                risk sets, features; the memory over queries) a batch has as many examples as one of
                ``solver.loader(blocks, samples)``.
            seed: of the draws.
            steps_per_epoch: batches per epoch; None: as many as draw about N examples.
        """
        if self._memory is not None:
            return self._memory.sampler(blocks, samples, seed, steps_per_epoch)
        self._batches = UniformBatches(self.objective.blocks, blocks, samples, seed, steps_per_epoch)
        return self._batches

    # ------------------------------------------------------------------ what is handed over

    def _outputs(self, scores: Any) -> Tensor:
        outputs = self.objective.outputs(scores)
        if outputs.is_complex():
            raise TypeError(f"scores must be real numbers, got {outputs.dtype}")
        if outputs.dim() == 0:
            raise ValueError(f"scores must have one row per example, shape (K, ...), got {tuple(outputs.shape)}")
        if outputs.device != self.steps.device:
            where = str(outputs.device)
            raise ValueError(f"scores are on {where} and the loss is on {self.steps.device}: call loss.to({where!r})")
        return outputs

    def _checked_ids(self, id: Any, outputs: Tensor) -> Tensor:
        """(K,) int64 on the CPU, positions in the data."""
        name = type(self).__name__
        if id is None:
            raise TypeError(
                f"id must be given to {name}, the position of each example in the training data: loss(scores, y, id); "
                "fcco.data.Indexed(dataset) yields it"
            )
        given = numbers_or_objects("id", id)
        whole = isinstance(given, Tensor) and not (given.is_floating_point() or given.is_complex())
        if not isinstance(given, Tensor) or not whole or given.dtype == torch.bool:
            raise TypeError(f"id must hold integers, the positions of the examples, got {checks.shown(id)}")
        if given.shape != (outputs.shape[0],):
            raise ValueError(f"id must have shape ({outputs.shape[0]},), one per score, got {tuple(given.shape)}")
        rows = given.cpu().to(torch.int64)
        size = self.objective.data.num_examples
        wrong = rows[(rows < 0) | (rows >= size)].tolist()
        if wrong:
            raise ValueError(f"id must be in 0..{size - 1}, the {size} examples of {name}, got {checks.some(wrong)}")
        return rows

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # loss.half() and the like are for the trained variables: u and the tables of the data keep their digits.
        kept = {id(buffer) for buffer in self.buffers() if buffer.is_floating_point()}

        def moved(tensor: Tensor) -> Tensor:
            applied = fn(tensor)
            if id(tensor) not in kept:
                return applied
            return tensor.to(applied.device)

        super()._apply(moved, recurse)  # type: ignore[no-untyped-call]
        return self

    # ------------------------------------------------------------------ resuming

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}{_OF}"] = self._identity()
        if self._memory is not None:
            self._memory.save_into(destination, f"{prefix}{_MEMORY}")

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        # Before anything is copied: u of another loss has the same shape, and means something else.
        before = state_dict.get(f"{prefix}{_OF}")  # older states have none
        if before is not None and int(before) != int(self._identity()):
            raise ValueError(
                f"the state is not of this {type(self).__name__}: its kind, its constants, or the labels, weights or "
                "order of the examples are others"
            )
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        unexpected_keys[:] = [name for name in unexpected_keys if name != f"{prefix}{_OF}"]
        if self._memory is None:
            return
        start = f"{prefix}{_MEMORY}"
        saved = {name.removeprefix(start): value for name, value in state_dict.items() if name.startswith(start)}
        unexpected_keys[:] = [name for name in unexpected_keys if not name.startswith(start)]
        if saved:
            self._memory.load(saved)
        else:
            missing_keys.append(f"{start}values")

    def _identity(self) -> Tensor:
        """() int64: what the state is of, as a number, since a state_dict holds tensors alone."""
        objective = self.objective
        said = f"{type(objective).__name__} {objective.constants()!r} {digest(objective.data.facts())}"
        return torch.tensor(int(hashlib.sha256(said.encode()).hexdigest()[:15], 16))

    def extra_repr(self) -> str:
        return f"{self.objective.data.num_examples} examples, {self.objective.num_blocks} blocks"


def _read_steps(loss: nn.Module, incompatible: Any) -> None:
    """The host's count of steps, after a state was loaded."""
    assert isinstance(loss, Loss)
    loss._steps = int(loss.steps)
    if loss._memory is not None:
        loss._memory.t = loss._steps


def _memory_of(objective: OutputObjective, memory: bool | OutputMemory) -> LossMemory | None:
    if memory is False:
        return None
    settings = memory
    if memory is True:
        settings = OutputMemory()
    if not isinstance(settings, OutputMemory):
        raise TypeError(f"memory must be True, False or fcco.methods.OutputMemory(...), got {memory!r}")
    return LossMemory(objective, settings)


class Given(nn.Module):
    """Stands where an objective has its network: the outputs are given."""

    def forward(self, *outputs: Any) -> Any:
        if len(outputs) == 1:
            return outputs[0]
        return outputs


def no_inputs(labels: Any) -> Tensor:
    """(N, 0) inputs for data of which the labels (N, ...) alone are known, on their device."""
    given = numbers_or_objects("y", labels)
    if not isinstance(given, Tensor):
        return torch.empty(len(given), 0)
    if given.dim() == 0 or given.shape[0] == 0:
        raise ValueError(f"y must have one row per training example, got shape {tuple(given.shape)}")
    return torch.empty(given.shape[0], 0, device=given.device)
