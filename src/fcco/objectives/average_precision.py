"""AveragePrecision, and what objectives share whose blocks are examples compared with other examples."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from fcco import _checks
from fcco.objectives.base import OutputObjective, need, scores
from fcco.objectives.multitask_auc import labelled
from fcco.objectives.surrogates import Logistic, SquaredHinge, Surrogate
from fcco.sampling.batch import Batch

#: What log 0 is written as: far below every log g that scores can give, and finite.
ZERO = -1.0e6
_FAR = -16.0  # where log(1 + e^x) and three terms of its series agree to the last digit of float64


class AnchoredObjective(OutputObjective):
    r"""Blocks that are examples, or (task, example) pairs: the block's own example against those in the batch.

    Args:
        model: (K, ...) -> (K,) or (K, 1) scores; (K, T), a column a task, where ``block_task`` is given.
        num_blocks: m, one a positive (or a negative, as the objective counts them), over all tasks.
        dim: p.
        log: as in :class:`fcco.Objective`.
        block_task: (m,) the task 0..T-1 of each block; None: one task. Every task then counts equally (a macro
            average): :math:`F = \frac1T \sum_t \frac1{m_t} \sum_{i \in t} f_i(g_i)`.

    A batch carries ``anchor`` (where each block's own example stands) and ``y``: one task, 0/1 labels (K,); several,
    0/1 targets (K, T) with NaN where a label is missing, or class labels (K,) for one-vs-rest. A task sees only its
    labelled examples.
    """

    block_task: Tensor | None
    block_size: Tensor | None
    #: which class the blocks' own examples are of
    anchors: ClassVar[str] = "positive"

    def __init__(
        self,
        model: nn.Module,
        num_blocks: int,
        dim: int,
        log: bool | tuple[bool, ...],
        block_task: Tensor | None,
    ) -> None:
        super().__init__(model, num_blocks, dim, log)
        size = None
        self.num_tasks = 1
        if block_task is not None:
            block_task = _tasks(block_task, num_blocks, self.anchors)
            counts = block_task.bincount()
            self.num_tasks, size = counts.shape[0], counts[block_task]
        self.register_constant("block_task", block_task)  # (m,)
        self.register_constant("block_size", size)  # (m,) how many blocks the block's task has

    def pairs(self, index: Tensor, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """h_j - h_i (B, K) over blocks i and examples j; which j are positives, which negatives of i's task.

        The last two are (B, K), or (1, K) where they are the same for every block.
        """
        outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        positive, negative = self._labelled(index, batch)
        anchor = self._anchor(index, batch, positive if self.anchors == "positive" else negative)
        if self.block_task is None:
            h = scores(outputs, batch)
            return h - h[anchor].unsqueeze(1), positive, negative
        if outputs.shape != (len(batch), self.num_tasks):
            raise ValueError(
                f"the model must return one score a task, shape ({len(batch)}, {self.num_tasks}), got "
                f"{tuple(outputs.shape)}"
            )
        by_block = outputs.T[self.block_task[index]]  # (B, K)
        return by_block - by_block.gather(1, anchor.unsqueeze(1)), positive, negative

    def weighted(self, index: Tensor, f: Tensor) -> Tensor:
        """f (B,) times the weights of the macro average."""
        if self.block_size is None:
            return f
        return f * (self.num_blocks / self.num_tasks) / self.block_size[index].to(f.dtype)

    def _labelled(self, index: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        y = need(batch.y, "y")
        classes = y.dim() == 1 and not y.is_floating_point()
        columns = 1 if y.dim() == 1 else y.shape[1]
        if y.dim() > 2 or not (columns == self.num_tasks or (classes and self.block_task is not None)):
            raise ValueError(
                f"batch.y must hold a label a task, shape ({len(batch)}, {self.num_tasks}), got {tuple(y.shape)}"
            )
        if self.block_task is not None:
            return labelled(self.block_task[index], batch)
        blocks = index[:1] if batch.serves is None else index  # one row will do where all blocks see the same
        return labelled(torch.ones_like(blocks) if classes else torch.zeros_like(blocks), batch)

    def _anchor(self, index: Tensor, batch: Batch, own: Tensor) -> Tensor:
        anchor = need(batch.anchor, "anchor")
        if anchor.shape != index.shape:
            raise ValueError(f"batch.anchor must have shape {tuple(index.shape)}, got {tuple(anchor.shape)}")
        if own.device.type == "cpu":  # on an accelerator this look would make it wait
            found = own.expand(index.shape[0], -1).gather(1, anchor.unsqueeze(1))
            wrong = index[~found.squeeze(1)].tolist()
            if wrong:
                raise ValueError(
                    f"batch.anchor must point at a {self.anchors} example that serves its block; it does not for "
                    f"block {_checks.some(wrong)}"
                )
        return anchor


class AveragePrecision(AnchoredObjective):
    r"""Average precision, maximised through the smooth form of SOAP.

    .. math::
        F(w) = -\frac1m \sum_{i: y_i = 1}
               \frac{\sum_j \ell(h_j - h_i)\, 1[y_j = 1]}{\sum_j \ell(h_j - h_i)}

    Block i is positive i (with ``block_task``, a (task, positive) pair). With means over all data, the positive
    itself among them, :math:`g_i = (E_j\, \ell(h_j - h_i) 1[y_j = 1],\; E_j\, \ell(h_j - h_i))` and
    :math:`f_i(u) = -u_1/u_2`, the precision at i's own score with l for the 0/1 step. It lies in [-1, 0].

    Both components are in the log domain, so l may be as small as the scores make it. Where :math:`u_2 = 0` (margin 0
    and nothing scores above i) f is 0/0 and takes the value of the perfect ranking, -1, with gradient 0.

    Args:
        model: (K, ...) -> (K,) or (K, 1) scores; with ``block_task`` (K, T), a column a task.
        num_blocks: m, how many positives the data holds (over all tasks).
        loss: l, by default ``SquaredHinge(margin=1)``.
        block_task: (m,) the task 0..T-1 of each block, for several labels an example; tasks count equally.

    A batch carries ``anchor`` (B,), ``y`` (0/1, NaN where missing; see :class:`AnchoredObjective`) and, where positives
    and negatives are not drawn in the data's own proportion, weights that add up to the mean over all data.

    Example:
        >>> from fcco.sampling.batch import Batch
        >>> objective = AveragePrecision(nn.Linear(4, 1), num_blocks=3)
        >>> y = torch.tensor([1, 1, 1, 0, 0, 0])
        >>> batch = Batch(torch.randn(6, 4), torch.arange(6), y=y, anchor=torch.tensor([0, 2]))
        >>> objective(torch.tensor([0, 2]), batch).shape
        torch.Size([2, 2])

    Reference: Qi et al., Stochastic Optimization of Areas Under Precision-Recall Curves with Provable Convergence,
    NeurIPS 2021 (SOAP).
    """

    mean_of_exponentials = False

    def __init__(
        self,
        model: nn.Module,
        num_blocks: int,
        *,
        loss: Surrogate | None = None,
        block_task: Tensor | None = None,
    ) -> None:
        super().__init__(model, num_blocks, 2, True, block_task)
        self.loss = SquaredHinge(margin=1.0) if loss is None else loss

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        if isinstance(self.loss, Logistic):
            outputs = wide(outputs)
        x, positive, negative = self.pairs(index, outputs, batch)
        everyone = positive | negative
        log_scale, l = scaled(self.loss, x, everyone)
        share = shares(l, everyone, batch.weight, index, "labelled examples")
        g = torch.stack([(l * (share * positive)).sum(1), (l * share).sum(1)], 1)
        return log_or_zero(g, log_scale)

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        precision = (u[:, 0] - u[:, 1]).clamp(max=0.0).exp()
        perfect = u[:, 1] < 0.5 * ZERO  # u_2 = 0
        return self.weighted(index, -torch.where(perfect, 1.0, precision))

    def project(self, u: Tensor) -> Tensor:
        """0 <= u_1 <= u_2, as their g are."""
        return torch.minimum(u, u[:, 1:]).clamp(min=ZERO)


def wide(outputs: Tensor) -> Tensor:
    """In float64, for losses with exponentials: their log g is large, and g - g- lives on its last digits."""
    return outputs if outputs.device.type == "mps" else outputs.to(torch.float64)  # mps has no float64


def shares(like: Tensor, mask: Tensor, weight: Tensor | None, index: Tensor, what: str) -> Tensor:
    """How much each example counts: 1/number over the marked ones, or their weights; (B, K) or (1, K).

    Args:
        like: gives the dtype.
        mask: (B, K) or (1, K) bool, which examples enter.
        weight: (K,) or (B, K), or None.
        index: (B,) the blocks, for the error message.
        what: what the examples are ('positives'), for the error message.
    """
    if weight is not None:
        return mask * weight.to(like.dtype)
    count = mask.sum(1, keepdim=True)
    # On an accelerator this look would make it wait; there 0/0 reaches the solver's check, which names the block.
    if count.device.type == "cpu" and not bool(count.all()):
        empty = index[(count == 0).squeeze(1).expand(index.shape[0])].tolist()
        raise ValueError(f"the batch holds no {what} for block {_checks.some(empty)}")
    return mask.to(like.dtype) / count


def scaled(loss: Surrogate, x: Tensor, mask: Tensor) -> tuple[Tensor | float, Tensor]:
    """l(x) as exp(log_scale) * values, so that an l made of exponentials does not vanish, however small it is.

    Args:
        loss: l.
        x: (B, K).
        mask: (B, K) or (1, K) bool, which of them are looked at; the values of the others mean nothing.

    Returns:
        log_scale, (B, 1) without graph or 0, and values (B, K).
    """
    return _scaled_logistic(loss.sharpness, x, mask) if isinstance(loss, Logistic) else (0.0, loss(x))


def _scaled_logistic(sharpness: float, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    e = sharpness * x
    top = torch.where(mask, e.detach(), -torch.inf).amax(1, keepdim=True)
    top = torch.where(top < 0.0, top, 0.0).clamp(min=ZERO)
    e = torch.where(mask, e, top)
    near = torch.nn.functional.softplus(e) * (-top.clamp(min=_FAR)).exp()
    low = e.clamp(max=_FAR)
    y = low.exp()
    far = (low - top).exp() * (1.0 - y / 2.0 + y.square() / 3.0)  # log(1 + y) = y - y^2/2 + y^3/3 - ...
    return top - math.log(sharpness), torch.where(e > _FAR, near, far)


def log_or_zero(g: Tensor, log_scale: Tensor | float) -> Tensor:
    """log_scale + log g; :data:`ZERO`, with gradient 0, where g is 0."""
    positive = g > 0.0
    return torch.where(positive, log_scale + torch.where(positive, g, 1.0).log(), ZERO)


def _tasks(block_task: Tensor, num_blocks: int, anchors: str) -> Tensor:
    if block_task.shape != (num_blocks,) or block_task.is_floating_point() or block_task.dtype == torch.bool:
        raise ValueError(
            f"block_task must hold {num_blocks} integers, got {block_task.dtype} of shape {tuple(block_task.shape)}"
        )
    block_task = block_task.to(torch.int64)
    if int(block_task.min()) < 0:
        raise ValueError(f"block_task must not be negative, got {int(block_task.min())}")
    empty = (block_task.bincount() == 0).nonzero()[:, 0].tolist()
    if empty:
        raise ValueError(
            f"every task must have a {anchors} example, but block_task never names task {_checks.some(empty)}"
        )
    return block_task
