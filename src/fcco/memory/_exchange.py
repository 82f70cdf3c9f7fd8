"""Fresh outputs over ranks: every rank learns what all of them drew and saw."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from fcco._support.parallel import rank_and_world


class Fresh(NamedTuple):
    """Examples (K,) drawn by all ranks, with their chances, weights and outputs.

    ``on_cpu``: their ids there; ``mine``: this rank's among them; ``finite``: whether the outputs of all ranks are.
    """

    id: Tensor
    on_cpu: Tensor
    probability: Tensor
    weight: Tensor
    values: Tensor
    mine: slice
    finite: bool


def exchange(id: Tensor, probability: Tensor, weight: Tensor, values: Tensor, finite: Tensor) -> Fresh:
    """Gather the (id, output) pairs of all ranks, in the order of ranks; each rank must call this."""
    rank, world = rank_and_world()
    if world == 1:
        told = torch.cat([id, finite.reshape(1)]).cpu()  # both at once: a device waits for each look
        return Fresh(id, told[:-1], probability, weight, values, slice(0, id.shape[0]), bool(told[-1]))
    exact = torch.float64 if id.device.type != "mps" else torch.float32
    columns = [id.to(exact), probability.to(exact), weight.to(exact)]
    packed = torch.cat([torch.stack(columns, 1), values.reshape(id.shape[0], -1).to(exact)], 1)
    counts = [torch.zeros(2, dtype=torch.int64, device=id.device) for _ in range(world)]
    dist.all_gather(counts, torch.stack([torch.full_like(finite, id.shape[0], dtype=torch.int64), finite.long()]))
    sizes, good = zip(*(count.tolist() for count in counts), strict=True)
    padded = packed.new_zeros(max(sizes), packed.shape[1])
    padded[: id.shape[0]] = packed
    parts = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded)
    whole = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
    outputs = whole[:, 3:].reshape(whole.shape[0], *values.shape[1:]).to(values.dtype)
    before, everyone = sum(sizes[:rank]), whole[:, 0].to(id.dtype)
    return Fresh(
        everyone,
        everyone.cpu(),
        whole[:, 1].to(probability.dtype),
        whole[:, 2].to(weight.dtype),
        outputs,
        slice(before, before + sizes[rank]),
        all(good),
    )


def agreed(numbers: Tensor) -> Tensor:
    """The same numbers on every rank, in place, to the last bit: draws that differ would be nobody's or everybody's."""
    if rank_and_world()[1] > 1:
        dist.broadcast(numbers, 0)
    return numbers
