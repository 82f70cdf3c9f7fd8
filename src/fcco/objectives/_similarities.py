"""Log means of exponentials of similarities between features, as one node of the graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fcco._support.fused import derivative_again
from fcco._support.logs import ZERO
from fcco.data._draws import exact_dtype
from fcco.objectives._means import LogSumExp

_SHORTEST = 1e-12  # features shorter than this are divided by it, as torch's normalize has it
_LEAST_SINGLE = 0.2  # the least tau for which exponents in single precision will do


class LogMeanSimilarities(torch.autograd.Function):
    r"""Per block i and view v: :math:`\log \sum_j w_j \exp((h_i^v \cdot z_j - h_i^1 \cdot h_i^2)/\tau)`.

    :data:`ZERO`, with gradient 0, where nothing enters. One node in place of two dozen: of the large tensors (a number
    per pair) there are two, where a graph of small operations has ten.

    Args:
        outputs: (K, 2, d) features of two views or modalities.
        position: (B,) where each block's own example stands.
        log_weight: (B, N) log w, -inf where an example does not enter; N = K with two modalities, else 2 K: the first
            views of all examples, then the second ones. Exponents are taken in its precision.
        tau: the temperature.
        two_modal: whether the z_j are of the other modality alone.
        normalized: whether features are divided by their length first.

    Returns:
        (B, 2) in double precision.
    """

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, position: Tensor, log_weight: Tensor, tau: float, two_modal: bool, normalized: bool
    ) -> Tensor:
        h = _by_view(outputs, log_weight.dtype)  # (2, K, d)
        length = None
        if normalized:
            # In double precision: squares above 1e38 are infinite in single precision, and the features would be 0.
            length = torch.linalg.vector_norm(h, dim=2, keepdim=True, dtype=exact_dtype(h.device))  # (2, K, 1)
            h = h / length.clamp(min=_SHORTEST).to(h.dtype)
        is_whole = _is_every_example(position, h.shape[1])
        own = h
        if not is_whole:
            own = h.index_select(1, position)  # (2, B, d)
        # A row in which nothing enters needs a finite top.
        bounded = log_weight.clamp(min=0.5 * torch.finfo(log_weight.dtype).min)  # (B, N)
        against = _against(h, two_modal).transpose(1, 2)  # (2, d, N)
        exponents = torch.baddbmm(bounded.expand(2, -1, -1), own, against, alpha=1.0 / tau)  # (2, B, N)
        share = exponents.softmax(2)
        # The largest share is 1 / sum exp(exponent - top). The positive pair stands in all exponents alike.
        exact = exact_dtype(h.device)
        positive = (own[0].to(exact) * own[1].to(exact)).sum(1)  # (B,)
        g = exponents.amax(2).to(exact) - share.amax(2).to(exact).log() - positive / tau  # (2, B)
        ctx.save_for_backward(outputs)  # the one input that a second derivative goes back to
        ctx.inputs = (position, log_weight, tau, two_modal, normalized)
        ctx.h = h
        ctx.length = length
        ctx.own = own
        ctx.is_whole = is_whole
        ctx.share = share
        ctx.nothing = g <= ZERO
        return g.masked_fill(ctx.nothing, ZERO).t()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        (outputs,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # this derivative will be differentiated itself
            again = derivative_again(plain_similarities, (outputs,), ctx.inputs, slope)
            return *again, None, None, None, None, None
        position, _, tau, two_modal, _ = ctx.inputs
        dtype = _product_dtype(outputs)
        own = ctx.own.to(dtype)
        each = slope.t().masked_fill(ctx.nothing, 0.0) / tau  # (2, B)
        of_pairs = (ctx.share * each.to(ctx.share.dtype).unsqueeze(2)).to(dtype)
        h = ctx.h.to(dtype)
        # The positive pair stands in every exponent, and the shares of a row add up to 1.
        of_positive = each.sum(0).to(dtype).unsqueeze(1)  # (B, 1), less its sign
        if ctx.is_whole:
            of_h = _transposed_whole(of_pairs, h, two_modal)
            of_h.addcmul_(of_positive, h.flip(0), value=-1.0)
        else:
            of_own, of_h = _transposed(of_pairs, own, h, two_modal)
            of_own.addcmul_(of_positive, own.flip(0), value=-1.0)
            of_h.index_add_(1, position, of_own)  # (2, K, d)
        if ctx.length is not None:
            of_h = _through_length(of_h, h, ctx.length.to(dtype))
        return of_h.transpose(0, 1).to(outputs.dtype), None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, outputs: Tensor, *_: None) -> Tensor:
        position, _, tau, two_modal, _ = ctx.inputs
        own = ctx.own
        change = _by_view(outputs, own.dtype)
        if ctx.length is not None:
            change = _through_length(change, ctx.h, ctx.length.to(own.dtype))
        of_own = change.index_select(1, position)
        moved = _similarities(of_own, ctx.h, two_modal) + _similarities(own, change, two_modal)
        positive = (of_own[0] * own[1] + own[0] * of_own[1]).sum(1)
        change_of_g: Tensor = (ctx.share * (moved - positive.unsqueeze(1)) / tau).sum(2)
        return change_of_g.to(exact_dtype(own.device)).masked_fill(ctx.nothing, 0.0).t()


def exponent_dtype(outputs: Tensor, tau: float, normalized: bool) -> torch.dtype:
    """In which precision exponents are taken: double, since tau may be tiny.

    Single-precision features of length 1 on the CPU stay in single precision down to tau = 0.2: similarities over tau
    are then at most 5, and rounding changes log g by less than 1e-6.
    """
    if normalized and tau >= _LEAST_SINGLE and _product_dtype(outputs) == torch.float32:
        return torch.float32
    return exact_dtype(outputs.device)


def _product_dtype(outputs: Tensor) -> torch.dtype:
    """In which precision the derivative's matrix products are taken.

    On the CPU that of the outputs, which the derivative is rounded to anyway: exponents need double precision, and they
    are done with. Elsewhere single precision may mean ten bits, as under autocast.
    """
    if outputs.dtype == torch.float32 and outputs.is_cpu and not torch.is_autocast_enabled("cpu"):
        return torch.float32
    return exact_dtype(outputs.device)


def plain_similarities(
    outputs: Tensor,
    position: Tensor,
    log_weight: Tensor,
    tau: Tensor | float,
    two_modal: bool,
    normalized: bool,
) -> Tensor:
    """The same in small operations, for trained temperatures (2, B, 1) or () and for second derivatives."""
    h = _by_view(outputs, exact_dtype(outputs.device))
    if normalized:
        h = normalize(h, dim=2)
    own = h[:, position]  # (2, B, d)
    # Relative to the positive pair, exponents are small once the pairs agree.
    positive = (own[0] * own[1]).sum(1)  # (B,)
    exponents = (_similarities(own, h, two_modal) - positive.unsqueeze(1)) / tau
    g: Tensor = LogSumExp.apply(exponents, log_weight).t()  # type: ignore[no-untyped-call]
    return torch.where(g <= ZERO, ZERO, g)  # nobody of weight > 0 may be there


def _is_every_example(position: Tensor, size: int) -> bool:
    """Whether every example of the batch is a block, in their order; an accelerator, which would have to wait, is not
    asked."""
    if not position.is_cpu or position.shape[0] != size:
        return False
    return torch.equal(position, torch.arange(size, device=position.device))


def _by_view(outputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Features (2, K, d); matrix products are faster in this order."""
    return outputs.transpose(0, 1).to(dtype, memory_format=torch.contiguous_format)


def _against(h: Tensor, two_modal: bool) -> Tensor:
    """The features that each view is set against: (2, N, d)."""
    if two_modal:
        return h.flip(0)
    return h.flatten(0, 1).expand(2, -1, -1)


def _similarities(own: Tensor, h: Tensor, two_modal: bool) -> Tensor:
    """Of each view of the blocks with the features that it is set against: (2, B, N)."""
    return torch.bmm(own, _against(h, two_modal).transpose(1, 2))


def _transposed(of_pairs: Tensor, own: Tensor, h: Tensor, two_modal: bool) -> tuple[Tensor, Tensor]:
    """The derivatives by own (2, B, d) and by h (2, K, d) from that by the similarities (2, B, N)."""
    if two_modal:
        return torch.bmm(of_pairs, h.flip(0)), torch.bmm(of_pairs.transpose(1, 2), own).flip(0)
    rows = of_pairs.flatten(0, 1)  # (2 B, 2 K)
    of_own = (rows @ h.flatten(0, 1)).view_as(own)
    return of_own, (rows.T @ own.flatten(0, 1)).view_as(h)


def _transposed_whole(of_pairs: Tensor, h: Tensor, two_modal: bool) -> Tensor:
    """The two added up, where every example is a block: half the products, since h stands on both sides."""
    if two_modal:
        across = of_pairs[0] + of_pairs[1].T  # (K, K) by the product of a first feature with a second one
        return torch.stack([across @ h[1], across.T @ h[0]])
    rows = of_pairs.flatten(0, 1)  # (2 K, 2 K)
    return ((rows + rows.T) @ h.flatten(0, 1)).view_as(h)


def _through_length(change: Tensor, h: Tensor, length: Tensor) -> Tensor:
    """The derivative of x / max(||x||, shortest) times a change (its own transpose), h the result."""
    along = (h * change).sum(2, keepdim=True).masked_fill(length < _SHORTEST, 0.0)
    return (change - along * h) / length.clamp(min=_SHORTEST)
