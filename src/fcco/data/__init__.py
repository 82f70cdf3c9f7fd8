"""Data: which examples there are, which are compared with which, how much each counts; and loaders over them.

A structure states these facts (:class:`Tasks`, :class:`Points`, :class:`Queries`, :class:`RiskSets`, :class:`Groups`,
:class:`Bags`, :class:`Examples`). An objective makes blocks of them, and a :class:`Loader` draws from those. All random
draws come from the loader's own generator, never from a global one.

What ``samples`` (B2) means, and how many examples K a batch has:

============  ==========================================================================  =======================
data          samples                                                                     K
============  ==========================================================================  =======================
Tasks         per task, half of them positives (at least one of each)                     B1 * B2
Points        of the other class, shared by all blocks                                    B1 + B2
Points        several tasks: per task in the batch; half of each if both classes count    B1 + min(T, B1) * B2
Queries       items per query in the batch, besides the blocks' own items                 B1 + min(Q, B1) * B2
RiskSets      subjects per event, including its own                                       B1 * B2
Groups, Bags  per group or bag                                                            B1 * B2
Examples      further examples besides the blocks, may be 0                               B1 + B2
============  ==========================================================================  =======================

A B2 larger than the largest class (query, group, risk set) is reduced to its size. If a smaller one has fewer examples,
repeats of weight 0 fill its places, so every batch has the same K and means stay right. With several ranks, B1 counts
the blocks of all ranks, and each rank draws B2 of its own. If blocks stand for their own class (average precision,
Examples), a rank also draws as many examples of the other ranks' blocks as it has blocks.
"""

from fcco.data._batch import Batch
from fcco.data._blocks import Blocks
from fcco.data._examples import ExampleBlocks, Examples
from fcco.data._groups import BagBlocks, Bags, GroupBlocks, Groups
from fcco.data._indexed import Indexed
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
    "Indexed",
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
