"""RiskSetLoader: blocks are events, samples come from their risk sets: the Cox partial likelihood."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Unpack, final

import torch
from torch import Tensor

from fcco._support import checks
from fcco.sampling import labels as check
from fcco.sampling.batch import Batch
from fcco.sampling.draws import choose
from fcco.sampling.loader import Loader, Options


@final
class RiskSetLoader(Loader):
    r"""Blocks are events (uncensored subjects): B1 events a step, each with up to B2 subjects of its risk set.

    The risk set of event i is :math:`R_i = \{j : T_j \ge T_i\}`, ties and i itself among them. Its samples are the
    subject itself and up to B2 - 1 others, uniform without replacement: ``serves`` (K,) is the place of the event that
    a subject was drawn for, ``anchor`` (B,) where each event's own subject stands, ``y`` (K, 2) time and event.
    ``weight`` (K,) is for the mean over :math:`R_i`: :math:`1/|R_i|` for the subject itself,
    :math:`(|R_i| - 1)/(|R_i| d)` for each of the d others. ``full_pass`` sets chunks of events against chunks of
    subjects, ``weight`` (B, K) :math:`1/|R_i|` for those at risk, 0 for the others.

    Args:
        dataset: of subjects; see :class:`fcco.sampling.Loader`.
        time: (N,) when each subject had its event or was last seen.
        event: (N,) 0/1 or bool: whether the event was observed (0: censored).
        blocks_per_step: B1, over all ranks.
        samples_per_block: B2 >= 2.
        options: see :class:`fcco.sampling.Options`.

    Attributes:
        block_example: (m,) the subject of each event, in the order of the data set.
        risk_size: (m,) :math:`|R_i|`.

    Example:
        >>> time, event = torch.tensor([3.0, 1.0, 2.0, 4.0]), torch.tensor([1, 1, 0, 1])
        >>> loader = RiskSetLoader(torch.randn(4, 3), time, event, 2, 3, seed=0)
        >>> loader.block_example, loader.risk_size
        (tensor([0, 1, 3]), tensor([2, 4, 1]))
    """

    def __init__(
        self,
        dataset: Any,
        time: Any,
        event: Any,
        blocks_per_step: int,
        samples_per_block: int,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(dataset, options)
        if checks.positive_int("samples_per_block", samples_per_block) < 2:
            raise ValueError(f"samples_per_block must be at least 2, got {samples_per_block}")
        self.samples_per_block = samples_per_block
        self.time = check.finite("time", check.of_examples("time", time, self.num_examples, self.device))
        self.event = _events(check.of_examples("event", event, self.num_examples, self.device))
        ordered, self._order = self.time.sort(descending=True, stable=True)  # a risk set is a beginning of this
        place = torch.empty_like(self._order)
        place[self._order] = self._arange(self.num_examples)
        self.block_example = self.event.nonzero()[:, 0]
        if self.block_example.numel() == 0:
            raise ValueError("event must be 1 for some subject, got none")
        self._place = place[self.block_example]  # (m,) where the event's own subject stands in that order
        self.risk_size = torch.searchsorted(-ordered, -self.time[self.block_example], right=True)
        self._start(self.block_example.shape[0], blocks_per_step, blocks_per_step * samples_per_block)

    def _labels_at(self, id: Tensor) -> Tensor:
        return torch.stack([self.time[id], self.event[id].to(self.time.dtype)], 1)

    def _draw(self, index: Tensor, generator: torch.Generator) -> Batch:
        size, others = self.risk_size[index], self.risk_size[index] - 1  # (B,)
        wanted, own = self.samples_per_block - 1, self._place[index].unsqueeze(1)
        place = choose(others, wanted, generator)  # (B, B2 - 1), of those besides the subject itself
        place = torch.cat([own, place + (place >= own)], 1)
        valid = self._arange(wanted + 1) <= others.unsqueeze(1)
        id = self._order[torch.where(valid, place, 0)]
        drawn = others.clamp(max=wanted).clamp(min=1)
        weight = (self._ones() * others / (size * drawn)).unsqueeze(1).repeat(1, wanted + 1)
        weight[:, 0] = self._ones() / size
        serves = self._arange(index.shape[0]).unsqueeze(1).expand_as(id)
        count = valid.sum(1)
        id = id[valid]
        return Batch(None, id, self._labels_at(id), count.cumsum(0) - count, serves[valid], weight[valid])

    def _chunks(self, blocks: Tensor, size: int) -> Iterator[tuple[Tensor, Batch]]:
        def weigh(index: Tensor, samples: Tensor) -> Tensor:
            at_risk = self.time[samples] >= self.time[self.block_example[index]].unsqueeze(1)
            return at_risk * (self._ones() / self.risk_size[index]).unsqueeze(1)

        return self._cross(blocks, self._order, size, weigh)


def _events(event: Tensor) -> Tensor:
    """(N,) bool."""
    wrong = ((event != 0) & (event != 1)).nonzero()[:, 0].tolist() if event.dim() == 1 else []
    if event.dim() != 1 or wrong:
        got = f"{event[wrong[0]].item()} for example {wrong[0]}" if wrong else f"shape {tuple(event.shape)}"
        raise ValueError(f"event must be (N,) of 0 and 1, got {got}")
    return event == 1
