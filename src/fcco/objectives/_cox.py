"""Cox: the partial likelihood of the proportional hazards model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fcco.objectives._base import OutputObjective, log_mean_exp_over, scores, widened
from fcco.objectives._ndcg import own_place, with_own
from fcco.sampling.batch import Batch, served


class Cox(OutputObjective):
    r"""The negative log partial likelihood, an event's share of it (Breslow's form for tied times).

    .. math::
        F(w) = \frac1m \sum_i \log \sum_{j \in R_i} e^{h_j - h_i} \qquad R_i = \{j : T_j \ge T_i\}

    Block i is an observed (uncensored) event, with :math:`R_i` the subjects still at risk at its time, itself
    among them. :math:`g_i(w) = \frac1{n_i} \sum_{j \in R_i} e^{h_j - h_i}` with :math:`n_i = |R_i|` (in the log
    domain) and :math:`f_i(u) = \log u + \log n_i`.

    Args:
        model: (K, ...) -> (K,) or (K, 1) log-hazards h: higher means earlier.
        time: (n,) T, when each subject of the data set had its event or was last seen.
        event: (n,) bool or 0/1: whether the event was observed (0: censored).

    Attributes:
        block_item: (m,) the subject of each event, its position in the data set, in their order.
        risk_size: (m,) n_i.

    A batch carries ``anchor``, where each event's own subject stands, and subjects of the risk sets; those no
    longer at risk may be there too and do not count. Without weights the subject itself counts 1/n_i and the
    others present share the rest.

    Example:
        >>> from fcco.sampling.batch import Batch
        >>> time, event = torch.tensor([3.0, 1.0, 2.0, 4.0]), torch.tensor([1, 1, 0, 1])
        >>> objective = Cox(nn.Linear(4, 1), time, event)
        >>> objective.block_item, objective.risk_size
        (tensor([0, 1, 3]), tensor([2, 4, 1]))
        >>> batch = Batch(torch.randn(4, 4), torch.arange(4), anchor=torch.tensor([1, 3]))
        >>> objective(torch.tensor([1, 2]), batch).shape
        torch.Size([2, 1])

    Reference: Cox, Partial likelihood, Biometrika 1975; Katzman et al., DeepSurv, BMC Med. Res. Methodol. 2018.
    """

    shift_invariant = True
    moment: Tensor
    block_item: Tensor
    risk_size: Tensor

    def __init__(self, model: nn.Module, time: Tensor, event: Tensor) -> None:
        if time.dim() != 1 or not bool(torch.isfinite(time).all()):
            raise ValueError(f"time must be (n,) finite numbers, got shape {tuple(time.shape)}")
        if event.shape != time.shape or not bool(((event == 0) | (event == 1)).all()):
            raise ValueError(f"event must be 0 or 1 with shape {tuple(time.shape)}, got shape {tuple(event.shape)}")
        block_item = (event == 1).nonzero().squeeze(1)
        if block_item.numel() == 0:
            raise ValueError("event must be 1 for some subject, got none")
        super().__init__(model, block_item.numel(), log_domain=True)
        # Times as places in their order: no later change of dtype makes two of them equal.
        _, moment, count = time.unique(return_inverse=True, return_counts=True)
        at_risk = count.flip(0).cumsum(0).flip(0)
        self.register_constant("moment", moment)
        self.register_constant("block_item", block_item)
        self.register_constant("risk_size", at_risk[moment[block_item]])

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        h, item = widened(scores(outputs, batch)), self.block_item[index]
        anchor = own_place(batch, index, item)
        at_risk = served(self.moment[batch.id] >= self.moment[item].unsqueeze(1), batch)
        size = self.risk_size[index].to(h.dtype)
        entering, weight = with_own(batch, index, at_risk, anchor, size, "other subjects at risk")
        return log_mean_exp_over(h - h[anchor].unsqueeze(1), entering, weight, index, "subjects at risk").unsqueeze(1)

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        return u.squeeze(1) + self.risk_size[index].to(u.dtype).log()
