"""What a report can draw: the x axes and the metrics, one literal table each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Axis:
    """An x axis.

    Attributes:
        key: its name in the page's data.
        label: what stands beside the axis.
        short: the same for a button or a table's head.
        parts: the columns of metrics.jsonl that add up to it.
    """

    key: str
    label: str
    short: str
    parts: tuple[str, ...]


@final
@dataclass(frozen=True)
class Metric:
    """A y axis.

    Attributes:
        key: the column of metrics.jsonl.
        label: what stands beside the axis.
        short: the same for a table's head.
        lower: whether less is better.
        sparse: whether null is no failure: it is measured at some evaluations, or where asked for.
        listed: whether it has a column among the final values, and a figure.
    """

    key: str
    label: str
    short: str
    lower: bool
    sparse: bool = False
    listed: bool = True


AXES = (
    Axis("samples", "Samples drawn", "Samples", ("samples",)),
    Axis("step", "Steps", "Steps", ("step",)),
    Axis("evaluations", "Network evaluations", "Network evals", ("evaluations",)),
    Axis("seconds", "Seconds", "Seconds", ("seconds",)),
    Axis("oracle", "Oracle calls", "Oracle calls", ("oracle_g", "oracle_j", "oracle_jvp")),
)

METRICS = (
    Metric("objective", "Training objective", "Objective", lower=True),
    Metric("auroc", "AUROC", "AUROC", lower=False),
    Metric("ap", "Average precision", "AP", lower=False),
    Metric("tracking_error", "Tracking error ‖u − g‖", "Tracking error", lower=True, sparse=True),
    Metric("gradient_norm", "Gradient norm ‖∇F‖", "Gradient norm", lower=True, sparse=True),
    Metric("loss_estimate", "Loss estimate of the steps", "Loss estimate", lower=True, sparse=True, listed=False),
)
