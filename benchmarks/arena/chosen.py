"""From runs to a table: the setting that validation chose, means over seeds, and paired differences."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kept import Row

AGAINST = "plain"
Expected = Mapping[str, Mapping[str, int]]  # problem -> method -> settings of its search


@dataclass(frozen=True)
class Cell:
    """A method on a problem.

    Args:
        test: by seed, where validation was best.
        last: by seed, at the end of the run that validation chose; empty where the method has no epochs.
        cpu_seconds: of the whole search, per seed.
        examples: through the network in the whole search, per seed.
    """

    test: dict[int, float]
    last: dict[int, float]
    cpu_seconds: float
    examples: float


def read(path: Path) -> list[Row]:
    """The rows of a file of runs."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def cell(rows: Sequence[Row], problem: str, method: str, expected: int = 1) -> Cell:
    """What validation chose, seed by seed; seeds whose search is not complete are left out.

    Args:
        rows: of all runs.
        problem, method: whose.
        expected: how many settings a search has.
    """
    by_seed: dict[int, list[Row]] = {}
    for row in rows:
        if (row["problem"], row["method"]) == (problem, method):
            by_seed.setdefault(row["seed"], []).append(row)
    test: dict[int, float] = {}
    last: dict[int, float] = {}
    seconds: list[float] = []
    examples: list[float] = []
    for seed, own in sorted(by_seed.items()):
        good = [row for row in own if "error" not in row]
        if len(own) < expected or not good:
            continue
        best = max(good, key=lambda row: row["valid"])
        test[seed] = best["test"]
        if "last_test" in best:  # an epoch of trees chosen by early stopping has no other
            ended = max(good, key=lambda row: row["last_valid"])
            last[seed] = ended["last_test"]
        seconds.append(sum(row["cpu_seconds"] for row in own))
        examples.append(sum(row.get("examples", 0) for row in own))
    return Cell(test, last, _mean(seconds), _mean(examples))


def _mean(values: Sequence[float]) -> float:
    if not values:
        return 0.0
    return statistics.mean(values)


@dataclass(frozen=True)
class Difference:
    """Mean and standard error of paired differences over seeds."""

    mean: float
    error: float
    seeds: int

    @property
    def verdict(self) -> str:
        """Whether it is "better" or "worse" by two standard errors, else "even"; "" with fewer than three seeds."""
        if self.seeds < 3:
            return ""
        if self.mean > 2 * self.error:
            return "better"
        if self.mean < -2 * self.error:
            return "worse"
        return "even"


def paired(first: dict[int, float], second: dict[int, float]) -> Difference:
    """first - second over the seeds that both have."""
    seeds = sorted(set(first) & set(second))
    differences = [first[seed] - second[seed] for seed in seeds]
    error = math.nan
    if len(differences) > 1:
        error = statistics.stdev(differences) / math.sqrt(len(differences))
    return Difference(_mean(differences), error, len(seeds))


def problem_lines(rows: Sequence[Row], problem: str, methods: Sequence[str], expected: Mapping[str, int]) -> list[str]:
    """Markdown rows of one problem, best test mean first."""
    cells = {method: cell(rows, problem, method, expected.get(method, 1)) for method in methods}
    reference = cells.get(AGAINST)
    found = []
    for method, own in cells.items():
        if not own.test:
            continue
        mean = _mean(list(own.test.values()))
        text = _with_error(f"{mean:.4f}", _error(own.test))
        last = ""
        if own.last:
            last = f"{_mean(list(own.last.values())):.4f}"
        against = ""
        if reference is not None and reference.test and method != AGAINST:
            difference = paired(own.test, reference.test)
            if difference.seeds > 0:
                against = f"{_with_error(f'{difference.mean:+.4f}', difference.error)} {difference.verdict}".strip()
        seeds = len(own.test)
        found.append(
            (
                mean,
                f"| {method} | {seeds} | {text} | {last} | {against} | {own.cpu_seconds:.0f} | {own.examples / 1e6:.2f} |",
            )
        )
    return [line for _, line in sorted(found, reverse=True)]


def _with_error(text: str, error: float) -> str:
    """A mean with its standard error, where there is one."""
    if math.isnan(error):
        return text
    return f"{text} ± {error:.4f}"


def _error(values: dict[int, float]) -> float:
    if len(values) < 2:
        return math.nan
    return statistics.stdev(values.values()) / math.sqrt(len(values))


HEADER = [
    "| method | seeds | test, validation's epoch | test, last epoch | minus tuned plain, paired | CPU s | examples, M |",
    "|---|---|---|---|---|---|---|",
]


def table(rows: Sequence[Row], shown: Mapping[str, str], methods: Sequence[str], expected: Expected) -> str:
    """Markdown: one part per problem.

    Args:
        rows: of all runs.
        shown: problem -> its metric in words.
        methods: which to show.
        expected: problem -> method -> settings of its search.
    """
    lines: list[str] = []
    for name, metric in shown.items():
        own = problem_lines(rows, name, methods, expected[name])
        if own:
            lines += [f"### {name} ({metric})", "", *HEADER, *own, ""]
    return "\n".join(lines)


def overview(rows: Sequence[Row], shown: Mapping[str, str], methods: Sequence[str], expected: Expected) -> str:
    """Markdown: one line per problem, one column per method with a complete search; the best mean is bold where all have the same seeds.

    A plus or minus says that a method is better or worse than the tuned plain loss by two standard errors, paired over
    seeds; a bracket tells the number of seeds where it is below five.
    """
    cells: dict[str, dict[str, Cell]] = {}
    for name in shown:
        found = {method: cell(rows, name, method, expected[name].get(method, 1)) for method in methods}
        cells[name] = {method: own for method, own in found.items() if own.test}
    columns = [method for method in methods if any(method in own for own in cells.values())]
    lines = ["| problem | metric | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|"]
    for name, metric in shown.items():
        if not cells[name]:
            continue
        texts = [_overview_text(method, cells[name]) for method in columns]
        lines.append(f"| {name} | {metric} | " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


def _overview_text(method: str, cells: Mapping[str, Cell]) -> str:
    if method not in cells:
        return ""
    means = {other: _mean(list(own.test.values())) for other, own in cells.items()}
    text = f"{means[method]:.4f}"
    comparable = all(own.test.keys() == cells[method].test.keys() for own in cells.values())
    if comparable and means[method] == max(means.values()):
        text = f"**{text}**"
    if method != AGAINST and AGAINST in cells:
        verdict = paired(cells[method].test, cells[AGAINST].test).verdict
        text += {"better": " +", "worse": " −"}.get(verdict, "")
    seeds = len(cells[method].test)
    if seeds < 5:
        text += f" ({seeds})"
    return text


def summary(rows: Sequence[Row], method: str, expected: Expected) -> str:
    """How a method stands against the tuned plain loss over all problems, in one sentence."""
    verdicts: dict[str, int] = {}
    differences: list[float] = []
    for name, counts in expected.items():
        mine = cell(rows, name, method, counts.get(method, 1))
        other = cell(rows, name, AGAINST, counts.get(AGAINST, 1))
        difference = paired(mine.test, other.test)
        if difference.seeds == 0:
            continue
        verdict = difference.verdict or "undecided"
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
        differences.append(difference.mean)
    counted = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    if not differences:
        return f"{method}: no problem yet in common with tuned plain"
    return f"{method} minus tuned plain: {counted}; mean difference {_mean(differences):+.4f} over {len(differences)} problems"
