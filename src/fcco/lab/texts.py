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
        "Remembers every example's last score, so that each step has exact weights. The best one for rankings.",
    ),
    "sox": MethodText(
        ("alpha", "beta", "nesterov"),
        "Moving averages of the inner values and of the gradient. The usual choice of the literature.",
    ),
    "soap": MethodText(("beta",), "A moving average of the inner values, and the plain gradient."),
    "bsgd": MethodText((), "The batch's own inner values: simple, and biased where few samples are drawn per block."),
    "bspiderboost": MethodText(
        ("period",), "The batch's own inner values, with gradients corrected from large batches now and then."
    ),
    "msvr-v1": MethodText(
        ("alpha", "beta", "gamma", "nesterov"), "Variance-reduced inner values, with momentum: two forward passes."
    ),
    "msvr-v2": MethodText(
        ("alpha", "beta", "gamma", "zeta"),
        "Variance-reduced inner values and gradient: two passes each way. What `--objective` alone takes.",
    ),
    "msvr-v3": MethodText(
        ("alpha", "beta", "gamma", "period"), "MSVR-v2 with a full pass over the data now and then; the most exact."
    ),
    "msvr-v1-sp": MethodText(
        ("alpha", "beta", "gamma", "nesterov"), "MSVR-v1 with one forward pass and a Jacobian-vector product."
    ),
    "msvr-v2-sp": MethodText(
        ("alpha", "beta", "gamma", "zeta"), "MSVR-v2 with Jacobian-vector products for the inner values."
    ),
    "storm-v1": MethodText(("alpha", "beta", "nesterov"), "STORM on the inner values, with momentum; a comparison."),
    "storm-v2": MethodText(("alpha", "beta", "zeta"), "STORM on both levels; a comparison."),
    "variant-v1": MethodText(("alpha", "beta", "nesterov"), "The paper's ablation of MSVR-v1."),
    "variant-v2": MethodText(("alpha", "beta"), "The paper's ablation of MSVR-v2."),
    "variant-v3": MethodText(("alpha", "beta", "period"), "The paper's ablation of MSVR-v3."),
    "alexr": MethodText(("beta", "theta"), "Extrapolated moving average of the inner values, and the plain gradient."),
    "sonx": MethodText(("beta", "gamma"), "For functions with kinks: inner values by MSVR, and the plain gradient."),
    "sonex": MethodText(
        ("alpha", "beta", "gamma", "nesterov"), "For functions with kinks, smoothed: inner values by MSVR, momentum."
    ),
    "scent": MethodText(
        ("alpha", "rate", "nesterov"), "A rate of its own per block, for objectives made of exponentials."
    ),
}

ABOUT_METHODS = (
    "A method turns batches into steps that minimise an objective. If you are not sure: output-memory for rankings "
    "(AUC, average precision, NDCG, survival), sox for everything else. An inner value is the mean that an objective "
    "puts into a curve, such as how many examples are ranked above one of them: a batch tells it roughly, a method "
    "better."
)

OBJECTIVES: dict[str, ObjectiveText] = {
    "MultiTaskAUC": ObjectiveText("Tasks", "--target", "Area under the ROC curve, one task per label or class."),
    "PartialAUC": ObjectiveText(
        "Points", "--target", "Area under the ROC curve where few false positives are allowed; good for rare positives."
    ),
    "AveragePrecision": ObjectiveText("Points", "--target", "Average precision (area under precision and recall)."),
    "PNormPush": ObjectiveText("Points", "--target", "Ranking that presses on the top of the list."),
    "NDCG": ObjectiveText("Queries", "--target --query", "Ranking per query, by relevance at the top."),
    "ListNet": ObjectiveText("Queries", "--target --query", "Ranking per query, by a probability of each list."),
    "Cox": ObjectiveText("RiskSets", "--time --event", "Survival: who has the event first."),
    "GroupDRO": ObjectiveText("Groups", "--target --group", "The worst group's loss, softly."),
    "NCA": ObjectiveText("Examples", "--target", "Embeddings in which neighbours are of one class."),
    "GlobalContrastive": ObjectiveText("Examples", None, "Embeddings of two views or two modalities (CLIP style)."),
    "MultiInstance": ObjectiveText("Bags", None, "AUC of bags of instances, where only the bags have labels."),
}

COMMANDS: dict[str, str] = {
    "train": "Train a model on your data: name the metric, everything else is chosen.",
    "predict": "Scores and probabilities of new data, from a trained model.",
    "demo": "See it at work on embedded data, in a minute or two.",
    "data": "The data sets known by name, and what is in one of yours.",
    "methods": "The optimization methods, for `train --method`.",
    "objectives": "The training objectives, for `train --objective`.",
    "report": "One HTML page, and figures for a paper, from runs.",
    "sweep": "Search settings by many runs.",
    "reproduce": "A figure of the paper, from tuning to the plot.",
    "rates": "The paper's convergence rates, measured.",
    "bench": "Step times on this machine.",
}

EXAMPLES = """
examples:
  fcco train --dataset patients.csv --target died         train for average precision, test it, keep the model
  fcco predict runs/patients-1 new.csv --out scores.csv   score new rows with it
  fcco train --dataset cifar10 --method msvr-v2           one method on one objective, for research
"""


def overview() -> str:
    """What `fcco --help` prints."""
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:<{width}}  {what}" for name, what in COMMANDS.items()]
    return "\n".join(
        [
            "usage: fcco COMMAND [OPTIONS]",
            "",
            "Models that rank well: average precision, AUC, NDCG, concordance.",
            "",
            "commands:",
            *lines,
            EXAMPLES,
            "`fcco COMMAND --help` lists the options of a command; `fcco --version` says which version this is.",
            "Shell completion: `fcco --tyro-print-completion bash` (or zsh, tcsh) prints the script to source.",
        ]
    )
