"""Data, told once: which examples there are, which are compared, how much each counts; loaders over them.

A structure states facts (:class:`Tasks`, :class:`Points`, :class:`Queries`, :class:`RiskSets`, :class:`Groups`,
:class:`Bags`, :class:`Examples`). An objective makes blocks of them, a :class:`Loader` draws from those. All random
draws come from the loader's own generator, never from a global one.
"""

from fcco.data._batch import Batch
from fcco.data._blocks import Blocks
from fcco.data._examples import ExampleBlocks, Examples
from fcco.data._groups import BagBlocks, Bags, GroupBlocks, Groups
from fcco.data._loader import Loader
from fcco.data._pass import full_pass
from fcco.data._points import PointBlocks, Points
from fcco.data._queries import Queries, QueryBlocks
from fcco.data._risk_sets import RiskBlocks, RiskSets
from fcco.data._share import BlockSampler
from fcco.data._structure import Structure
from fcco.data._tasks import TaskBlocks, Tasks

__all__ = [
    "BagBlocks",
    "Bags",
    "Batch",
    "BlockSampler",
    "Blocks",
    "ExampleBlocks",
    "Examples",
    "GroupBlocks",
    "Groups",
    "Loader",
    "PointBlocks",
    "Points",
    "Queries",
    "QueryBlocks",
    "RiskBlocks",
    "RiskSets",
    "Structure",
    "TaskBlocks",
    "Tasks",
    "full_pass",
]
