"""`fcco demo`: four methods on embedded data, a table, a plot and a report, in about a minute on two cores."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fcco import CorrectionWarning
from fcco.lab import reporting
from fcco.lab.config import TrainConfig
from fcco.lab.console import Bar
from fcco.lab.errors import LabError
from fcco.lab.figure import Panel, draw, short
from fcco.lab.runs import fresh_folder
from fcco.lab.train import Outcome, train

BASE = TrainConfig(
    dataset="digits",
    model="mlp",
    hidden=(64,),
    blocks=5,
    samples=32,
    total_samples=72_000,
    eval_every=15,
    tensorboard=False,
    threads=1,  # the network is too small for two threads to help
)

#: Chosen by the mean of F over seeds 0 to 2 after 72,000 samples, among the best points at seed 0 of lr in
#: {0.1, 0.2, 0.3, 0.5} and alpha, beta in {0.1, 0.5, 0.9}. v3 takes I = m n/(B1 B2), its theorem's.
TUNED: dict[str, dict[str, Any]] = {
    "sox": {"lr": 0.3, "alpha": 0.9, "beta": 0.1},
    "msvr-v1": {"lr": 0.2, "alpha": 0.5, "beta": 0.5},
    "msvr-v2": {"lr": 0.2, "alpha": 0.5, "beta": 0.1},
    "msvr-v3": {"lr": 0.1, "alpha": 0.1, "beta": 0.5, "period": 90},
}


@dataclass(frozen=True)
class DemoConfig:
    """SOX against MSVR-v1, v2, v3 on scikit-learn's digits: multi-task AUC with a small network."""

    out: Path | None = None
    """Where to write; None: runs/demo-1, -2, ..."""
    seeds: int = 3
    """Runs per method."""
    total_samples: int = BASE.total_samples or 0
    """Samples that every run draws."""


def configs(demo: DemoConfig) -> dict[str, TrainConfig]:
    """Run name -> its configuration."""
    named = {}
    for method, rates in TUNED.items():
        for seed in range(demo.seeds):
            base = replace(BASE, method=method, seed=seed, total_samples=demo.total_samples)
            named[f"{method}-seed{seed}"] = replace(base, **rates)
    return named


def run_demo(demo: DemoConfig, console: Console) -> Path:
    """Run it; returns the folder."""
    if demo.seeds < 1:
        raise LabError(f"--seeds must be at least 1, got {demo.seeds}")
    out = demo.out or fresh_folder(Path("runs"), "demo")
    wanted = configs(demo)
    outcomes: dict[str, list[Outcome]] = {method: [] for method in TUNED}
    warned: dict[str, None] = {}
    with Bar(console, "demo", len(wanted)) as bar:
        for name, config in wanted.items():
            bar.next(name)
            with _gathered(warned, config.method):
                outcomes[config.method].append(train(config, out / name, watch=bar))
    console.print(table(outcomes))
    stated = "; ".join(f"{method} {rates(some[0].config)}" for method, some in outcomes.items())
    console.print(f"rates:  {stated}", highlight=False)
    if warned:
        console.print(
            f"note:   at these step sizes the correction of {', '.join(warned)} adds more noise to u than it takes "
            "away (docs/theory.md has the map)",
            highlight=False,
        )
    plot = out / "demo.png"
    _plot(plot, outcomes)
    console.print(f"plot:   {plot}", soft_wrap=True, highlight=False)
    report = reporting.write([out], out, title="Multi-task AUC on scikit-learn's digits", note=_note(outcomes))
    console.print(f"report: {report}", soft_wrap=True, highlight=False)
    return out


@contextmanager
def _gathered(warned: dict[str, None], method: str) -> Iterator[None]:
    """One line at the end in place of the same warning from every run; other warnings pass."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for one in caught:
        if issubclass(one.category, CorrectionWarning):
            warned[method] = None
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def table(outcomes: Mapping[str, Sequence[Outcome]]) -> Table:
    """The last evaluation of each method: mean and spread over seeds."""
    seeds = max(len(some) for some in outcomes.values())
    title = f"mean ± standard deviation over {seeds} seeds, at the end"
    result = Table(title=title, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    result.add_column("method", no_wrap=True)
    for name in ("F", "test AUROC", "‖u - g‖", "samples", "g/J calls", "sec"):
        result.add_column(name, justify="right", no_wrap=True)
    for method, some in outcomes.items():
        last = [outcome.rows[-1] for outcome in some]
        calls = f"{short(last[0]['oracle_g'], 3)}/{short(last[0]['oracle_j'], 3)}"
        result.add_row(
            method,
            spread(last, "objective", 4),
            spread(last, "auroc", 4),
            spread(last, "tracking_error", 3),
            short(last[0]["samples"], 3),
            calls,
            f"{statistics.fmean(row['seconds'] for row in last):.1f}",
        )
    return result


def rates(config: TrainConfig) -> str:
    """A method's rates in few characters."""
    text = f"lr {config.lr:g}"
    for name, symbol in (("alpha", "α"), ("beta", "β"), ("period", "I")):
        value = getattr(config, name)
        if value is not None:
            text += f" {symbol} {value:g}"
    return text


def spread(rows: Sequence[Mapping[str, Any]], name: str, digits: int) -> str:
    """Mean ± standard deviation."""
    values = [float(row[name]) for row in rows if row[name] is not None]
    if not values:
        return "-"
    text = f"{statistics.fmean(values):.{digits}f}"
    if len(values) > 1:
        text += f"±{statistics.stdev(values):.{digits}f}"
    return text


def _plot(path: Path, outcomes: Mapping[str, Sequence[Outcome]]) -> None:
    labels = {method: f"{method} ({rates(some[0].config)})" for method, some in outcomes.items()}
    runs = {labels[method]: [outcome.rows for outcome in some] for method, some in outcomes.items()}
    drawn_as = {label: method for method, label in labels.items()}
    panels = [
        Panel("training objective", runs, drawn_as, "objective", "F(w), exact, on the training data"),
        Panel("tracking error", runs, drawn_as, "tracking_error", "root mean square of ‖u - g(w)‖ over the tasks"),
    ]
    title = "Multi-task AUC on scikit-learn's digits"
    draw(path, panels, x="samples", x_label="samples drawn", title=title, note=_note(outcomes))


def _note(outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    config = next(iter(outcomes.values()))[0].config
    seeds = max(len(some) for some in outcomes.values())
    return (
        f"10 tasks (one digit against the rest), MLP 64-64-10, B1 = {config.blocks}, "
        f"B2 = {config.samples}, squared hinge, margin {config.margin:g}. Line and band: mean ± one standard "
        f"deviation over {seeds} seeds. Every full pass of msvr-v3 is charged m n samples (the level parts of its "
        "curve), though the tasks share their images."
    )
