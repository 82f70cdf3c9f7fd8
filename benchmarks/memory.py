"""The output memory against the trackers, at equal samples: training objective after tuning.

    python benchmarks/memory.py                          # everything: hours on one core
    python benchmarks/memory.py --jobs 16                # the same on 16
    python benchmarks/memory.py --setting pauc-0.1 --method memory sox --quick

Each method's rates and learning rate are tuned on seeds of their own: the whole grid on one seed (longer where the best
learning rate is at an end of it), the best four of it on two more (two where only the learning rate is tuned), the best
mean of the three is taken; it then runs on the reported seeds. The memory has one setting everywhere, its defaults. It
starts with an empty table, so no scoring pass is charged. Parts add up: results are kept in results/memory/*.json, and a
run that is there already is not run again.

    python benchmarks/memory.py --ablate --jobs 2        # the memory without each of its parts, 3 seeds

Data: fashion-mnist.npz in the folder that FCCO_DATA names.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import fcco
from fcco.data import Examples, Points
from fcco.memory import MemoryLoader, OutputTable
from fcco.memory.forms import Evaluation, form_of
from fcco.methods import OutputMemory
from fcco.objectives import (
    AveragePrecision,
    GlobalContrastive,
    MultiTaskAUC,
    OutputObjective,
    PartialAUC,
    PNormPush,
    SquaredHinge,
)

RESULTS = Path(__file__).resolve().parent.parent / "results" / "memory"
POSITIVES, EXAMPLES, CLASS = 1200, 20000, 6
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
TUNING_SEEDS = (100, 101, 102)
FINALISTS = 4, 2  # configurations that go on to the later tuning seeds; and where only the learning rate is tuned

Sizes = tuple[int, int]  # blocks, samples


@dataclass(frozen=True)
class Setting:
    """A problem: what is minimised, for how many steps, and what counts as zero."""

    make: Callable[[nn.Module, Points], OutputObjective]
    steps: int
    blocks: int
    samples: int
    least: float = 0.0  # subtracted from the value: the distance to the best possible
    scent: bool = True
    examples: int = EXAMPLES

    @property
    def drawn(self) -> int:
        """Examples per step."""
        return self.blocks + self.samples

    def sizes(self, method: str) -> Sizes:
        """Blocks and samples per step."""
        return self.blocks, self.samples

    def build(self, device: str) -> OutputObjective:
        """The objective over a new network."""
        x, y = data(device)
        model = nn.Sequential(nn.Linear(x.shape[1], 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
        return self.make(model, Points(x, y)).to(device)

    def inputs(self, device: str) -> Tensor | tuple[Tensor, ...]:
        """What the network is evaluated on at the end: all of it."""
        return data(device)[0]


@dataclass(frozen=True)
class Tasks:
    """The paper's objective: an AUC for each of the ten classes; a tracker draws so many tasks, and so many for each."""

    tasks: int
    samples: int
    steps: int = 2000
    least: float = 0.0
    scent: bool = False
    examples: int = EXAMPLES

    @property
    def drawn(self) -> int:
        return self.tasks * self.samples

    def sizes(self, method: str) -> Sizes:
        if method == "memory":  # which draws blocks + samples of all examples
            return self.tasks, self.drawn - self.tasks
        return self.tasks, self.samples

    def build(self, device: str) -> OutputObjective:
        x, y = classes(device)
        model = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
        return MultiTaskAUC(model, fcco.data.Tasks(x, y)).to(device)

    def inputs(self, device: str) -> Tensor | tuple[Tensor, ...]:
        return classes(device)[0]


@dataclass(frozen=True)
class Views:
    """Two fixed views of each of 4,000 images, each image against all others."""

    drawn: int = 64
    steps: int = 1000
    least: float = -1.0
    scent: bool = True
    examples: int = 4000

    def sizes(self, method: str) -> Sizes:
        return self.drawn, 0

    def build(self, device: str) -> OutputObjective:
        x = views(device)
        model = nn.Sequential(nn.Linear(x[0].shape[1], 128), nn.ReLU(), nn.Linear(128, 32)).to(device)
        return GlobalContrastive(model, Examples(x), temperature=0.1).to(device)

    def inputs(self, device: str) -> Tensor | tuple[Tensor, ...]:
        return views(device)


def _pauc(temperature: float, positive: float | None = None) -> Callable[[nn.Module, Points], OutputObjective]:
    return lambda model, points: PartialAUC(model, points, temperature=temperature, positive_temperature=positive)


SETTINGS: dict[str, Setting | Tasks | Views] = {
    "pauc-1.0": Setting(_pauc(1.0), 2000, 16, 64),
    "pauc-0.3": Setting(_pauc(0.3), 6000, 16, 64),
    "pauc-0.1": Setting(_pauc(0.1), 2000, 16, 64),
    "pauc-0.3-small": Setting(_pauc(0.3), 4000, 4, 16),
    "ap": Setting(AveragePrecision, 2000, 16, 64, least=-1.0, scent=False),
    "ap-small": Setting(AveragePrecision, 4000, 4, 16, least=-1.0, scent=False),
    "two-way": Setting(_pauc(0.3, 1.0), 2000, 16, 64),
    "push": Setting(  # its blocks are the negatives
        lambda model, points: PNormPush(model, points, p=4.0, loss=SquaredHinge()), 2000, 64, 16, scent=False
    ),
    "tasks": Tasks(4, 20),
    "tasks-all": Tasks(10, 8),
    "contrastive": Views(),
}


def _grid(method: str) -> list[dict[str, float]]:
    """The rates tried beside the learning rate."""
    if method == "sox":
        return [{"alpha": alpha, "beta": beta} for alpha in (1.0, 0.1) for beta in (0.03, 0.1, 0.3, 0.9)]
    if method in ("msvr-v1", "msvr-v2"):
        alphas = (1.0, 0.1) if method == "msvr-v1" else (0.1, 0.5)
        return [{"alpha": a, "beta": b, "gamma": c} for a in alphas for b in (0.1, 0.5) for c in (0.1, 1.0)]
    if method == "scent":
        return [{"step": step} for step in (0.01, 0.1, 1.0, 10.0)]
    return [{}]


METHODS: dict[str, Callable[..., fcco.Method]] = {
    "memory": fcco.output_memory,  # the defaults
    "bsgd": fcco.bsgd,
    "sox": fcco.sox,
    "scent": fcco.scent,
    "msvr-v1": fcco.msvr_v1,
    "msvr-v2": fcco.msvr_v2,
}


@dataclass(frozen=True)
class Run:
    """One training run, and what it came to."""

    setting: str
    method: str
    lr: float
    seed: int
    rates: dict[str, Any] = field(default_factory=dict)
    scored: bool = False

    @property
    def key(self) -> str:
        rates = ",".join(f"{name}={value}" for name, value in sorted(self.rates.items()))
        return f"{self.setting}|{self.method}|{rates}|lr={self.lr}|seed={self.seed}" + (
            "|scored" if self.scored else ""
        )


Choice = tuple[dict[str, Any], float]  # rates, learning rate


@cache
def images(device: str) -> tuple[Tensor, Tensor]:
    """All training images (60,000, 784) in [0, 1], shuffled once, and their classes."""
    with np.load(Path(os.environ["FCCO_DATA"]) / "fashion-mnist.npz") as file:
        names = {name.lower(): name for name in file.files}
        x, y = (file[names[name]] for name in ("x_train", "y_train"))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).numpy()
    pixels = torch.from_numpy(x[order].reshape(len(y), -1).astype("float32") / 255.0)
    return pixels.to(device), torch.from_numpy(y[order].reshape(-1).astype("int64")).to(device)


def scaled(pixels: Tensor) -> Tensor:
    return (pixels - pixels.mean(0)) / pixels.std(0).clamp(min=0.1)


@cache
def data(device: str) -> tuple[Tensor, Tensor]:
    """x (20,000, 784) and labels: 1,200 of class 6 against 18,800 others."""
    x, y = images(device)
    rare, others = (y == CLASS).nonzero()[:POSITIVES, 0], (y != CLASS).nonzero()[: EXAMPLES - POSITIVES, 0]
    chosen = torch.cat([rare, others])
    return scaled(x[chosen]), (y[chosen] == CLASS).long()


@cache
def classes(device: str) -> tuple[Tensor, Tensor]:
    """x (20,000, 784) and their ten classes."""
    x, y = images(device)
    return scaled(x[:EXAMPLES]), y[:EXAMPLES]


@cache
def views(device: str) -> tuple[Tensor, Tensor]:
    """4,000 images twice, each time moved by up to 3 pixels, mirrored or not, with noise."""
    generator, found = torch.Generator().manual_seed(1), []
    x = images(device)[0][: Views.examples].cpu().reshape(-1, 28, 28)
    for _ in range(2):
        moved = functional.pad(x, (3, 3, 3, 3))
        top, left = torch.randint(7, (2, len(x)), generator=generator).tolist()
        cut = torch.stack([m[i : i + 28, j : j + 28] for m, i, j in zip(moved, top, left, strict=True)])
        mirrored = torch.rand(len(x), 1, 1, generator=generator) < 0.5
        noise = 0.1 * torch.randn(x.shape, generator=generator)
        found.append((torch.where(mirrored, cut.flip(2), cut) + noise).flatten(1).to(device))
    return found[0], found[1]


def train(run: Run, device: str) -> dict[str, Any]:
    """Train, and evaluate the objective exactly at the last iterate."""
    setting = SETTINGS[run.setting]
    charged = math.ceil(setting.examples / setting.drawn) if run.scored else 0
    torch.manual_seed(run.seed)
    objective = setting.build(device)
    optimizer = torch.optim.Adam(objective.parameters(), lr=run.lr)
    solver = fcco.Solver(objective, optimizer, METHODS[run.method](**run.rates), nonfinite="skip")
    loader = solver.loader(*setting.sizes(run.method), seed=run.seed, steps_per_epoch=setting.steps - charged)
    if run.scored:
        assert isinstance(loader, MemoryLoader)
        loader.score()
    start = time.perf_counter()
    for batch in loader:
        solver.step(batch)
    seconds = time.perf_counter() - start
    return {**asdict(run), "value": exact(objective, setting.inputs(device)) - setting.least, "seconds": seconds,
            "samples": solver.samples, "skipped": solver.skipped}  # fmt: skip


@torch.no_grad()
def exact(objective: OutputObjective, x: Tensor | tuple[Tensor, ...]) -> float:
    """F at the weights, from the outputs of all examples (two-way: at the best threshold)."""
    if isinstance(x, tuple):
        s = objective.outputs(x).double()
    else:
        s = torch.cat([objective.outputs(part) for part in x.split(4096)]).double()
    s = s.squeeze(1) if s.shape[1] == 1 else s
    if not bool(torch.isfinite(s).all()):
        return math.inf
    found = evaluated(objective, s)
    if isinstance(objective, PartialAUC) and objective.positive_temperature is not None:
        f, tau = objective.temperature * found.rows[0].squeeze(1), objective.positive_temperature
        return float(tau * ((f / tau).logsumexp(0) - math.log(f.shape[0])))
    return float(found.f.mean())


def evaluated(objective: OutputObjective, s: Tensor) -> Evaluation:
    """F and its derivatives at the outputs (N, ...) of all examples."""
    table = OutputTable.empty(s.shape[0], tuple(s.shape[1:]), like=s)
    table.write(torch.arange(s.shape[0], device=s.device), s, 0)
    table.recount()
    form = form_of(objective, table)
    return form.evaluate_all(form.start_rows())


# ---------------------------------------------------------------------- many runs, kept as they come


def _work(job: tuple[Run, str]) -> dict[str, Any]:
    torch.set_num_threads(1)
    try:
        found = train(*job)
    except Exception as error:
        found = {**asdict(job[0]), "value": math.inf, "error": f"{type(error).__name__}: {error}"[:300]}
    return {"key": job[0].key, **found}


class Store:
    """Results by key, in one JSON file per setting."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.known = folder, dict[str, dict[str, Any]]()
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.glob("runs-*.json"):
            self.known |= json.loads(file.read_text())

    def run(self, runs: list[Run], device: str, jobs: int) -> None:
        """Do the runs that are not there yet."""
        missing = {run.key: run for run in runs if run.key not in self.known}
        work = [(run, device) for run in missing.values()]
        for done, result in enumerate(_map(work, jobs), 1):
            key = result["key"]
            self.known[key] = {name: _plain(value) for name, value in result.items()}
            if result.get("error"):
                print("failed:", key, result["error"], flush=True)
            if done % 5 == 0:  # a stop loses little
                self.save()
        if work:
            self.save()

    def save(self) -> None:
        for setting in SETTINGS:
            mine = {key: result for key, result in sorted(self.known.items()) if result["setting"] == setting}
            if mine:
                (self.folder / f"runs-{setting}.json").write_text(json.dumps(mine, indent=1) + "\n")

    def values(self, setting: str, method: str, rates: dict[str, Any], lr: float, seeds: Sequence[int]) -> list[float]:
        found = (self.known[Run(setting, method, lr, seed, rates).key]["value"] for seed in seeds)
        return [math.inf if value is None or not math.isfinite(value) else value for value in found]


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _map(work: list[tuple[Run, str]], jobs: int) -> Iterator[dict[str, Any]]:
    if jobs == 1 or len(work) < 2:
        yield from map(_work, work)
        return
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(work))) as pool:
        yield from pool.imap_unordered(_work, work, chunksize=1)


def compare(store: Store, settings: list[str], methods: list[str], args: argparse.Namespace) -> None:
    """Tune, run the best on the reported seeds, write the table."""
    first, *later = TUNING_SEEDS[:1] if args.quick else TUNING_SEEDS
    lrs = RATES[1:4] if args.quick else RATES
    pairs = [(s, m) for s in settings for m in methods if m != "scent" or SETTINGS[s].scent]
    tried: dict[tuple[str, str], list[Choice]] = {
        (s, m): [(rates, lr) for rates in _grid(m)[:: 3 if args.quick else 1] for lr in lrs] for s, m in pairs
    }

    def run(seeds: Sequence[int]) -> None:
        runs = [Run(*pair, lr, seed, rates) for pair in pairs for rates, lr in tried[pair] for seed in seeds]
        store.run(sorted(runs, key=lambda run: -SETTINGS[run.setting].steps), args.device, args.jobs)

    def best(number: int | None, seeds: Sequence[int]) -> None:
        for (s, m), choices in tried.items():
            value = {id(choice): np.mean(store.values(s, m, *choice, seeds)) for choice in choices}
            choices.sort(key=lambda choice: float(value[id(choice)]))
            del choices[number or FINALISTS[len(_grid(m)) == 1] :]

    run([first])
    for _ in range(
        0 if args.quick else 2
    ):  # where the best are at an end of the learning rates, the grid goes on there
        for (s, m), choices in tried.items():
            value = {id(choice): np.mean(store.values(s, m, *choice, [first])) for choice in choices}
            low, high = min(lr for _, lr in choices), max(lr for _, lr in choices)
            for rates, lr in sorted(choices, key=lambda choice: float(value[id(choice)]))[: FINALISTS[1]]:
                choices += [(rates, round(lr * factor, 9)) for end, factor in ((low, 1 / 3), (high, 3)) if lr == end]
        run([first])
    best(None if later else 1, [first])
    if later:
        run(later)
        best(1, [first, *later])
    seeds = range(args.first_seed, args.first_seed + (2 if args.quick else args.seeds))
    run(seeds)
    chosen = {pair: choices[0] for pair, choices in tried.items()}
    if not args.quick and len(methods) == len(METHODS) and args.first_seed == 0:
        _write(store, settings, methods, chosen, seeds, args)
    for line in table(store, settings, methods, chosen, seeds):
        print(line)


def table(
    store: Store,
    settings: list[str],
    methods: list[str],
    best: dict[tuple[str, str], Choice],
    seeds: Sequence[int],
) -> list[str]:
    """Rows of Markdown: mean and standard deviation, and the memory over the best of the others."""
    lines = ["| setting | " + " | ".join(methods) + " | memory / best other |", "|---" * (len(methods) + 2) + "|"]
    for s in settings:
        found = {m: store.values(s, m, *best[s, m], seeds) for m in methods if (s, m) in best}
        cells = [f"{np.mean(found[m]):.5f} ± {np.std(found[m]):.5f}" if m in found else "-" for m in methods]
        others = [float(np.mean(values)) for m, values in found.items() if m != "memory"]
        ratio = f"{np.mean(found['memory']) / min(others):.3f}" if others and "memory" in found else "-"
        lines.append(f"| {s} | " + " | ".join(cells) + f" | {ratio} |")
    return lines


def _write(
    store: Store,
    settings: list[str],
    methods: list[str],
    best: dict[tuple[str, str], Choice],
    seeds: Sequence[int],
    args: argparse.Namespace,
) -> None:
    chosen = {f"{s}|{m}": {"rates": rates, "lr": lr} for (s, m), (rates, lr) in best.items()}
    about = {
        "torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine(),
        "device": args.device, "tuning_seeds": TUNING_SEEDS, "seeds": list(seeds), "finalists": FINALISTS, "learning_rates": RATES,
        "grids": {m: _grid(m) for m in methods}, "memory": asdict(OutputMemory()), "chosen": chosen,
        "optimizer": "Adam, constant learning rate",
        "model": "784-32-1, ReLU; tasks: 784-64-10; contrastive: 784-128-32", "data": f"Fashion-MNIST, class {CLASS}: "
        f"{POSITIVES} of {EXAMPLES}; tasks: {EXAMPLES}, all classes; contrastive: two views of {Views.examples}", "steps": {s: SETTINGS[s].steps for s in settings},
    }  # fmt: skip
    (store.folder / "configuration.json").write_text(json.dumps(about, indent=1) + "\n")
    (store.folder / "table.md").write_text("\n".join(table(store, settings, methods, best, seeds)) + "\n")


ABLATIONS: dict[str, tuple[dict[str, Any], bool]] = {  # settings, and whether a scoring pass comes first (charged)
    "default": ({}, False),
    "scoring pass first": ({}, True),
    **{f"refresh every {steps}": ({"refresh": steps}, False) for steps in (5, 20, 80)},
    **{f"p = {p}": ({"importance": p}, False) for p in (0.0, 0.2, 0.8)},
    **{f"cap {cap}": ({"cap": cap}, False) for cap in (2.0, 6.0, None)},
    **{f"renewal {renewal}": ({"renewal": renewal}, False) for renewal in (0.05, 1.0)},
    "no balance": ({"balance": False}, False),
}


def ablate(store: Store, settings: list[str], args: argparse.Namespace) -> None:
    """The memory with one thing changed, at the learning rates around the one that suits the default."""
    rates = {s: (3e-4,) if s in ("pauc-0.1", "pauc-0.3-small") else (1e-3,) for s in settings}
    seeds = range(3)
    runs = [
        Run(s, "memory", lr, seed, changed, scored)
        for s in settings for lr in rates[s] for changed, scored in ABLATIONS.values() for seed in seeds
    ]  # fmt: skip
    store.run(runs, args.device, args.jobs)
    lines = ["| memory | " + " | ".join(f"{s}, lr {rates[s][0]:g}" for s in settings) + " |"]
    lines.append("|---" * (len(settings) + 1) + "|")
    for name, (changed, scored) in ABLATIONS.items():
        cells = []
        for s in settings:
            values = [store.known[Run(s, "memory", rates[s][0], seed, changed, scored).key]["value"] for seed in seeds]
            finite = [math.inf if value is None else value for value in values]
            cells.append(f"{np.mean(finite):.4f} ± {np.std(finite):.4f}" if None not in values else "diverged")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    (store.folder / "ablation.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--method", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--first-seed", type=int, default=0, help="report others than 0, 1, ...; nothing but runs is written"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="two learning rates, a third of the rates, two seeds")
    parser.add_argument("--ablate", action="store_true", help="the memory alone, with one thing changed at a time")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.ablate:
        ablate(Store(args.results), args.setting, args)
        return
    compare(Store(args.results / "quick" if args.quick else args.results), args.setting, args.method, args)


if __name__ == "__main__":
    main()
