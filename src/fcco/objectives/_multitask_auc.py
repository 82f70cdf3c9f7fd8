"""MultiTaskAUC: the paper's objective, one AUC loss a task."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fcco.objectives._base import OutputObjective, beside, mean_over, need, single_at_least
from fcco.objectives._surrogates import Square, SquaredHinge
from fcco.sampling.batch import Batch, serving


class MultiTaskAUC(OutputObjective):
    r"""AUC maximisation averaged over m tasks, in the decomposed form of the paper (L405, with its sign mended).

    .. math::
        F(w, a, b) = \frac1m \sum_i E_+[(h_i(x) - a_i)^2] + E_-[(h_i(x) - b_i)^2]
                     + \ell(E_-[h_i(x)] - E_+[h_i(x)])

    Block i is task i. :math:`g_i = (E_+(h_i-a_i)^2,\, E_-(h_i-b_i)^2,\, E_-h_i - E_+h_i)` and
    :math:`f_i(u) = u_1 + u_2 + \ell(u_3)`. With ``trained_centers=False`` a_i and b_i are the exact class means:
    :math:`g_i = (E_+h_i^2,\, E_-h_i^2,\, E_+h_i,\, E_-h_i)` and
    :math:`f_i(u) = u_1 - u_3^2 + u_2 - u_4^2 + \ell(u_4 - u_3)`.

    Args:
        model: (K, ...) -> (K, m) scores, a column a task (for one task (K,) will do).
        num_tasks: m.
        loss: l: ``SquaredHinge(margin, scale=0.5)`` (the paper's, the default with margin 1), or ``Square(margin)``,
            with which F equals the pairwise square loss.
        trained_centers: a, b as trained variables, or exact class means.
        block_weight: (m,) how much each task counts, None: equally.

    A batch carries ``y``: class labels (K,) for one-vs-rest, or 0/1 targets (K, m) with NaN where a label is
    missing; a task sees only its labelled examples.

    Example:
        >>> from fcco.sampling.batch import Batch
        >>> objective = MultiTaskAUC(nn.Linear(4, 3), num_tasks=3)
        >>> batch = Batch(torch.randn(6, 4), torch.arange(6), y=torch.tensor([0, 0, 1, 1, 2, 2]))
        >>> objective(torch.tensor([0, 2]), batch).shape
        torch.Size([2, 3])

    Reference: Jiang et al., NeurIPS 2022; Yuan et al., ICCV 2021 (the min-max margin loss).
    """

    def __init__(
        self,
        model: nn.Module,
        num_tasks: int,
        *,
        loss: SquaredHinge | Square | None = None,
        trained_centers: bool = True,
        block_weight: Tensor | None = None,
    ) -> None:
        super().__init__(model, num_tasks, dim=3 if trained_centers else 4)
        self.loss = SquaredHinge(margin=1.0, scale=0.5) if loss is None else loss
        start = beside(model, torch.zeros(num_tasks))
        self.a: nn.Parameter | None = nn.Parameter(start) if trained_centers else None
        self.shift_invariant = not trained_centers
        self.b: nn.Parameter | None = nn.Parameter(start.clone()) if trained_centers else None
        if block_weight is not None and block_weight.shape != (num_tasks,):
            raise ValueError(f"block_weight must have shape ({num_tasks},), got {tuple(block_weight.shape)}")
        self.block_weight: Tensor | None
        self.register_constant("block_weight", block_weight)

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        h = single_at_least(self._scores(outputs))[:, index].T  # (B, K)
        positive, negative = labelled(index, batch)

        def over(values: Tensor, mask: Tensor, what: str) -> Tensor:
            return mean_over(values, mask, batch.weight, index, what)

        if self.a is None or self.b is None:
            moments = [
                over(h.square(), positive, "positives"),
                over(h.square(), negative, "negatives"),
                over(h, positive, "positives"),
                over(h, negative, "negatives"),
            ]
            return torch.stack(moments, 1)
        a, b = self.a[index].unsqueeze(1), self.b[index].unsqueeze(1)
        parts = [
            over((h - a).square(), positive, "positives"),
            over((h - b).square(), negative, "negatives"),
            over(h, negative, "negatives") - over(h, positive, "positives"),
        ]
        return torch.stack(parts, 1)

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        if self.a is None:
            f = u[:, 0] - u[:, 2].square() + u[:, 1] - u[:, 3].square() + self.loss(u[:, 3] - u[:, 2])
        else:
            f = u[:, 0] + u[:, 1] + self.loss(u[:, 2])
        return f if self.block_weight is None else f * self.block_weight[index]

    def _scores(self, outputs: Tensor) -> Tensor:
        scores = outputs.unsqueeze(1) if outputs.dim() == 1 else outputs
        if scores.dim() != 2 or scores.shape[1] != self.num_blocks:
            raise ValueError(
                f"the model must return one score a task, shape (K, {self.num_blocks}), got {tuple(outputs.shape)}"
            )
        return scores


def labelled(index: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """(B, K) bool twice: which examples are positives, and which negatives, of which task."""
    y, serves = need(batch.y, "y"), serving(batch, index.shape[0])
    if y.dim() == 1 and not y.is_floating_point():
        positive = y == index.unsqueeze(1)
        return positive & serves, ~positive & serves
    targets = (y.unsqueeze(1) if y.dim() == 1 else y)[:, index].T
    return (targets == 1) & serves, (targets == 0) & serves
