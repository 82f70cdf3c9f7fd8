"""Fresh outputs over ranks: every rank learns what all of them drew and saw."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor

from fcco._support import checks
from fcco._support.parallel import check_step_flags, rank_and_world, step_flags
from fcco.data import Batch
from fcco.data._draws import exact_dtype
from fcco.memory._strata import Strata
from fcco.solver import NonFiniteError
from fcco.solver._gradients import finite_rows
from fcco.solver._meeting import nonfinite_everywhere


@final
@dataclass(frozen=True)
class Fresh:
    """What all ranks drew and saw, a row per draw.

    Args:
        id: (K,) the examples.
        probability: (K,) how likely each was.
        weight: (K,) 1/B.
        values: (K, ...) their outputs.
        mine: this rank's among them.
        sizes: how many are of each stratum; None: there is one.
    """

    id: Tensor
    probability: Tensor
    weight: Tensor
    values: Tensor
    mine: slice
    sizes: tuple[int, ...] | None = None


def gathered(batch: Batch, fresh: Tensor, strata: Strata, step: int) -> Fresh:
    """What all ranks drew and saw, checked; a batch from the user's own loader is taken for a uniform draw.

    Batches of the memory's own loader make no device wait on one rank: their ids are right, and what is not finite is
    found at the end of the step.

    Args:
        batch: of this rank.
        fresh: (K, ...) its outputs.
        strata: what draws are made from.
        step: which all ranks must be at.
    """
    probability = batch.probability
    weight = batch.weight
    # The user's own batch: what was drawn says nothing of how likely it was.
    is_own = probability is None or weight is None
    if probability is None or weight is None:
        probability = torch.ones(len(batch), dtype=torch.float64, device=fresh.device)
        weight = probability
    if rank_and_world()[1] == 1:
        every = Fresh(batch.id, probability, weight, fresh, slice(0, len(batch)), batch.strata)
        if batch.strata is not None:
            return every
    else:
        every = exchange(batch.id, probability, weight, fresh, step)
    _check_ids(every.id, strata.mask.shape[1])
    if is_own:
        probability, weight = strata.uniform(every.id)  # by what all ranks have
        every = replace(every, probability=probability, weight=weight)
    return replace(every, sizes=strata.count(every.id))


def _check_ids(id: Tensor, size: int) -> None:
    """Refuse ids of other data; an indexing error on a device would name nothing and take the process down."""
    low, high = torch.stack(id.aminmax()).tolist()  # both at once: a device waits for each
    if low < 0 or high >= size:
        raise ValueError(f"batch.id must be in 0..{size - 1}, got {low}..{high}")


def output_error(id: Tensor, fresh: Tensor) -> NonFiniteError | None:
    """The error that names the examples (K,) of this rank whose outputs are not finite; None: all are."""
    bad = id[~finite_rows([fresh])].tolist()
    if not bad:
        return None
    return NonFiniteError(f"the output is not finite for example {checks.some(bad)}", bad)


def exchange(id: Tensor, probability: Tensor, weight: Tensor, values: Tensor, step: int) -> Fresh:
    """Gather the (id, output) pairs of all ranks, in the order of ranks; each rank must call this."""
    rank, world = rank_and_world()
    exact = exact_dtype(id.device)
    columns = [id.to(exact), probability.to(exact), weight.to(exact)]
    # Everything in one message: ids below 2^53 are exact in double precision.
    packed = torch.cat([torch.stack(columns, 1), values.reshape(id.shape[0], -1).to(exact)], 1)
    finite = finite_rows([values]).all()
    sizes, all_finite = _sizes(id.shape[0], finite, step)
    if not all_finite:  # every rank stops here
        elsewhere = NonFiniteError("the output is not finite on another rank", [])
        raise nonfinite_everywhere(lambda: output_error(id, values) or elsewhere)
    # Ranks may have one draw more or less, and a gather wants equal shapes.
    padded = packed.new_zeros(max(sizes), packed.shape[1])
    padded[: id.shape[0]] = packed
    parts = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded)
    # (K, 3 + numbers per output)
    whole = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
    before = sum(sizes[:rank])
    return Fresh(
        id=whole[:, 0].to(id.dtype),
        probability=whole[:, 1].to(probability.dtype),
        weight=whole[:, 2].to(weight.dtype),
        values=whole[:, 3:].reshape(whole.shape[0], *values.shape[1:]).to(values.dtype),
        mine=slice(before, before + sizes[rank]),
    )


def _sizes(size: int, finite: Tensor, step: int, failed: Exception | None = None) -> tuple[list[int], bool]:
    """How many draws each rank has, and whether all of them are finite."""
    _, world = rank_and_world()
    flags = step_flags(step, finite=finite, failed=failed is not None, like=finite.long())
    mine = torch.cat([torch.full_like(flags[:1], size), flags])
    gathered = [torch.zeros_like(mine) for _ in range(world)]
    dist.all_gather(gathered, mine)
    figures = torch.stack(gathered).cpu()  # (world, 1 + flags)
    sums = figures[:, 1:].sum(0).tolist()
    check_step_flags(sums, step, failed)
    return figures[:, 0].tolist(), sums[0] == 0


def join_exchange(step: int, failed: Exception, device: torch.device) -> None:
    """Take this rank's failure to where the others wait for its outputs; raises it, and on them a RankError."""
    _sizes(0, torch.tensor(True, device=device), step, failed)


def broadcast_from_rank0(numbers: Tensor) -> Tensor:
    """The same numbers on every rank, in place, bit for bit: ranks that drew differently would miss examples."""
    if rank_and_world()[1] > 1:
        dist.broadcast(numbers, 0)
    return numbers
