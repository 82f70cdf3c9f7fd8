"""The arena as a picture: how far each method is from the tuned plain loss, problem by problem."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.arena.chosen import AGAINST, Difference, Expected, cell, paired
from benchmarks.kept import Row

COLOURS = {"fcco.fit": "#c2410c", "LightGBM": "#64748b", "XGBoost": "#0d9488"}
FEWEST_SEEDS = 3
HEIGHT_PER_PROBLEM = 0.42  # inches
BETWEEN_METHODS = 0.22  # of that


def differences(
    rows: Sequence[Row], shown: Mapping[str, str], method: str, expected: Expected
) -> dict[str, Difference]:
    """Paired differences to the tuned plain loss, of the problems with enough seeds.

    Args:
        rows: of all runs.
        shown: problem -> its metric in words.
        method: which to compare.
        expected: problem -> method -> settings of its search.
    """
    found = {}
    for problem in shown:
        mine = cell(rows, problem, method, expected[problem].get(method, 1))
        other = cell(rows, problem, AGAINST, expected[problem].get(AGAINST, 1))
        difference = paired(mine.test, other.test)
        if difference.seeds >= FEWEST_SEEDS:
            found[problem] = difference
    return found


def draw(path: Path, rows: Sequence[Row], shown: Mapping[str, str], expected: Expected) -> None:
    """A dot per problem and method, with two standard errors to either side.

    Args:
        path: of the picture.
        rows: of all runs.
        shown: problem -> its metric in words.
        expected: problem -> method -> settings of its search.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    by_method = {method: differences(rows, shown, method, expected) for method in COLOURS}
    ours = by_method["fcco.fit"]
    problems = sorted(ours, key=lambda problem: ours[problem].mean)
    places = {problem: place for place, problem in enumerate(problems)}
    figure, axes = plt.subplots(figsize=(7.6, 1.3 + HEIGHT_PER_PROBLEM * len(problems)))
    for number, (method, found) in enumerate(by_method.items()):
        known = [problem for problem in problems if problem in found]
        if not known:
            continue
        axes.errorbar(
            [100 * found[problem].mean for problem in known],
            [places[problem] + BETWEEN_METHODS * (1 - number) for problem in known],
            xerr=[200 * _error(found[problem]) for problem in known],
            fmt="o",
            color=COLOURS[method],
            markersize=5.0,
            elinewidth=1.5,
            label=method,
        )
    axes.axvline(0.0, color="black", linewidth=0.9)
    axes.set_yticks(range(len(problems)), [f"{problem}  ({shown[problem]})" for problem in problems], fontsize=8.5)
    axes.set_xlabel("test metric minus that of a plain loss tuned over 12 settings, in hundredths", fontsize=9)
    axes.set_title(
        "fcco.fit without any tuning, and boosted trees: paired over seeds, bars are two standard errors", fontsize=9.5
    )
    axes.grid(axis="x", color="#e2e8f0")
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    figure.savefig(path, dpi=160, bbox_inches="tight")
    plt.close(figure)


def _error(difference: Difference) -> float:
    if math.isnan(difference.error):
        return 0.0
    return difference.error
