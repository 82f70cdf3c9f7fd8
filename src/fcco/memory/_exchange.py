"""Fresh outputs over ranks: every rank learns what all of them drew and saw."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, final

import torch
import torch.distributed as dist
from torch import Tensor

from fcco._support import checks
from fcco._support.parallel import rank_and_world
from fcco.data import Batch
from fcco.data._draws import exact_dtype
from fcco.memory._strata import Strata
from fcco.solver import NonFiniteError


class Distinct(NamedTuple):
    """The examples of a step, each once.

    Args:
        ids: (U,) in growing order, on the CPU.
        last: (U,) the last draw that gave each: its output is the one that stays.
        place: (K,) where in ``ids`` each draw's example stands.
    """

    ids: Tensor
    last: Tensor
    place: Tensor


@final
@dataclass(frozen=True)
class Fresh:
    """What all ranks drew and saw, a row per draw.

    Args:
        id: (K,) the examples; ``on_cpu``: the same there.
        probability: (K,) how likely each was.
        weight: (K,) 1/B.
        values: (K, ...) their outputs.
        mine: this rank's among them.
        finite: whether the outputs of all ranks are.
    """

    id: Tensor
    on_cpu: Tensor
    probability: Tensor
    weight: Tensor
    values: Tensor
    mine: slice
    finite: bool

    def distinct(self) -> Distinct:
        """The examples, each once; found on the CPU, where the ids are."""
        ids, place = self.on_cpu.unique(return_inverse=True)
        draws = torch.arange(place.shape[0])  # (K,)
        last = torch.zeros_like(ids).scatter_reduce(0, place, draws, "amax")  # (U,)
        return Distinct(ids, last, place)


def gathered(batch: Batch, fresh: Tensor, finite: Tensor, strata: Strata) -> Fresh:
    """What all ranks drew and saw, checked; a batch from the user's own loader is taken for a uniform draw.

    Args:
        batch: of this rank.
        fresh: (K, ...) its outputs; ``finite``: (K,) bool, which of them are.
        strata: what draws are made from.
    """
    probability = batch.probability
    weight = batch.weight
    # The user's own batch: what was drawn says nothing of how likely it was.
    is_own = probability is None or weight is None
    if probability is None or weight is None:
        probability = torch.ones(len(batch), dtype=torch.float64, device=fresh.device)
        weight = probability
    every = exchange(batch.id, probability, weight, fresh, finite.all())
    size = strata.mask.shape[1]
    # On the CPU already: an indexing error on a device would name nothing and take the process down.
    low = int(every.on_cpu.min())
    high = int(every.on_cpu.max())
    if low < 0 or high >= size:
        raise ValueError(f"batch.id must be in 0..{size - 1}, got {low}..{high}")
    if not every.finite:
        bad = batch.id[~finite].tolist()
        where = "on another rank"
        if bad:
            where = f"for example {checks.some(bad)}"
        raise NonFiniteError(f"the output is not finite {where}", bad)
    if is_own:
        probability, weight = strata.uniform(every.id)  # by what all ranks have
        return replace(every, probability=probability, weight=weight)
    return every


def exchange(id: Tensor, probability: Tensor, weight: Tensor, values: Tensor, finite: Tensor) -> Fresh:
    """Gather the (id, output) pairs of all ranks, in the order of ranks; each rank must call this."""
    rank, world = rank_and_world()
    if world == 1:
        found = torch.cat([id, finite.reshape(1)]).cpu()  # both at once: a device waits for each
        return Fresh(id, found[:-1], probability, weight, values, slice(0, id.shape[0]), bool(found[-1]))
    exact = exact_dtype(id.device)
    columns = [id.to(exact), probability.to(exact), weight.to(exact)]
    # Everything in one message: ids below 2^53 are exact in double precision.
    packed = torch.cat([torch.stack(columns, 1), values.reshape(id.shape[0], -1).to(exact)], 1)
    sizes, all_finite = _sizes(id, finite, world)
    # Ranks may have one draw more or less, and a gather wants equal shapes.
    padded = packed.new_zeros(max(sizes), packed.shape[1])
    padded[: id.shape[0]] = packed
    parts = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded)
    # (K, 3 + numbers per output)
    whole = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
    all_ids = whole[:, 0].to(id.dtype)
    before = sum(sizes[:rank])
    return Fresh(
        id=all_ids,
        on_cpu=all_ids.cpu(),
        probability=whole[:, 1].to(probability.dtype),
        weight=whole[:, 2].to(weight.dtype),
        values=whole[:, 3:].reshape(whole.shape[0], *values.shape[1:]).to(values.dtype),
        mine=slice(before, before + sizes[rank]),
        finite=all_finite,
    )


def _sizes(id: Tensor, finite: Tensor, world: int) -> tuple[list[int], bool]:
    """How many draws each rank has, and whether all of them are finite."""
    mine = torch.stack([torch.full_like(finite, id.shape[0], dtype=torch.int64), finite.long()])
    gathered = [torch.zeros_like(mine) for _ in range(world)]
    dist.all_gather(gathered, mine)
    figures = torch.stack(gathered).tolist()
    return [size for size, _ in figures], all(good for _, good in figures)


def broadcast_from_rank0(numbers: Tensor) -> Tensor:
    """The same numbers on every rank, in place, bit for bit: ranks that drew differently would miss examples."""
    if rank_and_world()[1] > 1:
        dist.broadcast(numbers, 0)
    return numbers
