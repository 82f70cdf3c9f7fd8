"""The paper's figures on real data, run in pieces: `python -m benchmarks.figures --help`."""
