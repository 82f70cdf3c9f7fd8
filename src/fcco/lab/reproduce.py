"""`fcco reproduce`: a figure of the paper, from tuning to the plot; stopped, it goes on where it was."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from fcco.lab import reporting
from fcco.lab.config import TrainConfig
from fcco.lab.console import Bar
from fcco.lab.datasets import NAMES
from fcco.lab.errors import Diverged, LabError, pick, refusing, writing
from fcco.lab.figure import Panel, draw
from fcco.lab.loaded import load_dataset
from fcco.lab.protocol import DATASETS, QUICK, Figure, Group, Protocol, figure_groups, shortened
from fcco.lab.runs import read_json, write_json
from fcco.lab.sweep import carry_out, open_sweep, run_name
from fcco.lab.train import Outcome, finish
from fcco.lab.values import as_values

Name = Literal["figure1", "figure2", "figure3", "figure4", "figure5", "all"]

TITLES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "figure1": ("Figure 1: multi-task AUC", "samples", DATASETS),
    "figure2": ("Figure 2: MSVR against its Variants", "samples", ("cifar100",)),
    "figure3": ("Figure 3: networks", "samples", ("svhn",)),
    "figure4": ("Figure 4: blocks per step", "step", ("fashion-mnist",)),
    "figure5": ("Figure 5: samples per block", "step", ("fashion-mnist",)),
}


@dataclass(frozen=True)
class ReproduceCommand:
    """Reproduce a figure of the paper: tune each method on its grid, run the seeds and draw the curves."""

    figure: Annotated[Name, tyro.conf.Positional]
    """figure1 (six data sets), figure2 (Variants), figure3 (networks), figure4 (B1), figure5 (B2), or all."""
    dataset: str | None = None
    """Use this data set in place of the figure's own."""
    quick: bool = False
    """A smoke test in a minute: a small MLP, a tiny grid and two seeds. The figure states it."""
    budget: float = 1.0
    """Share of the samples to spend, in (0, 1]. Below 1, the tuning is by halving. The figure states it."""
    seeds: int | None = None
    """Runs per curve. None: 5, as in the protocol."""
    device: str = "auto"
    """auto, cpu, cuda, ..."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: run the network under autocast."""
    threads: int = 0
    """CPU threads. 0: torch's own choice."""
    out: Path | None = None
    """Where to write. The same command continues there after a stop. None: runs/reproduce-FIGURE."""


def run_reproduce(command: ReproduceCommand, console: Console) -> list[Path]:
    """Reproduce figures, and return their paths."""
    names: list[str] = [command.figure]
    if command.figure == "all":
        names = list(TITLES)
    return [_reproduce(command, name, console) for name in names]


def _protocol(command: ReproduceCommand) -> Protocol:
    if not 0 < command.budget <= 1:
        raise LabError(f"--budget must be in (0, 1], got {command.budget}")
    protocol = Protocol()
    if command.quick:
        protocol = QUICK
    protocol = shortened(protocol, command.budget)
    if command.seeds is None:
        return protocol
    if command.seeds < 1:
        raise LabError(f"--seeds must be >= 1, got {command.seeds}")
    text = protocol.shortened
    if command.seeds < protocol.seeds:
        text = f"{text} {command.seeds} seeds.".strip()
    return replace(protocol, seeds=command.seeds, shortened=text)


def _reproduce(command: ReproduceCommand, name: str, console: Console) -> Path:
    protocol = _protocol(command)
    figure = _figure(command, name)
    if command.out is None:
        out = Path("runs") / f"reproduce-{name}"
    elif command.figure == "all":
        out = command.out / name
    else:
        out = command.out
    _remember(command, protocol, out)
    chosen = {group.tuned_as: _tuned(protocol, group, out, console) for group in figure.groups}
    outcomes = _run_seeds(protocol, figure, chosen, out, console)
    console.print(_table(figure, outcomes))
    return _draw(figure, protocol, outcomes, out, console)


def _figure(command: ReproduceCommand, name: str) -> Figure:
    title, x, wanted = TITLES[name]
    if command.dataset is not None:
        wanted = (pick("dataset", command.dataset, NAMES),)
    with refusing():
        data = [load_dataset(one) for one in wanted]
    label = "iterations"
    if x == "samples":
        label = "samples drawn"
    groups = []
    for group in figure_groups(name, _protocol(command), data):
        groups.append(replace(group, config=_on(command, group.config), tuned_as=_on(command, group.tuned_as)))
    return Figure(name, title, x, label, tuple(groups))


def _on(command: ReproduceCommand, config: TrainConfig) -> TrainConfig:
    """Return the configuration on the device that the command names."""
    return replace(config, device=command.device, precision=command.precision, threads=command.threads)


def _remember(command: ReproduceCommand, protocol: Protocol, out: Path) -> None:
    """Write down the protocol of a folder; a folder that holds another one is an error."""
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    of_command = as_values(command)
    del of_command["out"]
    of_protocol = as_values(protocol)
    of_protocol["grid"] = {name: list(values) for name, values in protocol.grid.items()}
    of_protocol["hidden"] = list(protocol.hidden)
    described: dict[str, Any] = {"command": of_command, "protocol": of_protocol}
    kept = out / "protocol.json"
    if kept.exists() and read_json(kept) != described:
        raise LabError(f"{out} holds another reproduction; choose another --out")
    write_json(kept, described)


def _tuned(protocol: Protocol, group: Group, out: Path, console: Console) -> TrainConfig:
    """Return the best point of the grid for a method, by final F at seed 0."""
    folder = out / "tuning" / run_name(group.tuned_as)
    sweep = open_sweep(group.tuned_as, protocol.grid, folder, halving=protocol.halving)
    carry_out(sweep, None, console)
    config, _ = sweep.best()
    return config


def _run_seeds(
    protocol: Protocol, figure: Figure, chosen: Mapping[TrainConfig, TrainConfig], out: Path, console: Console
) -> dict[Group, list[Outcome]]:
    outcomes: dict[Group, list[Outcome]] = {}
    with Bar(console, figure.name, len(figure.groups) * protocol.seeds) as bar:
        for group in figure.groups:
            best = chosen[group.tuned_as]
            tuned = replace(group.config, lr=best.lr, alpha=best.alpha, beta=best.beta)
            outcomes[group] = []
            for seed in range(protocol.seeds):
                config = replace(tuned, seed=seed)
                bar.next(f"{' '.join(dict.fromkeys((group.method, group.label)))} seed {seed}")
                try:
                    outcomes[group].append(finish(config, out / "runs" / run_name(config), bar))
                except Diverged as error:
                    console.print(str(error), highlight=False, soft_wrap=True)
    return outcomes


def _table(figure: Figure, outcomes: Mapping[Group, list[Outcome]]) -> Table:
    table = Table("panel", "curve", "rates", "F", "test AUROC", "runs", title=figure.title)
    for group, some in outcomes.items():
        last = [outcome.rows[-1] for outcome in some]
        text = "diverged"
        if some:
            text = rates(some[0].config)
        table.add_row(
            group.panel, group.label, text, spread(last, "objective", 4), spread(last, "auroc", 4), str(len(some))
        )
    return table


def _draw(
    figure: Figure, protocol: Protocol, outcomes: Mapping[Group, list[Outcome]], out: Path, console: Console
) -> Path:
    note = f"{protocol.notes()}\n{_data_notes(figure)}"
    panels = [_panel(title, outcomes) for title in dict.fromkeys(group.panel for group in figure.groups)]
    path = out / f"{figure.name}.png"
    for target in (path, path.with_suffix(".pdf")):
        draw(target, panels, x=figure.x, x_label=figure.x_label, title=figure.title, note=note)
    console.print(f"figure: {path}", highlight=False, soft_wrap=True)
    page = reporting.write([out / "runs"], out / "report.html", title=figure.title, note=note)
    console.print(f"report: {page}", highlight=False, soft_wrap=True)
    return path


def _panel(title: str, outcomes: Mapping[Group, list[Outcome]]) -> Panel:
    runs = {}
    drawn_as = {}
    for group, some in outcomes.items():
        if group.panel != title or not some:
            continue
        label = group.label
        if label == group.method:
            label = f"{label} ({rates(some[0].config)})"
            drawn_as[label] = group.method
        runs[label] = [outcome.rows for outcome in some]
    return Panel(title, runs, drawn_as)


def _data_notes(figure: Figure) -> str:
    """Say where the data came from, where they are not the published files."""
    notes = []
    for name in dict.fromkeys(group.config.dataset for group in figure.groups):
        data = load_dataset(name)
        if data.source != "original files":
            notes.append(f"Data: {data}.")
    return " ".join(notes)


def rates(config: TrainConfig) -> str:
    """Return a method's rates in few characters."""
    text = f"lr {config.lr:g}"
    for name, symbol in (("alpha", "α"), ("beta", "β"), ("period", "I")):
        value = getattr(config, name)
        if value is not None:
            text += f" {symbol} {value:g}"
    return text


def spread(rows: Sequence[Mapping[str, Any]], name: str, digits: int) -> str:
    """Return mean ± standard deviation."""
    values = [float(row[name]) for row in rows if row[name] is not None]
    if not values:
        return "-"
    text = f"{statistics.fmean(values):.{digits}f}"
    if len(values) > 1:
        text += f"±{statistics.stdev(values):.{digits}f}"
    return text
