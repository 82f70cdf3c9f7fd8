"""TaskPart: some anchors of a few tasks, with sums over their others and back to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fcco.memory.forms._form import OuterValues
from fcco.memory.forms._kernels import sums_of_rows, weighted_sums


@final
@dataclass(frozen=True)
class TaskPart:
    """Some anchors of a few tasks: a part of all (task, anchor) pairs, as large as the budget allows.

    Args:
        edge: (A,) margin - s_a.
        shift: (A, 1) less the largest exponent, as a power of 2.
        task: (A,) which of the few tasks.
    """

    edge: Tensor
    shift: Tensor
    task: Tensor

    def by_anchor(self, s: Tensor) -> Tensor:
        """(A, P) of each anchor's task, from (T, P); (1, P) where there is one."""
        if s.shape[0] == 1:
            return s
        return s.index_select(0, self.task)

    def summed(self, x: Tensor, w: Tensor) -> Tensor:
        """sum_p x_ap w_p (A, C), from x (A, P) and the tasks' weights (T, P, C)."""
        if w.shape[0] == 1:
            return weighted_sums(x, w[0])
        return sums_of_rows(x, w.index_select(0, self.task))

    def add_to_others(self, x: Tensor, factor: Tensor, total: Tensor) -> None:
        """total_ctp += sum_a x_ap factor_ac over the anchors a of each task t, from (A, P) and (A, C), in place."""
        if total.shape[1] == 1:
            total[:, 0] += (x.T @ factor).T
            return
        for column, sums in zip(factor.unbind(1), total, strict=True):
            # Into a tensor of its own first: to add rows to a part of a larger one is slow.
            sums += self._by_task(x, column, torch.zeros_like(sums))

    def _by_task(self, x: Tensor, factor: Tensor, total: Tensor) -> Tensor:
        """total_tp + sum_a x_ap factor_a over the anchors a of each task t, in place."""
        weighted = x * factor.unsqueeze(1)  # (A, P)
        return total.index_add_(0, self.task, weighted)


def joined_values(parts: list[OuterValues]) -> OuterValues:
    """f and slopes one after another, the gradients of the objective's own parameters added up."""
    gradients_of_parts = (part.param_gradients for part in parts)
    gradients = [torch.stack(of_one).sum(0) for of_one in zip(*gradients_of_parts, strict=True)]
    f = torch.cat([part.f for part in parts])
    slope = torch.cat([part.slope for part in parts])
    return OuterValues(f, slope, gradients)
