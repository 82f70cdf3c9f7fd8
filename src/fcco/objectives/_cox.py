"""Cox: the partial likelihood of the proportional hazards model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from fcco.data import Batch, RiskBlocks, RiskSets
from fcco.data._batch import served
from fcco.objectives._anchored import own_position, with_own
from fcco.objectives._base import OutputObjective, check_data, scores
from fcco.objectives._means import log_mean_exp_over
from fcco.objectives._precision import like_parameters, to_float64

if TYPE_CHECKING:
    from fcco.memory._table import OutputTable
    from fcco.memory.forms import Form


class Cox(OutputObjective):
    r"""The negative log partial likelihood per event (Breslow's form for tied times).

    .. math::
        F(w) = \frac1m \sum_i \log \sum_{j \in R_i} e^{h_j - h_i} \qquad R_i = \{j : T_j \ge T_i\}

    Block i is an observed (uncensored) event, and :math:`R_i` are the subjects still at risk at its time, itself
    included. :math:`g_i(w) = \frac1{n_i} \sum_{j \in R_i} e^{h_j - h_i}` with :math:`n_i = |R_i|` (in the log
    domain) and :math:`f_i(u) = \log u + \log n_i`. The data's weights multiply subjects at risk as well as events, and
    :math:`n_i` is then what the subjects at risk weigh together.

    Args:
        model: (K, ...) -> (K,) or (K, 1) log-hazards h: higher means earlier.
        data: the subjects, with their times and whether the event was observed.

    Attributes:
        block_item: (m,) the subject of each event, its position in the data, in their order.
        moment: (n,) the rank of each subject's time.
        risk_size: (m,) the number of subjects at risk.
        risk_weight: (m,) :math:`n_i`, the sum of their weights, which is the same number if the data have none.

    A batch of the loader has, for each block, the event's own subject and others at risk. Those no longer at risk
    do not count.

    Example:
        >>> import torch
        >>> from fcco.data import RiskSets
        >>> data = RiskSets(torch.randn(4, 4), torch.tensor([3.0, 1.0, 2.0, 4.0]), torch.tensor([1, 1, 0, 1]))
        >>> objective = Cox(nn.Linear(4, 1), data)
        >>> objective.block_item, objective.risk_size
        (tensor([0, 1, 3]), tensor([2, 4, 1]))
        >>> batch = next(iter(objective.loader(blocks=2, samples=2)))
        >>> objective(batch.index, batch).shape
        torch.Size([2, 1])

    Reference: Cox, Partial likelihood, Biometrika 1975; Katzman et al., DeepSurv, BMC Med. Res. Methodol. 2018.
    """

    shift_invariant = True
    blocks: RiskBlocks
    moment: Tensor
    block_item: Tensor
    risk_size: Tensor
    risk_weight: Tensor

    def __init__(self, model: nn.Module, data: RiskSets) -> None:
        check_data("Cox", data, RiskSets)
        blocks = RiskBlocks(data)
        super().__init__(model, blocks, log_domain=True)
        # Times are ranks: no later change of dtype makes two of them equal.
        self.register_table("moment", blocks.moment)
        self.register_table("block_item", blocks.block_item)
        self.register_table("risk_size", blocks.risk_size)
        self.register_table("risk_weight", like_parameters(model, blocks.risk_weight))
        self.register_scale(blocks.block_weight)

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        h = to_float64(scores(outputs, batch))  # (K,)
        item = self.block_item[index]  # (B,)
        own = own_position(batch, index, item)
        # A batch made by hand may hold subjects who are no longer at risk.
        at_risk = served(self.moment[batch.id] >= self.moment[item].unsqueeze(1), batch)
        size = self.risk_size[index].to(h.dtype)
        entering, weight = with_own(batch, index, at_risk, own, size, "other subjects at risk")
        return log_mean_exp_over(h - h[own].unsqueeze(1), entering, weight, index, "subjects at risk").unsqueeze(1)

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        # log of the sum over the risk set from log of the mean
        f = u.squeeze(1) + self.risk_weight[index].to(u.dtype).log()
        return self.weighted(index, f)

    def table_form(self, table: OutputTable) -> Form | None:
        from fcco.memory.forms import ListForm, RiskExponentials

        if table.shape:
            return None
        return ListForm(self, RiskExponentials(self.blocks, table.device), table)
