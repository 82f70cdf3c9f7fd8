"""Objective: the user's inner functions g_i and outer functions f_i."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from fcco._support import checks


class Objective(nn.Module):
    r"""A coupled compositional objective :math:`F(w) = \frac1m \sum_i f_i(g_i(w))`.

    Subclass it, write :meth:`inner` and :meth:`outer`, and register the model (and any other trained
    variables) as attributes, so that ``objective.parameters()`` is all that an optimizer needs.

    Args:
        num_blocks: m, the number of inner functions.
        dim: p, the number of components of each g_i.
        log_domain: True (or one flag per component) if :meth:`inner` returns log g instead of g. Rows then store
            log u and :meth:`outer` receives log u, so exponentials of any size stay finite.

    Example:
        >>> import torch
        >>> class Quadratic(Objective):
        ...     def __init__(self):
        ...         super().__init__(num_blocks=3, dim=1)
        ...         self.w = nn.Parameter(torch.zeros(2))
        ...
        ...     def inner(self, index, x):  # x: (B, B2, 2) -> (B, 1)
        ...         return (x @ self.w).mean(1, keepdim=True)
        ...
        ...     def outer(self, index, u):  # (B, 1) -> (B,)
        ...         return u.square().squeeze(1)
        >>> objective = Quadratic()
        >>> objective(torch.tensor([0, 2]), torch.ones(2, 4, 2)).shape
        torch.Size([2, 1])
    """

    #: False if :meth:`inner` uses parameters that are not this module's attributes (closures):
    #: Jacobian-vector products are then computed by double backward instead of forward mode.
    forward_mode: bool = True

    #: False if g is in the log domain but not a mean of exponentials under a log: SCENT is then refused.
    mean_of_exponentials: bool = True

    def __init__(self, num_blocks: int, dim: int = 1, log_domain: bool | Sequence[bool] = False) -> None:
        super().__init__()
        self.num_blocks = checks.positive_int("num_blocks", num_blocks)
        self.dim = checks.positive_int("dim", dim)
        self.log_domain: tuple[bool, ...] = _flags(log_domain, dim)
        self.fixed_buffers: frozenset[str] = frozenset()

    def register_fixed_buffer(self, name: str, value: Tensor | None, *, persistent: bool = True) -> None:
        """Register a buffer that no pass changes, such as weights or a map from blocks to data.

        It moves between devices like any buffer, but a step does not copy it, so its size costs nothing.

        Args:
            name: the attribute.
            value: the tensor.
            persistent: whether ``state_dict`` holds it; False for what can be computed from the data.
        """
        self.register_buffer(name, value, persistent=persistent)
        self.fixed_buffers = self.fixed_buffers | {name}

    def constants(self) -> dict[str, Any]:
        """Everything that F depends on besides weights and data (temperature, loss, margins), by name, as plain values.

        A checkpoint holds them, and a solver whose objective has different ones refuses to load it.
        """
        return {}

    def inner(self, index: Tensor, *data: Any) -> Tensor:
        """An unbiased estimate g_i(w; xi) of g_i(w), one row per block (log g if ``log_domain``).

        Args:
            index: (B,) int64, which blocks.
            data: their samples, as the loader yields them.

        Returns:
            (B, dim).
        """
        raise NotImplementedError(f"{type(self).__name__} must define inner(index, *data)")

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        """f_i(u_i), one value per block. It may have parameters of its own, such as a temperature or a threshold.

        Args:
            index: (B,) int64, which blocks.
            u: (B, dim), log u if ``log_domain``.

        Returns:
            (B,).
        """
        raise NotImplementedError(f"{type(self).__name__} must define outer(index, u)")

    def outer_and_slope(self, index: Tensor, u: Tensor) -> tuple[Tensor, Tensor] | None:
        """f_i(u_i) (B,) and its derivative (B, dim) in closed form; None, the default, leaves it to autograd.

        An option for speed if f is simple and has no parameters: with a small batch, a step spends more time on the
        graph of f than on f. It is called only if the class that defines ``outer`` also defines it.

        Args:
            index: blocks (B,).
            u: rows (B, dim).
        """
        return None

    def project(self, u: Tensor) -> Tensor:
        """Put rows u (B, dim) back onto the range of g; the default leaves them as they are.

        Args:
            u: rows (B, dim).
        """
        return u

    def samples(self, index: Tensor, *data: Any) -> int:
        """How many examples were drawn for this batch.

        The default looks at the first tensor. One laid out by block, (B1, B2, ...), counts B1*B2; any other with
        leading size K counts K. A batch of a loader counts its examples.

        Args:
            index: blocks (B,).
            data: the other arguments of ``inner``.
        """
        for item in data:
            x = getattr(item, "x", item)
            if not isinstance(x, Tensor) or x.dim() == 0:
                continue
            # A ready batch lays its examples out one after the other, whatever its shape looks like.
            laid_out_by_block = x is item and x.dim() > 1 and x.shape[0] == index.shape[0]
            if laid_out_by_block:
                return x.shape[0] * x.shape[1]
            return x.shape[0]
        return int(index.shape[0])

    def forward(self, index: Tensor, *data: Any) -> Tensor:
        """The same as :meth:`inner`, so that hooks, DDP and ``functional_call`` see it.

        Args:
            index: blocks (B,).
            data: the other arguments of ``inner``.
        """
        return self.inner(index, *data)


class FunctionalObjective(Objective):
    """An objective from two functions; made by :func:`objective`."""

    forward_mode = False

    def __init__(
        self,
        inner: Callable[..., Tensor],
        outer: Callable[[Tensor, Tensor], Tensor],
        num_blocks: int,
        dim: int,
        log_domain: bool | Sequence[bool],
        project: Callable[[Tensor], Tensor] | None,
        samples: Callable[..., int] | None,
        parameters: nn.Module | Iterable[Tensor],
    ) -> None:
        super().__init__(num_blocks, dim, log_domain)
        self._inner = inner
        self._outer = outer
        self._project = project
        self._samples = samples
        #: the proximal map of the outer function, where that has one (:func:`fcco.objectives.smoothed` takes it)
        self.prox = getattr(outer, "prox", None)
        if isinstance(parameters, nn.Module):
            self.model = parameters
        else:
            self.trained = nn.ParameterList(parameters)
            _warn_of_buffers(self.trained, inner)

    def __deepcopy__(self, memo: dict[int, Any]) -> FunctionalObjective:
        raise TypeError(
            "an objective of two functions cannot be copied, because they would keep using the original's "
            "parameters; write a subclass of Objective for that"
        )

    def inner(self, index: Tensor, *data: Any) -> Tensor:
        return self._inner(index, *data)

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        return self._outer(index, u)

    def project(self, u: Tensor) -> Tensor:
        if self._project is None:
            return u
        return self._project(u)

    def samples(self, index: Tensor, *data: Any) -> int:
        if self._samples is None:
            return super().samples(index, *data)
        return self._samples(index, *data)


def _flags(log_domain: Any, dim: int) -> tuple[bool, ...]:
    """One flag per component of g."""
    if isinstance(log_domain, bool):
        return (log_domain,) * dim
    flags: tuple[Any, ...] = ()
    if isinstance(log_domain, Sequence):
        flags = tuple(log_domain)
    if len(flags) != dim or not all(isinstance(flag, bool) for flag in flags):
        raise ValueError(f"log_domain must be a bool or {dim} bools (one per component of g), got {log_domain!r}")
    return flags


def _warn_of_buffers(trained: nn.ParameterList, function: Callable[..., Any]) -> None:
    """Say that a module's buffers are left out, where its parameters are given and not the module."""
    own = {id(p) for p in trained}
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    used = [getattr(function, "__globals__", {}).get(name) for name in names]
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # nothing in it yet
            used.append(cell.cell_contents)
    for module in used:
        if isinstance(module, nn.Module) and own & {id(p) for p in module.parameters()} and list(module.buffers()):
            warnings.warn(
                f"parameters= leaves out the buffers of {type(module).__name__} (running statistics): a "
                "step would change them once per probe, and no checkpoint would hold them; pass parameters=module",
                stacklevel=4,
            )


def objective(
    inner: Callable[..., Tensor],
    outer: Callable[[Tensor, Tensor], Tensor],
    *,
    num_blocks: int,
    parameters: nn.Module | Iterable[Tensor],
    dim: int = 1,
    log_domain: bool | Sequence[bool] = False,
    project: Callable[[Tensor], Tensor] | None = None,
    samples: Callable[..., int] | None = None,
) -> Objective:
    """Make an :class:`Objective` from two functions, without writing a class.

    Args:
        inner: ``inner(index, *data) -> (B, dim)``, as :meth:`Objective.inner`.
        outer: ``outer(index, u) -> (B,)``, as :meth:`Objective.outer`.
        num_blocks: m.
        parameters: the module, or the ``nn.Parameter`` s, that the two functions use.
        dim: p.
        log_domain: as in :class:`Objective`.
        project: optional ``project(u) -> u``.
        samples: optional ``samples(index, *data) -> int``.

    Example:
        >>> import torch
        >>> w = nn.Parameter(torch.zeros(2))
        >>> f = objective(
        ...     lambda i, x: (x @ w).mean(1, keepdim=True),
        ...     lambda i, u: u.square().squeeze(1),
        ...     num_blocks=3,
        ...     parameters=[w],
        ... )
        >>> f.num_blocks, f.dim
        (3, 1)
    """
    for name, function in (("inner", inner), ("outer", outer), ("project", project), ("samples", samples)):
        optional = name in ("project", "samples") and function is None
        if not optional and not callable(function):
            raise TypeError(f"{name} must be a function, got {function!r}")
    if not isinstance(parameters, nn.Module):
        given: Any = parameters
        parameters = list(given) if isinstance(given, Iterable) else [given]
        wrong = [type(p).__name__ for p in parameters if not isinstance(p, nn.Parameter)]
        if wrong:
            raise TypeError(f"parameters must be a module or torch.nn.Parameters, got {checks.some(wrong)}")
    return FunctionalObjective(inner, outer, num_blocks, dim, log_domain, project, samples, parameters)


def has_slope(objective: Objective) -> bool:
    """Whether ``outer_and_slope`` speaks of this objective's f: a subclass with another ``outer`` may have none."""
    owner = next(part for part in type(objective).__mro__ if {"outer", "outer_and_slope"} & vars(part).keys())
    return "outer_and_slope" in vars(owner) and "outer" not in vars(objective)
