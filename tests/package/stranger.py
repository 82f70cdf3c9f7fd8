"""A stranger's path: the built wheel in an empty environment, then what one tries first. No error, no warning.

    make stranger                            # builds dist/ first
    python tests/package/stranger.py [WHEEL]

1. `pip install` of the wheel with the extra `lab` (and the pins of constraints.txt).
2. Every Python snippet of README, the first one first, each in a process of its own.
3. The first notebook.
4. `fcco train` on a CSV with words, dates, missing values and few positives, `fcco predict` on new rows, `fcco report`,
   and what the command line says of itself.

Whatever fails or warns is told, and the exit code is 1; so it is where all but installing takes more than five minutes
of the processor. Prints what each took by the clock and of the processor: on a busy machine the clock counts the
neighbours, too. Installing is timed by itself, since it depends on the network.
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
MINUTES = 5
ROWS = 2000
TABLE = f"""
import random
random.seed(0)
with open("customers.csv", "w") as file:
    print("joined,city,plan,age,spend,churned", file=file)
    for _ in range({ROWS}):
        city = random.choice(["Berlin", "Köln", "New York", ""])
        plan = random.choices(["basic", "plus", "pro"], [6, 3, 1])[0]
        age, spend = random.gauss(45, 14), random.lognormvariate(3, 1)
        risk = 2 * (plan == "pro") + 1.5 * (city == "Köln") - age / 30 + random.gauss(0, 1)
        joined = f"202{{random.randint(0, 5)}}-{{random.randint(1, 12):02d}}-15"
        known = f"{{age:.0f}}" if random.random() > 0.1 else ""
        print(joined, city, plan, known, f"{{spend:.2f}}", "yes" if risk > 1.6 else "no", sep=",", file=file)
"""


class Stranger:
    """An empty folder with an environment of its own, and how long each thing took in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seconds: dict[str, float] = {}
        self.processor: dict[str, float] = {}
        self.failures: list[str] = []
        venv.create(folder / "env", with_pip=True)
        self.bin = folder / "env" / ("Scripts" if os.name == "nt" else "bin")

    def run(self, what: str, *argv: str) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment |= {"MPLBACKEND": "agg", "FCCO_DATA": ""}
        begin, used = time.perf_counter(), processor_seconds()
        program = str(self.bin / argv[0])
        done = subprocess.run(
            [program, *argv[1:]], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        self.seconds[what] = time.perf_counter() - begin
        self.processor[what] = processor_seconds() - used
        print(f"{what:34s} {self.seconds[what]:6.1f} s {self.processor[what]:6.1f} s", flush=True)
        warned = "warning" in done.stderr.lower() and "pip" not in argv  # pip warns of this machine's settings
        if done.returncode or warned:
            self.failures.append(what)
            print(f"{what} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}", flush=True)
        return done.stdout

    def python(self, what: str, code: str) -> str:
        script = self.folder / "script.py"
        script.write_text(code)
        return self.run(what, "python", str(script))


def processor_seconds() -> float:
    """What all programs that were run so far have taken of the processor."""
    times = os.times()
    return times.children_user + times.children_system


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)


def main() -> None:
    given = [Path(name) for name in sys.argv[1:]] or sorted((ROOT / "dist").glob("fcco-*.whl"))
    if len(given) != 1:
        raise SystemExit(f"one wheel is needed, got {len(given)}: run `make dist`, or name it")
    wheel = given[0].resolve()
    pins = ["-c", str(ROOT / "constraints.txt")]
    quiet = ["-q", "--no-input", "--disable-pip-version-check"]
    print(f"{'':34s} {'clock':>8s} {'processor':>8s}")
    with tempfile.TemporaryDirectory() as folder:
        stranger = Stranger(Path(folder))
        stranger.run("pip install fcco[lab]", "python", "-m", "pip", "install", *quiet, *pins, f"{wheel}[lab]")
        quick_start, *others = snippets()
        stranger.python("README, first snippet", quick_start)
        for number, code in enumerate(others, start=2):
            stranger.python(f"README, snippet {number}", code)
        cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
        stranger.python("first notebook", "\n\n".join("".join(cell["source"]) for cell in cells))
        stranger.python("a CSV", TABLE)
        train = ["train", "--dataset", "customers.csv", "--target", "churned", "--positive", "yes", "--out"]
        stranger.run("fcco train", "fcco", *train, "run")
        stranger.run("fcco predict", "fcco", "predict", "run", "customers.csv", "--out", "scores.csv")
        stranger.run("fcco train, again", "fcco", *train, "other", "--seed", "1", "--epochs", "2")
        stranger.run("fcco report", "fcco", "report", "run", "other")
        for name in ("--help", "methods", "objectives"):
            stranger.run(f"fcco {name}", "fcco", name)
        scores = stranger.folder / "scores.csv"
        if not scores.exists() or len(scores.read_text().splitlines()) != ROWS + 1:
            stranger.failures.append("the table of scores")
        if not (stranger.folder / "report.html").exists():
            stranger.failures.append("the report")
        pip, *rest = stranger.seconds
        for what, chosen in (("installing", [pip]), ("all but installing", rest)):
            clock = sum(stranger.seconds[name] for name in chosen)
            processor = sum(stranger.processor[name] for name in chosen)
            print(f"{what:34s} {clock:6.1f} s {processor:6.1f} s")
        if processor > 60 * MINUTES:
            stranger.failures.append(f"more than {MINUTES} minutes of the processor")
    if stranger.failures:
        raise SystemExit(f"failed: {', '.join(stranger.failures)}")


if __name__ == "__main__":
    main()
