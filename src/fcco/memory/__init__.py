"""The output memory: a table of the last output of every example, for exact weights and for draws by importance."""

from fcco.memory._diagnostics import MemoryDiagnosis
from fcco.memory._loader import MemoryLoader
from fcco.memory._memory import Memory
from fcco.memory._settings import OutputMemory, output_memory
from fcco.memory._table import OutputTable

__all__ = ["Memory", "MemoryDiagnosis", "MemoryLoader", "OutputMemory", "OutputTable", "output_memory"]
