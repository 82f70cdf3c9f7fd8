"""CIFAR-10 with a rare class (500 of 23,000 images), ResNet18: pAUC, with a tracker and with the output memory, against
cross-entropy, on an accelerator.

    python benchmarks/cifar_rare.py --data cifar10.npz --classes 3 --workers 5

The data file holds x_train (N, 32, 32, 3) uint8, y_train, x_test, y_test. The first half of the test images chooses
learning rate and knobs (class ``--tune-on``: the whole grid on one seed, the best eight on a second, the best four of
those on two more, the best mean of the four is taken), the second half is reported. Adam with a cosine, bf16, random flips and
crops; every run sees the same number of images (32 + 224 a step). Every network is evaluated twice: with the batch-norm
statistics of its own training batches, and with those of 20 uniform batches (``torch.optim.swa_utils.update_bn``), since
draws by importance or by class are not the data; which of the two a method uses is chosen like its knobs. Runs are kept in
runs.jsonl, and those that are there are not run again. With ``--limit`` runs that would start later than so many seconds
are left out, and the table says how many seeds each line has.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np
import torch
from metrics import auroc, average_precision
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import update_bn

import fcco
from fcco import objectives as zoo
from fcco.lab.models import resnet18

RATES = (5e-4, 1e-3)
SHAPES = tuple({"margin": margin, "temperature": T} for margin in (1.0, 3.0, 5.0) for T in (1.0, 3.0, 10.0))
PLAIN = tuple({"decay": decay} for decay in (0.0, 1e-4, 5e-4))
MARGINS = tuple({"margin": margin} for margin in (1.0, 3.0))
KNOBS: dict[str, tuple[dict[str, float], ...]] = {
    "SOX PartialAUC": tuple(shape | {"beta": beta} for shape in SHAPES for beta in (0.3, 0.9)),
    "memory PartialAUC": tuple(shape | {"importance": p} for shape in SHAPES for p in (0.0, 0.5)),
    "cross-entropy balanced": PLAIN,
    "cross-entropy uniform": PLAIN,
    "SOX AveragePrecision": tuple(margin | {"beta": beta} for margin in MARGINS for beta in (0.3, 0.9)),
    "memory AveragePrecision": tuple(margin | {"importance": p} for margin in MARGINS for p in (0.0, 0.5)),
}
MORE_RATES = {"cross-entropy balanced": (2e-3,), "cross-entropy uniform": (2e-4,)}
RUNGS = ((100, 1000), (101, 8), (102, 4), (103, 4))  # tuning seeds, and how many configurations of a run go on to each
DEFAULT = tuple(name for name in KNOBS if not name.endswith("Precision"))
BATCHES = 20  # uniform ones, for the batch-norm statistics
Row = dict[str, Any]


class Network(nn.Module):
    """uint8 images (K, 3, 32, 32) -> scores (K,); flips and shifts in training, bf16 inside."""

    def __init__(self) -> None:
        super().__init__()
        self.net = resnet18(num_outputs=1, stem="small").to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        x = x.float().div(127.5).sub(1.0).contiguous(memory_format=torch.channels_last)
        if self.training:
            x = _augment(x)
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.net(x).float()[:, 0]


def _augment(x: Tensor) -> Tensor:
    """Every image flipped or not, and shifted by up to 4 pixels, on its own."""
    flip = torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5
    x = functional.pad(torch.where(flip, x.flip(3), x), (4, 4, 4, 4))
    top, left = torch.randint(9, (2, len(x), 1), device=x.device)
    span = torch.arange(32, device=x.device)
    image = torch.arange(len(x), device=x.device)[:, None, None]
    cut = x.permute(0, 2, 3, 1)[image, (top + span)[:, :, None], (left + span)[:, None, :]]
    return cut.permute(0, 3, 1, 2)


def load(path: str, positive: int, device: torch.device) -> dict[str, Tensor]:
    """500 images of the rare class and 22,500 others to train (fewer where the file holds fewer)."""
    with np.load(path, allow_pickle=False) as file:
        y, test_y = file["y_train"], file["y_test"]
        rows = np.concatenate([np.flatnonzero(y == positive)[:500], np.flatnonzero(y != positive)[:22500]])
        x = torch.from_numpy(file["x_train"][rows]).permute(0, 3, 1, 2).contiguous()
        test = torch.from_numpy(file["x_test"]).permute(0, 3, 1, 2).contiguous()
    arrays = {"x": x, "y": torch.from_numpy((y[rows] == positive).astype("int64")), "test_x": test}
    arrays["test_y"] = torch.from_numpy((test_y == positive).astype("int64"))
    return {name: value.to(device) for name, value in arrays.items()}


def train(kind: str, data: dict[str, Tensor], lr: float, knobs: dict[str, float], seed: int, epochs: int) -> nn.Module:
    torch.manual_seed(seed)
    x, y = data["x"], data["y"]
    model = Network().to(x.device)
    steps = epochs * (len(y) // 256)
    if kind.startswith("cross-entropy"):
        _train_plain(kind, model, x, y, lr, knobs["decay"], seed, steps)
    else:
        _train_ours(kind, model, x, y, lr, knobs, seed, steps)
    return model


def _train_plain(
    kind: str, model: nn.Module, x: Tensor, y: Tensor, lr: float, decay: float, seed: int, steps: int
) -> None:
    generator = torch.Generator(x.device).manual_seed(seed)
    pools = (y == 1).nonzero()[:, 0], (y == 0).nonzero()[:, 0]
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=decay)
    for step in range(steps):
        _cosine(optimizer, lr, step, steps)
        if kind.endswith("uniform"):
            rows = torch.randint(len(y), (256,), generator=generator, device=x.device)
        else:
            sizes = zip(pools, (32, 224), strict=True)
            rows = torch.cat([p[torch.randint(len(p), (n,), generator=generator, device=x.device)] for p, n in sizes])
        optimizer.zero_grad()
        functional.binary_cross_entropy_with_logits(model(x[rows]), y[rows].float()).backward()
        optimizer.step()


def _train_ours(
    kind: str, model: nn.Module, x: Tensor, y: Tensor, lr: float, knobs: dict[str, float], seed: int, steps: int
) -> None:
    precision = kind.endswith("AveragePrecision")
    average = fcco.Average.ALL if precision else fcco.Average.OPPOSITE
    loader = fcco.PointLoader(x, y, 32, 224, average=average, seed=seed, steps_per_epoch=steps)
    loss = zoo.SquaredHinge(margin=knobs["margin"])
    objective: zoo.OutputObjective = (
        zoo.AveragePrecision(model, loader.num_blocks, loss=loss)
        if precision
        else zoo.PartialAUC(model, loader.num_blocks, temperature=knobs["temperature"], loss=loss)
    )
    optimizer = torch.optim.Adam(objective.parameters(), lr=lr)
    memory = kind.startswith("memory")
    method = fcco.output_memory(importance=knobs["importance"]) if memory else fcco.soap(beta=knobs["beta"])
    solver = fcco.Solver(objective.to(x.device), optimizer, method)
    batches = fcco.memory.MemoryLoader(solver, loader, seed=seed) if memory else loader
    for step, (index, batch) in enumerate(batches):
        _cosine(optimizer, lr, step, steps)
        solver.step(index, batch)


def _cosine(optimizer: torch.optim.Optimizer, lr: float, step: int, steps: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr * 0.5 * (1 + float(np.cos(np.pi * step / steps)))


def evaluate(model: nn.Module, data: dict[str, Tensor], seed: int) -> dict[str, float]:
    """Metrics with the network's own batch-norm statistics, and (``uniform_...``) with those of uniform batches."""
    found = _metrics(model, data)
    generator = torch.Generator(data["x"].device).manual_seed(seed)
    rows = torch.randint(len(data["x"]), (BATCHES, 256), generator=generator, device=data["x"].device)
    update_bn((data["x"][batch] for batch in rows), model)
    return found | {f"uniform_{name}": value for name, value in _metrics(model, data).items()}


@torch.no_grad()
def _metrics(model: nn.Module, data: dict[str, Tensor]) -> dict[str, float]:
    model.eval()
    scores = torch.cat([model(part) for part in data["test_x"].split(2000)]).cpu()
    trained = torch.cat([model(part) for part in data["x"].split(2000)]).cpu()
    y, half = data["test_y"].cpu(), len(scores) // 2
    return {
        "train_ap": average_precision(trained, data["y"].cpu()),
        "valid_auroc": auroc(scores[:half], y[:half]),
        "valid_ap": average_precision(scores[:half], y[:half]),
        "auroc": auroc(scores[half:], y[half:]),
        "ap": average_precision(scores[half:], y[half:]),
    }


Job = tuple[int, str, float, dict[str, float], int]  # class, run, learning rate, knobs, seed


def worker(path: str, device: str, epochs: int, end: float, jobs: Any, results: Any) -> None:
    torch.set_num_threads(1)
    loaded: dict[int, dict[str, Tensor]] = {}
    while (job := jobs.get()) is not None:
        positive, kind, lr, knobs, seed = job
        row: Row = {"class": positive, "run": kind, "lr": lr, "knobs": knobs, "seed": seed}
        if time.time() > end:
            results.put(row | {"left_out": True})
            continue
        if positive not in loaded:
            loaded[positive] = load(path, positive, torch.device(device))
        start = time.perf_counter()
        try:
            row |= evaluate(train(kind, loaded[positive], lr, knobs, seed, epochs), loaded[positive], seed)
        except Exception as error:
            row |= {"error": repr(error)}
        results.put(row | {"seconds": round(time.perf_counter() - start, 1)})


def _key(row: Row) -> str:
    return json.dumps([row["class"], row["run"], row["lr"], row["knobs"], row["seed"]])


class Pool:
    """A few processes that share the accelerator, and what they found."""

    def __init__(self, options: argparse.Namespace) -> None:
        context = get_context("spawn")
        self.jobs, self.results = context.Queue(), context.Queue()
        end = time.time() + options.limit
        arguments = (options.data, options.device, options.epochs, end, self.jobs, self.results)
        self.workers = [context.Process(target=worker, args=arguments, daemon=True) for _ in range(options.workers)]
        for process in self.workers:
            process.start()
        self._file = options.out / "runs.jsonl"
        rows = [json.loads(line) for line in self._file.read_text().splitlines()] if self._file.exists() else []
        self.known = {_key(row): row for row in rows}

    def map(self, jobs: list[Job]) -> list[Row]:
        """The rows of the runs that were done and did not fail."""
        names = ("class", "run", "lr", "knobs", "seed")
        keys = {_key(dict(zip(names, job, strict=True))): job for job in jobs}
        missing = [job for key, job in keys.items() if key not in self.known]
        for job in missing:
            self.jobs.put(job)
        done = 0
        with open(self._file, "a") as log:
            while done < len(missing):
                try:
                    row = self.results.get(timeout=30)
                except Empty:
                    if not any(process.is_alive() for process in self.workers):
                        raise RuntimeError("all workers died") from None
                    continue
                done += 1
                if "left_out" not in row:
                    self.known[_key(row)] = row
                    log.write(json.dumps(row) + "\n")
                    log.flush()
        return [self.known[key] for key in keys if "ap" in self.known.get(key, {})]

    def close(self) -> None:
        for _ in self.workers:
            self.jobs.put(None)
        for process in self.workers:
            process.join()


Choice = tuple[str, float, dict[str, float]]  # run, learning rate, knobs


def tuned(pool: Pool, runs: Sequence[str], positive: int) -> dict[str, tuple[Choice, str]]:
    """Of every run the best learning rate and knobs, and which batch-norm statistics ("" or "uniform_")."""
    grids: dict[str, list[Choice]] = {
        run: [(run, lr, knobs) for lr in (*RATES, *MORE_RATES.get(run, ())) for knobs in KNOBS[run]] for run in runs
    }
    value: dict[str, dict[str, float]] = {}
    for number, (seed, most) in enumerate(RUNGS):
        grids = {run: grid[:most] for run, grid in grids.items()}
        pool.map([(positive, *choice, seed) for grid in grids.values() for choice in grid])
        seeds = [seed for seed, _ in RUNGS[: number + 1]]
        for grid in grids.values():
            for choice in grid:
                rows = pool.map([(positive, *choice, seed) for seed in seeds])
                value[json.dumps(choice)] = {
                    which: statistics.mean(row[f"{which}valid_ap"] for row in rows) if len(rows) == len(seeds) else 0.0
                    for which in ("", "uniform_")
                }
            grid.sort(key=lambda choice: -max(value[json.dumps(choice)].values()))
    best = {run: grid[0] for run, grid in grids.items()}
    return {
        run: (choice, max(found := value[json.dumps(choice)], key=found.__getitem__)) for run, choice in best.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--classes", type=int, nargs="*", default=[3])
    parser.add_argument("--more", type=int, nargs="*", default=[], help="classes that get --more-seeds seeds only")
    parser.add_argument("--more-seeds", type=int, default=2)
    parser.add_argument("--runs", nargs="*", choices=KNOBS, default=DEFAULT)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit", type=float, default=float("inf"))
    parser.add_argument(
        "--tune-on", type=int, default=3, help="the class on which the knobs are chosen, for all classes"
    )
    parser.add_argument("--out", type=Path, default=Path("results/cifar_rare"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    start, pool = time.perf_counter(), Pool(options)
    best = tuned(pool, options.runs, options.tune_on)
    cases = [(c, seed) for c in options.classes for seed in range(options.seeds)]
    cases += [(c, seed) for seed in range(options.more_seeds) for c in options.more]
    tested = pool.map([(c, *choice, seed) for c, seed in cases for choice, _ in best.values()])
    pool.close()
    text = table(tested, [*options.classes, *options.more], best)
    (options.out / "table.md").write_text(text + "\n")
    minutes = round((time.perf_counter() - start) / 60, 1)
    device = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    facts = {"torch": torch.__version__, "fcco": fcco.__version__, "device": device, "epochs": options.epochs,
             "rates": RATES, "more_rates": MORE_RATES, "rungs": RUNGS, "knobs": {run: KNOBS[run] for run in options.runs},
             "chosen": best, "minutes of the last call": minutes}  # fmt: skip
    (options.out / "configuration.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(text)
    print(f"{minutes} minutes")


def table(rows: list[Row], classes: list[int], best: dict[str, tuple[Choice, str]]) -> str:
    lines = ["| class | run | lr, knobs | statistics | seeds | train AP | test AUROC | test AP |", "|---" * 8 + "|"]
    means: dict[str, list[float]] = {run: [] for run in best}
    for c in classes:
        for run, ((_, lr, choice), which) in best.items():
            own = [r for r in rows if r["class"] == c and r["run"] == run]
            if not own:
                continue
            columns = {metric: [r[which + metric] for r in own] for metric in ("train_ap", "auroc", "ap")}
            cells = [
                f"{statistics.mean(values):.4f} ± {statistics.stdev(values) if len(values) > 1 else 0:.4f}"
                for values in columns.values()
            ]
            means[run].append(statistics.mean(columns["ap"]))
            knobs = ", ".join(f"{name} {value:g}" for name, value in choice.items())
            about = f"{lr:g}, {knobs} | {'uniform' if which else 'own'}"
            lines.append(f"| {c} | {run} | {about} | {len(own)} | {' | '.join(cells)} |")
    if len(classes) > 1:
        lines += [f"| mean | {run} | | | | | | {statistics.mean(aps):.4f} |" for run, aps in means.items() if aps]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
