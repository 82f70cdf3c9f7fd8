"""A stranger's path: the built wheel in an empty environment, then what one tries first. No error, no warning.

    make stranger                            # builds dist/ first
    python tests/package/stranger.py [WHEEL]

1. `pip install` of the wheel with the extra `lab` (and the pins of constraints.txt).
2. Every Python snippet of README, the first one first, each in a process of its own.
3. The first notebook.
4. `fcco train` on a CSV, and `fcco predict` on new rows.

Whatever fails, or prints a warning that Python shows by itself, is told, and the exit code is 1. Prints what each took;
installing is timed by itself, since it depends on the network.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "notebooks" / "imbalanced_table.ipynb"
TABLE = """
import random
random.seed(0)
with open("patients.csv", "w") as file:
    print("age,ward,marker,died", file=file)
    for _ in range(600):
        age, ward, marker = random.gauss(60, 15), random.choice(["north", "south"]), random.gauss(0, 1)
        risk = age / 20 + 2 * marker + (ward == "south")
        print(f"{age:.0f},{ward},{marker if random.random() > 0.1 else ''},{int(risk > 6)}", file=file)
"""


class Stranger:
    """An empty folder with an environment of its own, and how long each thing took in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seconds: dict[str, float] = {}
        self.failures: list[str] = []
        venv.create(folder / "env", with_pip=True)
        self.bin = folder / "env" / ("Scripts" if os.name == "nt" else "bin")

    def run(self, what: str, *argv: str) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment |= {"MPLBACKEND": "agg", "FCCO_DATA": ""}
        begin = time.perf_counter()
        program = str(self.bin / argv[0])
        done = subprocess.run(
            [program, *argv[1:]], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        self.seconds[what] = time.perf_counter() - begin
        print(f"{what:34s} {self.seconds[what]:6.1f} s", flush=True)
        if done.returncode or "Warning" in done.stderr:
            self.failures.append(what)
            print(f"{what} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}", flush=True)
        return done.stdout

    def python(self, what: str, code: str) -> str:
        script = self.folder / "script.py"
        script.write_text(code)
        return self.run(what, "python", str(script))


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)


def main() -> None:
    given = [Path(name) for name in sys.argv[1:]] or sorted((ROOT / "dist").glob("fcco-*.whl"))
    if len(given) != 1:
        raise SystemExit(f"one wheel is needed, got {len(given)}: run `make dist`, or name it")
    wheel = given[0].resolve()
    pins = ["-c", str(ROOT / "constraints.txt")]
    quiet = ["-q", "--no-input", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as folder:
        stranger = Stranger(Path(folder))
        stranger.run("pip install fcco[lab]", "python", "-m", "pip", "install", *quiet, *pins, f"{wheel}[lab]")
        first, *others = snippets()
        stranger.python("README, first snippet", first)
        for number, code in enumerate(others, start=2):
            stranger.python(f"README, snippet {number}", code)
        cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
        stranger.python("first notebook", "\n\n".join("".join(cell["source"]) for cell in cells))
        stranger.python("a CSV", TABLE)
        stranger.run("fcco train", "fcco", "train", "--dataset", "patients.csv", "--target", "died", "--out", "run")
        stranger.run("fcco predict", "fcco", "predict", "run", "patients.csv", "--out", "scores.csv")
        scores = stranger.folder / "scores.csv"
        if not scores.exists() or len(scores.read_text().splitlines()) != 601:
            stranger.failures.append("the table of scores")
        doing = sum(seconds for what, seconds in stranger.seconds.items() if not what.startswith("pip"))
        installing = sum(stranger.seconds.values()) - doing
        print(f"{'all but installing':34s} {doing:6.1f} s\n{'installing':34s} {installing:6.1f} s")
    if stranger.failures:
        raise SystemExit(f"failed: {', '.join(stranger.failures)}")


if __name__ == "__main__":
    main()
