"""Groups and Bags, and their blocks: a block is a group of examples, or a bag of instances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self, final

import torch
from torch import Tensor

from fcco._support import checks
from fcco.data._batch import Batch
from fcco.data._blocks import Blocks
from fcco.data._convert import numbered
from fcco.data._draws import Lists, Pool, spread
from fcco.data._labels import labels_of, values_of
from fcco.data._queries import check_whole, without_empty
from fcco.data._share import Share, is_owned_here
from fcco.data._structure import Structure


@final
class Groups(Structure):
    """Examples in groups. Blocks are groups (:class:`fcco.objectives.GroupDRO`).

    Args:
        x: see :class:`Structure`.
        y: (N, ...) what the loss compares outputs with. Numbers stay as they are, but two values that are not 0 and 1
            become 0 and 1; strings become class numbers.
        group: (N,) the group of each example: strings or integers. Integers that start at 0 are their own numbers,
            others are numbered in sorted order.
        weight: (N,) how much each example counts within its group. None: equally.
        classes: what the values 0, 1, ... are called in y, as ``classes`` of other data says, so that both are read
            alike; empty: numbers stay as they are; None: as said of y.
        inputs: the number of leading parts of a data set's items that make up x.

    Attributes:
        group: (N,) as 0, 1, ...
        group_names: what each group was called.
        classes: what 0, 1, ... were called in y; empty where its numbers stayed as they are.

    Example:
        >>> data = Groups(torch.randn(3, 2), [0, 1, 1], ["old", "young", "old"])
        >>> data.group, data.group_names
        (tensor([0, 1, 0]), ('old', 'young'))
    """

    per_example: ClassVar[tuple[str, ...]] = ("weight", "y", "group")

    def __init__(self, x: Any, y: Any, group: Any, *, weight: Any = None, classes: Any = None, inputs: int = 1) -> None:
        super().__init__(x, weight, inputs)
        self.y, self.classes = values_of("y", y, self.num_examples, self.device, classes)
        self.group, self.group_names = numbered("group", group, self.num_examples, self.device)

    def labels_at(self, id: Tensor) -> Tensor:
        return self.y[id]

    def _split_units(self) -> tuple[Tensor, Tensor]:
        size = self.group.bincount(minlength=len(self.group_names))
        alone = (size == 1).nonzero()[:, 0].tolist()
        if alone:
            names = [self.group_names[place] for place in alone]
            raise ValueError(
                f"every group must have examples in both parts, but group {checks.some(names)} has only one"
            )
        return torch.arange(self.num_examples), self.group


@final
class Bags(Structure):
    """Instances in bags, of which only the bags have labels; blocks are bags (:class:`fcco.objectives.MultiInstance`).

    Args:
        x: of the instances; see :class:`Structure`.
        bag: (N,) the bag of each instance: the row of y, 0..m-1; with a dict for y, its keys.
        y: (m,) the label of each bag: two values, the larger positive; or a dict from bags to labels.
        weight: (N,) how much each instance counts within its bag. None: equally.
        positive: the value of y that is positive. Needed for strings.
        inputs: the number of leading parts of a data set's items that make up x.

    Attributes:
        bag: (N,) as 0, 1, ...
        bag_names: what each bag was called.
        bag_label: (m,) int64, 0 or 1.

    Example:
        >>> data = Bags(torch.randn(4, 2), ["a", "b", "b", "c"], {"a": 1, "b": 0, "c": 1})
        >>> data.bag, data.bag_label
        (tensor([0, 1, 1, 2]), tensor([1, 0, 1]))
    """

    per_example: ClassVar[tuple[str, ...]] = ("weight", "bag")
    others: ClassVar[tuple[str, ...]] = ("bag_label",)

    def __init__(self, x: Any, bag: Any, y: Any, *, weight: Any = None, positive: Any = None, inputs: int = 1) -> None:
        super().__init__(x, weight, inputs)
        number, names = numbered("bag", bag, self.num_examples, self.device)
        if isinstance(y, Mapping):
            number, names = without_empty(number, names)
            unlabelled = [name for name in names if name not in y]
            if unlabelled:
                raise ValueError(f"y must have a label for every bag, got none for bag {checks.some(unlabelled)}")
            y = [y[name] for name in names]
        elif names != tuple(range(len(names))):
            raise ValueError(f"bag must hold rows of y, 0..m-1 (or give y as a dict), got {checks.some(list(names))}")
        label = _bag_labels(y, positive, self.device)
        if len(names) > label.shape[0]:
            raise ValueError(f"bag must be in 0..{label.shape[0] - 1}, the rows of y, got {len(names) - 1}")
        self.bag = number
        self.bag_label = label
        self.bag_names = names + tuple(range(len(names), label.shape[0]))

    def labels_at(self, id: Tensor) -> Tensor:
        return self.bag_label[self.bag[id]]

    def _taken(self, rows: Tensor) -> Self:
        check_whole(self.bag, rows, self.bag_names, "bag", "instances")
        part = super()._taken(rows)
        present = part.bag.unique()  # bags that are left, by their old numbers
        part.bag_label = self.bag_label[present]
        part.bag, part.bag_names = without_empty(part.bag, self.bag_names)
        return part

    def _split_units(self) -> tuple[Tensor, Tensor]:
        return self.bag, self.bag_label


def _bag_labels(y: Any, positive: Any, device: torch.device) -> Tensor:
    labels = labels_of("y", y, None, device, positive=positive)
    if labels.y.dim() != 1 or labels.classes is not None:
        raise ValueError(f"y must be one label of two values per bag, got {labels.num_tasks} labels")
    missing = labels.y.isnan().nonzero()[:, 0].tolist()
    if missing:
        raise ValueError(f"y must be known for every bag, but is missing in row {checks.some(missing)}")
    return labels.y.to(torch.int64)


class GroupedBlocks(Blocks):
    """Blocks are groups of examples, with ``samples`` of each; abstract.

    K = B1 * B2. ``serves`` (K,) is the place of an example's group in ``index``. ``weight`` (K,) adds up to 1 over each
    group (in expectation where examples have weights); a group with fewer than B2 gives all it has, repeats count 0.
    ``chunks`` goes through the examples group by group, and only groups that are present are in ``index``.
    """

    def __init__(self, data: Structure, member: Tensor, names: tuple[Any, ...], kind: str) -> None:
        super().__init__(data)
        self.member = member
        alive = self.alive()
        self.lists = Lists.by_label(member.masked_fill(~alive, -1), len(names))
        empty = [names[place] for place in (self.lists.count == 0).nonzero()[:, 0].tolist()]
        if empty:
            raise ValueError(
                f"every {kind} must have examples (of weight > 0), but {kind} {checks.some(empty)} has none"
            )
        self.pool = Pool(self.lists, data.weight)
        self.num_blocks = len(names)

    def batch_size_of(self, share: Share, samples: int) -> int:
        return share.size * min(samples, self.pool.longest)

    def draw(self, index: Tensor, samples: int, share: Share, generator: torch.Generator) -> Batch:
        id, real = self.pool.draw(index, min(samples, self.pool.longest), generator)  # (B, size)
        weight = spread(real, self.pool.count[index], self.pool.total[index], self.weight_at(id))
        serves = self.arange(index.shape[0]).unsqueeze(1).expand_as(id).flatten()
        flat = id.flatten()
        return Batch(None, flat, index, self.labels_at(flat), serves=serves, weight=weight.flatten())

    def chunks(self, blocks: Tensor, size: int) -> Iterator[Batch]:
        wanted = torch.isin(self.lists.group, blocks)  # (S,) of the examples group by group
        for id in self.lists.flat[wanted].split(size):
            group = self.member[id]
            index, serves = group.unique(return_inverse=True)
            weight = self.worth(id) / self.pool.total[group]  # (K,)
            yield Batch(None, id, index, self.labels_at(id), serves=serves, weight=weight)

    def complete(self, batch: Batch, *, all_ranks: bool = False) -> Batch:
        id = batch.id.to(self.device)
        group = self.member[id]
        entering = self.alive()[id]
        if not all_ranks:
            entering = entering & is_owned_here(group)
        index = group[entering].unique()
        member = (group == index.unsqueeze(1)) & entering  # (B, K); an example is in one group, so one row has it
        weight = spread(member, self.pool.count[index], self.pool.total[index], self.weight_at(id)).sum(0)
        # Those that no block here has stand with the first and count nothing.
        serves = torch.searchsorted(index, group).clamp(max=max(index.shape[0] - 1, 0))
        return self.completed(batch, index, None, serves, weight)


@final
class GroupBlocks(GroupedBlocks):
    """Blocks are groups (see :class:`GroupedBlocks`).

    Attributes:
        group: (N,) the group of each example.
        group_size: (m,) how many examples each has; those of weight 0 do not count.
        group_weight: (m,) float64, what their weights add up to.
        data: whose blocks these are.
    """

    def __init__(self, data: Groups) -> None:
        super().__init__(data, data.group, data.group_names, "group")
        self.group = data.group
        self.group_size = self.pool.count
        self.group_weight = self.pool.total


@final
class BagBlocks(GroupedBlocks):
    """Blocks are bags (see :class:`GroupedBlocks`).

    Attributes:
        bag: (N,) the bag of each instance.
        bag_label: (m,) int64, 0 or 1.
        bag_size: (m,) how many instances each has; those of weight 0 do not count.
        bag_weight: (m,) float64, what their weights add up to.
        data: whose blocks these are.
    """

    def __init__(self, data: Bags) -> None:
        super().__init__(data, data.bag, data.bag_names, "bag")
        self.bag = data.bag
        self.bag_label = data.bag_label
        self.bag_size = self.pool.count
        self.bag_weight = self.pool.total
