"""The output memory: a table of the last output of every example, for exact weights and for draws by importance."""

from fcco.memory.diagnostics import MemoryDiagnosis
from fcco.memory.loader import MemoryLoader
from fcco.memory.memory import Memory
from fcco.memory.settings import OutputMemory, output_memory
from fcco.memory.table import OutputTable

__all__ = ["Memory", "MemoryDiagnosis", "MemoryLoader", "OutputMemory", "OutputTable", "output_memory"]
