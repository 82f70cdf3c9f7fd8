"""The plain loss of a kind of data: what one would minimise without fcco, here as an objective of one block."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from fcco.data import Batch, Groups, Points, Queries, RiskSets, Structure
from fcco.data._groups import GroupedBlocks
from fcco.objectives import OutputObjective
from fcco.objectives._base import need, scores
from fcco.objectives._group_dro import cross_entropy
from fcco.objectives._labelled import target_columns
from fcco.objectives._precision import at_least_float32

#: (outputs (K, ...), batch, weight (K,) that adds up to 1) -> ()
PlainLoss = Callable[[Tensor, Batch, Tensor], Tensor]


@final
class PlainBlocks(GroupedBlocks):
    """One block, which is all examples: ``samples`` of them are drawn per step."""

    def __init__(self, data: Structure) -> None:
        member = torch.zeros(data.num_examples, dtype=torch.int64, device=data.device)
        super().__init__(data, member, ("everything",), "part")


@final
class PlainObjective(OutputObjective):
    r"""The mean of a plain loss over all examples: :math:`F(w) = E[\mathrm{loss}(h(x), y)]`.

    Binary labels: cross-entropy of a sigmoid per column; classes: cross-entropy of the softmax; relevances: squared
    errors; times: Cox's partial likelihood within the batch; groups: cross-entropy.

    Args:
        model: (K, ...) -> outputs.
        data: says which loss it is.

    Example:
        >>> data = Points(torch.randn(6, 4), [1, 0, 0, 1, 0, 1])
        >>> objective = PlainObjective(nn.Linear(4, 1), data)
        >>> batch = next(iter(objective.loader(blocks=1, samples=4)))
        >>> objective(batch.index, batch).shape
        torch.Size([1, 1])
    """

    compares_examples: ClassVar[bool] = False

    def __init__(self, model: nn.Module, data: Structure) -> None:
        super().__init__(model, PlainBlocks(data))
        self.loss = plain_loss(data)

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        weight = need(batch.weight, "weight")
        outputs = at_least_float32(outputs)
        return self.loss(outputs, batch, weight.to(outputs.dtype)).reshape(1, 1)

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        return u.squeeze(1)


def plain_loss(data: Structure) -> PlainLoss:
    """The plain loss of this kind of data."""
    if isinstance(data, Points) and data.classes is not None:
        return _softmax_cross_entropy
    if isinstance(data, Points):
        return _sigmoid_cross_entropy
    if isinstance(data, Queries):
        return _squared_error
    if isinstance(data, RiskSets):
        return _batch_likelihood
    if isinstance(data, Groups):
        return _group_cross_entropy
    raise TypeError(f"there is no plain loss for {type(data).__name__}")


def _sigmoid_cross_entropy(outputs: Tensor, batch: Batch, weight: Tensor) -> Tensor:
    logits = outputs
    if logits.dim() == 1:
        logits = logits.unsqueeze(1)
    targets = target_columns(batch, logits.shape[1]).to(logits.dtype)  # (K, T)
    known = ~targets.isnan()
    losses = functional.binary_cross_entropy_with_logits(logits, targets.nan_to_num(), reduction="none")
    return (losses * known * weight.unsqueeze(1)).sum() / logits.shape[1]


def _softmax_cross_entropy(outputs: Tensor, batch: Batch, weight: Tensor) -> Tensor:
    losses = functional.cross_entropy(outputs, need(batch.y, "y"), ignore_index=-1, reduction="none")
    return (losses * weight).sum()


def _squared_error(outputs: Tensor, batch: Batch, weight: Tensor) -> Tensor:
    errors = scores(outputs, batch) - need(batch.y, "y").to(outputs.dtype)
    return (errors.square() * weight).sum()


def _batch_likelihood(outputs: Tensor, batch: Batch, weight: Tensor) -> Tensor:
    """Cox's partial likelihood with the risk sets that the batch has."""
    h = scores(outputs, batch)
    time, event = need(batch.y, "y").unbind(1)
    at_risk = time >= time.unsqueeze(1)  # (K, K): row i has those at risk at the time of i
    weighed = h + weight.log()
    log_sums = torch.where(at_risk, weighed, -torch.inf).logsumexp(1)
    return (event.to(h.dtype) * weight * (log_sums - h)).sum()


def _group_cross_entropy(outputs: Tensor, batch: Batch, weight: Tensor) -> Tensor:
    return (cross_entropy(outputs, need(batch.y, "y")) * weight).sum()
