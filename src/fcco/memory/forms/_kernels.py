r"""Sums over pairs: :math:`g_a = \sum_o w_o k(s_o - s_a)` with its derivatives, for the two kinds of pair losses.

There are two, :class:`Polynomial` and :class:`Exponential`. Both speak in log g, and of an anchor's slope relative to
g. A surrogate names its kernel (``Surrogate.kernel``, ``Surrogate.exponential_kernel``).

On an accelerator every shape of a step depends on sizes alone: no device waits, and a graph can be captured. Only the
evaluation of a whole table, and steps on the CPU (``waits=True``), look at the scores, to leave out pairs outside of
the hinge.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from fcco.memory.forms._form import OuterValues

FEW = 32  # up to this many, sorting what they are compared with costs more than it saves


class Others(NamedTuple):
    """Scores (..., E) of some of the others and their weights (..., E, C)."""

    s: Tensor
    w: Tensor


class Anchors(NamedTuple):
    """The anchors of T tasks, one after another.

    Args:
        a: (A,) their scores.
        task: (A,) in growing order.
        example: (A,) their examples.
    """

    a: Tensor
    task: Tensor
    example: Tensor


class Asked(NamedTuple):
    """Drawn examples as anchors of T tasks.

    Args:
        a: (T, K) their scores.
        mask: (T, K) bool, which of them are anchors of which task.
        most: how many are marked, at most.
    """

    a: Tensor
    mask: Tensor
    most: int


@final
@dataclass(frozen=True)
class Compared:
    """Who the others of T tasks are.

    Args:
        index: (T, P) the examples, and any others up to the longest list.
        count: how many each task has.
        first: where each task's anchors begin, and where the last one's end.
    """

    index: Tensor
    count: list[int]
    first: list[int]

    @classmethod
    def of(cls, entering: Tensor, task: Tensor) -> Compared:
        """From who counts in the means (T, N) bool, and the anchors' tasks (A,)."""
        count = entering.sum(1).tolist()
        index = (~entering).int().argsort(dim=1, stable=True)[:, : max(count)]
        first = [0, *task.bincount(minlength=len(count)).cumsum(0).tolist()]
        return cls(index.contiguous(), count, first)

    def at(self, s: Tensor, w: Tensor) -> Others:
        """Scores (T, P) and weights (T, P, C) of the others alone, from those of all (T, N) and (T, N, C)."""
        weight = w.gather(1, self.index.unsqueeze(2).expand(-1, -1, w.shape[2]))
        return Others(between(s.gather(1, self.index), weight), weight)

    def pieces(self, budget: int) -> Iterator[tuple[slice, slice, int]]:
        """The anchors in parts: which, of which tasks, and how many others these have at most.

        A part of one task, or as many whole ones as fit.
        """
        at = 0
        task = 0
        while at < self.first[-1]:
            low = task
            width = self.count[low]
            end = min(at + max(1, budget // max(1, width)), self.first[low + 1])
            task = low + (end == self.first[low + 1])
            while task > low and task < len(self.count):
                wider = max(width, self.count[task])
                if (self.first[task + 1] - at) * wider > budget:
                    break
                width = wider
                task += 1
                end = self.first[task]
            yield slice(at, end), slice(low, max(task, low + 1)), width
            at = end


class Ranked:
    """Scores (T, N), sorted at most once, in falling order.

    Args:
        s: the scores.
    """

    def __init__(self, s: Tensor) -> None:
        self.s = s

    @functools.cached_property
    def falling(self) -> tuple[Tensor, Tensor]:
        """The scores, and whose they are."""
        values, order = self.s.sort(-1, descending=True)
        return values, order

    @functools.cached_property
    def negated(self) -> Ranked:
        """Those of -s."""
        result = Ranked(-self.s)
        values, order = self.falling
        result.falling = (-values.flip(-1), order.flip(-1))
        return result


class WholeTable(NamedTuple):
    """What the evaluation of everything gives: log g and the relative slope (A, C) of every anchor, f, and dPhi/ds
    (T, N) of the others, before the sign."""

    log_g: Tensor
    slope: Tensor
    outer: OuterValues
    by_other: Tensor


#: f of some of the anchors at their log g, with its slopes
Weigh = Callable[[slice, Tensor], OuterValues]


class Kernel(ABC):
    """k(x), x = s_o - s_a, summed over others o with weights (P, C) or over anchors a; abstract."""

    @abstractmethod
    def rows(
        self, a: Tensor, s: Tensor, w: Tensor, task: Tensor | None = None, *, waits: bool = True
    ) -> tuple[Tensor, Tensor]:
        """log g (A, C) and sum_o w_o k'(s_o - s_a) / g (A, C), from anchors (A,), others (P,), weights (P, C).

        Args:
            task: (A,), where each task has others (T, P) and weights (T, P, C) of its own.
            waits: whether the host may look at the scores.
        """

    @abstractmethod
    def columns(self, s: Tensor, a: Tensor, log_g: Tensor, b: Tensor, *, waits: bool = True) -> Tensor:
        """sum_a b_a k'(s_o - s_a) / g_a (Q, C), from others (Q,), anchors (A,), their log g and b (A, C)."""

    @abstractmethod
    def task_rows(self, asked: Asked, s: Ranked, w: Tensor, compared: Compared) -> tuple[Tensor, Tensor]:
        """:meth:`rows` (T, K, C) of drawn anchors, from others (T, N) and weights (T, N, C); elsewhere any number."""

    @abstractmethod
    def task_columns(self, q: Tensor, anchors: Anchors, s: Ranked, log_g: Tensor, b: Tensor) -> Tensor:
        """:meth:`columns` (T, K, C) of drawn others (T, K), from all anchors; s (T, N) are the scores of all."""

    @abstractmethod
    def task_all(self, anchors: Anchors, s: Ranked, w: Tensor, compared: Compared, weigh: Weigh) -> WholeTable:
        """Rows and columns of everything, from all scores (T, N) and weights (T, N, C)."""

    @abstractmethod
    def largest(self, others: Others, a: Tensor) -> Tensor:
        """log of the most that one of the others contributes to each anchor, (A, C); each may have its own others."""

    @abstractmethod
    def cost(self, anchors: int, others: int) -> int:
        """What all rows and columns cost, in pairs."""


def extremes(s: Tensor, w: Tensor, same_class: Tensor | None, there: Tensor | None = None) -> Others:
    """The ends of the others' scores (..., Q), in each of their two classes; weight 0 where a class is empty.

    Within a class all weigh the same, and k has its largest value at one of the two ends: so these stand for all.

    Args:
        w: (..., Q, C) the weights.
        same_class: (..., Q) bool, which are of the anchors' class; None: none.
        there: (..., Q) bool, which count; None: all.
    """
    if there is None:
        there = torch.ones_like(s, dtype=torch.bool)
    sides = there.unsqueeze(-2)  # (..., 1, Q)
    if same_class is not None:
        sides = torch.stack([same_class & there, ~same_class & there], -2)  # (..., 2, Q)
    s = s.unsqueeze(-2)
    top = torch.where(sides, s, -torch.inf).amax(-1)  # (..., 2)
    low = torch.where(sides, s, torch.inf).amin(-1)
    ends = torch.cat([top, low], -1).nan_to_num(posinf=0.0, neginf=0.0)
    weight = (w.unsqueeze(-3) * sides.unsqueeze(-1)).amax(-2)  # (..., 2, C)
    return Others(ends, torch.cat([weight, weight], -2))


def between(s: Tensor, w: Tensor) -> Tensor:
    """Scores (..., P) with the largest that counts in place of those of weight 0: an exponent is taken from the top."""
    counts = (w != 0.0).any(-1)  # (..., P)
    top = torch.where(counts, s, -torch.inf).amax(-1, keepdim=True)
    return torch.where(counts, s, top.masked_fill(top == -torch.inf, 0.0))


def weighted_sums(x: Tensor, w: Tensor) -> Tensor:
    """sum_p x_qp w_p (..., Q, C) from x (..., Q, P) and weights (..., P, C)."""
    if w.shape[-1] == 1:
        return x @ w
    # One by one: a product with two columns takes four times as long as two with one.
    return torch.cat([x @ column for column in w.split(1, -1)], -1)


def sums_of_rows(x: Tensor, w: Tensor) -> Tensor:
    """sum_p x_ap w_p (A, C) from x (A, P) and weights (P, C), or (A, P, C) where each row has its own."""
    if w.dim() == 2:
        return weighted_sums(x, w)
    return torch.stack([(x * column).sum(1) for column in w.unbind(2)], 1)
