"""What is measured at an evaluation: exact F and tracking error on the training data, AUROC and AP on the test data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torchmetrics.functional.classification import multilabel_auroc, multilabel_average_precision

from fcco.data import Groups, Queries, RiskSets, Structure, Tasks
from fcco.fitting import Goal


@final
@dataclass(frozen=True)
class Row:
    """One line of metrics.jsonl.

    Attributes:
        step: steps taken.
        samples: samples drawn, counted as the paper does: m n for every full pass of v3.
        oracle_g, oracle_j, oracle_jvp: oracle calls per sample, counted likewise.
        evaluations: examples that went through the network; tasks that share their images share these.
        seconds: spent on steps; evaluations and checkpoints do not count.
        objective: F, exact over the training data (over ``eval_examples`` of them where asked).
        auroc, ap: macro averages over the tasks, on the test part; of one label they are those of its positives.
        metric: on the test part NDCG@10, the concordance, or the worst group's accuracy, where the data are for one.
        validation_auroc, validation_ap, validation_metric: the same on the validation part, where there is one.
        tracking_error: root mean square over the tasks visited of ||u_i - g_i(w)||.
        gradient_norm: ||grad F||, where asked for.
        loss_estimate: mean of the steps' own estimates of F since the evaluation before.
    """

    step: int
    samples: int
    oracle_g: int
    oracle_j: int
    oracle_jvp: int
    evaluations: int
    seconds: float
    objective: float
    auroc: float | None
    ap: float | None
    tracking_error: float | None
    gradient_norm: float | None
    loss_estimate: float | None
    metric: float | None = None
    validation_auroc: float | None = None
    validation_ap: float | None = None
    validation_metric: float | None = None


@torch.no_grad()
def scores(model: nn.Module, x: Tensor, chunk: int = 2048) -> Tensor:
    """Return the model's scores (N, m) in evaluation mode, and leave it in training mode."""
    model.eval()
    try:
        return torch.cat([model(part) for part in x.split(chunk)])
    finally:
        model.train()


class Judged(NamedTuple):
    """What scores are worth on a part of the data; None: it is not what the data are for."""

    auroc: float | None
    ap: float | None
    metric: float | None


def judge(h: Tensor, data: Structure) -> Judged:
    """Return AUROC and AP of labels, NDCG@10 of queries, the concordance of times, or the worst group's accuracy."""
    if isinstance(data, Tasks):
        if h.shape[1] != data.num_tasks:  # embeddings, which rank nothing
            return Judged(None, None, None)
        ranked = ranking(h, data.y)
        return Judged(ranked.auroc, ranked.ap, None)
    for kind, name in METRIC_OF.items():
        if isinstance(data, kind):
            return Judged(None, None, Goal(name).value(h, data))
    raise TypeError(f"there is no metric for {type(data).__name__}")


METRIC_OF: dict[type[Structure], str] = {Queries: "ndcg", RiskSets: "concordance", Groups: "worst_group"}


class Ranking(NamedTuple):
    """Macro averages over the tasks that have positives and negatives."""

    auroc: float
    ap: float


def ranking(h: Tensor, y: Tensor) -> Ranking:
    """Return macro AUROC and average precision of scores h (N, m) for classes (N,) or 0/1/NaN targets (N, m).

    Example:
        >>> ranking(torch.tensor([[3.0, -2.0], [1.0, 2.0], [2.0, 5.0]]), torch.tensor([0, 1, 1])).auroc
        1.0
    """
    m = h.shape[1]
    if y.dim() == 1:
        target = torch.nn.functional.one_hot(y, m)
    else:
        target = torch.where(y.isnan(), -1, y).long()
    usable = (target == 1).any(0) & (target == 0).any(0)
    if not bool(usable.any()):
        return Ranking(float("nan"), float("nan"))
    target = target[:, usable].cpu()
    ranked = _ranks(h[:, usable].cpu())
    labels = int(usable.sum())
    auroc = multilabel_auroc(ranked, target, labels, ignore_index=-1, validate_args=False)
    ap = multilabel_average_precision(ranked, target, labels, ignore_index=-1, validate_args=False)
    return Ranking(float(auroc), float(ap))


def _ranks(h: Tensor) -> Tensor:
    """Return each column as ranks in [0, 1] with its ties: torchmetrics would squash scores, and these may tie then."""
    columns = [column.unique(return_inverse=True)[1] for column in h.unbind(1)]
    return torch.stack(columns, 1).double() / h.shape[0]
