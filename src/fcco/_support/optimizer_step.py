"""An optimizer's step without torch's wrapper, where that has nothing to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as registry

#: What torch puts around the step of every optimizer class, whichever step that is.
_WRAPPER = Optimizer.profile_hook_step(lambda optimizer: None).__code__


def take_step(optimizer: Optimizer) -> None:
    """Do as ``optimizer.step()`` does.

    The wrapper tells the profiler of the step and calls hooks. Where nobody listens, telling takes as long as the whole
    step of a small network.

    Args:
        optimizer: its gradients are in ``p.grad``.
    """
    bare = _bare_step(optimizer)
    if bare is None:
        optimizer.step()
    else:
        bare(optimizer)


def _bare_step(optimizer: Optimizer) -> Callable[[Optimizer], Any] | None:
    """Return the step inside torch's wrapper; None: something must see that it is called."""
    step: Any = type(optimizer).step
    # Schedulers, for one, put a function of their own into the instance.
    if "step" in vars(optimizer) or getattr(step, "__code__", None) is not _WRAPPER:
        return None
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return None
    if registry._global_optimizer_pre_hooks or registry._global_optimizer_post_hooks:
        return None
    if torch.autograd.profiler._is_profiler_enabled:
        return None
    bare: Callable[[Optimizer], Any] = step.__wrapped__
    return bare
