"""The arena: who ranks best on tables, rankings, survival data and images, on the same splits.

    python benchmarks/arena.py run                           # everything that is missing; stop it at any moment
    python benchmarks/arena.py run --only a9a-rare --methods plain LightGBM --seeds 0 1 --workers 1
    python benchmarks/arena.py draw --page docs/arena.md     # tables and a picture from the runs so far, beside them too
    python benchmarks/arena.py list                          # problems and methods
    python benchmarks/arena.py images --data cifar10.npz --device cuda --workers 12      # LibAUC's problems

Needs FCCO_BENCH_DATA (the folder of the tables) the first time; LightGBM, XGBoost, CatBoost, lifelines, torchsurv and
LibAUC where their methods are asked for (they are no dependencies of fcco). Runs are kept in results/arena/runs.jsonl
(images: image-runs.jsonl), one JSON line each; a run that is there is not run again, and a run on images goes on from its
last checkpoint.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from benchmarks.arena import chosen, figure, images, runs
from benchmarks.arena.problems import PROBLEMS
from benchmarks.arena.scoring import SHOWN
from benchmarks.kept import Kept

MARKS = ("<!-- tables begin -->", "<!-- tables end -->")


def matching(names: list[str], words: list[str]) -> list[str]:
    """Names that begin with one of the words; all where there are none."""
    if not words:
        return names
    return [name for name in names if any(name.startswith(word) for word in words)]


def table_metrics() -> dict[str, str]:
    """problem -> metric in words."""
    found = {}
    for name, problem in PROBLEMS.items():
        found[name] = SHOWN[problem.metric]
        if problem.max_fpr is not None:
            found[name] += f", FPR <= {problem.max_fpr:g}"
    return found


def table_settings() -> dict[str, dict[str, int]]:
    """How many settings each search has: problem -> method -> number."""
    found: dict[str, dict[str, int]] = {}
    for name, problem in PROBLEMS.items():
        found[name] = {method: len(made.settings(problem)) for method, made in runs.METHODS.items()}
    return found


def image_settings() -> dict[str, dict[str, int]]:
    return {name: {m: len(images.settings(name, m)) for m in images.METHODS} for name in images.PROBLEMS}


def draw(path: Path, shown: dict[str, str], expected: chosen.Expected) -> str:
    """The tables and one sentence per method; written beside the runs."""
    rows = chosen.read(path)
    methods = list(next(iter(expected.values())))
    text = chosen.overview(rows, shown, methods, expected) + "\n" + chosen.table(rows, shown, methods, expected)
    sentences = [chosen.summary(rows, method, expected) for method in methods if method != chosen.AGAINST]
    failed = sum("error" in row for row in rows)
    text += "\n" + "\n".join(f"- {sentence}" for sentence in sentences)
    text += f"\n- {len(rows)} runs, {failed} of them failed\n"
    path.with_name(path.name.replace("runs.jsonl", "table.md")).write_text(text)
    return text


def into_page(page: Path, text: str) -> None:
    """Put the tables between the two marks of a page, in place of what is there."""
    before, rest = page.read_text().split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    page.write_text(f"{before}{MARKS[0]}\n\n{text}\n{MARKS[1]}{after}")


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "draw", "list", "images"))
    parser.add_argument("--only", nargs="*", default=[], help="beginnings of problems' names")
    parser.add_argument("--methods", nargs="*", default=[], choices=sorted({*runs.METHODS, *images.METHODS}))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--retry", action="store_true", help="run failed runs again")
    parser.add_argument("--out", type=Path, default=Path("results/arena"))
    parser.add_argument("--page", type=Path, help="draw: a page whose tables are to be replaced (docs/arena.md)")
    parser.add_argument(
        "--data", type=Path, help="cifar10.npz with x_train (N, 32, 32, 3) uint8, y_train, x_test, y_test"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--hold-out", type=float, default=0.1, help="the share of training images that validates")
    parser.add_argument("--checkpoints", default="runs/arena")
    return parser.parse_args(argv)


def run_tables(options: argparse.Namespace) -> str:
    """What is missing of the tables' runs."""
    path = options.out / "runs.jsonl"
    runs.be_nice()
    if options.retry:
        print(runs.drop_failed(path), "failed runs are run again")
    wanted = runs.jobs(matching(list(PROBLEMS), options.only), options.methods or list(runs.METHODS), options.seeds)
    with Kept(path, runs.NAMES, runs.one, options.workers) as kept:
        kept.gather(wanted)
    return draw(path, table_metrics(), table_settings())


def run_images(options: argparse.Namespace) -> str:
    """What is missing of the images' runs."""
    if options.data is None:
        raise SystemExit("images needs --data, the file of CIFAR-10's images")
    path = options.out / "image-runs.jsonl"
    if options.retry:
        print(runs.drop_failed(path), "failed runs are run again")
    names = matching(list(images.PROBLEMS), options.only)
    wanted = list(images.jobs(names, options.methods or list(images.METHODS), options.seeds))
    call = partial(images.one, str(options.data), options.device, options.hold_out, options.checkpoints)
    with Kept(path, runs.NAMES, call, options.workers) as kept:
        kept.gather(wanted)
    return draw(path, {name: problem.metric for name, problem in images.PROBLEMS.items()}, image_settings())


def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    if options.command == "list":
        print("tables:", *PROBLEMS)
        print("methods:", *runs.METHODS)
        print("images:", *images.PROBLEMS)
        print("methods:", *images.METHODS)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    if options.command == "run":
        print(run_tables(options))
    elif options.command == "images":
        print(run_images(options))
    else:
        path = options.out / "runs.jsonl"
        text = draw(path, table_metrics(), table_settings())
        figure.draw(path.with_name("fit.png"), chosen.read(path), table_metrics(), table_settings())
        if options.page is not None:
            into_page(options.page, text)
        print(text)


if __name__ == "__main__":
    main()
