"""The picture of the front page: test AP of CIFAR-10's classes, each as the rare one.

Run: python benchmarks/rare_class_figure.py (needs matplotlib). Reads results/cifar_rare/table.md, which
benchmarks/cifar_rare.py writes from the runs; writes docs/_static/rare_class.svg.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).parent.parent
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
RUNS = {  # as the table calls it: (in words, colour, marker)
    "cross-entropy": ("cross-entropy, balanced", "#8a8f98", "s"),
    "SOX": ("partial AUC, SOX", "#3b82c4", "D"),
    "memory": ("partial AUC, output memory", "#e4632d", "o"),
}
INK = "#7d828a"  # readable on white and on black


def read(table: Path) -> dict[str, dict[int, float]]:
    """Test AP by run and class."""
    found: dict[str, dict[int, float]] = {run: {} for run in RUNS}
    for line in table.read_text().splitlines():
        row = re.fullmatch(r"\| (\d) \| ([\w-]+) \| \d+ \| .* \| ([\d.]+) ± [\d.]+ \|", line)
        if row is not None:
            found[row.group(2)][int(row.group(1))] = float(row.group(3))
    for run, values in found.items():
        if len(values) != len(CLASSES):
            raise ValueError(f"{table} must have {len(CLASSES)} classes of {run}, got {len(values)}")
    return found


def draw(values: dict[str, dict[int, float]], out: Path) -> None:
    order = sorted(range(len(CLASSES)), key=lambda kind: values["memory"][kind])
    style = {"font.size": 11, "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}
    with plt.rc_context({**style, "svg.hashsalt": "fcco", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure, axes = plt.subplots(figsize=(5.4, 3.9))
        for place, kind in enumerate(order):
            three = [values[run][kind] for run in RUNS]
            axes.plot([min(three), max(three)], [place, place], color=INK, alpha=0.35, linewidth=2, zorder=1)
        for run, (label, colour, marker) in RUNS.items():
            points = [values[run][kind] for kind in order]
            axes.scatter(points, range(len(order)), s=62, color=colour, marker=marker, label=label, zorder=2)
        axes.set_yticks(range(len(order)), [CLASSES[kind] for kind in order])
        axes.set_xlabel("test average precision, this class rare (500 of 23,000)")
        axes.grid(axis="x", color=INK, alpha=0.2)
        for side in axes.spines.values():
            side.set_visible(False)
        axes.tick_params(length=0)
        axes.legend(frameon=False, loc="upper left", labelcolor=INK, handletextpad=0.2)
        figure.tight_layout()
        figure.savefig(out, transparent=True, metadata={"Date": None})
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, default=ROOT / "results/cifar_rare/table.md")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/_static/rare_class.svg")
    chosen = parser.parse_args()
    draw(read(chosen.table), chosen.out)


if __name__ == "__main__":
    main()
