"""Sampling: which blocks and which samples. Own generators, never the global one; state mid-epoch."""

from fcco.sampling.batch import Batch
from fcco.sampling.blocks import BlockSampler, draw_blocks

__all__ = ["Batch", "BlockSampler", "draw_blocks"]
