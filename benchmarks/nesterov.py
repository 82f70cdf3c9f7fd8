"""SOX with and without Nesterov's momentum on CIFAR-10 (multi-task AUC): F on the training data after equal samples.

    python benchmarks/nesterov.py --data cifar10.npz --out results/nesterov      (a GPU; several processes side by side)

25,000 training images, torchvision's ResNet18, 2,000 steps of (B1, B2) = (5, 128), SGD, TF32. Prints a row per run and
appends it to runs.jsonl: the exact F in training mode's own batches would depend on their composition, so F is the mean of
f over the last 200 steps' blocks and, beside it, the exact F in evaluation mode.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path

import numpy as np
import torch
import torchvision

import fcco

IMAGES = 25_000
METHODS = {"sox": {}, "sox-nesterov": {"nesterov": True}}


def run(
    x: torch.Tensor, y: torch.Tensor, name: str, alpha: float, lr: float, seed: int, steps: int
) -> dict[str, object]:
    torch.manual_seed(seed)
    model = torchvision.models.resnet18(num_classes=10).to(x.device)
    objective = fcco.objectives.MultiTaskAUC(model, fcco.data.Tasks(x, y))
    optimizer = torch.optim.SGD(objective.parameters(), lr=lr)
    solver = fcco.Solver(objective, optimizer, fcco.sox(alpha=alpha, beta=0.1, **METHODS[name]), nonfinite="skip")
    loader = solver.loader(blocks=5, samples=128, seed=seed, steps_per_epoch=steps)
    started = time.perf_counter()
    tail = []
    for number, batch in enumerate(loader):
        report = solver.step(batch)
        if number >= steps - 200 and report.f is not None:
            tail.append(report.f.mean())
    objective.eval()
    value = solver.diagnose(gradient=False).value
    return {
        "method": name,
        "alpha": alpha,
        "lr": lr,
        "seed": seed,
        "steps": steps,
        "skipped": solver.skipped,
        "f_training": float(torch.stack(tail).mean()),
        "f_evaluation": value,
        "seconds": round(time.perf_counter() - started, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="cifar10.npz: x_train (N, 32, 32, 3) uint8, y_train (N,)")
    parser.add_argument("--out", type=Path, default=Path("results/nesterov"))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--alphas", type=float, nargs="+", default=[0.1, 0.03])
    parser.add_argument("--lrs", type=float, nargs="+", default=[0.01, 0.02, 0.04])
    parser.add_argument("--part", default="0/1", help="which runs: i/n takes every n-th from the i-th")
    options = parser.parse_args()
    place, parts = (int(number) for number in options.part.split("/"))
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    packed = np.load(options.data)
    images = torch.from_numpy(packed["x_train"][:IMAGES]).to(device)  # (N, 32, 32, 3)
    x = images.permute(0, 3, 1, 2).float().div_(255.0).sub_(0.5).mul_(4.0)
    y = torch.from_numpy(packed["y_train"][:IMAGES].astype("int64")).to(device)
    options.out.mkdir(parents=True, exist_ok=True)
    grid = itertools.product([0, 1], options.alphas, options.lrs, METHODS)
    for number, (seed, alpha, lr, name) in enumerate(grid):
        if number % parts == place:
            row = run(x, y, name, alpha, lr, seed, options.steps)
            with open(options.out / f"runs-{place}.jsonl", "a") as file:
                file.write(json.dumps(row) + "\n")
            print(row, flush=True)


if __name__ == "__main__":
    main()
