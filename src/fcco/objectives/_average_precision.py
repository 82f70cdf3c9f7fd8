"""AveragePrecision: the area under the precision-recall curve, through the smooth form of SOAP."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from fcco._support.fused import fused
from fcco._support.logs import ZERO
from fcco.data import Batch, Points
from fcco.objectives._anchored import AnchoredObjective, own_position
from fcco.objectives._base import scores
from fcco.objectives._means import log_or_zero, shares
from fcco.objectives._precision import at_least_float32, to_float64
from fcco.objectives._surrogates import SquaredHinge, Surrogate, loss_or_default

if TYPE_CHECKING:
    from fcco.memory._table import OutputTable
    from fcco.memory.forms import Form


class AveragePrecision(AnchoredObjective):
    r"""Average precision, maximised through the smooth form of SOAP.

    .. math::
        F(w) = -\frac1m \sum_{i: y_i = 1}
               \frac{\sum_j \ell(h_j - h_i)\, 1[y_j = 1]}{\sum_j \ell(h_j - h_i)}

    Block i is positive i (with several tasks, a (task, positive) pair). With means over all labelled data, and the
    positive itself among them, :math:`g_i = (E_j\, \ell(h_j - h_i) 1[y_j = 1],\; E_j\, \ell(h_j - h_i))` and
    :math:`f_i(u) = -u_1/u_2`, the precision at i's own score with l for the 0/1 step. It lies in [-1, 0]. The data's
    weights enter all these means.

    Both components are in the log domain, so l may be as small as the scores make it. If :math:`u_2 = 0` (margin 0
    and nothing scores above i) f is 0/0 and takes the value of the perfect ranking, -1, with gradient 0.

    Args:
        model: (K, ...) -> (K,) or (K, 1) scores; with several tasks (K, T), one column per task.
        data: the points and their labels. Tasks count equally.
        loss: l. The default is ``SquaredHinge(margin=1)``.

    A batch of the loader has the positives that are its blocks and samples of both classes. Weights correct for the
    proportion in which the classes are drawn.

    Example:
        >>> from fcco.data import Points
        >>> data = Points(torch.randn(6, 4), torch.tensor([1, 1, 1, 0, 0, 0]))
        >>> objective = AveragePrecision(nn.Linear(4, 1), data)
        >>> batch = next(iter(objective.loader(blocks=2, samples=3)))
        >>> objective(batch.index, batch).shape
        torch.Size([2, 2])

    Reference: Qi et al., Stochastic Optimization of Areas Under Precision-Recall Curves with Provable Convergence,
    NeurIPS 2021 (SOAP).
    """

    include_own_class: ClassVar[bool] = True
    mean_of_exponentials = False

    def __init__(self, model: nn.Module, data: Points, *, loss: Surrogate | None = None) -> None:
        super().__init__(model, data, dim=2)
        self.loss: Surrogate = loss_or_default("loss", loss, SquaredHinge(margin=1.0))

    def constants(self) -> dict[str, Any]:
        return {"loss": repr(self.loss)}

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        if isinstance(self.loss, SquaredHinge) and self._is_shared(batch):
            return self._hinge(self.loss, index, outputs, batch)
        if self.loss.exponential:
            outputs = to_float64(outputs)
        x, positive, negative = self.pairs(index, outputs, batch)
        share = shares(x, positive | negative, batch.weight, index, "labelled examples")
        log_scale, l = self.loss.scaled(x, share > 0)
        weighted = l * share  # (B, K)
        # Both sums from the same products: where nothing but positives counts they agree to the last bit.
        g = torch.stack([(weighted * positive).sum(1), weighted.sum(1)], 1)
        return log_or_zero(g, log_scale)

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        return self.outer_and_slope(index, u)[0]

    def outer_and_slope(self, index: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        over, every = u.unbind(1)
        perfect = _is_perfect(over, every)
        # u is log u, so the quotient is a difference; 0 is the log of a precision of 1.
        precision = (over - every).masked_fill(perfect, 0.0).exp()
        f = self.weighted(index, -precision)
        change = f.masked_fill(perfect, 0.0)  # d(exp(a - b)) = exp(a - b) (da - db), and nothing at the limit
        return f, torch.stack([change, -change], 1)

    def project(self, u: Tensor) -> Tensor:
        """0 <= u_1 <= u_2, as their g are."""
        return torch.minimum(u, u[:, 1:]).clamp(min=ZERO)

    def table_form(self, table: OutputTable) -> Form | None:
        from fcco.memory.forms import pairwise_form

        return pairwise_form(self, self.blocks, self.loss.kernel(), table, same_class_only=(True, False))

    def _is_shared(self, batch: Batch) -> bool:
        """Whether all blocks see the same examples with the same weights, in full precision."""
        # Autocast would take the matrix products of such batches in half precision.
        if torch.is_autocast_enabled(batch.id.device.type):
            return False
        if self.block_task is not None or batch.serves is not None:
            return False
        return batch.weight is None or batch.weight.dim() == 1

    def _hinge(self, loss: SquaredHinge, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        """The same for the squared hinge where all blocks see the same examples: most of the time goes there."""
        h = scores(at_least_float32(outputs), batch)
        own = own_position(batch, index, self.block_example[index])
        positive, negative = self.labelled(index, batch)
        share = shares(h, positive | negative, batch.weight, index, "labelled examples")
        over = (share * positive).squeeze(0)  # (K,)
        rest = (share * negative).squeeze(0)
        log_scale = math.log(loss.scale)
        return fused(LogHingeSums, h, own, over, rest, loss.margin, log_scale)


def _is_perfect(over: Tensor, every: Tensor) -> Tensor:
    """Where precision is 1: u_1 > u_2, which no g has, or u_2 = 0, the limit of 0/0."""
    return (over > every) | (every < 0.5 * ZERO)


class LogHingeSums(torch.autograd.Function):
    """log g + offset, g = sum_j w_j max(h_j - h_i + margin, 0)^2 over the positives and over all: (B, 2).

    :data:`ZERO`, with gradient 0, where the sum is 0. One node of the graph in place of a dozen small ones, whose
    bookkeeping took longer than the arithmetic.

    Args:
        h: (K,) scores.
        own: (B,) where each h_i stands.
        over: (K,) w of the positives, 0 elsewhere.
        rest: (K,) w of the others, 0 elsewhere.
        margin: of the hinge.
        offset: a number.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, own: Tensor, over: Tensor, rest: Tensor, margin: float, offset: float) -> Tensor:
        inside = _inside(h, own, margin)
        g = to_float64(_two_sums(inside, over, rest))
        ctx.save_for_backward(h)  # the one input that a second derivative goes back to
        ctx.own = own
        ctx.over = over
        ctx.rest = rest
        ctx.margin = margin
        ctx.inside = inside
        ctx.g = g
        return g.log().add_(offset).clamp_(min=ZERO)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        (h,) = ctx.saved_tensors
        over = ctx.over
        rest = ctx.rest
        inside = ctx.inside
        g = ctx.g
        if torch.is_grad_enabled():  # this derivative will be differentiated itself
            inside = _inside(h, ctx.own, ctx.margin)
            g = to_float64(_two_sums(inside, over, rest))
        # d log g_i = 2 sum_j w_j inside_ij d(h_j - h_i) / g_i; a positive stands in both sums
        first, second = (2.0 * slope / _or_infinite(g)).to(h.dtype).t().contiguous()
        # first is the slope by log g over the positives, second by log g over all
        both = first + second
        others = torch.mv(inside.t(), both) * over + torch.mv(inside.t(), second) * rest
        mine = torch.mv(inside, over) * both + torch.mv(inside, rest) * second
        return others.index_add(0, ctx.own, mine, alpha=-1), None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, h: Tensor, *_: None) -> Tensor:
        change = 2.0 * ctx.inside * (h - h.index_select(0, ctx.own).unsqueeze(1))
        first = torch.mv(change, ctx.over)
        rest = torch.mv(change, ctx.rest)
        return torch.stack([first, first + rest], 1) / _or_infinite(ctx.g)


def _inside(h: Tensor, own: Tensor, margin: float) -> Tensor:
    """max(h_j - h_i + margin, 0): (B, K)."""
    return (h - (h.index_select(0, own) - margin).unsqueeze(1)).relu_()


def _two_sums(inside: Tensor, over: Tensor, rest: Tensor) -> Tensor:
    square = inside.square()
    first = torch.mv(square, over)
    return torch.stack([first, first + torch.mv(square, rest)], 1)  # equal to the last bit where no other is inside


def _or_infinite(g: Tensor) -> Tensor:
    """g, and infinity in place of 0: what is divided by it is then 0."""
    return g.masked_fill(g <= 0.0, math.inf)
