"""The arena: who ranks best on tables, rankings and survival data, on the same splits.

    python benchmarks/arena.py run                           # everything that is missing; stop it at any moment
    python benchmarks/arena.py run --only a9a-rare --methods plain LightGBM --seeds 0 1 --workers 1
    python benchmarks/arena.py draw                          # tables from the runs so far -> results/arena/table.md
    python benchmarks/arena.py list                          # problems and methods

Needs FCCO_BENCH_DATA (the folder of the tables) the first time; LightGBM, XGBoost, CatBoost, lifelines and torchsurv where
their methods are asked for (they are no dependencies of fcco). Runs are kept in results/arena/runs.jsonl, one JSON line
each; a run that is there is not run again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.arena import chosen
from benchmarks.arena.problems import PROBLEMS
from benchmarks.arena.runs import METHODS, NAMES, be_nice, drop_failed, jobs, one
from benchmarks.kept import Kept


def matching(names: list[str], words: list[str]) -> list[str]:
    """Names that begin with one of the words; all where there are none."""
    if not words:
        return names
    return [name for name in names if any(name.startswith(word) for word in words)]


def expected_settings() -> dict[str, dict[str, int]]:
    """How many settings each search has: problem -> method -> number."""
    found: dict[str, dict[str, int]] = {}
    for name, problem in PROBLEMS.items():
        found[name] = {method: len(chosen_method.settings(problem)) for method, chosen_method in METHODS.items()}
    return found


def draw(out: Path) -> str:
    """The tables and one sentence per method; written to table.md."""
    rows = chosen.read(out / "runs.jsonl")
    expected = expected_settings()
    text = chosen.table(rows, list(METHODS), expected)
    sentences = [chosen.summary(rows, method, expected) for method in METHODS if method != chosen.AGAINST]
    failed = sum("error" in row for row in rows)
    text += "\n" + "\n".join(f"- {sentence}" for sentence in sentences)
    text += f"\n- {len(rows)} runs, {failed} of them failed\n"
    (out / "table.md").write_text(text)
    return text


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "draw", "list"))
    parser.add_argument("--only", nargs="*", default=[], help="beginnings of problems' names")
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--retry", action="store_true", help="run failed runs again")
    parser.add_argument("--out", type=Path, default=Path("results/arena"))
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    if options.command == "list":
        print("problems:", *PROBLEMS)
        print("methods:", *METHODS)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    if options.command == "run":
        be_nice()
        path = options.out / "runs.jsonl"
        if options.retry:
            print(drop_failed(path), "failed runs are run again")
        with Kept(path, NAMES, one, options.workers) as kept:
            kept.gather(jobs(matching(list(PROBLEMS), options.only), options.methods, options.seeds))
    print(draw(options.out))


if __name__ == "__main__":
    main()
