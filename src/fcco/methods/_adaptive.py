"""The paper's adaptive step (equation 17), as a torch optimizer over z."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from fcco._support import checks


@final
class Adaptive(Optimizer):
    r"""Adaptive step sizes over the solver's z, without bias correction.

    .. math::
        h'_t = (1-b') h'_{t-1} + b' z_t^2, \quad h_t = h'_t \text{ or } \max(h_{t-1}, h'_t), \quad
        w_{t+1} = w_t - \eta z_t / (\sqrt{h_t} + \delta)

    Args:
        params: as for every torch optimizer.
        lr: eta.
        beta: b', in (0, 1].
        delta: > 0.
        amsgrad: AMSGrad style (the maximum) instead of Adam style.

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
        lr: float = 1e-3,
        *,
        beta: float = 0.1,
        delta: float = 1e-8,
        amsgrad: bool = False,
    ) -> None:
        _check({"lr": lr, "beta": beta, "delta": delta, "amsgrad": amsgrad})
        super().__init__(params, {"lr": lr, "beta": beta, "delta": delta, "amsgrad": amsgrad})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As for every torch optimizer; a group's own numbers are checked like the others."""
        # Groups may come with numbers of their own, at once or later.
        _check({**self.defaults, **param_group})
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step along ``p.grad`` (the z that the solver left there)."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    _update(p, p.grad, self.state[p], group)
        return loss


def _check(group: dict[str, Any]) -> None:
    checks.non_negative("lr", group["lr"])
    checks.rate("beta", group["beta"])
    checks.positive("delta", group["delta"])
    checks.flag("amsgrad", group["amsgrad"])


def _update(p: Tensor, z: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
    if not state:
        state["average"] = torch.zeros_like(p)
        if group["amsgrad"]:
            state["largest"] = torch.zeros_like(p)
    h = state["average"].mul_(1 - group["beta"]).addcmul_(z, z, value=group["beta"])
    if group["amsgrad"]:
        h = torch.maximum(state["largest"], h, out=state["largest"])
    p.addcdiv_(z, h.sqrt().add_(group["delta"]), value=-group["lr"])
