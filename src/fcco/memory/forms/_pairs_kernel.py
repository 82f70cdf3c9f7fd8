"""Sums of exponentials over pairs by one kernel, where Triton is there (torch's CUDA builds bring it).

The pairs are made, summed and forgotten in registers: no tensor is as large as their number.
"""

from __future__ import annotations

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

_MINE = 16  # of a tile
_OTHERS = 64
_PROGRAMS = 1056  # at least so many, where there is work for them: eight for each multiprocessor of an H100 or H200
_TILES = 1024  # of one program, at most: long sums in single precision lose digits


def has_kernel(like: Tensor) -> bool:
    """Whether the kernel can be had for tensors like this one."""
    return triton is not None and like.is_cuda and _works_on(like.device)


@functools.cache
def _works_on(device: torch.device) -> bool:
    """Whether the kernel can be compiled for the device, and gives what it should: tried once."""
    mine = torch.tensor([1.0, 0.0], dtype=torch.float64, device=device)
    others = torch.tensor([0.0, 1.0, -3.0], dtype=torch.float64, device=device)
    w = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64, device=device)
    by_mine = torch.tensor([-1.0, 0.0], dtype=torch.float64, device=device)
    by_other = torch.zeros_like(w)
    found = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Triton's own future
            for shift in (by_mine, by_other):
                sums = pair_sums(mine, others, w, shift, factor=1.0, lowest=-100.0, hinge=True)
                found.append(torch.cat(sums).flatten().tolist())
    except Exception:  # no compiler, an old driver, another version of Triton: tensor operations do as well
        return False
    wanted = [[19.0, 9.0, 33.0, 4.0], [38.0, 9.0, 66.0, 4.0]]
    return bool(torch.allclose(torch.tensor(found), torch.tensor(wanted), rtol=1e-6))


def pair_sums(
    mine: Tensor, others: Tensor, w: Tensor, shift: Tensor, *, factor: float, lowest: float, hinge: bool
) -> tuple[Tensor, Tensor]:
    """sum_p w_pc e_apc and sum_p w_pc e_apc root_ap, (A, C) each, with root_ap = mine_a + others_p, at least 0 where
    it is a hinge, and e_apc = 2^(factor root_ap^2 + shift), not below 2^lowest.

    Args:
        mine: (A,).
        others: (P,).
        w: (P, C).
        shift: (A,) of mine, or (P, C) of the others.
        factor: of the squares.
        lowest: the smallest exponent.
        hinge: whether roots are at least 0.
    """
    count, columns = w.shape
    tiles = triton.cdiv(mine.shape[0], _MINE)
    fewest = min(_TILES, triton.cdiv(count * max(1, tiles), _PROGRAMS * _OTHERS))
    chunk = fewest * _OTHERS  # others of one program
    splits = triton.cdiv(count, max(1, chunk))
    # Each program writes sums of its own, added up below: the order is the same in every run.
    sums = mine.new_empty(2, splits, columns, mine.shape[0])
    factor_there = mine.new_full((1,), factor)  # as an argument it would lose half of its digits
    with torch.cuda.device(mine.device):
        _pair_sums[(tiles, splits, columns)](
            mine.contiguous(),
            others.contiguous(),
            w.contiguous(),
            shift.contiguous(),
            factor_there,
            sums,
            mine.shape[0],
            count,
            chunk,
            LOWEST=lowest,
            HINGE=hinge,
            BY_OTHER=shift.dim() == 2,
            MINE=_MINE,
            OTHERS=_OTHERS,
            num_warps=4,
        )
    value, slope = sums.sum(1).mT.unbind(0)
    return value, slope


_pair_sums: Any = None
if triton is not None:

    def _kernel(  # type: ignore[no-untyped-def]
        mine,
        others,
        w,
        shift,
        factor,
        sums,
        mine_count,
        others_count,
        chunk,
        LOWEST: tl.constexpr,
        HINGE: tl.constexpr,
        BY_OTHER: tl.constexpr,
        MINE: tl.constexpr,
        OTHERS: tl.constexpr,
    ):
        # One program per tile of mine, chunk of the others and column of the weights.
        split = tl.program_id(1).to(tl.int64)  # offsets may need more than 32 bits
        column = tl.program_id(2)
        splits = tl.num_programs(1)
        columns = tl.num_programs(2)
        row = tl.program_id(0) * MINE + tl.arange(0, MINE)
        some = tl.load(mine + tl.minimum(row, mine_count - 1))
        scale = tl.load(factor)
        lowest = tl.full((1, 1), LOWEST, some.dtype)
        top = tl.zeros((MINE,), some.dtype)
        if not BY_OTHER:
            top = tl.load(shift + tl.minimum(row, mine_count - 1))
        value = tl.zeros((MINE, OTHERS), some.dtype)
        slope = tl.zeros((MINE, OTHERS), some.dtype)
        first = split * chunk
        for at in range(first, tl.minimum(first + chunk, others_count), OTHERS):
            place = at + tl.arange(0, OTHERS)
            inside = place < others_count
            # Beyond the end the last one again, with weight 0: another number's exponential might be infinite.
            place = tl.minimum(place, others_count - 1)
            root = some[:, None] + tl.load(others + place)[None, :]
            if HINGE:
                root = tl.where(root < 0.0, 0.0, root)  # not a maximum: NaN shall stay
            exponent = scale * root * root
            if BY_OTHER:
                exponent += tl.load(shift + place * columns + column)[None, :]
            else:
                exponent += top[:, None]
            exponent = tl.where(exponent < lowest, lowest, exponent)
            weight = tl.load(w + place * columns + column, mask=inside, other=0.0)
            e = tl.exp2(exponent) * weight[None, :]
            value += e
            slope += e * root
        # (2, splits, columns, mine)
        to = sums + (split * columns + column) * mine_count + row
        tl.store(to, tl.sum(value, 1), mask=row < mine_count)
        tl.store(to + splits * columns * mine_count, tl.sum(slope, 1), mask=row < mine_count)

    # Sizes are no part of what is compiled: a step that is captured finds the kernel that earlier steps used.
    _pair_sums = triton.jit(_kernel, do_not_specialize=["mine_count", "others_count", "chunk"])
