"""The network's part of a step: outputs of the drawn examples, and the way back from their gradients."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fcco._support import checks
from fcco.data import Batch
from fcco.objectives import OutputObjective
from fcco.solver._chunks import OutputPieces
from fcco.solver._evaluator import Evaluator


@final
class NetworkPass:
    """One pass of the network over a batch, whole or in pieces.

    Args:
        evaluator: of the objective.
        objective: whose ``outputs``.
        batch: the examples.
        chunk: how many examples per piece; None: all at once.
    """

    def __init__(self, evaluator: Evaluator, objective: OutputObjective, batch: Batch, chunk: int | None) -> None:
        self._objective = objective
        self._batch = batch
        self._outputs: Tensor | None = None  # with their graph
        self._pieces: OutputPieces | None = None
        if chunk is not None:
            checks.positive_int("chunk", chunk)
            self._pieces = OutputPieces(evaluator, objective, batch.id, batch, chunk)

    def outputs(self) -> Tensor:
        """Outputs without graph: (K,) where they are one score per example, else (K, ...)."""
        if self._pieces is None:
            s = self._objective.outputs(self._batch.x)
            if not s.requires_grad:
                raise ValueError("the model must depend on a trainable parameter, got outputs without a graph")
        else:
            s = self._pieces.outputs()
        self._outputs = s  # (K, ...), with the graph where the batch is taken whole
        return one_row_each(s, len(self._batch))

    def backward(self, gradient: Tensor) -> None:
        """Add the gradient of the network to ``p.grad``, from that of its outputs (K, ...)."""
        assert self._outputs is not None
        shaped = gradient.reshape(self._outputs.shape).to(self._outputs.dtype)
        # In the network's own shape: one score per example may be (K, 1).
        if self._pieces is None:
            self._outputs.backward(shaped)
        else:
            self._pieces.backward(shaped)


def one_row_each(s: Tensor, size: int) -> Tensor:
    """Outputs without graph: (K,) where they are one score per example, else (K, ...)."""
    if s.dim() == 0 or s.shape[0] != size:
        raise ValueError(f"the model must return one row per example, {size} of them, got {tuple(s.shape)}")
    fresh = s.detach()
    if fresh.dim() == 2 and fresh.shape[1] == 1:
        return fresh.squeeze(1)
    return fresh


@final
class Operations(TorchDispatchMode):
    """Counts a network's operations, without the hooks on all modules that torch's own counter needs for its table."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # Elementwise operations have no entry: next to the products they cost nothing.
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.total += int(count(*args, **(kwargs or {}), out_val=result))
        return result
