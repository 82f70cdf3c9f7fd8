"""`fcco`: the command line. Needs the extra `[lab]`; says so in one sentence where it is missing."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    try:
        from fcco.lab.app import run
    except ImportError as error:
        missing = (error.name or "").split(".")[0]
        if missing in ("", "fcco", "torch"):
            raise
        sys.stderr.write(f"fcco: the command line needs {missing}: pip install 'fcco[lab]'\n")
        return 2
    if argv is None:
        argv = sys.argv[1:]
    return run(list(argv))
