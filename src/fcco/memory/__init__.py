"""The output memory: a table of the last output of every example, for exact weights and for draws by importance.

It is the engine behind :func:`fcco.output_memory`. What ``solver.loader(blocks=, samples=)`` draws with it:

===========================  ==========================================================  =========
data                         draws per step, over all ranks                              K
===========================  ==========================================================  =========
Points, one label            ``blocks`` of the blocks' class, ``samples`` of the other   B1 + B2
all others                   of all examples, as many as a tracker's batch has           as there
===========================  ==========================================================  =========

A draw may give an example that another one gave too: it is then in the batch twice, each with its own 1/(q B), and the
table keeps the last output.
"""

from fcco.memory._diagnostics import MemoryDiagnosis, diagnose
from fcco.memory._engine import MemoryEngine
from fcco.memory._loader import DrawPlan, MemoryLoader
from fcco.memory._state import MemoryState
from fcco.memory._table import OutputTable

__all__ = ["DrawPlan", "MemoryDiagnosis", "MemoryEngine", "MemoryLoader", "MemoryState", "OutputTable", "diagnose"]
