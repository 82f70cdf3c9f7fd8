"""Exact figures from passes over all data."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fcco._support.parallel import sum_over_ranks
from fcco.solver._blocks import BlockTable
from fcco.solver._evaluator import Evaluator
from fcco.solver._full_pass import AllData, FullPass
from fcco.solver._gradients import clear, gradients
from fcco.solver._report import Diagnosis


def exact_figures(evaluator: Evaluator, table: BlockTable, full_pass: FullPass, z: list[Tensor] | None) -> Diagnosis:
    """F, ||grad F||, the tracking error and ||z - grad F||; weights, gradients and buffers are left as they were."""
    everything = AllData(evaluator, table, full_pass)
    kept = [p.grad for p in evaluator.parameters]
    saved = evaluator.module_state.capture()
    try:
        clear(evaluator.parameters)
        g, _ = everything.values()
        full = everything.gradient(g)
        exact = gradients(evaluator.parameters)
        if not bool(evaluator.average(exact, torch.isfinite(g).all())):
            everything.raise_nonfinite(g)
        return _figures(evaluator, table, full.f, g, exact, z)
    finally:
        evaluator.module_state.restore(saved)
        for p, gradient in zip(evaluator.parameters, kept, strict=True):
            p.grad = gradient


def _figures(
    evaluator: Evaluator, table: BlockTable, f: Tensor, g: Tensor, exact: list[Tensor], z: list[Tensor] | None
) -> Diagnosis:
    squares = (table.current() - g).square().sum(1)[table.visited]
    sums = torch.stack([f.sum(), squares.sum(), table.visited.sum().to(f.dtype)])
    total, error, count = sum_over_ranks(sums).tolist()
    tracking_error = None
    if count:
        tracking_error = math.sqrt(error / count)
    gradient_error = None
    if z is not None:
        gradient_error = float(evaluator.norm([a - b for a, b in zip(z, exact, strict=True)]))
    return Diagnosis(
        value=total / table.geometry.num_blocks,
        gradient_norm=float(evaluator.norm(exact)),
        tracking_error=tracking_error,
        gradient_error=gradient_error,
    )
