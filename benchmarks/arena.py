"""The arena, by one command: ``python benchmarks/arena.py run``; see benchmarks/arena/__main__.py and docs/arena.md."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `benchmarks` is found from anywhere

from benchmarks.arena.__main__ import main

if __name__ == "__main__":
    main()
