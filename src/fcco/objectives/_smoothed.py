"""smoothed: an objective with its outer functions replaced by their Moreau envelopes, for f with kinks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from fcco._objective import Objective
from fcco._support import checks
from fcco.objectives._precision import to_float64

#: index (B,), u (B, dim), rho -> the minimiser over v of f_i(v) + rho/2 ||v - u_i||^2, (B, dim)
Prox = Callable[[Tensor, Tensor, float], Tensor]

_STEPS = 60  # bisection ends at the last digit of float64 well before
_HALVINGS = 30
_DOUBLINGS = 30


def smoothed(objective: Objective, rho: float, *, prox: Prox | None = None) -> Smoothed:
    r"""Replace each f_i of an objective by its Moreau envelope; with :func:`fcco.sonex` this is SONEX.

    .. math::
        f_{i,\rho}(u) = \min_v f_i(v) + \tfrac\rho2 \|v - u\|^2, \qquad
        \nabla f_{i,\rho}(u) = \rho\,(u - \mathrm{prox}_{f_i/\rho}(u))

    The envelope lies below f, within (its Lipschitz constant)^2 / (2 rho) of it, and its gradient is rho-Lipschitz.

    Args:
        objective: any objective in the plain domain (one that tracks log u is refused).
        rho: > 0, and above the weak convexity constant of f if f is not convex.
        prox: the proximal map in closed form. None uses ``objective.prox`` if there is one, otherwise the ``prox`` of
            the outer function given to :func:`fcco.objective` (:class:`Hinge`, :class:`Max`, :class:`CVaR`), otherwise
            safeguarded Newton steps. These find kinks for dim 1; for dim > 1, f must be differentiable. They read
            numbers, so they make an accelerator wait.

    Blocks, data, batches, g and shapes are the objective's own.

    Example:
        >>> import fcco
        >>> w = nn.Parameter(torch.tensor([2.0]))
        >>> kinked = fcco.objective(lambda i, x: x * w, Hinge(), num_blocks=4, parameters=[w])
        >>> smooth = smoothed(kinked, rho=10.0)
        >>> smooth.outer(torch.arange(3), torch.tensor([[-1.0], [0.05], [1.0]]))
        tensor([0.0000, 0.0125, 0.9500])

    Reference: Chen et al., Stochastic Momentum Methods for Non-smooth Non-Convex Finite-Sum Coupled Compositional
    Optimization, NeurIPS 2025 (SONEX).
    """
    if not isinstance(objective, Objective):
        raise TypeError(f"objective must be an Objective, got {type(objective).__name__}")
    if any(objective.log_domain):
        raise ValueError(
            f"smoothed needs an objective that tracks u itself, but {type(objective).__name__} tracks log u"
        )
    if prox is None:
        prox = getattr(objective, "prox", None)
    return Smoothed(objective, checks.positive("rho", rho), prox)


@final
class Smoothed(Objective):
    """An objective with smoothed outer functions; made by :func:`smoothed`."""

    def __init__(self, objective: Objective, rho: float, prox: Prox | None) -> None:
        super().__init__(objective.num_blocks, objective.dim)
        self.objective = objective
        self.rho = rho
        self.prox = prox
        self.forward_mode = objective.forward_mode

    def constants(self) -> dict[str, Any]:
        closed_form = None
        if self.prox is not None:
            closed_form = getattr(self.prox, "__qualname__", type(self.prox).__qualname__)
        own = {"rho": self.rho, "prox": closed_form, "objective": type(self.objective).__name__}
        return own | self.objective.constants()

    # Properties, so that a smoothed objective of the user's own has no data either.

    @property
    def data(self) -> Any:
        """The objective's data, where it has any; the same holds for those that follow."""
        return self.objective.data

    @property
    def blocks(self) -> Any:
        return self.objective.blocks

    @property
    def loader(self) -> Any:
        return self.objective.loader

    @property
    def full_pass(self) -> Any:
        return self.objective.full_pass

    @property
    def complete(self) -> Any:
        return self.objective.complete

    @property
    def outputs(self) -> Any:
        return self.objective.outputs

    @property
    def values(self) -> Any:
        return self.objective.values

    def inner(self, index: Tensor, *data: Any) -> Tensor:
        g: Tensor = self.objective(index, *data)
        return g

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        given = u.dtype
        if self.dim == 1:  # u - v lives on the last digits where rho is large
            u = to_float64(u)
        here = u.detach()
        v = self.nearest(index, here)
        slope = self.rho * (here - v.detach())  # the gradient in u; that of f's own parameters comes through v and f
        f = self.objective.outer(index, v)
        if self.prox is None and self.dim == 1 and f.requires_grad:
            f = f.detach() + self._around(index, v, slope)
        return (f + 0.5 * self.rho * (v - here).square().sum(1) + (slope * (u - here)).sum(1)).to(given)

    def _around(self, index: Tensor, v: Tensor, slope: Tensor) -> Tensor:
        """0 (B,), with the gradient of f(v) in f's own parameters. A v that sits on a kink moves along with it: the
        gradient is then that mixture of the two sides whose derivative in v is ``slope``."""
        step = 4.0 * torch.finfo(v.dtype).eps ** 0.5 * (1.0 + v.abs())
        below = self._inside(index, v - step, v)
        above = self._inside(index, v + step, v)
        low, _ = _derivatives(self.objective, index, below)
        high, _ = _derivatives(self.objective, index, above)
        share = ((slope - low) / (high - low)).nan_to_num(0.5, 0.5, 0.5).clamp(0.0, 1.0).squeeze(1)
        mixed = torch.lerp(self.objective.outer(index, below), self.objective.outer(index, above), share)
        return mixed - mixed.detach()

    @torch.no_grad()
    def _inside(self, index: Tensor, side: Tensor, v: Tensor) -> Tensor:
        """A point beside v, or v itself where f has no value there."""
        return torch.where(torch.isfinite(self.objective.outer(index, side)).unsqueeze(1), side, v)

    def nearest(self, index: Tensor, u: Tensor) -> Tensor:
        """prox_{f_i/rho}(u_i), (B, dim)."""
        if self.prox is not None:
            return self.prox(index, u, self.rho)
        if self.dim == 1:
            return _on_a_line(self.objective, index, u, self.rho)
        return _by_newton(self.objective, index, u, self.rho)

    def project(self, u: Tensor) -> Tensor:
        return self.objective.project(u)

    def samples(self, index: Tensor, *data: Any) -> int:
        return self.objective.samples(index, *data)


# ---------------------------------------------------------------------- outer functions with closed forms


@final
@dataclass(frozen=True)
class Hinge:
    """f(u) = scale * max(margin + u, 0), dim 1: a penalty for a constraint g_i <= -margin.

    Args:
        margin: c.
        scale: a factor.

    Example:
        >>> Hinge(margin=1.0)(torch.arange(2), torch.tensor([[-2.0], [1.0]]))
        tensor([0., 2.])
    """

    margin: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        checks.number("margin", self.margin)
        checks.positive("scale", self.scale)

    def __call__(self, index: Tensor, u: Tensor) -> Tensor:
        return self.scale * (self.margin + _only(u)).clamp(min=0.0)

    def prox(self, index: Tensor, u: Tensor, rho: float) -> Tensor:
        """u - clamp(margin + u, 0, scale/rho).

        Args:
            index: blocks (B,).
            u: rows (B, dim).
            rho: of the envelope, positive.
        """
        return u - (self.margin + u).clamp(0.0, self.scale / rho)


@final
@dataclass(frozen=True)
class Max:
    """f(u) = the largest component of u.

    Example:
        >>> Max()(torch.arange(2), torch.tensor([[1.0, 3.0], [0.0, -1.0]]))
        tensor([3., 0.])
    """

    def __call__(self, index: Tensor, u: Tensor) -> Tensor:
        return u.amax(1)

    def prox(self, index: Tensor, u: Tensor, rho: float) -> Tensor:
        """min(u, level), where what lies above the level adds up to 1/rho.

        Args:
            index: blocks (B,).
            u: rows (B, dim).
            rho: of the envelope, positive.
        """
        ordered = u.sort(1, descending=True).values  # (B, dim)
        count = torch.arange(1, u.shape[1] + 1, device=u.device, dtype=u.dtype)
        levels = (ordered.cumsum(1) - 1.0 / rho) / count  # the level, if the k largest lie above it
        above = (ordered > levels).sum(1, keepdim=True)  # at least 1: u_1 > u_1 - 1/rho
        return torch.minimum(u, levels.gather(1, above - 1))


@final
class CVaR(nn.Module):
    r"""f(u) = t + max(u - t, 0)/level with a trained threshold t, dim 1: the mean of the worst blocks.

    :math:`\min_t \frac1m \sum_i f(g_i)` is the conditional value at risk: the mean of the ``level`` * m largest g_i.

    Args:
        level: in (0, 1].
        start: t at the start.

    Example:
        >>> CVaR(level=0.5, start=1.0)(torch.arange(2), torch.tensor([[0.0], [2.0]]))
        tensor([1., 3.], grad_fn=<AddBackward0>)

    Reference: Rockafellar & Uryasev, Optimization of conditional value-at-risk, 2000.
    """

    def __init__(self, level: float, start: float = 0.0) -> None:
        super().__init__()
        self.level = checks.rate("level", level)
        self.threshold = nn.Parameter(torch.tensor(float(start)))

    def forward(self, index: Tensor, u: Tensor) -> Tensor:
        """f of the rows (B,).

        Args:
            index: blocks (B,).
            u: rows (B, dim).
        """
        return self.threshold + (_only(u) - self.threshold).clamp(min=0.0) / self.level

    def prox(self, index: Tensor, u: Tensor, rho: float) -> Tensor:
        """u - clamp(u - t, 0, 1/(level rho)).

        Args:
            index: blocks (B,).
            u: rows (B, dim).
            rho: of the envelope, positive.
        """
        return u - (u - self.threshold).clamp(0.0, 1.0 / (self.level * rho))


def _only(u: Tensor) -> Tensor:
    if u.shape[1] != 1:
        raise ValueError(f"this outer function takes dim 1, got dim {u.shape[1]}")
    return u.squeeze(1)


# ---------------------------------------------------------------------- proximal maps found numerically


def _on_a_line(objective: Objective, index: Tensor, u: Tensor, rho: float) -> Tensor:
    """dim 1: the zero of f'(v) + rho (v - u), by Newton steps inside a shrinking bracket; kinks are found too."""
    slope, curvature = _derivatives(objective, index, u)
    other = _beyond(objective, index, u, slope / rho, rho)
    low = torch.minimum(u, other)
    high = torch.maximum(u, other)
    v = u
    last_step = 2.0 * (high - low)  # the first Newton step may go anywhere in the bracket
    for _ in range(_STEPS):
        _check_convex(curvature[:, 0] + rho <= 0.0, rho)
        excess = slope + rho * (v - u)
        low = torch.where(excess <= 0.0, v, low)
        high = torch.where(excess >= 0.0, v, high)
        newton = v - excess / (curvature[:, 0] + rho)  # (B, 1)
        inside = (newton > low) & (newton < high)
        # Where steps do not shrink by half Newton goes to and fro between two points: halve the bracket instead.
        shrinks = (newton - v).abs() <= 0.5 * last_step
        following = torch.where(inside & shrinks, newton, 0.5 * (low + high))
        last_step = (following - v).abs()
        if _has_converged(v, following):
            return following
        v = following
        slope, curvature = _derivatives(objective, index, v)
    return v


def _beyond(objective: Objective, index: Tensor, u: Tensor, reach: Tensor, rho: float) -> Tensor:
    """A point on the other side of the zero from u: u - reach where f is convex, since f' grows; else farther."""
    for _ in range(_DOUBLINGS):
        slope, _ = _derivatives(objective, index, u - reach)
        short = (slope - rho * reach) * reach > 0.0
        if not bool(short.any()):
            return u - reach
        reach = torch.where(short, 2.0 * reach, reach)
    raise ValueError(f"rho must exceed the weak convexity constant of f, got {rho}")


def _by_newton(objective: Objective, index: Tensor, u: Tensor, rho: float) -> Tensor:
    """dim > 1: Newton steps on f(v) + rho/2 ||v - u||^2, halved until it falls enough."""
    eye = torch.eye(u.shape[1], dtype=u.dtype, device=u.device)
    v = u
    for _ in range(_STEPS):
        slope, curvature = _derivatives(objective, index, v)
        excess = slope + rho * (v - u)
        root, failed = torch.linalg.cholesky_ex(curvature + rho * eye)
        _check_convex(failed > 0, rho)
        step = -torch.cholesky_solve(excess.unsqueeze(2), root).squeeze(2)
        following = v + _length(objective, index, u, v, step, excess, rho) * step
        if _has_converged(v, following):
            return following
        v = following
    return v


@torch.no_grad()
def _length(
    objective: Objective, index: Tensor, u: Tensor, v: Tensor, step: Tensor, excess: Tensor, rho: float
) -> Tensor:
    """How much of each step to take, (B, 1)."""

    def height(at: Tensor) -> Tensor:
        return objective.outer(index, at) + 0.5 * rho * (at - u).square().sum(1)

    start = height(v)
    promise = (excess * step).sum(1)
    slack = 8.0 * torch.finfo(u.dtype).eps * (1.0 + start.abs())  # rounding may hide the last of the descent
    length = torch.ones_like(start)
    for _ in range(_HALVINGS):
        enough = height(v + length.unsqueeze(1) * step) <= start + 1e-4 * length * promise + slack
        # Rows that have fallen enough keep their length, the others halve theirs.
        if bool(enough.all()):
            break
        length = torch.where(enough, length, 0.5 * length)
    return length.unsqueeze(1)


def _derivatives(objective: Objective, index: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """grad f_i(v_i) (B, dim) and its Jacobian (B, dim, dim), by automatic differentiation."""
    with torch.enable_grad():
        leaf = v.detach().clone().requires_grad_()
        f = objective.outer(index, leaf)
        slope = _gradient(f, leaf, create_graph=True)
        rows = [_gradient(slope[:, k], leaf) for k in range(v.shape[1])]
    return slope.detach(), torch.stack(rows, 1).detach()


def _gradient(f: Tensor, leaf: Tensor, create_graph: bool = False) -> Tensor:
    if not f.requires_grad:
        return torch.zeros_like(leaf)
    (gradient,) = torch.autograd.grad(
        f.sum(), leaf, create_graph=create_graph, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return gradient


def _has_converged(v: Tensor, following: Tensor) -> bool:
    """Whether all rows have stopped moving, but for their last digits."""
    near = 4.0 * torch.finfo(v.dtype).eps * (following.abs() + v.abs())
    return bool(((following - v).abs() <= near).all())


def _check_convex(concave: Tensor, rho: float) -> None:
    if bool(concave.any()):
        raise ValueError(f"rho must exceed the weak convexity constant of f, got {rho}")
