"""NCA: neighbourhood components analysis, the chance that a random neighbour has the right class."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from fcco._support import checks
from fcco.data import Batch, ExampleBlocks, Examples
from fcco.data._batch import served
from fcco.objectives._anchored import own_position
from fcco.objectives._base import OutputObjective, check_data
from fcco.objectives._means import check_not_empty, log_mean_exp_over
from fcco.objectives._precision import to_float64

# What log 0 is written as, finite: a batch may hold no other example of a block's class. No distance is as large.
_ZERO = -1.0e30


class NCA(OutputObjective):
    r"""Minus the leave-one-out accuracy of a soft nearest-neighbour rule.

    .. math::
        F(w) = -\frac1n \sum_i p_i \qquad
        p_i = \frac{\sum_{j \ne i,\, y_j = y_i} e^{-d_{ij}}}{\sum_{j \ne i} e^{-d_{ij}}} \qquad
        d_{ij} = \|h_i - h_j\|^2

    Block i is example i, m = n. :math:`g_i(w) = \frac1{n-1} (\sum_{j \ne i,\, y_j = y_i} e^{-d_{ij}},\;
    \sum_{y_j \ne y_i} e^{-d_{ij}})`, both in the log domain, and :math:`f_i(u) = -u_1/(u_1 + u_2)`, the sigmoid of
    :math:`\log u_1 - \log u_2`. (With the other classes alone in the second part, not all examples, p_i stays in
    (0, 1) whatever the trackers do.) With
    ``log_likelihood`` f_i is :math:`-\log(u_1/(u_1 + u_2))`, whose gradient does not vanish near p_i = 0. The data's
    weights enter all these means. An example is never a neighbour of itself, whatever its weight.

    Args:
        model: (K, ...) -> (K, d) features h (or (K,)).
        data: the examples with their classes y (N,). Every class needs at least two examples.
        log_likelihood: minimise the mean of -log p_i instead of -p_i.

    A batch of the loader has the blocks' own examples and others. Both parts are means over all others. A batch without
    another example of the block's class gives 0 for the first (-1e30 as its logarithm), which is right on average.

    Example:
        >>> from fcco.data import Examples
        >>> data = Examples(torch.randn(5, 4), torch.tensor([0, 0, 1, 1, 1]))
        >>> objective = NCA(nn.Linear(4, 2), data)
        >>> batch = next(iter(objective.loader(blocks=3, samples=3)))
        >>> objective(batch.index, batch).shape
        torch.Size([3, 2])

    Reference: Goldberger et al., Neighbourhood components analysis, NeurIPS 2004 (both forms); Wang and Yang,
    Finite-sum coupled compositional stochastic optimization, ICML 2022 (as an FCCO problem).
    """

    labels: Tensor

    mean_of_exponentials = False
    features: ClassVar[bool] = True

    def __init__(self, model: nn.Module, data: Examples, *, log_likelihood: bool = False) -> None:
        check_data("NCA", data, Examples)
        blocks = ExampleBlocks(data)
        super().__init__(model, blocks, dim=2, log_domain=True)
        self.log_likelihood = checks.flag("log_likelihood", log_likelihood)
        self.register_table("labels", classes_of(data))
        self.register_scale(blocks.block_weight)

    def constants(self) -> dict[str, Any]:
        return {"log_likelihood": self.log_likelihood}

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        h = outputs
        if outputs.dim() == 1:
            h = outputs.unsqueeze(1)
        if h.dim() != 2 or h.shape[0] != len(batch):
            raise ValueError(f"the model must return features of shape ({len(batch)}, d), got {tuple(outputs.shape)}")
        own = own_position(batch, index, index)
        distance = squared_distances(to_float64(h), own)  # (B, K)
        others = served(batch.id != index.unsqueeze(1), batch)  # (B, K)
        weight = batch.weight
        if weight is None:
            # One denominator for both parts: means over all others, whatever their class.
            count = others.sum(1)
            check_not_empty(count, index, "other examples")
            weight = others / count.to(distance.dtype).unsqueeze(1)
        same = self.labels[batch.id] == self.labels[index].unsqueeze(1)  # (B, K)
        same_class = log_mean_exp_over(-distance, others & same, weight, index, "examples")
        other_classes = log_mean_exp_over(-distance, others & ~same, weight, index, "examples")
        g = torch.stack([same_class, other_classes], 1)
        return torch.where(g > _ZERO, g, _ZERO)

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        x = u[:, 0] - u[:, 1]  # log of the odds of the right class
        if self.log_likelihood:
            f = -logsigmoid(x)
        else:
            f = -x.sigmoid()
        return self.weighted(index, f)


def squared_distances(h: Tensor, own: Tensor) -> Tensor:
    """||h_i - h_k||^2 (B, K) of the rows ``own`` (B,) of h (K, d) from all; no (B, K, d) is ever formed.

    Example:
        >>> squared_distances(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([1]))
        tensor([[1., 0., 4.]])
    """
    h = h - h.detach().mean(0)  # distances do not change, and less of their digits cancels
    square = h.square().sum(1)
    return square[own].unsqueeze(1) + square - 2 * h[own] @ h.T


def classes_of(data: Examples) -> Tensor:
    """The class of each example (N,), as whole numbers: at least two classes, of two examples each."""
    y = data.y
    if y is None:
        raise ValueError("NCA needs classes: Examples(x, y) with y of shape (N,)")
    if y.dim() != 1 or (y.is_floating_point() and not bool((y == y.round()).all())):
        raise ValueError(f"y must be (N,) classes for NCA, got shape {tuple(y.shape)} of {y.dtype}")
    # Examples of weight 0 are no neighbours.
    counted = torch.ones_like(y, dtype=torch.bool)
    if data.weight is not None:
        counted = data.weight > 0
    classes, size = y[counted].unique(return_counts=True)
    if classes.numel() < 2:
        raise ValueError(f"y must name at least two classes for NCA, got {classes.tolist()}")
    alone = classes[size == 1].tolist()
    if alone:
        raise ValueError(f"every class needs at least two examples for NCA, got one of class {checks.some(alone)}")
    return y.to(torch.int64)
