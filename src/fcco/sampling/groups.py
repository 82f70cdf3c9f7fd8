"""Loaders whose blocks are groups of examples: groups, queries, bags."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Unpack, final

import torch
from torch import Tensor

from fcco._support import checks
from fcco.sampling import labels as check
from fcco.sampling.batch import Batch
from fcco.sampling.draws import Lists, choose, refuse_few
from fcco.sampling.loader import Loader, Options


class GroupedLoader(Loader):
    """Blocks are groups of examples: B1 groups a step, B2 samples of each; abstract.

    ``batch.serves`` (K,) is the place of an example's group in ``index``; ``batch.weight`` is None: the mean over those
    present is unbiased for the mean over the group. ``full_pass`` goes through the examples group by group: weight (K,)
    is 1 over the size of the example's group, and only groups that are present are in ``index``.
    """

    #: what a group is called in errors
    kind: str

    def __init__(
        self,
        dataset: Any,
        groups: Any,
        blocks_per_step: int,
        samples_per_block: int | None,
        options: Options,
        *,
        num_groups: int | None,
        up_to: bool,
        replacement: bool,
    ) -> None:
        super().__init__(dataset, options)
        numbers = check.of_examples(f"{self.kind}s", groups, self.num_examples, self.device)
        self.group, total = check.numbers(f"{self.kind}s", numbers, num_groups, self.kind)
        self._lists = Lists.by_label(self.group, total)
        self.group_size = self._lists.count
        largest = int(self.group_size.max())
        size = largest if samples_per_block is None else checks.positive_int("samples_per_block", samples_per_block)
        self.samples_per_block = min(size, largest) if up_to else size
        self.replacement = replacement
        refuse_few(self._lists, 1 if up_to else size, self.kind, "examples", replacement=replacement)
        typical = min(self.samples_per_block, max(1, self.num_examples // total)) if up_to else size
        self._start(total, blocks_per_step, blocks_per_step * typical)

    def _draw(self, index: Tensor, generator: torch.Generator) -> Batch:
        count = self.group_size[index]
        place = choose(count, self.samples_per_block, generator, replacement=self.replacement)
        serves = self._arange(index.shape[0]).unsqueeze(1).expand_as(place)
        if self.replacement:
            valid = torch.ones_like(place, dtype=torch.bool)
        else:
            valid = self._arange(self.samples_per_block) < count.unsqueeze(1)
        id = self._lists.take(index, torch.where(valid, place, 0))[valid]
        return Batch(None, id, self._labels_at(id), serves=serves[valid])

    def _chunks(self, blocks: Tensor, size: int) -> Iterator[tuple[Tensor, Batch]]:
        mine = self._lists.group % self._share.world == self._share.rank
        for id in self._lists.flat[mine].split(size):
            group = self.group[id]
            index, serves = group.unique(return_inverse=True)
            weight = self._ones() / self.group_size[group]
            yield index, Batch(None, id, self._labels_at(id), serves=serves, weight=weight)


@final
class GroupLoader(GroupedLoader):
    """Blocks are groups (GroupDRO): B1 groups a step, B2 samples of each; K = B1 * B2.

    ``serves`` (K,) is the place of an example's group in ``index``, ``weight`` None (means over those present); see
    ``full_pass`` for exact means: 1 over the size of the group.

    Args:
        dataset: see :class:`fcco.sampling.Loader`.
        groups: (N,) integers 0..m-1, the group of each example.
        blocks_per_step: B1, over all ranks.
        samples_per_block: B2.
        labels: (N, ...) what ``batch.y`` holds; None: nothing.
        replacement: draw with replacement; a group may then have fewer examples than asked for.
        num_groups: m; None: as many as ``groups`` shows.
        options: see :class:`fcco.sampling.Options`.

    Attributes:
        group: (N,) the groups.
        group_size: (m,) how many examples each has.

    Example:
        >>> groups = torch.tensor([0, 0, 1, 1, 1])
        >>> loader = GroupLoader(torch.randn(5, 4), groups, 2, 2, seed=0)
        >>> index, batch = next(iter(loader))
        >>> bool((groups[batch.id] == index[batch.serves]).all())
        True
    """

    kind = "group"

    def __init__(
        self,
        dataset: Any,
        groups: Any,
        blocks_per_step: int,
        samples_per_block: int,
        *,
        labels: Any = None,
        replacement: bool = False,
        num_groups: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            dataset,
            groups,
            blocks_per_step,
            samples_per_block,
            options,
            num_groups=num_groups,
            up_to=False,
            replacement=replacement,
        )
        self.labels = check.optional("labels", labels, self.num_examples, self.device)

    def _labels_at(self, id: Tensor) -> Tensor | None:
        return None if self.labels is None else self.labels[id]


@final
class BagLoader(GroupedLoader):
    """Blocks are bags of instances (multi-instance learning): B1 bags a step, up to B2 instances of each.

    Nothing is padded: x (K, ...) holds the instances of all bags one after the other, ``serves`` (K,) the place of each
    one's bag in ``index``, ``y`` (K,) the label of its bag.

    Args:
        dataset: of instances; see :class:`fcco.sampling.Loader`.
        bags: (N,) integers 0..m-1, the bag of each instance.
        blocks_per_step: B1, over all ranks.
        samples_per_block: B2, at most so many instances of a bag, without replacement; None: all of them.
        labels: (m, ...) a label a bag; None: nothing.
        options: see :class:`fcco.sampling.Options`.

    Attributes:
        group: (N,) the bags.
        group_size: (m,) how many instances each has.

    Example:
        >>> bags, labels = torch.tensor([0, 0, 0, 1, 2, 2]), torch.tensor([1, 0, 1])
        >>> loader = BagLoader(torch.randn(6, 4), bags, 2, 2, labels=labels, seed=0)
        >>> index, batch = next(iter(loader))
        >>> bool((batch.y == labels[index][batch.serves]).all())
        True
    """

    kind = "bag"

    def __init__(
        self,
        dataset: Any,
        bags: Any,
        blocks_per_step: int,
        samples_per_block: int | None = None,
        *,
        labels: Any = None,
        **options: Unpack[Options],
    ) -> None:
        bag_labels = None if labels is None else torch.as_tensor(labels)
        super().__init__(
            dataset,
            bags,
            blocks_per_step,
            samples_per_block,
            options,
            num_groups=None if bag_labels is None else int(bag_labels.shape[0]),
            up_to=True,
            replacement=False,
        )
        self.labels = None if bag_labels is None else bag_labels.to(self.device)

    def _labels_at(self, id: Tensor) -> Tensor | None:
        return None if self.labels is None else self.labels[self.group[id]]


@final
class QueryLoader(GroupedLoader):
    """Blocks are queries: B1 queries a step, up to B2 items of each; for blocks (query, item) see QueryItemLoader.

    ``serves`` (K,) is the place of an item's query in ``index``, ``y`` (K,) its relevance, ``weight`` None (means over
    those present).

    Args:
        dataset: of items; see :class:`fcco.sampling.Loader`.
        queries: (N,) integers 0..m-1, the query of each item.
        relevance: (N,) of each item.
        blocks_per_step: B1, over all ranks.
        samples_per_block: B2, at most so many items of a query, without replacement; None: all of them.
        options: see :class:`fcco.sampling.Options`.

    Attributes:
        group: (N,) the queries.
        group_size: (m,) how many items each has.

    Example:
        >>> queries, relevance = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([2.0, 0, 1, 0, 1])
        >>> index, batch = next(iter(QueryLoader(torch.randn(5, 4), queries, relevance, 2, seed=0)))
        >>> len(batch)
        5
    """

    kind = "query"

    def __init__(
        self,
        dataset: Any,
        queries: Any,
        relevance: Any,
        blocks_per_step: int,
        samples_per_block: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            dataset,
            queries,
            blocks_per_step,
            samples_per_block,
            options,
            num_groups=None,
            up_to=True,
            replacement=False,
        )
        given = check.of_examples("relevance", relevance, self.num_examples, self.device)
        self.relevance = check.finite("relevance", given)

    def _labels_at(self, id: Tensor) -> Tensor:
        return self.relevance[id]
