"""Jacobian-vector products of an objective's inner function, along with its value and graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.func import functional_call


class ForwardModeMissing(Exception):
    """Some operation in the pass has no forward-mode derivative."""


def by_forward_mode(
    module: nn.Module, names: Sequence[str], tangents: Sequence[Tensor], arguments: tuple[Any, ...]
) -> tuple[Tensor, Tensor]:
    """Take one pass that gives g with its graph, and J v beside it.

    Args:
        module: its forward is the function; differentiated in the parameters ``names``.
        tangents: v, one tensor per parameter.

    Returns:
        g (B, dim) with its graph to the parameters, J v (B, dim) without one.
    """
    parameters = dict(module.named_parameters())
    with forward_ad.dual_level():
        duals = {}
        for name, tangent in zip(names, tangents, strict=True):
            duals[name] = forward_ad.make_dual(parameters[name], tangent)
        result = _call_with_duals(module, duals, arguments)
        if not isinstance(result, Tensor):
            return result, result  # the caller says what is wrong with it
        g, product = forward_ad.unpack_dual(result)
    if product is not None:
        return g, product.detach()
    if g.requires_grad:
        raise ForwardModeMissing("inner uses parameters that are not attributes of the module")
    return g, torch.zeros_like(g)


def _call_with_duals(module: nn.Module, duals: dict[str, Tensor], arguments: tuple[Any, ...]) -> Any:
    """Call the module with dual numbers as parameters; a missing derivative is always the same error."""
    # Torch says that a derivative is missing in several ways, by version and by operation.
    try:
        return functional_call(module, duals, arguments)
    except NotImplementedError as error:
        raise ForwardModeMissing(str(error)) from error
    except RuntimeError as error:
        if "forward AD" in str(error) or "jvp" in str(error):
            raise ForwardModeMissing(str(error)) from error
        raise


def by_double_backward(
    module: nn.Module,
    parameters: Sequence[Tensor],
    tangents: Sequence[Tensor],
    run: Callable[[], Tensor],
) -> tuple[Tensor, Tensor]:
    """Do the same by the derivative of s -> <J^T s, v>, for operations without forward mode.

    Raises:
        ValueError: where an operation has no second derivative either; names the layer.
    """
    g = run()
    # J^T s is linear in s, so its derivative along v is J v wherever s is taken: at 0.
    s = torch.zeros_like(g, requires_grad=True)
    try:
        rows = torch.autograd.grad(g, parameters, s, create_graph=True, allow_unused=True)
        terms = []
        for row, tangent in zip(rows, tangents, strict=True):
            if row is not None:
                terms.append((row * tangent).sum())
        product = _derivative(torch.stack(terms).sum(), s)
    except (RuntimeError, NotImplementedError) as error:
        layer = find_culprit(module, parameters, run)
        raise ValueError(
            f"the single-point form needs a Jacobian-vector product, but {layer} supports neither forward mode "
            f"nor double backward ({error}); use the two-point form (for example msvr_v1 for msvr_v1_sp)"
        ) from error
    return g, product.detach()


def _derivative(along: Tensor, s: Tensor) -> Tensor:
    """Return d along/d s, or raise where a function on the way can be differentiated only once."""
    # Such a function leaves an Error node beside the path to s, which autograd.grad would pass by in silence.
    seen: set[Any] = set()
    waiting = [along.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node.name().endswith("Error"):
            raise RuntimeError("a function in the pass can be differentiated only once")
        seen.add(node)
        waiting.extend(following for following, _ in node.next_functions)
    return torch.autograd.grad(along, s)[0]


def find_culprit(module: nn.Module, parameters: Sequence[Tensor], run: Callable[[], Tensor]) -> str:
    """Return name and class of the first innermost layer whose output cannot be differentiated twice."""
    outputs: list[tuple[str, nn.Module, Any]] = []
    with _watched(module, outputs):
        run()
    for name, layer, output in outputs:
        if isinstance(output, tuple):  # of attention and recurrent layers, the result first
            output = output[0]
        if isinstance(output, Tensor) and output.requires_grad and not _twice(output, parameters):
            return f"layer '{name}' ({type(layer).__name__})"
    return f"the inner function of {type(module).__name__}"


def _twice(output: Tensor, parameters: Sequence[Tensor]) -> bool:
    """Return whether an output can be differentiated twice."""
    s = torch.zeros_like(output, requires_grad=True)
    try:
        rows = torch.autograd.grad(output, parameters, s, create_graph=True, allow_unused=True)
        _derivative(torch.stack([row.sum() for row in rows if row is not None]).sum(), s)
    except (RuntimeError, NotImplementedError):
        return False
    return True


@contextmanager
def _watched(module: nn.Module, outputs: list[tuple[str, nn.Module, Any]]) -> Iterator[None]:
    """Within the block, add name, layer and output of each innermost layer to ``outputs`` as it is called."""

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda layer, _, output: outputs.append((name, layer, output))

    handles = []
    for name, part in module.named_modules():
        is_leaf = not list(part.children())
        if is_leaf:
            handles.append(part.register_forward_hook(watch(name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
