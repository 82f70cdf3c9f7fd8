"""What the command line says of commands, methods and objectives: words alone, so that nothing heavy is loaded."""

from __future__ import annotations

from typing import NamedTuple


class MethodText(NamedTuple):
    """A method in a line.

    Args:
        rates: the rates that it takes, as `fcco train` calls them.
        what: what it is.
    """

    rates: tuple[str, ...]
    what: str


class ObjectiveText(NamedTuple):
    """An objective in a line.

    Args:
        data: the kind of data in fcco.data.
        flags: what `fcco train` needs to be told of a table; None: it is for Python alone.
        what: what it is.
    """

    data: str
    flags: str | None
    what: str


METHODS: dict[str, MethodText] = {
    "output-memory": MethodText(
        ("importance", "alpha", "nesterov"),
        "Keeps every example's last score, so that each step has exact weights. The best choice for rankings.",
    ),
    "sox": MethodText(
        ("alpha", "beta", "nesterov"),
        "Moving averages of the inner values and of the gradient. The usual choice in the literature.",
    ),
    "soap": MethodText(("beta",), "A moving average of the inner values, with the plain gradient."),
    "bsgd": MethodText((), "The batch's own inner values. Simple, but biased if few samples are drawn per block."),
    "bspiderboost": MethodText(
        ("period",), "The batch's own inner values, with gradients that occasional large batches correct."
    ),
    "msvr-v1": MethodText(
        ("alpha", "beta", "gamma", "nesterov"), "Variance-reduced inner values, with momentum. Two forward passes."
    ),
    "msvr-v2": MethodText(
        ("alpha", "beta", "gamma", "zeta"),
        "Variance-reduced inner values and gradient. Two passes each way. The default with `--objective`.",
    ),
    "msvr-v3": MethodText(
        ("alpha", "beta", "gamma", "period"), "MSVR-v2 with occasional full passes over the data. The most exact."
    ),
    "msvr-v1-sp": MethodText(
        ("alpha", "beta", "gamma", "nesterov"), "MSVR-v1 with one forward pass and a Jacobian-vector product."
    ),
    "msvr-v2-sp": MethodText(
        ("alpha", "beta", "gamma", "zeta"), "MSVR-v2 with Jacobian-vector products for the inner values."
    ),
    "storm-v1": MethodText(("alpha", "beta", "nesterov"), "STORM on the inner values, with momentum. For comparison."),
    "storm-v2": MethodText(("alpha", "beta", "zeta"), "STORM on both levels. For comparison."),
    "variant-v1": MethodText(("alpha", "beta", "nesterov"), "The paper's ablation of MSVR-v1."),
    "variant-v2": MethodText(("alpha", "beta"), "The paper's ablation of MSVR-v2."),
    "variant-v3": MethodText(("alpha", "beta", "period"), "The paper's ablation of MSVR-v3."),
    "alexr": MethodText(
        ("beta", "theta"), "An extrapolated moving average of the inner values, with the plain gradient."
    ),
    "sonx": MethodText(("beta", "gamma"), "For functions with kinks: inner values by MSVR, with the plain gradient."),
    "sonex": MethodText(
        ("alpha", "beta", "gamma", "nesterov"),
        "For functions with kinks that were smoothed: inner values by MSVR, with momentum.",
    ),
    "scent": MethodText(
        ("alpha", "rate", "nesterov"), "A separate rate for each block, for objectives made of exponentials."
    ),
}

ABOUT_METHODS = (
    "A method turns batches into steps that minimise an objective. If you are not sure which to use, take "
    "output-memory for rankings (AUC, average precision, NDCG, survival) and sox for everything else. An inner value "
    "is a mean to which an objective applies a function, such as the number of examples ranked above a given one. A "
    "batch gives a rough estimate of it; a method gives a better one."
)

OBJECTIVES: dict[str, ObjectiveText] = {
    "MultiTaskAUC": ObjectiveText("Tasks", "--target", "Area under the ROC curve, one task per label or class."),
    "PartialAUC": ObjectiveText(
        "Points", "--target", "Area under the ROC curve at few false positives. Good for rare positives."
    ),
    "AveragePrecision": ObjectiveText("Points", "--target", "Average precision, the area under precision and recall."),
    "PNormPush": ObjectiveText("Points", "--target", "Ranking with emphasis on the top of the list."),
    "NDCG": ObjectiveText("Queries", "--target --query", "Ranking per query, by the relevance at the top."),
    "ListNet": ObjectiveText("Queries", "--target --query", "Ranking per query, by a probability of each list."),
    "Cox": ObjectiveText("RiskSets", "--time --event", "Survival: who has the event first."),
    "GroupDRO": ObjectiveText("Groups", "--target --group", "A soft version of the worst group's loss."),
    "NCA": ObjectiveText("Examples", "--target", "Embeddings in which neighbours have the same class."),
    "GlobalContrastive": ObjectiveText("Examples", None, "Embeddings of two views or two modalities (as in CLIP)."),
    "MultiInstance": ObjectiveText("Bags", None, "AUC of bags of instances, where only the bags have labels."),
}

COMMANDS: dict[str, str] = {
    "train": "Train a model on your data. You name the metric; everything else is chosen.",
    "predict": "Score new data with a trained model, with probabilities.",
    "demo": "See fcco at work on embedded data, in a minute or two.",
    "data": "List the data sets known by name, or describe your own.",
    "methods": "List the optimization methods, for `train --method`.",
    "objectives": "List the training objectives, for `train --objective`.",
    "report": "Make one HTML page, and figures for a paper, from runs.",
    "sweep": "Search settings by many runs.",
    "reproduce": "Reproduce a figure of the paper, from tuning to the plot.",
    "rates": "Measure the paper's convergence rates.",
    "bench": "Measure step times on this machine.",
}

EXAMPLES = """
examples:
  fcco train --dataset patients.csv --target died         train for average precision, test, and keep the model
  fcco predict runs/patients-1 new.csv --out scores.csv   score new rows with that model
  fcco train --dataset cifar10 --method msvr-v2           run one method on one objective, for research
"""


def overview() -> str:
    """What `fcco --help` prints."""
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:<{width}}  {what}" for name, what in COMMANDS.items()]
    return "\n".join(
        [
            "usage: fcco COMMAND [OPTIONS]",
            "",
            "Train models for ranking metrics: average precision, AUC, NDCG, concordance.",
            "",
            "commands:",
            *lines,
            EXAMPLES,
            "`fcco COMMAND --help` lists the options of a command, and `fcco --version` prints the version.",
            "For shell completion, source the script that `fcco --tyro-print-completion bash` (or zsh, tcsh) prints.",
        ]
    )
