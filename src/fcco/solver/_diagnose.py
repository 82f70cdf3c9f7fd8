"""Exact figures from passes over all data."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fcco._support.parallel import sum_over_ranks
from fcco.solver._blocks import BlockTable
from fcco.solver._full_pass import FullPass, full_gradient, full_values, refuse_nonfinite
from fcco.solver._probe import Evaluator, clear, gradients
from fcco.solver._report import Diagnosis


def exact_figures(evaluator: Evaluator, table: BlockTable, full_pass: FullPass, z: list[Tensor] | None) -> Diagnosis:
    """F, ||grad F||, the tracking error and ||z - grad F||; weights, gradients and buffers are left as they were."""
    kept = [p.grad for p in evaluator.parameters]
    saved = evaluator.module_state.capture()
    try:
        clear(evaluator.parameters)
        g, _ = full_values(evaluator, table, full_pass)
        f, _, _ = full_gradient(evaluator, table, full_pass, g)
        exact = gradients(evaluator.parameters)
        if not bool(evaluator.average(exact, torch.isfinite(g).all())):
            refuse_nonfinite(table, g)
        return _figures(evaluator, table, f, g, exact, z)
    finally:
        evaluator.module_state.restore(saved)
        for p, gradient in zip(evaluator.parameters, kept, strict=True):
            p.grad = gradient


def _figures(
    evaluator: Evaluator, table: BlockTable, f: Tensor, g: Tensor, exact: list[Tensor], z: list[Tensor] | None
) -> Diagnosis:
    rows, visited = table.current()
    squares = (rows - g).square().sum(1)[visited]
    sums = torch.stack([f.sum(), squares.sum(), visited.sum().to(f.dtype)])
    total, error, count = sum_over_ranks(sums).tolist()
    wrong = None
    if z is not None:
        wrong = float(evaluator.norm([a - b for a, b in zip(z, exact, strict=True)]))
    return Diagnosis(
        value=total / table.num_blocks,
        gradient_norm=float(evaluator.norm(exact)),
        tracking_error=math.sqrt(error / count) if count else None,
        gradient_error=wrong,
    )
