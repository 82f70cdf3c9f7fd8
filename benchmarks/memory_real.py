"""The output memory on real tables, molecules and rankings: test metric after tuning on a validation split.

    python benchmarks/learns.py --prepare data.npz        # reads the tables once
    python benchmarks/memory_real.py --data data.npz      # an hour on one core, writes results/memory/real*

Memory (its defaults), SOX and a plain loss see the same number of examples. Settings are drawn once per problem: learning
rate, AdamW's weight decay, and where the objective has them the margin and the hardness (margin^2 / temperature) of its
pair loss, 24 at most. Each method gets them all, each with every knob of its own: two betas for SOX, three L2 for the plain
loss (which has no pair loss), for the memory its default importance alone. The validation metric chooses on one seed
six of them, on a second three, on a third one, which is run on five more seeds. Twelve times a run the metrics are taken:
"best" is the test metric where validation was best (early stopping), which is also what chooses; "last" is the one at the
end. The training metric shows who fits and who overfits. Runs that are in results/memory/real-runs.jsonl are not run again.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from kept import Choice, Kept, Row, adam, arrays
from learns import Arrays, balanced, batch_cox, masked_bce, mlp, predict, uniform
from metrics import average_precision, concordance, macro, ndcg, partial_auroc
from torch import Tensor, nn
from torch.nn import functional

import fcco
from fcco import objectives as zoo

RATES, DECAYS = (3e-4, 1e-3, 3e-3), (0.0, 0.3, 1.0, 3.0, 10.0)
KNOBS = {"memory": (0.5,), "SOX": (0.3, 0.9), "plain": (0.0, 1e-4, 1e-3)}  # importance (the default), beta, L2
DRAWN, SEEDS, RUNGS = 24, (100, 101, 102), ((1, 48), (2, 6), (3, 3))
NAMES = ("problem", "method", "lr", "decay", "margin", "hardness", "knob", "seed")  # of a run
PARTS, CHECKS = ("train", "valid", "test"), 12
Score = Callable[[Tensor, Tensor], float]


@dataclass(frozen=True)
class Task:
    """A model with what may train it, and its metric on each part of the data."""

    model: nn.Module
    objective: zoo.OutputObjective
    sizes: tuple[int, int]  # blocks and samples per step, of a tracker
    size: int  # examples per step, of the memory and the plain loss
    plain: Callable[[], Iterator[Tensor]]  # mini-batch losses
    metric: Callable[[str], float]


def pair_objective(model: nn.Module, points: fcco.data.Points, margin: float, hardness: float) -> zoo.OutputObjective:
    """PartialAUC where there is a hardness, else AveragePrecision."""
    loss = zoo.SquaredHinge(margin=margin)
    if hardness:
        return zoo.PartialAUC(model, points, temperature=margin**2 / hardness, loss=loss)
    return zoo.AveragePrecision(model, points, loss=loss)


def rare(score: Score, data: Arrays, seed: int, margin: float, hardness: float) -> Task:
    """a9a with 500 of its positives: 2.5 % of the training rows."""
    x, y, rows = data["a9a_x"].float(), data["a9a_y"].long(), data["a9a_train"]
    rows = torch.cat([rows[y[rows] == 1][:500], rows[y[rows] == 0]])
    own_x, own_y, model = x[rows], y[rows], mlp(x.shape[1], 1, 64)
    made = pair_objective(model, fcco.data.Points(own_x, own_y), margin, hardness)

    def plain() -> Iterator[Tensor]:
        for i in balanced(own_y, 16, 64, seed):
            yield functional.binary_cross_entropy_with_logits(model(own_x[i])[:, 0], own_y[i].float())

    places = {"train": rows, "valid": data["a9a_valid"], "test": data["a9a_test"]}
    return Task(
        model, made, (16, 64), 80, plain, lambda part: score(predict(model, x[places[part]])[:, 0], y[places[part]])
    )


def labels(name: str, data: Arrays, seed: int, margin: float, hardness: float) -> Task:
    """Many labels (Tox21: 12 assays, a fifth of them missing)."""
    x, y, rows = data[f"{name}_x"].float(), data[f"{name}_y"].float(), data[f"{name}_train"]
    own_x, own_y, model = x[rows], y[rows], mlp(x.shape[1], y.shape[1], 128, dropout=0.3)
    made = pair_objective(model, fcco.data.Points(own_x, own_y), margin, hardness)
    sizes = 64, 192 // y.shape[1]

    def plain() -> Iterator[Tensor]:
        for i in uniform(256, len(own_x), seed):
            yield masked_bce(model, own_x[i], own_y[i])

    def metric(part: str) -> float:
        own = data[f"{name}_{part}"]
        return macro(average_precision, predict(model, x[own]), y[own])

    return Task(model, made, sizes, 256, plain, metric)


def ranking(kind: str, data: Arrays, seed: int, *_: float) -> Task:
    x, y, query = data["ranking_x"].float(), data["ranking_y"].float(), data["ranking_group"].long()
    rows = data["ranking_train"]
    own_x, own_y, model = x[rows], y[rows], mlp(x.shape[1], 1, 64, dropout=0.3)
    made = (zoo.NDCG if kind == "NDCG" else zoo.ListNet)(model, fcco.data.Queries(own_x, query[rows], own_y))

    def plain() -> Iterator[Tensor]:
        for i in uniform(256, len(own_x), seed):
            yield functional.mse_loss(model(own_x[i])[:, 0], own_y[i])

    def metric(part: str) -> float:
        own = data[f"ranking_{part}"]
        return ndcg(predict(model, x[own])[:, 0], y[own], query[own])

    return Task(model, made, (32, 8), 256, plain, metric)


def survival(data: Arrays, seed: int, *_: float) -> Task:
    x, (when, event), rows = data["metabric_x"].float(), data["metabric_y"].float().T, data["metabric_train"]
    model = mlp(x.shape[1], 1, 32, dropout=0.2)
    made = zoo.Cox(model, fcco.data.RiskSets(x[rows], when[rows], event[rows]))

    def plain() -> Iterator[Tensor]:
        for i in uniform(64, len(rows), seed):
            yield batch_cox(model, x[rows[i]], when[rows[i]], event[rows[i]])

    def metric(part: str) -> float:
        own = data[f"metabric_{part}"]
        return concordance(predict(model, x[own])[:, 0], when[own], event[own])

    return Task(model, made, (8, 8), 64, plain, metric)


@dataclass(frozen=True)
class Problem:
    metric: str
    make: Callable[[Arrays, int, float, float], Task]
    samples: int
    margins: tuple[float, ...] = (0.0,)  # 0: there is none
    hardnesses: tuple[float, ...] = (0.0,)


MARGINS, HARDNESSES = (1.0, 3.0, 10.0), (1.0, 3.0, 9.0)
PROBLEMS = {
    "PartialAUC on a9a": Problem("pAUC(FPR <= 0.1)", partial(rare, partial_auroc), 80_000, MARGINS, HARDNESSES),
    "PartialAUC on a9a, by AP": Problem("AP", partial(rare, average_precision), 80_000, MARGINS, HARDNESSES),
    "AveragePrecision on a9a": Problem("AP", partial(rare, average_precision), 80_000, MARGINS),
    "PartialAUC on Tox21, by AP": Problem("macro AP", partial(labels, "tox21"), 100_000, MARGINS, HARDNESSES),
    "AveragePrecision on Tox21": Problem("macro AP", partial(labels, "tox21"), 100_000, MARGINS),
    "PartialAUC on yeast, by AP": Problem("macro AP", partial(labels, "yeast"), 100_000, MARGINS, HARDNESSES),
    "PartialAUC on scene, by AP": Problem("macro AP", partial(labels, "scene"), 100_000, MARGINS, HARDNESSES),
    "NDCG on the LTR example": Problem("NDCG@10", partial(ranking, "NDCG"), 100_000),
    "ListNet on the LTR example": Problem("NDCG@10", partial(ranking, "ListNet"), 100_000),
    "Cox on METABRIC": Problem("C-index", survival, 50_000),
}


def steps_of(task: Task, method: str, lr: float, decay: float, knob: float, seed: int) -> Iterator[int]:
    """Take steps for ever; yields the examples seen so far."""
    if method == "plain":
        optimizer, seen = adam(task.model.parameters(), lr, decay, knob), 0
        for loss in task.plain():
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += task.size
            yield seen
        return
    optimizer = adam(task.objective.parameters(), lr, decay)
    chosen = fcco.output_memory(importance=knob) if method == "memory" else fcco.soap(beta=knob)
    solver = fcco.Solver(task.objective, optimizer, chosen)
    blocks, samples = task.sizes
    if method == "memory":
        samples = task.size - blocks
    loader = solver.loader(blocks, samples, seed=seed)
    while True:
        for batch in loader:
            solver.step(batch)
            yield solver.samples


def trained(data: Arrays, name: str, method: str, *choice_and_seed: float) -> Row:
    """One run: the metrics at the end, and where validation was best."""
    lr, decay, margin, hardness, knob, seed = *choice_and_seed[:-1], int(choice_and_seed[-1])
    torch.manual_seed(seed)
    problem = PROBLEMS[name]
    task, checks = problem.make(data, seed, margin, hardness), list[dict[str, float]]()
    task.objective.train()
    start = time.perf_counter()
    for seen in steps_of(task, method, lr, decay, knob, seed):
        if seen >= problem.samples * (len(checks) + 1) / CHECKS:
            task.objective.eval()
            checks.append({part: task.metric(part) for part in PARTS})
            task.objective.train()
        if seen >= problem.samples:
            break
    best = max(checks, key=lambda check: check["valid"])
    row: Row = dict(zip(NAMES, (name, method, *choice_and_seed), strict=True))
    return row | {"seen": seen, "last": checks[-1], "best": best, "at": checks.index(best) + 1,
                  "seconds": round(time.perf_counter() - start, 2)}  # fmt: skip


def one(data: str, *job: Any) -> Row:
    """One run in a worker process."""
    torch.set_num_threads(1)
    try:
        return trained(arrays(data), *job)
    except fcco.NonFiniteError as error:  # the worst there is
        none = dict.fromkeys(PARTS, 0.0)
        return dict(zip(NAMES, job, strict=True)) | {"last": none, "best": none, "error": str(error)}


def tuned(kept: Kept, seeds: int, pair: tuple[str, str]) -> list[Row]:
    """The runs of a problem and a method with the setting that was best in validation."""
    problem, method = PROBLEMS[pair[0]], pair[1]
    grid = list(product(RATES, DECAYS, problem.margins, problem.hardnesses))
    drawn = random.Random(0).sample(grid, min(DRAWN, len(grid)))
    if method == "plain":
        drawn = list(dict.fromkeys((lr, decay, *grid[0][2:]) for lr, decay, _, _ in drawn))
    choices: list[Choice] = [(*setting, knob) for setting in drawn for knob in KNOBS[method]]
    best = kept.halved(
        choices,
        SEEDS,
        RUNGS,
        lambda choice, seed: (*pair, *choice, seed),
        lambda rows: statistics.mean(row["best"]["valid"] for row in rows),
    )
    return kept.gather([(*pair, *best[0][1], seed) for seed in range(seeds)])


def study(options: argparse.Namespace, log: Path) -> list[Row]:
    """Every problem with every method; searches go on side by side, so that no process waits for a rung to end."""
    pairs = [(name, method) for name in options.only for method in KNOBS]
    call = partial(one, str(options.data))
    with Kept(log, NAMES, call, options.workers) as kept, ThreadPoolExecutor(len(pairs)) as threads:
        return [row for rows in threads.map(partial(tuned, kept, options.seeds), pairs) for row in rows]


def table(rows: list[Row]) -> str:
    lines = ["| problem | metric | method | chosen | train, last | test, last | test, best validation |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name in dict.fromkeys(row["problem"] for row in rows):
        for method in KNOBS:
            own = [row for row in rows if (row["problem"], row["method"]) == (name, method)]
            cells = [
                f"{statistics.mean(values):.4f} ± {statistics.stdev(values) if len(values) > 1 else 0.0:.4f}"
                for values in ([r[at][part] for r in own] for at, part in (("last", "train"), ("last", "test"), ("best", "test")))
            ]  # fmt: skip
            pair_loss = () if method == "plain" else tuple(name for name in ("margin", "hardness") if own[0][name])
            shown = ("lr", "decay", *pair_loss, "knob")
            settings = ", ".join(f"{name} {own[0][name]:g}" for name in shown)
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
             "decays": DECAYS, "margins": MARGINS, "hardnesses": HARDNESSES, "knobs": KNOBS, "drawn": DRAWN, "rungs": RUNGS, "samples": {name: PROBLEMS[name].samples for name in options.only}}  # fmt: skip
    (options.out / "real-configuration.json").write_text(json.dumps(facts, indent=1) + "\n")
    (options.out / "real.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
