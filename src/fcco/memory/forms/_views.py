"""View: which examples are compared in the only task, for :class:`PairwiseForm`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fcco.data import PointBlocks
from fcco.memory.forms._form import example_weights


@final
@dataclass(frozen=True)
class View:
    """One task: its anchors are compared with its others.

    Args:
        column: of the outputs.
        blocks: (A,) the anchors' blocks.
        anchors: (A,) their examples.
        others: (P,) the examples that the means run over.
        share: (P, C) how much each counts in each component of g, once all were seen.
        same_class: (P,) bool, which of the others are of the anchors' class.
        anchor_at: (N,) where an example stands among the anchors, -1: it does not; ``other_at``: among the others.
    """

    column: int
    blocks: Tensor
    anchors: Tensor
    others: Tensor
    share: Tensor
    same_class: Tensor
    anchor_at: Tensor
    other_at: Tensor

    def weights(self, present: Tensor) -> Tensor:
        """(P, C) of the others at the places (P,) alone: those seen of a class stand for all of it."""
        seen = torch.zeros_like(self.same_class).index_fill(0, present, True)
        return self.masked_weights(seen)[present]

    def masked_weights(self, seen: Tensor) -> Tensor:
        """(P, C) the weights where some of the others (P,) were seen alone, 0 of those not seen."""
        every = self.share.amax(1)  # the component that runs over both classes
        same_class = self.same_class.long()
        total = every.new_zeros(2).index_add(0, same_class, every)
        there = torch.zeros_like(total).index_add(0, same_class, every * seen)  # (2,)
        factor = torch.where(there > 0, total / there, 0.0)  # (2,)
        return self.share * (factor[same_class] * seen).unsqueeze(1)


def view_of(blocks: PointBlocks, device: torch.device, same_class_only: tuple[bool, ...]) -> View:
    """The view of the only task that has blocks.

    Args:
        same_class_only: for each component of g, whether it runs over the anchors' class alone.
    """
    (task,) = blocks.tasks.used.tolist()
    return _view(blocks, task, example_weights(blocks, device), same_class_only)


def _view(blocks: PointBlocks, task: int, worth: Tensor, same_class_only: tuple[bool, ...]) -> View:
    device = worth.device
    size = blocks.data.num_examples
    mine = (blocks.block_task == task).nonzero()[:, 0]  # (A,)
    anchors = blocks.block_example[mine]
    others = _other_class(blocks, task)
    same_class = torch.zeros_like(others, dtype=torch.bool)
    if blocks.include_own_class:
        others = torch.cat([anchors, others])
        same_class = torch.cat([torch.ones_like(anchors, dtype=torch.bool), same_class])
    others = others.to(device)
    same_class = same_class.to(device)
    # In double precision: exponents of thousands keep no digits in single.
    share = worth[others] / worth[others].sum()  # (P,)
    within_class = torch.where(same_class, share, 0.0)
    columns = {True: within_class, False: share}
    return View(
        column=task,
        blocks=mine.to(device),
        anchors=anchors.to(device),
        others=others,
        share=torch.stack([columns[only] for only in same_class_only], 1),
        same_class=same_class,
        anchor_at=_places(anchors.to(device), size),
        other_at=_places(others, size),
    )


def _other_class(blocks: PointBlocks, task: int) -> Tensor:
    """(P,) the examples of a task that are not of the blocks' class."""
    number = torch.tensor([task], device=blocks.device)
    positive, negative = blocks.tasks.at(number, blocks.arange(blocks.data.num_examples))
    other = positive
    if blocks.positive:
        other = negative
    return other[0].nonzero()[:, 0]


def _places(examples: Tensor, size: int) -> Tensor:
    """(N,) where each example stands in a list, -1: it does not."""
    place = torch.full((size,), -1, device=examples.device)
    place[examples] = torch.arange(examples.shape[0], device=examples.device)
    return place
