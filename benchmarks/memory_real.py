"""The output memory on real tables, molecules and rankings: test metric after tuning on a validation split.

    python benchmarks/learns.py --prepare data.npz        # reads the tables once
    python benchmarks/memory_real.py --data data.npz      # an hour on one core, writes results/memory/real*

Memory (its defaults), SOX (beta 0.3) and a plain loss see the same number of examples. Each gets the same grid, three
learning rates times three weight decays, chosen by the validation metric with one seed; then five seeds with the
chosen pair. Twelve times a run the validation metric is taken: "last" is the test metric at the end, "best" the one
where validation was best (early stopping). The training metric shows who fits and who overfits. Adam for all. Runs that
are in results/memory/real-runs.jsonl are not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from kept import Kept, Row, arrays
from learns import Arrays, balanced, batch_cox, masked_bce, mlp, predict, uniform
from metrics import average_precision, concordance, macro, ndcg, partial_auroc
from torch import Tensor, nn
from torch.nn import functional

import fcco
from fcco import objectives as zoo

RATES, DECAYS, LOOKS = (3e-4, 1e-3, 3e-3), (0.0, 1e-4, 1e-3), 12
METHODS = ("memory", "SOX", "plain")
PARTS = ("train", "valid", "test")


@dataclass(frozen=True)
class Task:
    """A model with what may train it, and its metric on each part of the data."""

    model: nn.Module
    objective: zoo.OutputObjective
    loader: fcco.sampling.Loader
    size: int  # examples a step
    plain: Callable[[], Iterator[Tensor]]  # mini-batch losses
    metric: Callable[[str], float]


def rare(data: Arrays, seed: int, kind: str) -> Task:
    """a9a with 500 of its positives: 2.5 % of the training rows."""
    x, y, rows = data["a9a_x"].float(), data["a9a_y"].long(), data["a9a_train"]
    rows = torch.cat([rows[y[rows] == 1][:500], rows[y[rows] == 0]])
    own_x, own_y, model = x[rows], y[rows], mlp(x.shape[1], 1, 64)
    average = fcco.Average.ALL if kind == "AP" else fcco.Average.OPPOSITE
    loader = fcco.PointLoader(own_x, own_y, 16, 64, average=average, seed=seed)
    made: zoo.OutputObjective = zoo.PartialAUC(model, loader.num_blocks, temperature=0.3)
    if kind == "AP":
        made = zoo.AveragePrecision(model, loader.num_blocks)

    def plain() -> Iterator[Tensor]:
        for i in balanced(own_y, 16, 64, seed):
            yield functional.binary_cross_entropy_with_logits(model(own_x[i])[:, 0], own_y[i].float())

    places = {"train": rows, "valid": data["a9a_valid"], "test": data["a9a_test"]}
    score = average_precision if kind == "AP" else partial_auroc
    return Task(
        model, made, loader, 80, plain, lambda part: score(predict(model, x[places[part]])[:, 0], y[places[part]])
    )


def molecules(data: Arrays, seed: int) -> Task:
    """Tox21: 12 assays, a fifth of the labels missing."""
    x, y, rows = data["tox21_x"].float(), data["tox21_y"].float(), data["tox21_train"]
    own_x, own_y, model = x[rows], y[rows], mlp(x.shape[1], y.shape[1], 128, dropout=0.3)
    loader = fcco.MultiLabelPointLoader(own_x, own_y, 64, 16, average=fcco.Average.ALL, seed=seed)
    objective = zoo.AveragePrecision(model, loader.num_blocks, block_task=loader.block_task)

    def plain() -> Iterator[Tensor]:
        for i in uniform(256, len(own_x), seed):
            yield masked_bce(model, own_x[i], own_y[i])

    def metric(part: str) -> float:
        own = data[f"tox21_{part}"]
        return macro(average_precision, predict(model, x[own]), y[own])

    return Task(model, objective, loader, 256, plain, metric)


def ranking(data: Arrays, seed: int, kind: str) -> Task:
    x, y, query = data["ranking_x"].float(), data["ranking_y"].float(), data["ranking_group"].long()
    rows = data["ranking_train"]
    own_x, own_y, model = x[rows], y[rows], mlp(x.shape[1], 1, 64, dropout=0.3)
    above = 0.0 if kind == "NDCG" else -float("inf")
    loader = fcco.QueryItemLoader(own_x, query[rows], own_y, 32, 8, relevant_above=above, seed=seed)
    made = (zoo.NDCG if kind == "NDCG" else zoo.ListNet)(model, query[rows], own_y)

    def plain() -> Iterator[Tensor]:
        for i in uniform(256, len(own_x), seed):
            yield functional.mse_loss(model(own_x[i])[:, 0], own_y[i])

    def metric(part: str) -> float:
        own = data[f"ranking_{part}"]
        return ndcg(predict(model, x[own])[:, 0], y[own], query[own])

    return Task(model, made, loader, 256, plain, metric)


def survival(data: Arrays, seed: int) -> Task:
    x, (when, event), rows = data["metabric_x"].float(), data["metabric_y"].float().T, data["metabric_train"]
    model = mlp(x.shape[1], 1, 32, dropout=0.2)
    loader = fcco.RiskSetLoader(x[rows], when[rows], event[rows], 8, 8, seed=seed)

    def plain() -> Iterator[Tensor]:
        for i in uniform(64, len(rows), seed):
            yield batch_cox(model, x[rows[i]], when[rows[i]], event[rows[i]])

    def metric(part: str) -> float:
        own = data[f"metabric_{part}"]
        return concordance(predict(model, x[own])[:, 0], when[own], event[own])

    return Task(model, zoo.Cox(model, when[rows], event[rows]), loader, 64, plain, metric)


@dataclass(frozen=True)
class Problem:
    metric: str
    make: Callable[[Arrays, int], Task]
    samples: int


PROBLEMS = {
    "PartialAUC on a9a": Problem("pAUC(FPR <= 0.1)", lambda data, seed: rare(data, seed, "pAUC"), 80_000),
    "AveragePrecision on a9a": Problem("AP", lambda data, seed: rare(data, seed, "AP"), 80_000),
    "AveragePrecision on Tox21": Problem("macro AP", molecules, 100_000),
    "NDCG on the LTR example": Problem("NDCG@10", lambda data, seed: ranking(data, seed, "NDCG"), 100_000),
    "ListNet on the LTR example": Problem("NDCG@10", lambda data, seed: ranking(data, seed, "ListNet"), 100_000),
    "Cox on METABRIC": Problem("C-index", survival, 50_000),
}


def steps_of(task: Task, method: str, lr: float, decay: float, seed: int) -> Iterator[int]:
    """Take steps for ever; yields the examples seen so far."""
    if method == "plain":
        optimizer, seen = torch.optim.Adam(task.model.parameters(), lr=lr, weight_decay=decay), 0
        for loss in task.plain():
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += task.size
            yield seen
        return
    optimizer = torch.optim.Adam(task.objective.parameters(), lr=lr, weight_decay=decay)
    chosen = fcco.output_memory() if method == "memory" else fcco.soap(beta=0.3)
    solver = fcco.Solver(task.objective, optimizer, chosen)
    loader: Any = task.loader
    if method == "memory":
        classes = isinstance(loader, fcco.PointLoader)
        loader = fcco.memory.MemoryLoader(solver, loader, draws=None if classes else task.size, seed=seed)
    while True:
        for index, batch in loader:
            solver.step(index, batch)
            yield solver.samples


def trained(data: Arrays, name: str, method: str, lr: float, decay: float, seed: int) -> Row:
    """One run: the metrics at the end, and where validation was best."""
    torch.manual_seed(seed)
    problem = PROBLEMS[name]
    task, looks = problem.make(data, seed), list[dict[str, float]]()
    task.objective.train()
    start = time.perf_counter()
    for seen in steps_of(task, method, lr, decay, seed):
        if seen >= problem.samples * (len(looks) + 1) / LOOKS:
            task.objective.eval()
            looks.append({part: task.metric(part) for part in PARTS})
            task.objective.train()
        if seen >= problem.samples:
            break
    best = max(looks, key=lambda look: look["valid"])
    return {"problem": name, "method": method, "lr": lr, "decay": decay, "seed": seed, "seen": seen, "last": looks[-1],
            "best": best, "at": looks.index(best) + 1, "seconds": round(time.perf_counter() - start, 2)}  # fmt: skip


def one(data: str, *job: Any) -> Row:
    """One run in a worker process."""
    torch.set_num_threads(1)
    return trained(arrays(data), *job)


def study(options: argparse.Namespace, log: Path) -> list[Row]:
    """Tune with seed 100, run the chosen pairs with seeds 0, 1, ..."""
    pairs = [(name, method) for name in options.only for method in METHODS]
    grids = {pair: [(*pair, lr, decay, 100) for lr in RATES for decay in DECAYS] for pair in pairs}
    call = partial(one, str(options.data))
    with Kept(log, ("problem", "method", "lr", "decay", "seed"), call, options.workers) as kept:
        kept.gather([job for grid in grids.values() for job in grid])
        best = {pair: max(kept.gather(grid), key=lambda row: row["best"]["valid"]) for pair, grid in grids.items()}
        chosen = [(*pair, row["lr"], row["decay"]) for pair, row in best.items()]
        return kept.gather([(*choice, seed) for choice in chosen for seed in range(options.seeds)])


def table(rows: list[Row]) -> str:
    lines = ["| problem | metric | method | lr, decay | train, last | test, last | test, best validation |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name in dict.fromkeys(row["problem"] for row in rows):
        for method in METHODS:
            own = [row for row in rows if (row["problem"], row["method"]) == (name, method)]
            cells = [
                f"{statistics.mean(values):.4f} ± {statistics.stdev(values) if len(values) > 1 else 0.0:.4f}"
                for values in ([r[at][part] for r in own] for at, part in (("last", "train"), ("last", "test"), ("best", "test")))
            ]  # fmt: skip
            settings = f"{own[0]['lr']:g}, {own[0]['decay']:g}"
            lines.append(f"| {name} | {PROBLEMS[name].metric} | {method} | {settings} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/memory"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    text = table(study(options, options.out / "real-runs.jsonl"))
    facts = {"torch": torch.__version__, "fcco": fcco.__version__, "seeds": options.seeds, "rates": RATES,
             "decays": DECAYS, "samples": {name: PROBLEMS[name].samples for name in options.only}}  # fmt: skip
    (options.out / "real-configuration.json").write_text(json.dumps(facts, indent=1) + "\n")
    (options.out / "real.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
