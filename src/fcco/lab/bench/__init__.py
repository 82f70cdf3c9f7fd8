"""`fcco bench`: step times with verdicts."""

from fcco.lab.bench.command import BenchCommand, run_bench

__all__ = ["BenchCommand", "run_bench"]
