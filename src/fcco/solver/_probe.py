"""Evaluator: the objective's values, and its gradients into ``p.grad``; checks what the user's code returns."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from fcco._objective import Objective
from fcco._support import checks, jvp, sharded
from fcco._support.module_state import NOTHING, ModuleState, Snapshot, rewound
from fcco._support.parallel import average_over_ranks, sum_over_ranks
from fcco._support.sharded import copies


class NonFiniteError(ValueError):
    """Something in a step was not finite; ``blocks`` lists the blocks that it came from."""

    def __init__(self, message: str, blocks: list[int]) -> None:
        super().__init__(message)
        self.blocks = blocks


class Look(NamedTuple):
    """What one pass saw: g (B, dim) without graph, J v where asked for; where a gradient was taken, the rows u
    (B, dim) that weighed it and f_i(u_i) (B,)."""

    g: Tensor
    jvp: Tensor | None
    u: Tensor | None
    f: Tensor | None

    def weighed_at(self) -> Tensor:
        """u, of a look that took a gradient."""
        assert self.u is not None
        return self.u


@final
class Evaluator:
    """Evaluates an objective for a solver.

    Args:
        objective: the user's g and f.
        log: (dim,) bool, which components inner returns as log g; None: none of them.
        dtype: of the rows of u.
        optimizer: what may train more than the objective knows.
    """

    def __init__(self, objective: Objective, log: Tensor | None, dtype: torch.dtype, optimizer: Optimizer) -> None:
        named = [(name, p) for name, p in objective.named_parameters() if p.requires_grad]
        self.objective, self.log, self.dtype = objective, log, dtype
        self.components: Tensor | bool | None = all(objective.log) or log  # as trackers take it
        self.names = [name for name, _ in named]
        self.parameters: list[nn.Parameter] = [p for _, p in named]
        self._all = [(p, p.requires_grad) for p in objective.parameters()]
        known = {id(p) for p, _ in self._all}
        of_optimizer = [p for group in optimizer.param_groups for p in group["params"]]
        self._strangers = [p for p in of_optimizer if p.requires_grad and id(p) not in known]
        self._marks: list[Any] = []
        self.module_state = ModuleState(objective)
        self._forward_mode = objective.forward_mode
        self._closed = _has_slope(objective)
        self._wrapped = [part for part in objective.modules() if isinstance(part, DistributedDataParallel)]
        self._gathering = sharded.gathering_parts(objective)
        self._sharded = [sharded.is_sharded(p) for p in self.parameters]
        self.is_sharded = any(self._sharded)

    def check_trained(self) -> None:
        """Refuse parameters that were frozen or unfrozen since: z, w_{t-1} and the gradients are of those before."""
        if any(p.requires_grad is not trained for p, trained in self._all):
            named = {id(p): name for name, p in self.objective.named_parameters()}
            changed = [named.get(id(p), "?") for p, trained in self._all if p.requires_grad is not trained]
            raise ValueError(
                f"requires_grad has changed since the Solver was made, of {checks.some(changed)}; make another Solver"
            )

    def begin(self) -> None:
        """Forget all gradients."""
        clear(self.parameters)
        self._marks = [_mark(p) for p in self._strangers]

    def refuse_strangers(self) -> None:
        """Refuse an inner or outer that reaches parameters which the optimizer trains and the objective does not have:
        nobody would clear their gradients or put them back. Looked for in the first step."""
        reached = [p for p, mark in zip(self._strangers, self._marks, strict=True) if _mark(p) != mark]
        if reached:
            clear(reached)
            shapes = ", ".join(str(tuple(p.shape)) for p in reached)
            raise ValueError(
                f"inner or outer uses parameters that the objective does not have, of shapes {shapes}: make them "
                "attributes of it (of fcco.objective: give them in parameters)"
            )
        self._strangers, self._marks = [], []

    def inner(self, index: Tensor, data: tuple[Any, ...]) -> Tensor:
        """g (B, dim) with its graph."""
        return self._checked(self.objective(index, *data), index)

    def inner_and_jvp(self, index: Tensor, data: tuple[Any, ...], tangents: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """g (B, dim) with its graph, and J v (B, dim): forward mode, or double backward where that is missing."""
        before, missing = self.module_state.capture(), None
        if self._forward_mode:
            try:
                with sdpa_kernel(SDPBackend.MATH):  # the fused attention kernels have no forward mode
                    g, product = jvp.by_forward_mode(self.objective, self.names, tangents, (index, *data))
                return self._checked(g, index), product
            except jvp.ForwardModeMissing as reason:
                missing = reason

        def run() -> Tensor:
            self.module_state.restore(before)
            with sdpa_kernel(SDPBackend.MATH):
                return self.inner(index, data)

        result = jvp.by_double_backward(self.objective, self.parameters, tangents, run)
        if missing is not None:  # only now: inner itself may have raised the NotImplementedError
            self._forward_mode = False
            warnings.warn(
                f"forward-mode differentiation is missing ({missing}); Jacobian-vector products are taken by "
                "double backward from here on, at about the price of one more backward pass",
                stacklevel=2,
            )
        return result

    def outer(self, index: Tensor, u: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """f (B,) and scale * grad f (B, dim) at u; the gradient of outer's own parameters goes to ``p.grad``."""
        leaf = u.detach().requires_grad_()
        f = self._checked_outer(index, leaf)
        if f.requires_grad:
            f.backward(torch.full_like(f, scale))
        slope = torch.zeros_like(u) if leaf.grad is None else leaf.grad
        return f.detach(), slope

    def backward(self, g: Tensor, u: Tensor, slope: Tensor) -> None:
        """Add slope times the Jacobian of g to ``p.grad``; log components are weighted by g/u."""
        _refuse_constant(g)
        if self.log is not None:
            weighted = slope * (self.rows(g) - u).exp()
            slope = weighted if self.components is True else torch.where(self.log, weighted, slope)
        g.backward(_in(g.dtype, slope))

    def outer_and_backward(self, index: Tensor, g: Tensor, u: Tensor, scale: float) -> Tensor:
        """f (B,) at u; scale * grad f times the Jacobian of g is added to ``p.grad``, as by the two above.

        One backward pass does both: f is taken at u with the derivative of g put behind it.

        Args:
            g: with its graph, in the dtype of the table.
        """
        if self._closed and (known := self.objective.slope(index, u)) is not None:
            f, slope = known
            if f.shape != index.shape or slope.shape != u.shape:
                got = f"{tuple(f.shape)} and {tuple(slope.shape)}"
                raise ValueError(f"slope must return shapes {tuple(index.shape)} and {tuple(u.shape)}, got {got}")
            self.backward(g, u, slope * scale)
            return f
        _refuse_constant(g)
        rows = g.detach()
        change = g - rows  # 0, with the derivative of g
        if self.log is None:
            moving = u + change
        else:
            ratio = (rows - u).exp()
            moving = torch.addcmul(u, ratio if self.components is True else torch.where(self.log, ratio, 1.0), change)
        f = self._checked_outer(index, moving)
        if not f.requires_grad:
            raise ValueError("outer must depend on u, got a result without a graph")
        f.backward(torch.full_like(f, scale))
        return f.detach()

    def project(self, u: Tensor) -> Tensor:
        """Rows u (B, dim) on the range of g, without graph."""
        projected: Any = self.objective.project(u)
        if not isinstance(projected, Tensor):
            raise TypeError(f"project must return a tensor of shape {tuple(u.shape)}, got {type(projected).__name__}")
        if projected.shape != u.shape:
            raise ValueError(f"project must return shape {tuple(u.shape)}, as given, got {tuple(projected.shape)}")
        if not projected.is_floating_point():
            raise TypeError(f"project must return floating point numbers, got dtype {projected.dtype}")
        return self.rows(projected)

    def samples(self, index: Tensor, data: tuple[Any, ...]) -> int:
        """How many examples the objective says that a batch holds."""
        samples: Any = self.objective.samples(index, *data)
        if checks.whole("samples", samples) < 0:
            raise ValueError(f"samples must return a number >= 0, got {samples}")
        return int(samples)

    def rows(self, g: Tensor) -> Tensor:
        """g as rows of the table: without graph, in its dtype."""
        return _in(self.dtype, g.detach())

    def _checked_outer(self, index: Tensor, u: Tensor) -> Tensor:
        f: Any = self.objective.outer(index, u)
        if not isinstance(f, Tensor) or f.shape != index.shape:
            shape = tuple(f.shape) if isinstance(f, Tensor) else type(f).__name__
            raise ValueError(f"outer must return shape {tuple(index.shape)} (one value a block), got {shape}")
        return f

    def _checked(self, g: Any, index: Tensor) -> Tensor:
        shape = (index.shape[0], self.objective.dim)
        if not isinstance(g, Tensor):
            raise TypeError(f"inner must return a tensor of shape {shape}, got {type(g).__name__}")
        if g.shape != shape:
            raise ValueError(f"inner must return shape {shape} (one row a block), got {tuple(g.shape)}")
        if not g.is_floating_point():
            raise TypeError(f"inner must return floating point numbers, got dtype {g.dtype}")
        if g.device != index.device:
            raise ValueError(f"inner must return a tensor on {index.device} (as u is), got one on {g.device}")
        return g

    def at(
        self, weights: Sequence[Tensor] | None, kept: Sequence[Tensor] | None = None
    ) -> AbstractContextManager[None]:
        """Within the block the parameters hold ``weights``, as in :func:`fcco.rewind.rewound`."""
        change = rewound(self.parameters, weights, kept)
        return self._gathered_afresh(change) if weights is not None and self._gathering else change

    @contextmanager
    def _gathered_afresh(self, change: AbstractContextManager[None]) -> Iterator[None]:
        """FSDP may keep what it gathered for one pass for the next, which is to see other weights."""
        try:
            with change:
                sharded.reshard(self._gathering)
                yield
        finally:
            sharded.reshard(self._gathering)

    def average(self, grads: list[Tensor], finite: Tensor) -> Tensor:
        """Average gradients over ranks, in place, and say whether ``finite`` holds on all of them."""
        if self.is_sharded:  # FSDP has averaged those already
            grads = [gradient for gradient, mark in zip(grads, self._sharded, strict=True) if not mark]
        return average_over_ranks(grads, finite)

    def all_finite(self, tensors: list[Tensor]) -> bool:
        """Whether every number is finite; of sharded tensors on all ranks, which then must all ask."""
        finite = all_finite(tensors)
        if not self.is_sharded:
            return finite
        return float(sum_over_ranks(torch.tensor(float(not finite), device=self.parameters[0].device))) == 0.0

    def norm(self, tensors: list[Tensor]) -> Tensor:
        """The norm of one tensor a parameter, all together; sharded ones over all ranks."""
        if self.is_sharded:
            return sharded.total_norm(tensors, self._sharded)
        return torch.nn.utils.get_total_norm(tensors)

    def no_sync(self) -> AbstractContextManager[object]:
        """The solver reduces over ranks once a step, so DDP must not do it after every backward pass."""
        if not self._wrapped:
            return NOTHING
        stack = ExitStack()
        for part in self._wrapped:
            stack.enter_context(part.no_sync())
        return stack


@final
class Draw:
    """One draw (index, xi), looked at from several points: the same randomness at each, and of all passes
    only the one at w_t leaves its mark on buffers and random state."""

    def __init__(
        self, evaluator: Evaluator, index: Tensor, data: tuple[Any, ...], share: float, before: Snapshot
    ) -> None:
        self._evaluator, self.index, self.data = evaluator, index, data
        self._scale = share / index.shape[0]
        self._before = before
        self._after: Snapshot | None = None
        self._last: Sequence[Tensor] | str | None = "nothing"  # where the last look was taken
        self.now: list[Tensor] | None = None  # a copy of w_t, made for a look elsewhere after the one at w_t
        self.seen: list[Tensor] = []  # (B, ...) each: what has to be finite
        self._looks: list[tuple[Sequence[Tensor] | None, Tensor, float]] = []

    def look(
        self,
        weights: Sequence[Tensor] | None,
        u: Callable[[Tensor, Tensor | None], Tensor],
        weight: float | None,
        tangents: Sequence[Tensor] | None = None,
    ) -> Look:
        """Evaluate at ``weights`` (None: at w_t); where ``weight`` is given, add weight * G to ``p.grad``.

        Args:
            u: from the rows g and J v just seen, the rows at which grad f is taken.
        """
        evaluator, index = self._evaluator, self.index
        if self._last is None:
            self._after = evaluator.module_state.capture()
        if not isinstance(self._last, str):
            evaluator.module_state.restore(self._before)
        if self._last is None and weights is not None:  # the graph of the look at w_t is gone: room for a copy
            self.now = copies(evaluator.parameters)
        self._last = weights
        at = f = None
        with evaluator.at(weights, self.now), evaluator.no_sync():
            with torch.set_grad_enabled(weight is not None or tangents is not None):
                if tangents is None:
                    g, product = evaluator.inner(index, self.data), None
                else:
                    g, product = evaluator.inner_and_jvp(index, self.data, tangents)
                    product = _in(evaluator.dtype, product)
                g = _in(evaluator.dtype, g)
            rows = _apart(g)
            self.seen.append(rows)
            if weight is not None:
                at = u(rows, product)
                f = evaluator.outer_and_backward(index, g, at, weight * self._scale)
                self.seen.append(f)
                self._looks.append((weights, at, weight))
        return Look(rows, product, at, f)

    def settle(self) -> None:
        """Leave buffers and random state as the pass at w_t left them."""
        if self._after is not None:
            self._evaluator.module_state.restore(self._after)

    @property
    def finite(self) -> Tensor:
        """Which blocks (B,) have nothing but finite numbers in what was seen of them."""
        marks = [torch.isfinite(values).reshape(len(values), -1).all(1) for values in self.seen]
        return torch.stack(marks).all(0)

    def culprits(self) -> list[int]:
        """The blocks whose gradient is not finite, found by replaying the draw block by block.

        Under FSDP a pass is taken by all ranks or by none, and only some have blocks to replay: nobody is named.
        """
        if self._evaluator.is_sharded:
            return []
        try:
            return self._replayed(alone=True)
        except Exception:  # a model may refuse a single block, as BatchNorm does
            return self._replayed(alone=False)

    def _replayed(self, *, alone: bool) -> list[int]:
        places = enumerate(self.index.tolist())
        return [block for at, block in places if not all(self._replay(at, alone, *seen) for seen in self._looks)]

    def _replay(
        self,
        place: int,
        alone: bool,
        weights: Sequence[Tensor] | None,
        u: Tensor,
        weight: float,
    ) -> bool:
        evaluator, only = self._evaluator, slice(place, place + 1)
        index, data, row = self.index, self.data, only
        size = index.shape[0]
        if alone and all(isinstance(item, Tensor) and item.dim() > 0 and item.shape[0] == size for item in data):
            index, data, row = index[only], tuple(item[only] for item in data), slice(0, 1)
        evaluator.module_state.restore(self._before)
        at = u[only]
        with evaluator.at(weights), evaluator.no_sync():
            clear(evaluator.parameters)
            g = evaluator.inner(index, data)[row]
            _, slope = evaluator.outer(self.index[only], at, weight * self._scale)
            evaluator.backward(g, at, slope)
        gradients = [p.grad for p in evaluator.parameters if p.grad is not None]
        return all(bool(torch.isfinite(gradient).all()) for gradient in gradients)


def _in(dtype: torch.dtype, x: Tensor) -> Tensor:
    """x in a dtype; asking first is cheaper than a conversion that does nothing."""
    return x if x.dtype == dtype else x.to(dtype)


def _mark(p: nn.Parameter) -> tuple[int, int]:
    """Changes when something is added to the gradient."""
    return id(p.grad), 0 if p.grad is None else p.grad._version


def _apart(g: Tensor) -> Tensor:
    """g without graph; a copy where it is a view of the weights, which move."""
    source = g._base if g._is_view() else g
    return g.detach().clone() if source is None or source.is_leaf else g.detach()


def _has_slope(objective: Objective) -> bool:
    """Whether f and its derivative come from the same class: a subclass may have another f."""
    owner = next(part for part in type(objective).__mro__ if {"outer", "slope"} & vars(part).keys())
    return "slope" in vars(owner) and "outer" not in vars(objective)


def _refuse_constant(g: Tensor) -> None:
    if not g.requires_grad:
        raise ValueError("inner must depend on a trainable parameter, got a result without a graph")


def clear(parameters: Sequence[nn.Parameter]) -> None:
    """Forget all gradients."""
    for p in parameters:
        p.grad = None


def gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """``p.grad`` of every parameter (this rank's part of it), made zero where nothing reached it."""
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    return sharded.parts(p.grad for p in parameters if p.grad is not None)


def all_finite(tensors: list[Tensor]) -> bool:
    """Whether every number of every tensor is finite (a device waits for the answer, once)."""
    floating = [tensor for tensor in tensors if tensor.numel() and tensor.is_floating_point()]
    if all(tensor.device.type == "cpu" for tensor in floating):
        # a sum is not finite where a number is not; where only the sum is too large, look again
        return all(math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all()) for tensor in floating)
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in floating:
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    largest = [norm for group in by_dtype.values() for norm in torch._foreach_norm(group, math.inf)]
    return bool(torch.isfinite(torch.stack([norm.double() for norm in largest])).all())


def name_blocks(blocks: list[int]) -> str:
    """'blocks 3, 5' for an error message."""
    return f"block{'s' if len(blocks) != 1 else ''} {checks.some(blocks)}"
