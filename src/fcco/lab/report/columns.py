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
        listed: whether it has a column among the final values, and a figure.
    """

    key: str
    label: str
    short: str
    lower: bool
    listed: bool = True


AXES = (
    Axis("samples", "Samples drawn", "Samples", ("samples",)),
    Axis("step", "Steps", "Steps", ("step",)),
    Axis("seconds", "Seconds", "Seconds", ("seconds",)),
    Axis("oracle", "Oracle calls", "Oracle calls", ("oracle_g", "oracle_j", "oracle_jvp")),
)

METRICS = (
    Metric("objective", "Training objective", "Objective", lower=True),
    Metric("auroc", "AUROC", "AUROC", lower=False),
    Metric("ap", "Average precision", "AP", lower=False),
    Metric("tracking_error", "Tracking error ‖u − g‖", "Tracking error", lower=True),
    Metric("gradient_norm", "Gradient norm ‖∇F‖", "Gradient norm", lower=True),
    Metric("loss_estimate", "Loss estimate of the steps", "Loss estimate", lower=True, listed=False),
)
