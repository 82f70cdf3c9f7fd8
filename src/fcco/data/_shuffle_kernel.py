"""The first steps of many Fisher-Yates shuffles by one kernel, where Triton is there (torch's CUDA builds bring it)."""

import functools
import warnings
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

LONGEST = 256  # steps: the kernel takes them one after the other, the tensor operations of `choose` all at once


def has_kernel(like: Tensor, size: int) -> bool:
    """Whether the kernel can be had for tensors like this one, and pays."""
    return triton is not None and like.is_cuda and 0 < size <= LONGEST and _works_on(like.device)


@functools.cache
def _works_on(device: torch.device) -> bool:
    """Whether the kernel can be compiled for the device, and gives what it should: tried once."""
    drawn = torch.tensor([[0, 1, 0, 0], [3, 0, 1, 0], [0, 0, 0, 0]], device=device)
    count = torch.tensor([4, 9, 2], device=device)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Triton's own future
            found = shuffled(drawn, count).tolist()
    except Exception:  # no compiler, an old driver, another version of Triton: tensor operations do as well
        return False
    return found == [[0, 2, 1, 3], [3, 1, 0, 2], [0, 1, 2, 3]]


def shuffled(drawn: Tensor, count: Tensor) -> Tensor:
    """The places (B, size) that the shuffles give, from random integers (B, size) and the lengths (B,) of the lists."""
    rows, size = drawn.shape
    places = torch.empty_like(drawn)
    with torch.cuda.device(drawn.device):
        block = triton.next_power_of_2(size)
        _shuffle[(rows,)](drawn, count.contiguous(), places, size, BLOCK=block, num_warps=1)
    return places


_shuffle: Any = None
if triton is not None:

    def _kernel(drawn, count, places, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        # One list per program; step j swaps place j with a place drawn from j..count-1.
        row = tl.program_id(0)
        step = tl.arange(0, BLOCK).to(tl.int64)
        inside = step < size
        left = tl.maximum(tl.load(count + row) - step, 1)
        target = step + tl.load(drawn + row * size + step, mask=inside, other=0) % left
        standing = step  # what stands at place j when its turn comes
        found = target  # what stands at the target of step j then
        for turn in range(0, size):
            here = step == turn
            its_target = tl.sum(tl.where(here, target, 0))
            its_standing = tl.sum(tl.where(here, standing, 0))
            later = step > turn
            standing = tl.where(later & (step == its_target), its_standing, standing)
            found = tl.where(later & (target == its_target), its_standing, found)
        tl.store(places + row * size + step, found, mask=inside)

    _shuffle = triton.jit(_kernel)
