"""Parameters that FSDP2 (``fully_shard``) has spread over ranks: the solver works on this rank's part of each.

FSDP averages their gradients over ranks in every backward pass, as the solver would. What is left to do: norms of
whole tensors, states that hold whole tensors, and weights gathered for one pass that must not serve the next.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fcco._support.grad_mode import without_graph

_PLAIN = frozenset({Tensor, nn.Parameter})


def _known(module: str, name: str) -> Any:
    """Return a class of torch's that is loaded already, else (): loading it takes half a second for nothing."""
    return getattr(sys.modules.get(module), name, ())


def _sharded_kind() -> Any:
    return _known("torch.distributed.tensor", "DTensor")


def is_sharded(tensor: object) -> bool:
    """Return whether a tensor is spread over ranks."""
    return isinstance(tensor, _sharded_kind())


def gathering_parts(module: nn.Module) -> list[Any]:
    """Return the modules of the tree that FSDP2 gathers weights for."""
    kind = _known("torch.distributed.fsdp", "FSDPModule")
    return [part for part in module.modules() if isinstance(part, kind)]


def reshard(parts: Iterable[Any]) -> None:
    """Let the modules forget the weights that they gathered (a root keeps them after a pass without gradient)."""
    for part in parts:
        part.reshard()


def check_meshes(objective: nn.Module, world: int) -> None:
    """Raise where a parameter is spread over ranks in a way other than ``fully_shard`` over all of them."""
    gathering = gathering_parts(objective)
    if objective in gathering:
        raise ValueError(
            "fully_shard must be applied to the model inside the objective, not to the objective itself: "
            "outer reads its "
            "parameters outside of forward, where they are sharded"
        )
    reshard(gathering)  # parameters that are still gathered would pass for whole ones
    reduced: set[int] = set()
    for part in gathering:
        reduced.update(id(p) for p in part.parameters())
    for name, p in objective.named_parameters():
        if is_sharded(p) and not (id(p) in reduced and _over_all_ranks(p, world)):
            raise ValueError(f"parameter {name} must be sharded by fully_shard over one mesh of all {world} ranks")


def _over_all_ranks(p: Any, world: int) -> bool:
    return bool(p.device_mesh.ndim == 1 and p.device_mesh.size() == world)


def part(tensor: Any) -> Tensor:
    """Return this rank's part of a tensor, in the same memory; a tensor that is not sharded is its own part."""
    if not is_sharded(tensor):
        return tensor  # type: ignore[no-any-return]
    with without_graph():  # else it would be a new tensor with a graph
        mine: Tensor = tensor.to_local()
    return mine


def parts(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the :func:`part` of each; quick where nothing is sharded, as it is called several times per step."""
    given = list(tensors)
    if _PLAIN.issuperset(map(type, given)):
        return given
    return [part(each) for each in given]


def copies(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return copies of this rank's parts."""
    with without_graph():
        return [tensor.clone() for tensor in parts(tensors)]


def copy_into(targets: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
    """Copy targets <- sources, in place; of sharded tensors this rank's part.

    Values are copied, never swapped by pointer, so that DDP, FSDP2, torch.compile and hooks keep working.
    """
    with without_graph():
        torch._foreach_copy_(parts(targets), parts(sources))


def joined(mine: Tensor, like: Any) -> Tensor:
    """Return the sharded tensor that ``mine`` is a part of, laid out as ``like`` is."""
    if not is_sharded(like) or is_sharded(mine):
        return mine
    layout = {"run_check": False, "shape": like.shape, "stride": like.stride()}
    sharded: Tensor = _sharded_kind().from_local(mine, like.device_mesh, like.placements, **layout)
    return sharded


def whole(tensor: Any) -> Tensor:
    """Return a sharded tensor gathered from all ranks (each rank must call this)."""
    full: Tensor = tensor
    if is_sharded(tensor):
        full = tensor.full_tensor()
    return full


def spread(full: Any, like: Any) -> Any:
    """Return a whole tensor that every rank has, laid out as ``like`` is; the ranks do not communicate."""
    # Scalars in an optimizer's state (its step count) are whole on every rank.
    if not is_sharded(like) or is_sharded(full) or full.shape != like.shape:
        return full
    from torch.distributed.tensor import Replicate

    everywhere = [Replicate()] * like.device_mesh.ndim
    replicated = _sharded_kind().from_local(full.to(like.device), like.device_mesh, everywhere, run_check=False)
    return replicated.redistribute(placements=like.placements)


def spread_like(full: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return this rank's parts of whole tensors, one per parameter: copies in its dtype, device and layout."""
    copied = []
    for tensor, p in zip(full, parameters, strict=True):
        cast = tensor.detach().to(p.device, p.dtype)
        copied.append(part(spread(cast, p)).clone())
    return copied


@torch.no_grad()
def total_norm(mine: Sequence[Tensor], sharded: Sequence[bool]) -> Tensor:
    """Return the norm of all tensors together; of those marked as sharded this rank has its part."""
    parts_here = []
    whole_here = []
    for tensor, is_part in zip(mine, sharded, strict=True):
        if is_part:
            parts_here.append(tensor)
        else:
            whole_here.append(tensor)
    # In double precision: squares of many parts are added.
    square = torch.nn.utils.get_total_norm(parts_here).double().square()
    dist.all_reduce(square)
    if whole_here:
        square += torch.nn.utils.get_total_norm(whole_here).double().square()
    return square.sqrt().to(mine[0].dtype)
