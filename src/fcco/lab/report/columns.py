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
        help: what it means, at a hover.
        parts: the columns of metrics.jsonl that add up to it.
    """

    key: str
    label: str
    short: str
    help: str
    parts: tuple[str, ...]


@final
@dataclass(frozen=True)
class Metric:
    """A y axis.

    Attributes:
        key: the column of metrics.jsonl.
        label: what stands beside the axis.
        short: the same for a table's head.
        help: what it means, at a hover.
        lower: whether less is better.
        sparse: whether null is no failure: it is measured at some evaluations, or where asked for.
        listed: whether it has a column among the final values, and a figure.
    """

    key: str
    label: str
    short: str
    help: str
    lower: bool
    sparse: bool = False
    listed: bool = True


AXES = (
    Axis(
        "samples",
        "Samples drawn",
        "Samples",
        "Examples drawn for training so far. A full pass over the data counts all of them. The paper uses "
        "this measure.",
        ("samples",),
    ),
    Axis("step", "Steps", "Steps", "Steps of the optimizer.", ("step",)),
    Axis(
        "evaluations",
        "Network evaluations",
        "Network evals",
        "Examples that went through the network. A method that evaluates each batch at two points needs twice as many.",
        ("evaluations",),
    ),
    Axis("seconds", "Seconds", "Seconds", "Time spent on steps, without evaluations and checkpoints.", ("seconds",)),
    Axis(
        "oracle",
        "Oracle calls",
        "Oracle calls",
        "Work, counted per sample: values of the inner function g, its Jacobians (what a backward pass costs) and "
        "Jacobian-vector products, added up. Compare methods by it too, since some need several per sample drawn.",
        ("oracle_g", "oracle_j", "oracle_jvp"),
    ),
)

METRICS = (
    Metric(
        "objective",
        "Training objective",
        "Objective",
        "F, the function that is minimised: exact over the training data, or over a fixed part of them.",
        lower=True,
    ),
    Metric(
        "auroc",
        "AUROC",
        "AUROC",
        "Area under the ROC curve on the test data: how often a positive is ranked above a negative. 0.5 is chance.",
        lower=False,
    ),
    Metric(
        "ap",
        "Average precision",
        "AP",
        "Average precision on the test data: the area under precision against recall. Chance is the positives' share.",
        lower=False,
    ),
    Metric(
        "tracking_error",
        "Tracking error ‖u − g‖",
        "Tracking error",
        "How far the method's running estimates u are from the exact inner values g: root mean square over the blocks "
        "visited. If it is as large as g itself, the gradient means little. Methods without u have none.",
        lower=True,
        sparse=True,
    ),
    Metric(
        "gradient_norm",
        "Gradient norm ‖∇F‖",
        "Gradient norm",
        "Length of the exact gradient of F: 0 at a stationary point.",
        lower=True,
        sparse=True,
    ),
    Metric(
        "loss_estimate",
        "Loss estimate of the steps",
        "Loss estimate",
        "The steps' own estimate of F, averaged since the last evaluation. It is noisy, and lags behind as u does.",
        lower=True,
        sparse=True,
        listed=False,
    ),
)
