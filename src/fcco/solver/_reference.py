"""The anchor of the finite-sum forms, renewed by a pass over all data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fcco._support.sharded import copies
from fcco.methods.trackers import Coefficient, floor
from fcco.solver._blocks import BlockTable
from fcco.solver._full_pass import FullPass, full_gradient, full_values, refuse_nonfinite, suspects
from fcco.solver._probe import Evaluator, clear, gradients


@final
@dataclass
class Anchor:
    """v3's anchor: w_tau, g_i(w_tau), u_{tau-1} as it weighs the gradients, and Gfull_tau."""

    weights: list[Tensor]
    g: Tensor
    u: Tensor
    gradient: list[Tensor]


def make_anchor(evaluator: Evaluator, table: BlockTable, full_pass: FullPass, beta: Coefficient) -> tuple[Anchor, int]:
    """tau = t: w_tau, g(w_tau), u_{tau-1} and Gfull, and the samples of one pass.

    Blocks without a row yet get u_0 = g(w_1), which takes a pass of its own; so does the log domain, where the
    safeguard needs g(w_tau) before the gradient. Either way one pass is charged.
    """
    start, g = not bool(table.visited.all()), None
    saved = evaluator.module_state.capture()
    try:
        if start or evaluator.log is not None:
            g, _ = full_values(evaluator, table, full_pass)
            table.fill_new(g)
        u = table.current()[0].clone()
        if g is not None:
            u = floor(u, g, beta, evaluator.log)
        clear(evaluator.parameters)
        _, again, samples = full_gradient(evaluator, table, full_pass, u)
    finally:
        evaluator.module_state.restore(saved)
    g = again if g is None else g
    grads = gradients(evaluator.parameters)
    if not bool(evaluator.average(grads, torch.isfinite(g).all()) & evaluator.all_finite(grads)):
        refuse_nonfinite(table, g, lambda: suspects(evaluator, table, full_pass, u))
    return Anchor(copies(evaluator.parameters), g, u, copies(grads)), samples
