"""Evaluator: the objective's values, and its gradients into ``p.grad``; checks what the user's code returns."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from operator import is_
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import _has_any_global_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from fcco._objective import Objective, has_slope
from fcco._support import checks, jvp, sharded
from fcco._support.fused import Node, recorded
from fcco._support.interrupts import uninterrupted
from fcco._support.module_state import ModuleState, Tree
from fcco._support.parallel import average_over_ranks, rank_and_world, sum_over_ranks
from fcco.methods._box import Probe, WeighAt
from fcco.methods.estimators import Weight
from fcco.methods.trackers import with_derivative
from fcco.objectives._base import OutputObjective
from fcco.solver._gradients import NonFiniteError, all_finite, clear
from fcco.solver._meeting import Meeting
from fcco.solver._places import CopiedPlaces, Places


@final
class Evaluator:
    """Evaluates an objective for a solver.

    Args:
        objective: the user's g and f.
        optimizer: what may train more than the objective knows.

    Attributes:
        parameters: everything of the objective that is trained.
        log_domain: (dim,) bool, which components inner returns as log g; None: none of them.
        log_components: the same as the trackers take it: True where that is all of them.
        dtype: of the rows of u.
        places: how probes at other weights are made.
        meeting: the next reduction over ranks.
    """

    def __init__(self, objective: Objective, optimizer: Optimizer) -> None:
        named = [(name, p) for name, p in objective.named_parameters() if p.requires_grad]
        self.objective = objective
        self.names = [name for name, _ in named]
        self.parameters: list[nn.Parameter] = [p for _, p in named]
        self.device = self.parameters[0].device
        logarithmic = any(objective.log_domain)
        self.dtype = _row_dtype(self.parameters[0], logarithmic)
        self.log_domain: Tensor | None = None
        if logarithmic:
            self.log_domain = torch.tensor(objective.log_domain, device=self.device)
        self.log_components: Tensor | bool | None = all(objective.log_domain) or self.log_domain
        self.module_state = ModuleState(objective)
        self.places: Places = CopiedPlaces(self)
        self.meeting = Meeting()
        # Kept as they were, to tell later whether something was frozen or unfrozen.
        self._trained = [(p, p.requires_grad) for p in objective.parameters()]
        self._tree = Tree(objective)
        self._optimizer = optimizer
        self._own = {id(p) for p in objective.parameters()}
        self._optimized = _optimized_by(optimizer)  # when it was last checked
        self._foreign = _foreign_parameters(self._own, self._optimized)
        self._marks: list[Any] = []
        self._forward_mode = objective.forward_mode  # False once an operation without it was met
        self._has_slope = has_slope(objective)
        self._in_two_parts = _in_two_parts(objective) if self._has_slope else None
        self._node: Node | None = None  # what gave the last g, outside the graph
        self._wrapped = [part for part in objective.modules() if isinstance(part, DistributedDataParallel)]
        self._gathering = sharded.gathering_parts(objective)
        self._sharded = [sharded.is_sharded(p) for p in self.parameters]
        self.is_sharded = any(self._sharded)
        self.is_wrapped = bool(self._wrapped or self._gathering)

    # ------------------------------------------------------------------ what is trained

    def check_trained(self) -> None:
        """Refuse parameters that were frozen, unfrozen, added, replaced or taken from the optimizer since: z, w_{t-1}
        and the gradients are of those before, and nobody would train a new one."""
        # FSDP puts other parameters in their place while it has gathered them.
        if not self._gathering and self._tree.has_changed():
            self._check_tree()
        self._check_optimizer()
        changed = [p for p, trained in self._trained if p.requires_grad is not trained]
        if not changed:
            return
        named = {id(p): name for name, p in self.objective.named_parameters()}
        names = [named.get(id(p), "?") for p in changed]
        raise ValueError(
            f"requires_grad of {checks.some(names)} has changed since the Solver was created; create another Solver"
        )

    def _check_tree(self) -> None:
        """Modules have come or gone: refuse that where trained parameters have, too."""
        now = {id(p): name for name, p in self.objective.named_parameters()}
        added = [name for name, p in self.objective.named_parameters() if p.requires_grad and id(p) not in self._own]
        gone = [name for name, p in zip(self.names, self.parameters, strict=True) if id(p) not in now]
        names = list(dict.fromkeys(added + gone))
        if names:
            raise ValueError(
                f"parameters of the objective were added, removed or replaced since the Solver was created: "
                f"{checks.some(names)}; create another Solver"
            )
        self.module_state.renew(self.objective)
        self._tree = Tree(self.objective)

    def _check_optimizer(self) -> None:
        """Notice other parameters in the optimizer, and refuse to go on where trained ones are gone from it."""
        now = _optimized_by(self._optimizer)
        if len(now) == len(self._optimized) and all(map(is_, now, self._optimized)):
            return
        left = {id(p) for p in now}
        gone = [name for name, p in zip(self.names, self.parameters, strict=True) if id(p) not in left]
        if gone:
            raise ValueError(
                f"parameters of the objective were removed from the optimizer since the Solver was created: "
                f"{checks.some(gone)}; create another Solver"
            )
        self._optimized = now
        self._foreign = _foreign_parameters(self._own, now)

    def begin(self) -> None:
        """Forget all gradients, and remember which ones the optimizer's other parameters have."""
        for p in self.parameters:
            p.grad = None
        self._marks = [_gradient_mark(p) for p in self._foreign]

    def check_foreign_parameters(self) -> None:
        """Refuse an inner or outer that reaches parameters which the optimizer trains and the objective did not have
        when the Solver was made: their gradients would not be cleared, nor the parameters put back."""
        reached = [p for p, mark in zip(self._foreign, self._marks, strict=True) if _gradient_mark(p) != mark]
        if reached:
            clear(reached)
            raise ValueError(
                f"inner or outer uses parameters that the objective does not have, of shapes {_shapes(reached)}: make "
                "them attributes of it (with fcco.objective, pass them as parameters) before you create the Solver"
            )

    # ------------------------------------------------------------------ g and f

    def inner(self, index: Tensor, data: tuple[Any, ...]) -> Tensor:
        """g (B, dim) with its graph."""
        try:
            g = self.objective(index, *data)
        except Exception as error:
            _note_arguments(error, "inner", index, data)
            raise
        return self.checked_inner(g, index)

    def inner_to_weigh(self, index: Tensor, data: tuple[Any, ...]) -> Tensor:
        """g (B, dim) for :meth:`weighed` alone: without a graph where the node that gave it can do without."""
        self._node = None
        objective = self._in_two_parts
        if objective is None or not torch.is_grad_enabled() or _has_hooks(objective):
            return self.inner(index, data)
        batch = objective.checked_batch(data)
        try:
            outputs = objective.outputs(batch.x)
        except Exception as error:
            _note_arguments(error, "the model", index, (batch.x,))
            raise
        g, self._node = recorded(lambda: objective.values(index, outputs, batch))
        if self._node is None:  # it does not end in a node, and would be computed twice every time
            self._in_two_parts = None
        return self.checked_inner(g, index)

    def inner_and_jvp(self, index: Tensor, data: tuple[Any, ...], tangents: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """g (B, dim) with its graph, and J v (B, dim): forward mode, or double backward where that is missing."""
        # A forward pass that fails half-way has drawn random numbers and moved statistics.
        before = self.module_state.capture()
        missing = None
        if self._forward_mode:
            try:
                with sdpa_kernel(SDPBackend.MATH):  # the fused attention kernels have no forward mode
                    g, product = jvp.by_forward_mode(self.objective, self.names, tangents, (index, *data))
                return self.checked_inner(g, index), product
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
                f"forward-mode differentiation is not available ({missing}); Jacobian-vector products are now "
                "computed by "
                "double backward, at about the cost of one more backward pass",
                stacklevel=2,
            )
        return result

    def outer(self, index: Tensor, u: Tensor, scale: Weight) -> tuple[Tensor, Tensor]:
        """f (B,) and scale * grad f (B, dim) at u; the gradient of outer's own parameters goes to ``p.grad``."""
        leaf = u.detach().requires_grad_()  # (B, dim)
        f = self._checked_outer(index, leaf)  # (B,)
        if f.requires_grad:
            f.backward(_seed(f, scale))
        if leaf.grad is None:  # f is constant in u
            return f.detach(), torch.zeros_like(u)
        return f.detach(), leaf.grad

    def backward(self, g: Tensor, u: Tensor, slope: Tensor) -> None:
        """Add slope times the Jacobian of g to ``p.grad``; log components are weighted by g/u."""
        _check_graph(g)
        g.backward(self.weighted_slope(g, u, slope).to(g.dtype))

    def weighted_slope(self, g: Tensor, u: Tensor, slope: Tensor) -> Tensor:
        """The slope by what inner returns: in log components d g = g d(log g), and grad f is by log u."""
        if self.log_domain is None:
            return slope
        weighted = slope * (self.rows(g) - u).exp()
        if self.log_components is True:
            return weighted
        return torch.where(self.log_domain, weighted, slope)

    def weighed(
        self, index: Tensor, g: Tensor, product: Tensor | None, weigh_at: WeighAt, scale: Weight | None
    ) -> Probe:
        """A probe from g (B, dim) and J v; where ``scale`` is given, add scale times the gradient to ``p.grad``."""
        node = self._node
        self._node = None
        if node is not None and node.result is g and scale is not None:
            rows = g.to(self.dtype)  # (B, dim)
            u = weigh_at(rows, product)
            return Probe(rows, product, u, self._outer_and_node(index, node, u, scale))
        g = g.to(self.dtype)
        rows = _without_graph(g)  # (B, dim)
        if scale is None:
            return Probe(rows, product)
        u = weigh_at(rows, product)  # (B, dim)
        return Probe(rows, product, u, self.outer_and_backward(index, g, u, scale))

    def _outer_and_node(self, index: Tensor, node: Node, u: Tensor, scale: Weight) -> Tensor:
        """As :meth:`outer_and_backward`, where g is what a node outside the graph has given."""
        known = self._known_slope(index, u)
        if known is None:
            f, slope = self.outer(index, u, scale)
        else:
            f = known[0]
            slope = known[1] * scale
        weighted = self.weighted_slope(node.result, u, slope).to(node.result.dtype)
        directly = weighted.is_cpu and not self._wrapped and not self.is_sharded
        node.backward(weighted, directly=directly)
        return f

    def outer_and_backward(self, index: Tensor, g: Tensor, u: Tensor, scale: Weight) -> Tensor:
        """f (B,) at u; scale * grad f times the Jacobian of g is added to ``p.grad``, as by the two above.

        One backward pass does both: f is taken at u with the derivative of g put behind it.

        Args:
            g: with its graph, in the dtype of the table.
        """
        if self._has_slope:
            known = self._known_slope(index, u)
            if known is not None:
                f, slope = known
                self.backward(g, u, slope * scale)
                return f
        _check_graph(g)
        f = self._checked_outer(index, with_derivative(u, g, self.log_components))
        if not f.requires_grad:
            raise ValueError("outer must depend on u, got a result without a graph")
        f.backward(_seed(f, scale))  # through u to the parameters of f, through the change to those of g
        return f.detach()

    def _known_slope(self, index: Tensor, u: Tensor) -> tuple[Tensor, Tensor] | None:
        known = self.objective.outer_and_slope(index, u)  # (B,), (B, dim)
        if known is not None and (known[0].shape != index.shape or known[1].shape != u.shape):
            got = f"{tuple(known[0].shape)} and {tuple(known[1].shape)}"
            wanted = f"{tuple(index.shape)} and {tuple(u.shape)}"
            raise ValueError(f"outer_and_slope must return shapes {wanted}, got {got}")
        return known

    def project(self, u: Tensor) -> Tensor:
        """Rows u (B, dim) on the range of g, without graph."""
        projected: Any = self.objective.project(u)
        if projected is u:  # the default: rows as they are
            return self.rows(u)
        if not isinstance(projected, Tensor):
            raise TypeError(f"project must return a tensor of shape {tuple(u.shape)}, got {type(projected).__name__}")
        if projected.shape != u.shape:
            raise ValueError(
                f"project must return shape {tuple(u.shape)}, like its input, got {tuple(projected.shape)}"
            )
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
        if g.dtype == self.dtype and not g.requires_grad:
            return g
        return g.detach().to(self.dtype)

    def _checked_outer(self, index: Tensor, u: Tensor) -> Tensor:
        try:
            f: Any = self.objective.outer(index, u)
        except Exception as error:
            _note_arguments(error, "outer", index, (u,))
            raise
        if not isinstance(f, Tensor) or f.shape != index.shape:
            shape = tuple(f.shape) if isinstance(f, Tensor) else type(f).__name__
            raise ValueError(f"outer must return shape {tuple(index.shape)} (one value per block), got {shape}")
        if not f.is_floating_point():
            raise TypeError(f"outer must return floating point numbers, got dtype {f.dtype}")
        return f

    def checked_inner(self, g: Any, index: Tensor) -> Tensor:
        """What inner returned, or an error that says what it should have been."""
        shape = (index.shape[0], self.objective.dim)
        if not isinstance(g, Tensor):
            raise TypeError(f"inner must return a tensor of shape {shape}, got {type(g).__name__}")
        if g.shape != shape:
            raise ValueError(f"inner must return shape {shape} (one row per block), got {tuple(g.shape)}")
        if not g.is_floating_point():
            raise TypeError(f"inner must return floating point numbers, got dtype {g.dtype}")
        if g.device != index.device:
            raise ValueError(f"inner must return a tensor on {index.device}, where u is, got one on {g.device}")
        return g

    # ------------------------------------------------------------------ other weights, other ranks

    def at(
        self, weights: Sequence[Tensor] | None, kept: Sequence[Tensor] | None = None
    ) -> AbstractContextManager[object]:
        """Within the block the parameters hold ``weights`` (None: as they are), and DDP reduces nothing.

        Args:
            weights: one tensor per parameter.
            kept: a copy of what the parameters hold, where there is one already.
        """
        if weights is None:
            return self.no_sync()
        return self._rewound(weights, kept or sharded.copies(self.parameters))

    @contextmanager
    def _rewound(self, weights: Sequence[Tensor], kept: Sequence[Tensor]) -> Iterator[None]:
        # Autocast's half-precision copies, and what FSDP gathered for one pass, must not serve a pass at other weights.
        try:
            sharded.copy_into(self.parameters, weights)
            torch.clear_autocast_cache()
            sharded.reshard(self._gathering)
            with self.no_sync():
                yield
        finally:
            with uninterrupted():
                sharded.copy_into(self.parameters, kept)
                torch.clear_autocast_cache()
            sharded.reshard(self._gathering)

    def average_once(self, grads: list[Tensor], finite: Callable[[], Tensor]) -> bool:
        """A step's one reduction over ranks: average gradients, in place, and say whether ``finite`` holds everywhere.

        One rank alone has nothing to average, and does not ask.
        """
        if rank_and_world()[1] == 1:
            return True
        self.meeting.then(None)
        return bool(self.average(grads, finite()))

    def average(self, grads: list[Tensor], finite: Tensor) -> Tensor:
        """Average gradients over ranks, in place, and say whether ``finite`` holds on all of them."""
        if self.is_sharded:  # FSDP has averaged those already
            grads = [gradient for gradient, mark in zip(grads, self._sharded, strict=True) if not mark]
        return average_over_ranks(grads, finite, self.meeting.step)

    def join_average(self, error: Exception) -> None:
        """Take this rank's failure to where the others wait for its gradients; raises it, and on them a RankError."""
        grads = [torch.zeros_like(p) for p, mark in zip(self.parameters, self._sharded, strict=True) if not mark]
        average_over_ranks(grads, torch.tensor(True, device=self.device), self.meeting.step, error)

    def all_finite(self, tensors: list[Tensor]) -> bool:
        """Whether every number is finite; of sharded tensors on all ranks, which then must all ask."""
        finite = all_finite(tensors)
        if not self.is_sharded:
            return finite
        # Each rank sees its own part alone, and all must come to the same answer.
        return float(sum_over_ranks(torch.tensor(float(not finite), device=self.device))) == 0.0

    def check_weights(self) -> None:
        """Refuse weights that are not finite themselves: no block is to blame then, and to skip steps would not help.

        Something else than a step has spoilt them, a learning rate that is NaN, say.
        """
        weights = [p.detach() for p in self.parameters]
        if self.all_finite(sharded.parts(weights)):
            return
        pairs = zip(self.names, weights, strict=True)
        names = [name for name, weight in pairs if not all_finite(sharded.parts([weight]))]
        raise NonFiniteError(
            f"the weights are not finite: {checks.some(names) or 'on another rank'}; load a checkpoint and check the "
            "learning rate",
            [],
        )

    def norm(self, tensors: list[Tensor]) -> Tensor:
        """The norm of one tensor per parameter, all together; sharded ones over all ranks."""
        if self.is_sharded:
            return sharded.total_norm(tensors, self._sharded)
        return torch.nn.utils.get_total_norm(tensors)

    def no_sync(self) -> AbstractContextManager[object]:
        """The solver reduces over ranks once per step, so DDP must not do it after every backward pass."""
        if not self._wrapped:
            return nullcontext()
        stack = ExitStack()
        for part in self._wrapped:
            stack.enter_context(part.no_sync())
        return stack


def _in_two_parts(objective: Objective) -> OutputObjective | None:
    """The objective, where its inner function is outputs and then values, and nothing else."""
    kind = type(objective)
    if not isinstance(objective, OutputObjective):
        return None
    if kind.inner is not OutputObjective.inner or kind.forward is not Objective.forward:
        return None
    return objective


_CALLED = frozenset({"forward", "inner"})  # what accelerate, for one, replaces in a module of its own


def _has_hooks(module: nn.Module) -> bool:
    """Whether somebody must see that the module is called."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or module._compiled_call_impl is not None
        or not _CALLED.isdisjoint(module.__dict__)
        or _has_any_global_hook()
    )


def _optimized_by(optimizer: Optimizer) -> list[nn.Parameter]:
    """Everything that the optimizer trains."""
    found: list[nn.Parameter] = []
    for group in optimizer.param_groups:
        found += group["params"]
    return found


def _foreign_parameters(known: set[int], optimized: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """What is not among the known ones, by their ids."""
    return [p for p in optimized if id(p) not in known]


def _shapes(parameters: Sequence[nn.Parameter]) -> str:
    return ", ".join(str(tuple(p.shape)) for p in parameters)


def _row_dtype(parameter: Tensor, logarithmic: bool) -> torch.dtype:
    """Rows in the parameters' precision, single at least; log u in double: exponents of hundreds need its digits."""
    if logarithmic and parameter.device.type != "mps":  # which has no double precision
        return torch.float64
    return torch.promote_types(parameter.dtype, torch.float32)


def _gradient_mark(p: nn.Parameter) -> tuple[int, int]:
    """Changes when something is added to the gradient."""
    if p.grad is None:
        return id(None), 0
    return id(p.grad), p.grad._version


def _note_arguments(error: Exception, where: str, index: Tensor, data: tuple[Any, ...]) -> None:
    """Leave the user's own error as it is, with a note which call it came from."""
    shapes = ", ".join(_described(item) for item in data)
    error.add_note(f"fcco: raised by {where}, called for {len(index)} blocks with {shapes or 'no data'}")


def _described(item: Any) -> str:
    if isinstance(item, Tensor):
        return f"a tensor {tuple(item.shape)}"
    return f"a {type(item).__name__}"


def _seed(f: Tensor, scale: Weight) -> Tensor:
    """What a backward pass from f (B,) starts with: the scale, for every block."""
    if isinstance(scale, Tensor):
        return scale.to(f.dtype).expand_as(f)
    return torch.full_like(f, scale)


def _check_graph(g: Tensor) -> None:
    if not g.requires_grad:
        raise ValueError("inner must depend on a trainable parameter, got a result without a graph")


def _without_graph(g: Tensor) -> Tensor:
    """g without graph; a copy where it is a view of the weights, which move."""
    source = g._base if g._is_view() else g
    if source is None or source.is_leaf:
        return g.detach().clone()
    return g.detach()
