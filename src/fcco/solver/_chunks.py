"""Large batches on small devices: a draw probed in pieces, with the gradient of the whole.

Two passes per probe. The first one, without graph, finds g; then the slopes of f are known for all blocks, and a second
pass takes each piece with its graph and adds its part of the gradient. Each piece meets the same random numbers
both times and at every point. Where nothing ties the examples of a batch together the result is that of the whole
batch: BatchNorm takes its statistics from a piece, and dropout draws its masks piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, final

import torch
from torch import Tensor

from fcco._support import checks
from fcco._support.module_state import Snapshot
from fcco.data import Batch
from fcco.methods._box import Probe, WeighAt
from fcco.methods.estimators import Weight
from fcco.objectives._base import OverData
from fcco.solver._evaluator import Evaluator


class Pieces(Protocol):
    """A draw in pieces."""

    def probe(self, weigh_at: WeighAt, scale: Weight | None) -> Probe:
        """Evaluate g; where ``scale`` is given, add scale times the gradient to ``p.grad``."""


def make_pieces(evaluator: Evaluator, index: Tensor, data: tuple[Any, ...], chunk: int) -> Pieces:
    """The draw in pieces of at most ``chunk`` examples (ready objectives) or blocks (a user's own)."""
    checks.positive_int("chunk", chunk)
    objective = evaluator.objective
    if isinstance(objective, OverData):
        return OutputPieces(evaluator, objective, index, data[0], chunk)
    if by_block(index, data):
        return BlockPieces(evaluator, index, data, chunk)
    raise ValueError("chunk needs data with one row per block, tensors of shape (B, ...)")


def by_block(index: Tensor, data: tuple[Any, ...]) -> bool:
    """Whether all data are tensors with one row per block (B, ...)."""
    size = index.shape[0]
    return all(isinstance(item, Tensor) and item.dim() > 0 and item.shape[0] == size for item in data)


@final
class TwoPasses:
    """Runs over pieces twice with the same buffers and random numbers."""

    def __init__(self, evaluator: Evaluator, size: int, chunk: int) -> None:
        self._state = evaluator.module_state
        self.slices = [slice(start, start + chunk) for start in range(0, size, chunk)]
        self._before: list[Snapshot] = []

    def first(self, evaluate: Callable[[slice], Tensor]) -> Tensor:
        """The pieces' results one after another, without graph."""
        results = []
        self._before = []  # a probe at other weights comes through here again
        with torch.no_grad():
            for piece in self.slices:
                # Each piece draws its own random numbers: what it started from is what the second pass needs.
                self._before.append(self._state.capture())
                results.append(evaluate(piece))
        return torch.cat(results)

    def second(self, run: Callable[[slice], None]) -> None:
        """The pieces again, for their gradients."""
        with torch.enable_grad():
            for piece, before in zip(self.slices, self._before, strict=True):
                self._state.restore(before)
                run(piece)


@final
class BlockPieces:
    """Some blocks at a time, for a user's own objective whose data have one row per block."""

    def __init__(self, evaluator: Evaluator, index: Tensor, data: tuple[Any, ...], chunk: int) -> None:
        self._evaluator = evaluator
        self._index = index
        self._data = data
        self._passes = TwoPasses(evaluator, index.shape[0], chunk)

    def probe(self, weigh_at: WeighAt, scale: Weight | None) -> Probe:
        evaluator = self._evaluator
        g = evaluator.rows(self._passes.first(self._inner))  # (B, dim)
        if scale is None:
            return Probe(g)
        u = weigh_at(g, None)
        f, slope = evaluator.outer(self._index, u, scale)  # (B,), (B, dim)
        self._passes.second(lambda piece: evaluator.backward(self._inner(piece), u[piece], slope[piece]))
        return Probe(g, None, u, f)

    def _inner(self, piece: slice) -> Tensor:
        return self._evaluator.inner(self._index[piece], tuple(item[piece] for item in self._data))


@final
class OutputPieces:
    """Some examples at a time, for objectives that depend on the weights through one output per example."""

    def __init__(self, evaluator: Evaluator, objective: OverData, index: Tensor, batch: Batch, chunk: int) -> None:
        self._evaluator = evaluator
        self._objective = objective
        self._index = index
        self._batch = batch
        self._passes = TwoPasses(evaluator, len(batch), chunk)

    def probe(self, weigh_at: WeighAt, scale: Weight | None) -> Probe:
        evaluator = self._evaluator
        outputs = self.outputs()  # (K, ...), a leaf: its gradient is what the second pass starts from
        with torch.set_grad_enabled(scale is not None):
            outputs.requires_grad_(scale is not None)
            g = evaluator.checked_inner(self._objective.values(self._index, outputs, self._batch), self._index)
        probe = evaluator.weighed(self._index, g, None, weigh_at, scale)
        if scale is not None:
            assert outputs.grad is not None
            self.backward(outputs.grad)
        return probe

    def outputs(self) -> Tensor:
        """What the network says of every example, without graph."""
        return self._passes.first(self._outputs_of)

    def backward(self, gradient: Tensor) -> None:
        """Add the gradient of the network to ``p.grad``, from that of its outputs (K, ...)."""
        self._passes.second(lambda piece: self._outputs_of(piece).backward(gradient[piece]))

    def _outputs_of(self, piece: slice) -> Tensor:
        return self._objective.outputs(_part_of(self._batch.x, piece))


def _part_of(x: Any, piece: slice) -> Any:
    """Some of the examples: of a tensor, of each of several, of a dict of them."""
    if isinstance(x, dict):
        return {name: value[piece] for name, value in x.items()}
    if isinstance(x, Iterable) and not isinstance(x, Tensor):
        return tuple(value[piece] for value in x)
    return x[piece]
