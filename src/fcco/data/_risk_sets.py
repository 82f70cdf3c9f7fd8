"""RiskSets, and RiskBlocks: a block is an event, compared with those who were at risk then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from fcco.data._batch import Batch
from fcco.data._blocks import ExampleBlocksBase, kept
from fcco.data._convert import numbers_or_objects, reals
from fcco.data._draws import choose, spread
from fcco.data._share import Share
from fcco.data._structure import Structure


@final
class RiskSets(Structure):
    """Subjects with the time of their event, or when they were last seen. Blocks are events (``fcco.objectives.Cox``).

    Args:
        x: of the subjects; see :class:`Structure`.
        time: (N,) finite numbers.
        event: (N,) 0/1 or bool: whether the event was observed (0: censored).
        weight: (N,) how much each subject counts. None: equally.
        inputs: the number of leading parts of a data set's items that make up x.

    Attributes:
        time: (N,).
        event: (N,) bool.

    Example:
        >>> data = RiskSets(torch.randn(4, 3), [3.0, 1.0, 2.0, 4.0], [1, 1, 0, 1])
        >>> data.event
        tensor([ True,  True, False,  True])
    """

    per_example: ClassVar[tuple[str, ...]] = ("weight", "time", "event")

    def __init__(self, x: Any, time: Any, event: Any, *, weight: Any = None, inputs: int = 1) -> None:
        super().__init__(x, weight, inputs)
        self.time = reals("time", time, self.num_examples, self.device)
        self.event = _events(event, self.num_examples).to(self.device)

    def labels_at(self, id: Tensor) -> Tensor:
        time = self.time[id]
        if not time.is_floating_point():
            time = time.to(torch.float64)
        return torch.stack([time, self.event[id].to(time.dtype)], 1)

    def _split_units(self) -> tuple[Tensor, Tensor]:
        return torch.arange(self.num_examples), self.event.to(torch.int64)


def _events(event: Any, size: int) -> Tensor:
    """(N,) bool."""
    given = numbers_or_objects("event", event)
    if not isinstance(given, Tensor):
        raise ValueError(f"event must be 0 or 1 for each example, got {given[0]!r} in row 0")
    if given.shape != (size,):
        raise ValueError(f"event must be 0 or 1 for each example, shape ({size},), got shape {tuple(given.shape)}")
    wrong = ((given != 0) & (given != 1)).nonzero()[:, 0].tolist()
    if wrong:
        raise ValueError(f"event must be 0 or 1, got {given[wrong[0]].item()} in row {wrong[0]}")
    return given == 1


@final
class RiskBlocks(ExampleBlocksBase):
    r"""Blocks are events: each with ``samples`` subjects of its risk set, itself among them.

    The risk set of event i is :math:`R_i = \{j : T_j \ge T_i\}`, ties and i itself among them. K = B1 * B2, ``serves``
    (K,) is the place of the event that a subject was drawn for. ``weight`` (K,) is for the mean over :math:`R_i`: the
    subject itself counts what it is worth there, up to B2 - 1 others stand for the rest, repeats count 0.

    Args:
        data: the subjects.

    Attributes:
        block_item: (m,) the subject of each event, in the order of the data.
        moment: (N,) the rank of each time, ties alike: no later change of dtype makes two times equal.
        order: the subjects by falling time: a risk set is a beginning of this; those of weight 0 are not in it.
        risk_size: (m,) the number of subjects at risk.
        risk_weight: (m,) float64, what their weights add up to.
    """

    least_samples: ClassVar[int] = 2

    def __init__(self, data: RiskSets) -> None:
        super().__init__(data)
        alive = self.alive()
        self.moment: Tensor = data.time.unique(return_inverse=True)[1]  # (N,)
        self.block_example = (data.event & alive).nonzero()[:, 0]
        self.block_item = self.block_example
        self.num_blocks = int(self.block_item.shape[0])
        if self.num_blocks == 0:
            raise ValueError("event must be 1 for at least one subject, got none")
        # By falling time a risk set is a beginning of the order, and its weight a cumulative sum.
        order = self.moment.sort(descending=True, stable=True).indices
        self.order = order[alive[order]]
        place = torch.full_like(self.moment, -1)
        place[self.order] = self.arange(self.order.shape[0])
        self.block_place = place[self.block_item]  # (m,) where the event's own subject stands in that order
        falling = -self.moment[self.order]
        self.risk_size = torch.searchsorted(falling, -self.moment[self.block_item], right=True)
        self.risk_weight = self.worth(self.order).cumsum(0)[self.risk_size - 1]
        self.largest = int(self.risk_size.max())
        self.block_weight = self.mean_one()

    def batch_size_of(self, share: Share, samples: int) -> int:
        return share.size * min(samples, self.largest)

    def draw(self, index: Tensor, samples: int, share: Share, generator: torch.Generator) -> Batch:
        others = self.risk_size[index] - 1  # (B,) how many are at risk besides the subject itself
        wanted = min(samples, self.largest) - 1
        own_place = self.block_place[index].unsqueeze(1)  # (B, 1)
        place_among_others = choose(others, wanted, generator)  # (B, wanted)
        place = place_among_others + (place_among_others >= own_place)  # skip the subject itself
        is_drawn = self.arange(wanted) < others.unsqueeze(1)  # a small risk set has fewer than are wanted
        place = torch.where(is_drawn, place, own_place)
        id = self.order[torch.cat([own_place, place], 1)]  # (B, 1 + wanted)
        total = self.risk_weight[index]
        own_weight = self.worth(id[:, 0]) / total  # (B,)
        drawn_weight = spread(is_drawn, others, total, self.weight_at(id[:, 1:]))  # (B, wanted)
        weight = torch.cat([own_weight.unsqueeze(1), drawn_weight], 1)
        event_number = self.arange(index.shape[0])  # (B,)
        block_pos = event_number * (wanted + 1)  # each event's own subject comes first
        serves = event_number.unsqueeze(1).expand_as(id).flatten()
        flat = id.flatten()
        return Batch(None, flat, index, self.labels_at(flat), block_pos, serves, weight.flatten())

    def chunks(self, blocks: Tensor, size: int) -> Iterator[Batch]:
        def weigh(index: Tensor, samples: Tensor) -> Tensor:
            total = self.risk_weight[index].unsqueeze(1)  # (B, 1)
            return self._at_risk(index, samples) * (self.worth(samples) / total)

        return self.cross(blocks, self.order, size, weigh)

    def complete(self, batch: Batch, *, all_ranks: bool = False) -> Batch:
        id = batch.id.to(self.device)
        index, position = self.present_blocks(id, all_ranks)
        is_another_subject = id != self.block_item[index].unsqueeze(1)  # (B, K)
        member = self._at_risk(index, id) & is_another_subject & self.alive()[id]
        has_enough = member.any(1) | (self.risk_size[index] == 1)
        index, position, member = kept(has_enough, index, position, member)
        total = self.risk_weight[index]
        weight = spread(member, self.risk_size[index] - 1, total, self.weight_at(id))
        weight = self.with_own_weight(weight, index, position, total)
        return self.completed(batch, index, position, None, weight)

    def _at_risk(self, index: Tensor, id: Tensor) -> Tensor:
        """(B, K) bool: which subjects are at risk at the time of which event."""
        return self.moment[id] >= self.moment[self.block_item[index]].unsqueeze(1)
