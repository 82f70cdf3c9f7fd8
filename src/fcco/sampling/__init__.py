"""Sampling: which blocks and which samples. Own generators, never the global one; state mid-epoch."""

from fcco.sampling.batch import Average, Batch
from fcco.sampling.blocks import BlockSampler, draw_blocks
from fcco.sampling.examples import ExampleLoader
from fcco.sampling.groups import BagLoader, GroupLoader, QueryLoader
from fcco.sampling.loader import Loader, Options
from fcco.sampling.points import MultiLabelPointLoader, PointLoader
from fcco.sampling.queries import QueryItemLoader
from fcco.sampling.risk_sets import RiskSetLoader
from fcco.sampling.tasks import BlockLoader

__all__ = [
    "Average",
    "BagLoader",
    "Batch",
    "BlockLoader",
    "BlockSampler",
    "ExampleLoader",
    "GroupLoader",
    "Loader",
    "MultiLabelPointLoader",
    "Options",
    "PointLoader",
    "QueryItemLoader",
    "QueryLoader",
    "RiskSetLoader",
    "draw_blocks",
]
