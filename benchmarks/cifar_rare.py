"""CIFAR-10 with a rare class (500 of 23,000 images), ResNet18: pAUC and AP against cross-entropy, on an accelerator.

    python benchmarks/cifar_rare.py --data cifar10.npz --classes 3 --workers 4

The data file holds x_train (N, 32, 32, 3) uint8, y_train, x_test, y_test. The first half of the test images chooses
learning rate and knob (one seed), the second half is reported (five seeds). Adam, bf16, random flips and shifts; every
run sees the same number of images (32 + 224 a step).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from multiprocessing import get_context
from pathlib import Path
from queue import Empty

import numpy as np
import torch
from metrics import auroc, average_precision
from torch import Tensor, nn
from torch.nn import functional

import fcco
from fcco import objectives as zoo
from fcco.lab.models import resnet18

RATES = (3e-4, 1e-3, 3e-3)
KNOBS = {
    "PartialAUC": (0.3, 1.0),  # temperature
    "AveragePrecision": (0.5, 1.0),  # margin
    "cross-entropy uniform": (0.0, 5e-4),  # weight decay
    "cross-entropy balanced": (0.0, 5e-4),
    "memory PartialAUC": (0.3, 1.0),
    "memory AveragePrecision": (0.5, 1.0),
}


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


def train(kind: str, data: dict[str, Tensor], lr: float, knob: float, seed: int, epochs: int) -> nn.Module:
    torch.manual_seed(seed)
    x, y = data["x"], data["y"]
    model = Network().to(x.device)
    steps = epochs * (len(y) // 256)
    if kind.startswith("cross-entropy"):
        _train_plain(kind, model, x, y, lr, knob, seed, steps)
    else:
        _train_ours(kind, model, x, y, lr, knob, seed, steps)
    return model.eval()


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
    kind: str, model: nn.Module, x: Tensor, y: Tensor, lr: float, knob: float, seed: int, steps: int
) -> None:
    precision = kind.endswith("AveragePrecision")
    average = fcco.Average.ALL if precision else fcco.Average.OPPOSITE
    loader = fcco.PointLoader(x, y, 32, 224, average=average, seed=seed, steps_per_epoch=steps)
    if precision:
        objective = zoo.AveragePrecision(model, loader.num_blocks, loss=zoo.SquaredHinge(margin=knob))
    else:
        objective = zoo.PartialAUC(model, loader.num_blocks, temperature=knob)
    optimizer = torch.optim.Adam(objective.parameters(), lr=lr)
    memory = kind.startswith("memory")
    method = fcco.output_memory() if memory else fcco.soap(beta=0.3)
    solver = fcco.Solver(objective.to(x.device), optimizer, method)
    batches = fcco.memory.MemoryLoader(solver, loader, seed=seed) if memory else loader
    for step, (index, batch) in enumerate(batches):
        _cosine(optimizer, lr, step, steps)
        solver.step(index, batch)


def _cosine(optimizer: torch.optim.Optimizer, lr: float, step: int, steps: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr * 0.5 * (1 + float(np.cos(np.pi * step / steps)))


@torch.no_grad()
def evaluate(model: nn.Module, data: dict[str, Tensor]) -> dict[str, float]:
    scores = torch.cat([model(part) for part in data["test_x"].split(2000)]).cpu()
    y, half = data["test_y"].cpu(), len(scores) // 2
    return {
        "valid_auroc": auroc(scores[:half], y[:half]),
        "valid_ap": average_precision(scores[:half], y[:half]),
        "auroc": auroc(scores[half:], y[half:]),
        "ap": average_precision(scores[half:], y[half:]),
    }


def worker(path: str, device: str, epochs: int, jobs, results) -> None:  # type: ignore[no-untyped-def]
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
    loaded: dict[int, dict[str, Tensor]] = {}
    while (job := jobs.get()) is not None:
        positive, kind, lr, knob, seed = job
        if positive not in loaded:
            loaded.clear()
            loaded[positive] = load(path, positive, torch.device(device))
        start = time.perf_counter()
        row = {"class": positive, "run": kind, "lr": lr, "knob": knob, "seed": seed}
        try:
            row |= evaluate(train(kind, loaded[positive], lr, knob, seed, epochs), loaded[positive])
        except Exception as error:
            row |= {
                "error": repr(error),
                "valid_ap": -1.0,
                "valid_auroc": -1.0,
                "ap": float("nan"),
                "auroc": float("nan"),
            }
        results.put(row | {"seconds": round(time.perf_counter() - start, 1)})


class Pool:
    """A few processes that share the accelerator."""

    def __init__(self, options: argparse.Namespace) -> None:
        context = get_context("spawn")
        self.jobs, self.results = context.Queue(), context.Queue()
        arguments = (options.data, options.device, options.epochs, self.jobs, self.results)
        self.workers = [context.Process(target=worker, args=arguments) for _ in range(options.workers)]
        for process in self.workers:
            process.start()

    def map(self, jobs: list[tuple[int, str, float, float, int]], log) -> list[dict[str, float]]:  # type: ignore[no-untyped-def]
        for job in jobs:
            self.jobs.put(job)
        rows = []
        while len(rows) < len(jobs):
            try:
                rows.append(self.results.get(timeout=30))
            except Empty:
                if not any(process.is_alive() for process in self.workers):
                    raise RuntimeError("all workers died") from None
                continue
            log.write(json.dumps(rows[-1]) + "\n")
            log.flush()
        return rows

    def close(self) -> None:
        for _ in self.workers:
            self.jobs.put(None)
        for process in self.workers:
            process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--classes", type=int, nargs="*", default=[3])
    parser.add_argument("--runs", nargs="*", default=[name for name in KNOBS if not name.startswith("memory")])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--tune-on", type=int, default=3, help="the class on which lr and knob are chosen, for all classes"
    )
    parser.add_argument("--out", type=Path, default=Path("results/cifar_rare"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    start, pool = time.perf_counter(), Pool(options)
    with open(options.out / "runs.jsonl", "a") as log:
        tuned = pool.map(
            [(options.tune_on, run, lr, knob, 100) for run in options.runs for lr in RATES for knob in KNOBS[run]], log
        )
        best = {run: max((r for r in tuned if r["run"] == run), key=lambda r: r["valid_ap"]) for run in options.runs}
        jobs = [
            (c, run, best[run]["lr"], best[run]["knob"], seed)
            for c in options.classes
            for run in options.runs
            for seed in range(options.seeds)
        ]
        tested = pool.map(jobs, log)
    pool.close()
    text = table(tested, options)
    (options.out / "table.md").write_text(text + "\n")
    minutes = round((time.perf_counter() - start) / 60, 1)
    device = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    facts = {
        "torch": torch.__version__,
        "fcco": fcco.__version__,
        "device": device,
        "epochs": options.epochs,
        "minutes": minutes,
    }
    (options.out / "configuration.json").write_text(json.dumps(facts, indent=1))
    print(text)
    print(f"{minutes} minutes")


def table(rows: list[dict[str, float]], options: argparse.Namespace) -> str:
    lines = ["| class | run | lr, knob | test AUROC | test AP |", "|---|---|---|---|---|"]
    for c in options.classes:
        for run in options.runs:
            own = [r for r in rows if r["class"] == c and r["run"] == run]
            cells = []
            for metric in ("auroc", "ap"):
                values = [r[metric] for r in own]
                cells.append(
                    f"{statistics.mean(values):.4f} ± {statistics.stdev(values) if len(values) > 1 else 0:.4f}"
                )
            lines.append(f"| {c} | {run} | {own[0]['lr']:g}, {own[0]['knob']:g} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
