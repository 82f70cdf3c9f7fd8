"""NCA: neighbourhood components analysis, the chance that a random neighbour has the right class."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from fcco._support import checks
from fcco.objectives._base import OutputObjective, log_mean_exp_over, refuse_empty, widened
from fcco.objectives._ndcg import own_place
from fcco.sampling.batch import Batch, served

_ZERO = -1.0e30  # what log 0 is written as, finite: a batch may hold nobody of a block's class; no distance is as large


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
    ``log_likelihood`` f_i is :math:`-\log(u_1/(u_1 + u_2))`: its gradient does not fade where p_i is near 0.

    Args:
        model: (K, ...) -> (K, d) features h (or (K,)).
        labels: (n,) ints, the class of each example of the data set; every class needs two examples.
        log_likelihood: minimise the mean of -log p_i instead of -p_i.

    A batch carries ``anchor``, where each block's own example stands, and others. Both parts are means over all
    others: a batch without anyone of the block's class says 0 for the first (-1e6 as its logarithm), which is right
    on average; draws that favour the block's class need weights.

    Example:
        >>> from fcco.sampling.batch import Batch
        >>> labels = torch.tensor([0, 0, 1, 1, 1])
        >>> objective = NCA(nn.Linear(4, 2), labels)
        >>> batch = Batch(torch.randn(5, 4), torch.arange(5), anchor=torch.tensor([1, 4]))
        >>> objective(torch.tensor([1, 4]), batch).shape
        torch.Size([2, 2])

    Reference: Goldberger et al., Neighbourhood components analysis, NeurIPS 2004 (both forms); Wang and Yang,
    Finite-sum coupled compositional stochastic optimization, ICML 2022 (as an FCCO problem).
    """

    labels: Tensor

    mean_of_exponentials = False
    features = True

    def __init__(self, model: nn.Module, labels: Tensor, *, log_likelihood: bool = False) -> None:
        if labels.dim() != 1 or labels.is_floating_point():
            raise ValueError(f"labels must be (n,) ints, got shape {tuple(labels.shape)} of {labels.dtype}")
        classes, size = labels.unique(return_counts=True)
        if classes.numel() < 2:
            raise ValueError(f"labels must name at least two classes, got {classes.tolist()}")
        if bool((size == 1).any()):
            alone = checks.some(classes[size == 1].tolist())
            raise ValueError(f"every class needs at least two examples, got one of class {alone}")
        super().__init__(model, labels.numel(), dim=2, log_domain=True)
        self.log_likelihood = log_likelihood
        self.register_constant("labels", labels)

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        h = outputs.unsqueeze(1) if outputs.dim() == 1 else outputs
        if h.dim() != 2 or h.shape[0] != len(batch):
            raise ValueError(f"the model must return features of shape ({len(batch)}, d), got {tuple(outputs.shape)}")
        anchor = own_place(batch, index, index)
        distance = squared_distances(widened(h), anchor)
        others = served(batch.id != index.unsqueeze(1), batch)
        weight = batch.weight
        if weight is None:
            count = others.sum(1, keepdim=True)
            refuse_empty(count.squeeze(1), index, "other examples")
            weight = others / count.to(distance.dtype)
        same = self.labels[batch.id] == self.labels[index].unsqueeze(1)
        parts = [
            log_mean_exp_over(-distance, kind, weight, index, "examples") for kind in (others & same, others & ~same)
        ]
        g = torch.stack(parts, 1)
        return torch.where(g > _ZERO, g, _ZERO)

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        x = u[:, 0] - u[:, 1]
        return -logsigmoid(x) if self.log_likelihood else -x.sigmoid()


def squared_distances(h: Tensor, anchor: Tensor) -> Tensor:
    """||h_i - h_k||^2 (B, K) of the rows ``anchor`` (B,) of h (K, d) from all; no (B, K, d) is ever formed.

    Example:
        >>> squared_distances(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([1]))
        tensor([[1., 0., 4.]])
    """
    h = h - h.detach().mean(0)  # distances do not change, and less of their digits cancels
    square = h.square().sum(1)
    return square[anchor].unsqueeze(1) + square - 2 * h[anchor] @ h.T
