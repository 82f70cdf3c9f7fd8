"""Nodes of the graph that stand for many small operations, and a step that takes their derivative without the graph.

A small step spends more time on the bookkeeping of a node written in Python than on its arithmetic. Where such a node
is the last one before g, its derivative can be called directly: :func:`recorded` keeps it instead of a graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from fcco._support.grad_mode import without_graph


@final
class Context:
    """What a node's ``forward`` leaves for its ``backward``; takes the place of torch's own."""

    def __init__(self) -> None:
        self.saved_tensors: tuple[Tensor | None, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors


@final
class Node:
    """A node outside the graph: what it gave, and its derivative.

    Args:
        function: the node.
        inputs: what it was given, tensors with their graphs among them.
    """

    def __init__(self, function: type[torch.autograd.Function], inputs: tuple[Any, ...]) -> None:
        self._backward = function.backward
        self._context = Context()
        self._inputs = inputs
        with without_graph():
            self.result: Tensor = function.forward(self._context, *inputs)
        self._version = self.result._version

    def gave(self, result: Tensor) -> bool:
        """Return whether this is the node's result, unchanged, and some input needs a gradient."""
        if result is not self.result or result._version != self._version:
            return False
        return any(isinstance(item, Tensor) and item.requires_grad for item in self._inputs)

    def backward(self, slope: Tensor, *, directly: bool = False) -> None:
        """Do as ``result.backward(slope)`` does with a graph.

        Args:
            directly: put gradients of parameters into ``p.grad`` without the engine, which takes longer than a small
                node itself. Not for parameters whose gradients somebody waits for, as DDP does.
        """
        with without_graph():
            found: Any = self._backward(self._context, slope)
        if not isinstance(found, tuple):
            found = (found,)
        roots = []
        gradients = []
        for item, gradient in zip(self._inputs, found, strict=True):
            if gradient is None or not item.requires_grad:
                continue
            if directly and _is_unwatched(item):
                _accumulate(item, gradient)
            else:
                roots.append(item)
                gradients.append(gradient)
        if roots:
            torch.autograd.backward(roots, gradients)


def _is_unwatched(item: Tensor) -> bool:
    """Return whether this is a leaf of the graph without a hook that waits for its gradient."""
    return item.is_leaf and not item._backward_hooks and not getattr(item, "_post_accumulate_grad_hooks", None)


def _accumulate(leaf: Tensor, gradient: Tensor) -> None:
    """Add to ``leaf.grad``, in the leaf's own precision and layout, as the engine does."""
    if leaf.grad is not None:
        with without_graph():
            leaf.grad += gradient
    elif gradient.dtype == leaf.dtype and gradient.stride() == leaf.stride():
        leaf.grad = gradient
    else:
        leaf.grad = torch.empty_like(leaf).copy_(gradient)


@final
class _Recording(threading.local):
    """Whether a node is being waited for, and the one that came; in each thread its own."""

    def __init__(self) -> None:
        self.is_on = False
        self.node: Node | None = None

    def end(self) -> Node | None:
        """Wait no longer, and return the node, where one came."""
        node = self.node
        self.is_on = False
        self.node = None
        return node


_recording = _Recording()


def fused(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    """Return the result of a node, in the graph or, within :func:`recorded`, beside it.

    Args:
        function: the node.
        inputs: what its ``forward`` takes after the context.
    """
    if _recording.is_on and _recording.node is None and torch.is_grad_enabled():
        _recording.node = Node(function, inputs)
        return _recording.node.result
    result: Tensor = function.apply(*inputs)
    return result


def recorded(work: Callable[[], Tensor]) -> tuple[Tensor, Node | None]:
    """Return what ``work`` gives, and the node that gave it; None: the result has its graph.

    Args:
        work: pure: where its result is something else than what a node gave, it is done again.
    """
    _recording.is_on = True
    try:
        result = work()
    finally:
        node = _recording.end()
    if node is None:
        return result, None
    if node.gave(result):
        return result, node
    return work(), None


def derivative_again(
    plain: Callable[..., Tensor], inputs: tuple[Tensor, ...], constants: tuple[Any, ...], slope: Tensor
) -> tuple[Tensor, ...]:
    """Return a node's derivative with a graph of its own, from the same function in small operations.

    Args:
        plain: called with inputs and constants.
        inputs: what the derivative is taken by, as the node has saved it.
        constants: what else ``plain`` takes.
        slope: of the result.

    Returns:
        The derivative by each of the inputs.
    """
    found = torch.autograd.grad(plain(*inputs, *constants), inputs, slope, create_graph=True)
    return tuple(found)
