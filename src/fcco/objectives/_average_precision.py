"""AveragePrecision, and what objectives share whose blocks are examples compared with other examples."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fcco._support import checks
from fcco.objectives._base import OutputObjective, need, scores, widened
from fcco.objectives._multitask_auc import labelled
from fcco.objectives._surrogates import Logistic, SquaredHinge, Surrogate
from fcco.sampling.batch import Average, Batch

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
    shift_invariant = True
    #: which class the blocks' own examples are of
    anchors: ClassVar[str] = "positive"
    #: what the mean in g runs over; None: whatever the batch says
    average: ClassVar[Average | None] = None

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
        outputs = single(outputs)
        positive, negative = self._labelled(index, batch)
        anchor = self._anchor(index, batch, positive if self.anchors == "positive" else negative)
        if self.block_task is None:
            h = scores(outputs, batch)
            own = -h.index_select(0, anchor)  # negated here, so that the backward pass negates B numbers, not B K
            return h + own.unsqueeze(1), positive, negative
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

    def check_average(self, average: Average | None) -> None:
        """Refuse batches of a loader whose mean runs over other examples."""
        if self.average is not None and average not in (None, self.average):
            name = type(self).__name__
            raise ValueError(f"{name} needs a loader with average={self.average}, got one with {average.name}")

    def _labelled(self, index: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        y = need(batch.y, "y")
        classes = is_classes(y)
        columns = 1 if y.dim() == 1 else y.shape[1]
        if y.dim() > 2 or not (columns == self.num_tasks or (classes and self.block_task is not None)):
            raise ValueError(
                f"batch.y must hold a label a task, shape ({len(batch)}, {self.num_tasks}), got {tuple(y.shape)}"
            )
        if self.block_task is not None:
            return labelled(self.block_task[index], batch)
        if batch.serves is not None:
            return labelled(torch.ones_like(index) if classes else torch.zeros_like(index), batch)
        row = y.reshape(1, -1)  # one row will do where all blocks see the same
        positive = row == 1
        return positive, ~positive if classes else row == 0

    def _anchor(self, index: Tensor, batch: Batch, own: Tensor) -> Tensor:
        self.check_average(batch.average)
        anchor = need(batch.anchor, "anchor")
        if anchor.shape != index.shape:
            raise ValueError(f"batch.anchor must have shape {tuple(index.shape)}, got {tuple(anchor.shape)}")
        if own.device.type == "cpu":  # on an accelerator this look would make it wait
            found = own.take(anchor) if own.shape[0] == 1 else own.gather(1, anchor.unsqueeze(1)).squeeze(1)
            if not bool(found.all()):
                raise ValueError(
                    f"batch.anchor must point at a {self.anchors} example that serves its block; it does not for "
                    f"block {checks.some(index[~found].tolist())}"
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
    average: ClassVar[Average | None] = Average.ALL

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
        shared = self.block_task is None and batch.serves is None and (batch.weight is None or batch.weight.dim() == 1)
        if shared and isinstance(self.loss, SquaredHinge) and not torch.is_autocast_enabled(outputs.device.type):
            return self._hinge(self.loss, index, outputs, batch)
        if isinstance(self.loss, Logistic):
            outputs = widened(outputs)
        x, positive, negative = self.pairs(index, outputs, batch)
        everyone = positive | negative
        log_scale, l = scaled(self.loss, x, everyone)
        share = shares(l, everyone, batch.weight, index, "labelled examples")
        g = torch.stack([(l * (share * positive)).sum(1), (l * share).sum(1)], 1)
        return log_or_zero(g, log_scale)

    def _hinge(self, loss: SquaredHinge, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        """The same for the squared hinge where all blocks see the same examples: most of the time goes there."""
        h, y = scores(single(outputs), batch), need(batch.y, "y")
        if is_classes(y) and batch.weight is None:  # no label is missing, so all examples count the same
            positive, offset = y == 1, math.log(loss.scale / len(batch))
            anchor, over = self._anchor(index, batch, positive.unsqueeze(0)), positive.to(h.dtype)
            rest = 1.0 - over
        else:
            positive, negative = self._labelled(index, batch)
            anchor, offset = self._anchor(index, batch, positive), math.log(loss.scale)
            share = shares(h, positive | negative, batch.weight, index, "labelled examples").squeeze(0)
            over, rest = share * positive.squeeze(0), share * negative.squeeze(0)
        g: Tensor = LogHingeSums.apply(h, anchor, over, rest, loss.margin, offset)  # type: ignore[no-untyped-call]
        return g

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        over, every = u.unbind(1)
        precision = (over - every).masked_fill(_is_perfect(over, every), 0.0).exp()
        return self.weighted(index, -precision)

    def outer_and_slope(self, index: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        over, every = u.unbind(1)
        perfect = _is_perfect(over, every)
        f = self.weighted(index, -(over - every).masked_fill(perfect, 0.0).exp())
        change = f.masked_fill(perfect, 0.0)
        return f, torch.stack([change, -change], 1)

    def project(self, u: Tensor) -> Tensor:
        """0 <= u_1 <= u_2, as their g are."""
        return torch.minimum(u, u[:, 1:]).clamp(min=ZERO)


def _is_perfect(over: Tensor, every: Tensor) -> Tensor:
    """Where precision is 1: u_1 > u_2, which no g has, or u_2 = 0, the limit of 0/0."""
    return (over > every) | (every < 0.5 * ZERO)


def is_classes(y: Tensor) -> bool:
    """Whether y holds class labels, of which none can be missing."""
    return y.dim() == 1 and not y.is_floating_point()


def single(outputs: Tensor) -> Tensor:
    """In float32 at least."""
    return outputs.float() if outputs.dtype.itemsize < 4 else outputs


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
        raise ValueError(f"the batch holds no {what} for block {checks.some(empty)}")
    return mask.to(like.dtype) / count


class LogHingeSums(torch.autograd.Function):
    """log g + offset, g = sum_j w_j max(h_j - h_i + margin, 0)^2 over the positives and over all: (B, 2).

    :data:`ZERO`, with gradient 0, where the sum is 0. One node of the graph in place of a dozen small ones, whose
    bookkeeping took longer than the arithmetic.

    Args:
        h: (K,) scores.
        anchor: (B,) where each h_i stands.
        over: (K,) w of the positives, 0 elsewhere.
        rest: (K,) w of the others, 0 elsewhere.
        margin: of the hinge.
        offset: a number.
    """

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, anchor: Tensor, over: Tensor, rest: Tensor, margin: float, offset: float
    ) -> Tensor:
        inside = _inside(h, anchor, margin)
        g = widened(_two_sums(inside, over, rest))
        ctx.save_for_backward(h)
        ctx.anchor, ctx.over, ctx.rest, ctx.margin, ctx.inside, ctx.g = anchor, over, rest, margin, inside, g
        return g.log().add_(offset).clamp_(min=ZERO)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        (h,), over, rest, inside, g = ctx.saved_tensors, ctx.over, ctx.rest, ctx.inside, ctx.g
        if torch.is_grad_enabled():  # this derivative will be differentiated itself
            inside = _inside(h, ctx.anchor, ctx.margin)
            g = widened(_two_sums(inside, over, rest))
        # d log g_i = 2 sum_j w_j inside_ij d(h_j - h_i) / g_i; a positive stands in both sums
        first, second = (2.0 * slope / _or_infinite(g)).to(h.dtype).t().contiguous()
        both = first + second
        others = torch.mv(inside.t(), both) * over + torch.mv(inside.t(), second) * rest
        own = torch.mv(inside, over) * both + torch.mv(inside, rest) * second
        return others.index_add(0, ctx.anchor, own, alpha=-1), None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, h: Tensor, *_: None) -> Tensor:
        change = 2.0 * ctx.inside * (h - h.index_select(0, ctx.anchor).unsqueeze(1))
        first, rest = torch.mv(change, ctx.over), torch.mv(change, ctx.rest)
        return torch.stack([first, first + rest], 1) / _or_infinite(ctx.g)


def _inside(h: Tensor, anchor: Tensor, margin: float) -> Tensor:
    """max(h_j - h_i + margin, 0): (B, K)."""
    return (h - (h.index_select(0, anchor) - margin).unsqueeze(1)).relu_()


def _two_sums(inside: Tensor, over: Tensor, rest: Tensor) -> Tensor:
    square = inside.square()
    first = torch.mv(square, over)
    return torch.stack([first, first + torch.mv(square, rest)], 1)  # equal to the last bit where no other is inside


def _or_infinite(g: Tensor) -> Tensor:
    """g, and infinity in place of 0: what is divided by it is then 0."""
    return g.masked_fill(g <= 0.0, math.inf)


def scaled(loss: Surrogate, x: Tensor, mask: Tensor) -> tuple[Tensor | float, Tensor]:
    """l(x) as exp(log_scale) * values, so that an l made of exponentials does not vanish, however small it is.

    Args:
        loss: l.
        x: (B, K).
        mask: (B, K) or (1, K) bool, which of them are looked at; the values of the others mean nothing.

    Returns:
        log_scale, (B, 1) without graph or 0, and values (B, K).
    """
    if isinstance(loss, Logistic):
        return _scaled_logistic(loss.sharpness, x, mask)
    if isinstance(loss, SquaredHinge):
        inside = (x + loss.margin).relu()
        return math.log(loss.scale), inside * inside
    return 0.0, loss(x)


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
    if g.device.type == "cpu" and float(g.detach().amin()) > 0.0:  # on an accelerator this look would make it wait
        return g.log() + log_scale
    zero = g <= 0.0
    return (g.masked_fill(zero, 1.0).log() + log_scale).masked_fill(zero, ZERO)


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
            f"every task must have a {anchors} example, but block_task never names task {checks.some(empty)}"
        )
    return block_task
