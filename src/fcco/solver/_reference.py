"""The reference w_tau of the finite-sum forms, renewed by a pass over all data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from fcco._support.parallel import sum_over_ranks
from fcco._support.sharded import copies
from fcco.methods.trackers import Coefficient, floor
from fcco.solver._blocks import BlockTable
from fcco.solver._evaluator import Evaluator
from fcco.solver._full_pass import AllData, FullPass
from fcco.solver._gradients import clear, gradients
from fcco.solver._state import Layout, saved


@final
@dataclass
class Reference:
    """v3's reference point.

    Args:
        weights: w_tau.
        gradient: Gfull_tau.
        g: (owned, dim) g_i(w_tau).
        u: (owned, dim) u_{tau-1}, as it weighed the gradient.
        step: tau.
        epoch: how many steps draw as many samples as the pass took, over all ranks; the period where none is given.
    """

    weights: list[Tensor] = saved(Layout.PER_PARAMETER)
    gradient: list[Tensor] = saved(Layout.PER_PARAMETER)
    g: Tensor = saved(Layout.PER_BLOCK)
    u: Tensor = saved(Layout.PER_BLOCK)
    step: int = saved(default=0)
    epoch: int = saved(default=0)

    @classmethod
    def blank(cls) -> Reference:
        """One to load a state into."""
        nothing: Any = None
        return cls(weights=nothing, gradient=nothing, g=nothing, u=nothing)


class Renewed(NamedTuple):
    """A new reference, how many samples its pass took, and in how many rows each block came (owned,)."""

    reference: Reference
    samples: int
    row_counts: Tensor


def make_reference(
    evaluator: Evaluator, table: BlockTable, full_pass: FullPass, beta: Coefficient, step: int
) -> Renewed:
    """tau = t: w_tau, g(w_tau), u_{tau-1} and Gfull from one pass.

    Blocks without a row yet get u_0 = g(w_1), which takes a pass of its own; so does the log domain, where the
    safeguard needs g(w_tau) before the gradient. Either way one pass is charged.
    """
    everything = AllData(evaluator, table, full_pass)
    starts = not bool(table.visited.all())
    g = None
    with evaluator.module_state.preserved():
        if starts or evaluator.log_domain is not None:
            g = everything.values()
            table.fill_new(g)
        u = table.current().clone()  # (owned, dim), lazy decay applied
        if g is not None:
            u = floor(u, g, beta, evaluator.log_domain)  # the same safeguard as in a step, or weights may be unbounded
        clear(evaluator.parameters)
        full = everything.gradient(u)
    if g is None:
        g = full.g
    grads = gradients(evaluator.parameters)
    if not bool(evaluator.average(grads, torch.isfinite(g).all()) & evaluator.all_finite(grads)):
        everything.raise_nonfinite(g, u)
    reference = Reference(weights=copies(evaluator.parameters), gradient=copies(grads), g=g, u=u, step=step)
    return Renewed(reference, full.samples, everything.row_counts)


def steps_per_epoch(pass_samples: int, step_samples: int, device: torch.device) -> int:
    """How many steps draw as many samples as a pass takes, the same number on every rank."""
    both = torch.tensor([pass_samples, step_samples], device=device)
    # Ranks may own unequal numbers of blocks, but must renew together.
    in_pass, in_step = sum_over_ranks(both).tolist()
    steps: int = math.ceil(in_pass / max(in_step, 1))
    return max(1, steps)
