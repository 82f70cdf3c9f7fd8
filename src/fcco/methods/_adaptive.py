"""The paper's adaptive step (equation 17), as a torch optimizer over z."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from fcco._support import checks
from fcco.methods.schedules import Schedule, at


@final
class Adaptive(Optimizer):
    r"""Adaptive step sizes over the solver's z, without bias correction.

    .. math::
        d_t = z_t + \mu w_t, \quad h'_t = (1-b'_t) h'_{t-1} + b'_t d_t^2, \quad
        h_t = h'_t \text{ or } \max(h_{t-1}, h'_t), \quad w_{t+1} = w_t - \eta d_t / (\sqrt{h_t} + \delta)

    The weight decay mu is that of F + (mu/2)||w||^2, exact and outside the projection of z, as
    :class:`fcco.StageWise` needs it for convex problems. It is scaled as z is: a decay that is decoupled from the
    scaling (AdamW) would come to rest at another point than the minimum of that sum.

    Args:
        params: as for every torch optimizer.
        lr: eta; with ``capturable`` also a tensor of shape ().
        beta: b', in (0, 1]: a number or a function of the step t = 1, 2, ...; with ``capturable`` a number or a tensor
            of shape ().
        delta: > 0.
        amsgrad: AMSGrad style (the maximum) instead of Adam style.
        weight_decay: mu.
        capturable: for steps captured as a CUDA graph: ``lr`` and ``beta`` may be tensors (on the parameters' device),
            which no step reads on the host; writing into them (``lr.fill_(...)``, as torch's schedulers do) reaches
            later replays.

    Example:
        >>> w = torch.nn.Parameter(torch.tensor([1.0]))
        >>> w.grad = torch.tensor([4.0])
        >>> Adaptive([w], lr=0.1, beta=0.25, delta=1e-8).step()
        >>> round(float(w.detach()), 4)
        0.8
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float | Tensor = 1e-3,
        *,
        beta: Schedule | Tensor = 0.1,
        delta: float = 1e-8,
        amsgrad: bool = False,
        weight_decay: float = 0.0,
        capturable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "beta": beta,
            "delta": delta,
            "amsgrad": amsgrad,
            "weight_decay": weight_decay,
            "capturable": capturable,
            "steps": 0,
        }
        _check(defaults)
        self._schedules: list[Schedule | Tensor] = []  # of b', one per group
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As for every torch optimizer; a group's own numbers are checked like the others."""
        # Groups may come with numbers of their own, at once or later.
        numbers = {**self.defaults, **param_group}
        _check(numbers)
        beta = numbers["beta"]
        group = dict(param_group)
        if callable(beta):
            group["beta"] = at(beta, 1, "beta", checks.rate)  # a function is the caller's, not state
        super().add_param_group(group)
        self._schedules.append(beta)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_schedules": self._schedules}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            # States of earlier versions know nothing of these.
            group.setdefault("weight_decay", 0.0)
            group.setdefault("capturable", False)
            group.setdefault("steps", 0)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step along ``p.grad`` (the z that the solver left there)."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._follow_schedules()
        for group, schedule in zip(self.param_groups, self._schedules, strict=True):
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                _update(params, [p.grad for p in params], [self.state[p] for p in params], group)
            if callable(schedule):
                group["steps"] += 1  # for its sake alone: without one a step writes into tensors only
        return loss

    def _follow_schedules(self) -> None:
        # All groups before any of them moves: a schedule may raise.
        for group, schedule in zip(self.param_groups, self._schedules, strict=True):
            if callable(schedule):
                group["beta"] = at(schedule, group["steps"] + 1, "beta", checks.rate)


def _check(group: dict[str, Any]) -> None:
    capturable = checks.flag("capturable", group["capturable"])
    _check_number("lr", group["lr"], checks.non_negative, capturable)
    _check_number("beta", group["beta"], checks.rate, capturable)
    checks.positive("delta", group["delta"])
    checks.flag("amsgrad", group["amsgrad"])
    checks.non_negative("weight_decay", group["weight_decay"])


def _check_number(name: str, value: Any, check: checks.Check, capturable: bool) -> None:
    if callable(value) and name == "beta":
        if capturable:
            raise ValueError(
                f"{name} must be a number or a tensor if capturable is True (a captured step runs no Python), "
                f"got the function {value!r}"
            )
        at(value, 1, name, check)
    elif capturable and isinstance(value, Tensor):
        if value.dim() != 0:
            raise ValueError(f"{name} must be a number or a tensor of shape (), got one of shape {tuple(value.shape)}")
        check(name, float(value))  # read here once, and never in a step
    else:
        check(name, value)


def _update(params: list[Tensor], z: list[Tensor], states: list[dict[str, Tensor]], group: dict[str, Any]) -> None:
    """One step of a group's parameters, a few kernels for all of them."""
    for p, state in zip(params, states, strict=True):
        if not state:
            state["average"] = torch.zeros_like(p)
            if group["amsgrad"]:
                state["largest"] = torch.zeros_like(p)
    direction = z
    if group["weight_decay"]:
        direction = list(torch._foreach_add(z, params, alpha=group["weight_decay"]))  # z stays in p.grad as it is
    h = [state["average"] for state in states]
    _average(h, direction, group["beta"])
    if group["amsgrad"]:
        largest = [state["largest"] for state in states]
        torch._foreach_maximum_(largest, h)
        h = largest
    scale = torch._foreach_sqrt(h)
    torch._foreach_add_(scale, group["delta"])
    lr = group["lr"]
    if isinstance(lr, Tensor):
        step = torch._foreach_div(direction, scale)
        torch._foreach_mul_(step, lr)
        torch._foreach_sub_(params, step)
    else:
        torch._foreach_addcdiv_(params, direction, scale, value=-lr)


def _average(average: list[Tensor], z: list[Tensor], beta: float | Tensor) -> None:
    """h' = (1 - b') h' + b' z^2, in place."""
    torch._foreach_mul_(average, 1 - beta)
    if isinstance(beta, Tensor):
        squares = torch._foreach_mul(z, z)
        torch._foreach_mul_(squares, beta)
        torch._foreach_add_(average, squares)
    else:
        torch._foreach_addcmul_(average, z, z, value=beta)
