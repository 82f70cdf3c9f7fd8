"""Two ranks on the CPU: every framework's run equals the plain one on two ranks, resumed mid-epoch too."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_two_ranks(tmp_path):
    command = [sys.executable, "-m", "tests.integrations.two_ranks", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
