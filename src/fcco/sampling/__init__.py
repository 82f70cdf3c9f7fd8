"""Sampling: which blocks and which samples. Own generators, never the global one; state mid-epoch."""

from fcco.sampling.blocks import BlockSampler, draw_blocks

__all__ = ["BlockSampler", "draw_blocks"]
