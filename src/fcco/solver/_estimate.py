"""z_t from what was probed: the weighted sum in ``p.grad``, projected, and Nesterov's mixture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from fcco._support.sharded import copies, parts
from fcco.methods import Method
from fcco.methods.estimators import Weight, Weights
from fcco.solver._engine import Probed
from fcco.solver._evaluator import Evaluator


class Estimate(NamedTuple):
    """z_t in ``p.grad`` (``grads`` are these tensors), weights.now G_t beside it for Nesterov's mixture, and what was
    taken a norm of: all of it must be finite."""

    grads: list[Tensor]
    fresh: list[Tensor] | None
    norms: list[Tensor]


@final
@dataclass(frozen=True)
class Bounds:
    """What is done with z before the step.

    Args:
        radius: project it onto the ball of this radius; None: do not.
        normalize: step along z/||z||.
    """

    radius: float | None
    normalize: bool


def estimate(
    evaluator: Evaluator, grads: list[Tensor], weights: Weights, z: list[Tensor] | None, probed: Probed, bounds: Bounds
) -> Estimate:
    """``grads`` hold the weighted sum of the probed gradients: make them z_t, in place."""
    fresh = None
    if weights.lookahead is not None:
        fresh = copies(grads)
    if z is not None and not is_zero(weights.z):
        add_scaled(grads, z, weights.z)
    if weights.full is not None and probed.full_gradient is not None:
        add_scaled(grads, probed.full_gradient, weights.full)
    return Estimate(grads, fresh, project(evaluator, grads, bounds))


def mix(evaluator: Evaluator, found: Estimate, weights: Weights, bounds: Bounds) -> None:
    """Nesterov's mixture in place of z_t, where the method wants it."""
    if found.fresh is None or weights.lookahead is None:
        return
    torch._foreach_mul_(found.grads, weights.lookahead)
    add_scaled(found.grads, found.fresh, weights.fresh)
    # The mixture may leave the ball that z was put onto.
    project(evaluator, found.grads, bounds)


def project(evaluator: Evaluator, grads: list[Tensor], bounds: Bounds) -> list[Tensor]:
    """Put z onto the ball, in place; the norm, where one was taken: z / inf would be a step that stands still."""
    if bounds.radius is None and not bounds.normalize:
        return []
    norm = evaluator.norm(grads)
    if bounds.radius is not None:
        torch._foreach_mul_(grads, (bounds.radius / norm).clamp(max=1.0))
    return [norm]


def normalize(evaluator: Evaluator, grads: list[Tensor]) -> Tensor:
    """Divide by the norm, in place; what they were divided by: 1 where z = 0, a place to stay at."""
    norm = evaluator.norm(grads)
    divisor = torch.where(norm > 0, norm, 1.0)
    torch._foreach_div_(grads, divisor)
    return divisor


def z_in_gradients(method: Method, t: int, parameters: Sequence[Tensor]) -> list[Tensor] | None:
    """z_t of a plain estimator, as it lies in ``p.grad``; None: other estimators have it in the record."""
    # The optimizer or the user may have cleared them since. Then there is no z to return.
    grads = parts(p.grad for p in parameters if p.grad is not None)
    if method.estimator.remembers or t == 0 or len(grads) < len(parameters):
        return None
    return grads


def add_scaled(targets: Sequence[Tensor], others: Sequence[Tensor], weight: Weight) -> None:
    """targets += weight * others, in place."""
    if isinstance(weight, Tensor):
        # Kernels that add take their factor from the host; one on the device has to be multiplied in first.
        others = torch._foreach_mul(list(others), weight.to(others[0].dtype))
        torch._foreach_add_(list(targets), list(others))
    else:
        torch._foreach_add_(list(targets), list(others), alpha=weight)


def is_zero(weight: Weight) -> bool:
    """Whether a weight is known to be 0."""
    return not isinstance(weight, Tensor) and weight == 0.0
