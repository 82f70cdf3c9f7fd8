"""Exact figures from passes over all data."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fcco._support.parallel import sum_over_ranks, together
from fcco.solver._blocks import BlockTable
from fcco.solver._evaluator import Evaluator
from fcco.solver._full_pass import AllData, FullPass
from fcco.solver._gradients import gradients
from fcco.solver._report import Diagnosis


def exact_figures(
    evaluator: Evaluator, table: BlockTable, full_pass: FullPass, z: list[Tensor] | None, gradient: bool
) -> Diagnosis:
    """F, ||grad F||, the tracking error and ||z - grad F||; weights, gradients and buffers are left as they were.

    Without ``gradient`` F and the tracking error alone, from one pass forward: what is not finite shows in them.
    """
    everything = AllData(evaluator, table, full_pass)
    kept = [p.grad for p in evaluator.parameters]  # z of a plain estimator lies there
    try:
        with together("in a pass over all data"), evaluator.module_state.preserved():
            evaluator.check_trained()
            g = everything.values()
            if gradient:
                evaluator.begin()
                f = everything.gradient(g).f
                evaluator.check_foreign_parameters()
            else:
                f = everything.outer(g)
        if not gradient:
            value, tracking_error = _value_and_error(table, f, g)
            return Diagnosis(value, None, tracking_error, None)
        exact = gradients(evaluator.parameters)
        if not bool(evaluator.average(exact, torch.isfinite(g).all())):
            everything.raise_nonfinite(g)
        value, tracking_error = _value_and_error(table, f, g)
        gradient_error = None
        if z is not None:
            gradient_error = float(evaluator.norm([a - b for a, b in zip(z, exact, strict=True)]))
        return Diagnosis(value, float(evaluator.norm(exact)), tracking_error, gradient_error)
    finally:
        for p, before in zip(evaluator.parameters, kept, strict=True):
            p.grad = before


def _value_and_error(table: BlockTable, f: Tensor, g: Tensor) -> tuple[float, float | None]:
    """F, and the tracking error over the blocks visited; None where there are none."""
    squares = (table.current() - g).square().sum(1)[table.visited]  # (visited,)
    sums = torch.stack([f.sum(), squares.sum(), table.visited.sum().to(f.dtype)])  # one reduction for all three
    total, error, count = sum_over_ranks(sums).tolist()
    value = total / table.geometry.num_blocks
    if not count:
        return value, None
    return value, math.sqrt(error / count)
