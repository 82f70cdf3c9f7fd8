"""It learns: one real data set and one baseline for each objective, the same tuning budget for both, 5 seeds.

    python benchmarks/learns.py --prepare data.npz   # reads the tables once (needs rdkit, h5py, FCCO_BENCH_DATA, FCCO_DATA)
    python benchmarks/learns.py --data data.npz      # tunes on validation, tests with 5 seeds, writes results/learns

Each method gets the same grid: three learning rates times two values of one more knob, chosen by the validation metric
with one seed; then five seeds with the chosen pair. Both see the same number of examples. Adam for all. Runs that are
in results/learns/runs.jsonl are not run again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from kept import Kept, Row, arrays
from metrics import auroc, average_precision, concordance, macro, ndcg, neighbours, partial_auroc
from torch import Tensor, nn
from torch.nn import functional

import fcco
from fcco import objectives as zoo

Arrays = dict[str, Tensor]
QUICK = bool(os.environ.get("FCCO_QUICK"))  # whether everything runs; the figures then mean nothing


def mlp(features: int, outputs: int, hidden: int = 64, dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, outputs))


def fit(
    objective: zoo.OutputObjective,
    sizes: tuple[int, int],
    lr: float,
    steps: int,
    beta: float,
    seed: int,
    decay: float = 0.0,
) -> None:
    """Our side: a moving-average tracker (SOAP) under Adam; sizes: blocks and samples."""
    steps = 5 if QUICK else steps
    optimizer = torch.optim.Adam(objective.parameters(), lr=lr, weight_decay=decay)
    solver = fcco.Solver(objective, optimizer, fcco.soap(beta=beta))
    objective.train()
    for batch in solver.loader(*sizes, seed=seed, steps_per_epoch=steps):
        solver.step(batch)
    objective.eval()


def fit_plain(
    model: nn.Module,
    batches: Iterator[tuple[Tensor, ...]],
    loss: Callable[..., Tensor],
    lr: float,
    steps: int,
    decay: float,
) -> None:
    """The baseline's side: Adam on a mini-batch loss."""
    steps = 5 if QUICK else steps
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=decay)
    model.train()
    for batch in itertools.islice(batches, steps):
        optimizer.zero_grad()
        loss(model, *batch).backward()
        optimizer.step()
    model.eval()


def uniform(size: int, count: int, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randint(count, (size,), generator=generator)


def balanced(y: Tensor, positives: int, negatives: int, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    pools = (y == 1).nonzero()[:, 0], (y == 0).nonzero()[:, 0]
    while True:
        drawn = [
            pool[torch.randint(len(pool), (size,), generator=generator)]
            for pool, size in zip(pools, (positives, negatives), strict=True)
        ]
        yield torch.cat(drawn)


@torch.no_grad()
def predict(model: nn.Module, x: Tensor, chunk: int = 4096) -> Tensor:
    return torch.cat([model(part) for part in x.split(chunk)])


@dataclass(frozen=True)
class Problem:
    """A data set, a metric, and the runs that compete: name -> run(arrays, lr, knob, seed) -> (validation, test)."""

    metric: str
    runs: dict[str, Callable[[Arrays, float, float, int], tuple[float, float]]]
    rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    knobs: dict[str, tuple[float, float]] | None = None  # what the second knob is for each run


# ------------------------------------------------------------------ rare classes (Fashion-MNIST)


def rare_run(
    kind: str, metric: Callable[[Tensor, Tensor], float]
) -> Callable[[Arrays, float, float, int], tuple[float, float]]:
    def run(data: Arrays, lr: float, knob: float, seed: int) -> tuple[float, float]:
        torch.manual_seed(seed)
        x, y = data["fashion_x"].float() / 255, data["fashion_y"].long()
        model, steps, sizes = mlp(784, 1, 64), 3000, (16, 64)
        if kind.startswith("cross-entropy"):
            draws = uniform(sum(sizes), len(y), seed) if kind.endswith("uniform") else balanced(y, *sizes, seed)
            fit_plain(model, ((x[i], y[i].float()) for i in draws), _logistic, lr, steps, knob)
        else:
            objective = rare_objective(kind, model, fcco.data.Points(x, y), knob)
            if kind == "PNormPush":  # whose blocks are the negatives
                sizes = sizes[::-1]
            fit(objective, sizes, lr, steps, 0.3, seed)
        return (
            metric(predict(model, data["fashion_valid_x"].float() / 255)[:, 0], data["fashion_valid_y"]),
            metric(predict(model, data["fashion_test_x"].float() / 255)[:, 0], data["fashion_test_y"]),
        )

    return run


def rare_objective(kind: str, model: nn.Module, data: fcco.data.Points, knob: float) -> zoo.OutputObjective:
    """The objective of a rare-class problem."""
    if kind == "PNormPush":
        return zoo.PNormPush(model, data, p=knob)
    if kind == "AveragePrecision":
        return zoo.AveragePrecision(model, data, loss=zoo.SquaredHinge(margin=knob))
    two_way = 1.0 if kind == "PartialAUC two-way" else None
    return zoo.PartialAUC(model, data, temperature=knob, positive_temperature=two_way)


def _logistic(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(model(x)[:, 0], y)


# ------------------------------------------------------------------ many labels (Tox21, yeast, scene)


def masked_bce(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    known = ~y.isnan()
    return functional.binary_cross_entropy_with_logits(model(x)[known], y[known])


def labels_run(
    name: str, kind: str, metric: Callable[[Tensor, Tensor], float]
) -> Callable[[Arrays, float, float, int], tuple[float, float]]:
    def run(data: Arrays, lr: float, knob: float, seed: int) -> tuple[float, float]:
        torch.manual_seed(seed)
        x, y = data[f"{name}_x"].float(), data[f"{name}_y"].float()
        train = data[f"{name}_train"]
        own_x, own_y, tasks = x[train], y[train], y.shape[1]
        model, steps = mlp(x.shape[1], tasks, 128, dropout=0.3), 1500
        if kind == "BCE":
            fit_plain(
                model, ((own_x[i], own_y[i]) for i in uniform(256, len(own_x), seed)), masked_bce, lr, steps, knob
            )
        elif kind == "MultiTaskAUC":
            per_step = max(2, tasks // 3)
            objective = zoo.MultiTaskAUC(model, fcco.data.Tasks(own_x, own_y))
            fit(objective, (per_step, 256 // per_step), lr, steps, 0.5, seed, decay=knob)
        else:
            objective = zoo.AveragePrecision(model, fcco.data.Points(own_x, own_y))
            fit(objective, (64, 16), lr, steps, 0.3, seed, decay=knob)
        return tuple(
            macro(metric, predict(model, x[data[f"{name}_{part}"]]), y[data[f"{name}_{part}"]])
            for part in ("valid", "test")
        )  # type: ignore[return-value]

    return run


# ------------------------------------------------------------------ survival (METABRIC)


def cox_run(kind: str) -> Callable[[Arrays, float, float, int], tuple[float, float]]:
    def run(data: Arrays, lr: float, knob: float, seed: int) -> tuple[float, float]:
        torch.manual_seed(seed)
        x, (when, event) = data["metabric_x"].float(), data["metabric_y"].float().T
        train = data["metabric_train"]
        model, steps = mlp(x.shape[1], 1, 32, dropout=0.2), 800
        if kind == "Cox":
            own = fcco.data.RiskSets(x[train], when[train], event[train])
            fit(zoo.Cox(model, own), (32, 32), lr, steps, 0.3, seed, decay=knob)
        else:
            draws = ((x[train[i]], when[train[i]], event[train[i]]) for i in uniform(64, len(train), seed))
            fit_plain(model, draws, batch_cox, lr, steps, knob)
        return tuple(  # type: ignore[return-value]
            concordance(predict(model, x[rows])[:, 0], when[rows], event[rows])
            for rows in (data["metabric_valid"], data["metabric_test"])
        )

    return run


def batch_cox(model: nn.Module, x: Tensor, when: Tensor, event: Tensor) -> Tensor:
    """The partial likelihood of a mini-batch taken for the data set (DeepSurv's practice)."""
    h = model(x)[:, 0]
    at_risk = when.unsqueeze(0) >= when.unsqueeze(1)
    total = torch.where(at_risk, h.unsqueeze(0), -torch.inf).logsumexp(1)
    return ((total - h) * event).sum() / event.sum().clamp(min=1)


# ------------------------------------------------------------------ learning to rank


def ranking_run(kind: str) -> Callable[[Arrays, float, float, int], tuple[float, float]]:
    def run(data: Arrays, lr: float, knob: float, seed: int) -> tuple[float, float]:
        torch.manual_seed(seed)
        x, y, query = data["ranking_x"].float(), data["ranking_y"].float(), data["ranking_group"].long()
        train = data["ranking_train"]
        own = x[train], y[train], query[train]
        model, steps = mlp(x.shape[1], 1, 64, dropout=0.3), 1500
        if kind == "regression":
            draws = ((own[0][i], own[1][i]) for i in uniform(128, len(train), seed))
            fit_plain(model, draws, lambda net, a, b: functional.mse_loss(net(a)[:, 0], b), lr, steps, knob)
        else:
            queries = fcco.data.Queries(own[0], own[2], own[1])
            objective = (zoo.NDCG if kind == "NDCG" else zoo.ListNet)(model, queries)
            fit(objective, (32, 8), lr, steps, 0.3, seed, decay=knob)
        return tuple(  # type: ignore[return-value]
            ndcg(predict(model, x[rows])[:, 0], y[rows], query[rows])
            for rows in (data["ranking_valid"], data["ranking_test"])
        )

    return run


# ------------------------------------------------------------------ groups (a9a by sex and label)


def groups_run(kind: str) -> Callable[[Arrays, float, float, int], tuple[float, float]]:
    def run(data: Arrays, lr: float, knob: float, seed: int) -> tuple[float, float]:
        torch.manual_seed(seed)
        x, y = data["a9a_x"].float(), data["a9a_y"].long()
        group = 2 * data["a9a_group"].long() + y
        train = data["a9a_train"]
        model, steps = mlp(x.shape[1], 2, 64), 1500
        if kind == "ERM":
            draws = ((x[train[i]], y[train[i]]) for i in uniform(128, len(train), seed))
            fit_plain(model, draws, lambda net, a, b: functional.cross_entropy(net(a), b), lr, steps, knob)
        else:
            groups = fcco.data.Groups(x[train], y[train], group[train])
            risk = zoo.KLRisk(knob) if kind == "GroupDRO KL" else zoo.CVaRRisk(knob)
            fit(zoo.GroupDRO(model, groups, risk), (2, 64), lr, steps, 0.3, seed)

        def worst(rows: Tensor) -> float:
            right = predict(model, x[rows]).argmax(1) == y[rows]
            return min(float(right[group[rows] == g].double().mean()) for g in range(4))

        return worst(data["a9a_valid"]), worst(data["a9a_test"])

    return run


# ------------------------------------------------------------------ bags (MNIST: does a bag of 10 digits hold a nine?)


def bags_run(kind: str) -> Callable[[Arrays, float, float, int], tuple[float, float]]:
    def run(data: Arrays, lr: float, knob: float, seed: int) -> tuple[float, float]:
        torch.manual_seed(seed)
        x, y = data["bags_x"].float() / 255, data["bags_y"].long()  # (bags, 10, 784), (bags,)
        cut = (600, 900)
        model, steps, temperature = mlp(784, 1, 64), 1500, 0.1
        if kind == "MultiInstance":
            flat, bag = x[: cut[0]].flatten(0, 1), torch.arange(cut[0]).repeat_interleave(10)
            bags = fcco.data.Bags(flat, bag, y[: cut[0]])
            temperature = knob
            fit(zoo.MultiInstance(model, bags, temperature=knob), (32, 5), lr, steps, 0.5, seed)
        else:
            draws = ((x[i][:, torch.randperm(10)[:5]], y[i].float()) for i in uniform(32, cut[0], seed))
            fit_plain(model, draws, mean_pool, lr, steps, knob)

        @torch.no_grad()
        def score(rows: slice) -> float:
            s = model(x[rows])[..., 0]
            pooled = (torch.softmax(s / temperature, 1) * s).sum(1) if kind == "MultiInstance" else s.mean(1)
            return auroc(pooled, y[rows])

        return score(slice(*cut)), score(slice(cut[1], None))

    return run


def mean_pool(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(model(x)[..., 0].mean(1), y)


# ------------------------------------------------------------------ features (CIFAR-10, whitened PCA)


class Masked(nn.Module):
    """Two views of a feature vector: entries dropped at random."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(functional.dropout(x, 0.3, self.training))


def features_run(kind: str) -> Callable[[Arrays, float, float, int], tuple[float, float]]:
    def run(data: Arrays, lr: float, knob: float, seed: int) -> tuple[float, float]:
        torch.manual_seed(seed)
        x, y = data["cifar_x"].float(), data["cifar_y"].long()
        parts = {"train": slice(0, 8000), "valid": slice(8000, 10000), "test": slice(10000, 12000)}
        own_x, own_y, size, steps = x[parts["train"]], y[parts["train"]], 256, 1000
        trunk = nn.Sequential(nn.Linear(x.shape[1], 128), nn.ReLU(), nn.Linear(128, 32))
        model: nn.Module = Masked(trunk)
        if kind == "GlobalContrastive":
            views = fcco.data.Examples((own_x, own_x))
            fit(zoo.GlobalContrastive(model, views, temperature=knob), (size, 0), lr, steps, 0.3, seed)
        elif kind == "mini-batch InfoNCE":
            draws = ((own_x[i],) for i in uniform(size, len(own_x), seed))
            fit_plain(model, draws, lambda net, a: info_nce(net(a), net(a), knob), lr, steps, 0.0)
        elif kind == "NCA":
            own = fcco.data.Examples(own_x, own_y)
            fit(zoo.NCA(model, own, log_likelihood=True), (size, 0), lr, steps, 0.3, seed, decay=knob)
        else:
            whole = nn.Sequential(model, nn.ReLU(), nn.Linear(32, 10))
            draws = ((own_x[i], own_y[i]) for i in uniform(size, len(own_x), seed))
            fit_plain(whole, draws, lambda net, a, b: functional.cross_entropy(net(a), b), lr, steps, knob)
        model.eval()
        known = predict(model, own_x)
        return tuple(neighbours(known, own_y, predict(model, x[parts[p]]), y[parts[p]]) for p in ("valid", "test"))  # type: ignore[return-value]

    return run


def info_nce(a: Tensor, b: Tensor, temperature: float) -> Tensor:
    a, b = functional.normalize(a, dim=1), functional.normalize(b, dim=1)
    target = torch.arange(len(a))
    logits = a @ b.T / temperature
    return (functional.cross_entropy(logits, target) + functional.cross_entropy(logits.T, target)) / 2


# ------------------------------------------------------------------ the table

NO_DECAY = (0.0, 1e-4)
CE = {"cross-entropy uniform": NO_DECAY, "cross-entropy balanced": NO_DECAY}


def rare_problem(kind: str, name: str, metric: Callable[[Tensor, Tensor], float], knob: tuple[float, float]) -> Problem:
    return Problem(name, {run: rare_run(run, metric) for run in (kind, *CE)}, knobs={kind: knob} | CE)


PROBLEMS: dict[str, Problem] = {
    "PartialAUC on Fashion-MNIST": rare_problem("PartialAUC", "pAUC(FPR <= 0.1)", partial_auroc, (0.3, 1.0)),
    "PartialAUC two-way on Fashion-MNIST": rare_problem(
        "PartialAUC two-way", "pAUC(FPR <= 0.1)", partial_auroc, (0.3, 1.0)
    ),
    "AveragePrecision on Fashion-MNIST": rare_problem("AveragePrecision", "AP", average_precision, (0.5, 1.0)),
    "PNormPush on Fashion-MNIST": rare_problem("PNormPush", "pAUC(FPR <= 0.1)", partial_auroc, (2.0, 4.0)),
    "MultiTaskAUC on Tox21": Problem(
        "macro AUROC", {k: labels_run("tox21", k, auroc) for k in ("MultiTaskAUC", "BCE")}
    ),
    "MultiTaskAUC on yeast": Problem(
        "macro AUROC", {k: labels_run("yeast", k, auroc) for k in ("MultiTaskAUC", "BCE")}
    ),
    "AveragePrecision on yeast": Problem(
        "macro AP", {k: labels_run("yeast", k, average_precision) for k in ("AveragePrecision", "BCE")}
    ),
    "AveragePrecision on scene": Problem(
        "macro AP", {k: labels_run("scene", k, average_precision) for k in ("AveragePrecision", "BCE")}
    ),
    "Cox on METABRIC": Problem("C-index", {k: cox_run(k) for k in ("Cox", "mini-batch Cox")}),
    "NDCG on the LTR example": Problem("NDCG@10", {k: ranking_run(k) for k in ("NDCG", "regression")}),
    "ListNet on the LTR example": Problem("NDCG@10", {k: ranking_run(k) for k in ("ListNet", "regression")}),
    "GroupDRO KL on a9a": Problem(
        "worst-group accuracy",
        {k: groups_run(k) for k in ("GroupDRO KL", "ERM")},
        knobs={"GroupDRO KL": (0.1, 0.5), "ERM": NO_DECAY},
    ),
    "GroupDRO CVaR on a9a": Problem(
        "worst-group accuracy",
        {k: groups_run(k) for k in ("GroupDRO CVaR", "ERM")},
        knobs={"GroupDRO CVaR": (0.25, 0.5), "ERM": NO_DECAY},
    ),
    "MultiInstance on MNIST bags": Problem(
        "AUROC",
        {k: bags_run(k) for k in ("MultiInstance", "mean pooling")},
        knobs={"MultiInstance": (0.1, 0.5), "mean pooling": NO_DECAY},
    ),
    "GlobalContrastive on CIFAR-10 features": Problem(
        "10-NN accuracy",
        {k: features_run(k) for k in ("GlobalContrastive", "mini-batch InfoNCE")},
        knobs={"GlobalContrastive": (0.1, 0.3), "mini-batch InfoNCE": (0.1, 0.3)},
    ),
    "NCA on CIFAR-10 features": Problem("10-NN accuracy", {k: features_run(k) for k in ("NCA", "cross-entropy")}),
}


def prepare(path: Path) -> None:
    """Read every table once and pack it, so that the runs need neither rdkit nor h5py."""
    import readers

    from fcco.lab import datasets

    arrays: dict[str, np.ndarray] = {}
    tables = {"tox21": readers.tox21(), "yeast": readers.arff("yeast"), "scene": readers.arff("scene")}
    tables |= {"metabric": readers.metabric(), "ranking": readers.ranking(), "a9a": readers.a9a()}
    for name, table in tables.items():
        whole = bool((table.x == table.x.round()).all()) and float(table.x.abs().max()) <= 1
        arrays[f"{name}_x"] = table.x.numpy().astype("uint8" if whole else "float32")
        arrays[f"{name}_y"] = table.y.numpy()
        for part in ("train", "valid", "test"):
            arrays[f"{name}_{part}"] = getattr(table, part).numpy()
        if table.group is not None:
            arrays[f"{name}_group"] = table.group.numpy()
    arrays |= (
        _fashion(datasets.load("fashion-mnist")) | _bags(datasets.load("mnist")) | _cifar(datasets.load("cifar10"))
    )
    np.savez_compressed(path, **arrays)


def _fashion(data) -> dict[str, np.ndarray]:  # type: ignore[no-untyped-def]
    """Class 6 as the rare one: 1,200 of 20,000 to train, the same share to validate, the whole test set."""
    x, y = data.x_train.flatten(1).numpy(), (data.y_train == 6).numpy()
    arrays = {
        "fashion_test_x": data.x_test.flatten(1).numpy(),
        "fashion_test_y": (data.y_test == 6).numpy().astype("int64"),
    }
    start = 0
    for name, positives, negatives in (("fashion", 1200, 18800), ("fashion_valid", 600, 9400)):
        rows = np.concatenate(
            [np.flatnonzero(y)[start : start + positives], np.flatnonzero(~y)[start * 15 :][:negatives]]
        )
        arrays |= {f"{name}_x": x[rows], f"{name}_y": y[rows].astype("int64")}
        start += positives
    return arrays


def _bags(data) -> dict[str, np.ndarray]:  # type: ignore[no-untyped-def]
    """1,500 bags of 10 digits; a bag is positive where a nine is in it (half of them)."""
    rng = np.random.default_rng(0)
    x, y = data.x_train.flatten(1).numpy(), data.y_train.numpy()
    nine, other = np.flatnonzero(y == 9), np.flatnonzero(y != 9)
    label = np.arange(1500) % 2
    rows = rng.choice(other, (1500, 10))
    rows[label == 1, 0] = rng.choice(nine, int(label.sum()))
    order = rng.permutation(1500)
    return {"bags_x": x[rows][order], "bags_y": label[order]}


def _cifar(data) -> dict[str, np.ndarray]:  # type: ignore[no-untyped-def]
    """12,000 images as 128 whitened principal components."""
    x = data.x_train[:12000].flatten(1).float() / 255
    x = x - x[:8000].mean(0)
    _, s, v = torch.linalg.svd(x[:8000], full_matrices=False)
    features = x @ v[:128].T / (s[:128] / math.sqrt(8000))
    return {"cifar_x": features.numpy().astype("float16"), "cifar_y": data.y_train[:12000].numpy()}


def one(data: str, problem: str, run: str, lr: float, knob: float, seed: int) -> Row:
    """One run in a worker process."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    valid, test = PROBLEMS[problem].runs[run](arrays(data), lr, knob, seed)
    return {"problem": problem, "run": run, "lr": lr, "knob": knob, "seed": seed, "valid": valid, "test": test,
            "seconds": round(time.perf_counter() - start, 2)}  # fmt: skip


def study(data: str, names: list[str], seeds: int, workers: int, log: Path) -> list[Row]:
    """Tune with seed 100 by the validation metric, then test the chosen pair with seeds 0, 1, ..."""
    pairs = [(name, run) for name in names for run in PROBLEMS[name].runs]
    grids = {
        (name, run): [
            (name, run, lr, knob, 100)
            for lr in PROBLEMS[name].rates
            for knob in (PROBLEMS[name].knobs or {}).get(run, NO_DECAY)
        ]
        for name, run in pairs
    }
    with Kept(log, ("problem", "run", "lr", "knob", "seed"), partial(one, data), workers) as kept:
        kept.gather([job for grid in grids.values() for job in grid])
        best = {pair: max(kept.gather(grid), key=lambda row: row["valid"]) for pair, grid in grids.items()}
        chosen = [(*pair, row["lr"], row["knob"]) for pair, row in best.items()]
        return kept.gather([(*choice, seed) for choice in chosen for seed in range(seeds)])


def table(results: list[Row]) -> str:
    """Markdown: one line per problem and run, the best of each problem bold."""
    lines = ["| problem | metric | run | lr, knob | test, mean ± std |", "|---|---|---|---|---|"]
    for name, problem in PROBLEMS.items():
        rows = {}
        for run in problem.runs:
            own = [r for r in results if r["problem"] == name and r["run"] == run]
            if own:
                tests = [r["test"] for r in own]
                rows[run] = (statistics.mean(tests), statistics.stdev(tests) if len(tests) > 1 else 0.0, own[0])
        top = max((mean for mean, _, _ in rows.values()), default=0.0)
        for run, (mean, spread, chosen) in rows.items():
            figure = f"{mean:.4f} ± {spread:.4f}"
            mark = f"**{figure}**" if mean == top else figure
            lines.append(f"| {name} | {problem.metric} | {run} | {chosen['lr']:g}, {chosen['knob']:g} | {mark} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="words that a problem's name must contain")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/learns"))
    options = parser.parse_args()
    if options.prepare:
        prepare(options.prepare)
        return
    names = [name for name in PROBLEMS if not options.only or any(word in name for word in options.only)]
    options.out.mkdir(parents=True, exist_ok=True)
    start, log = time.perf_counter(), "quick-runs.jsonl" if QUICK else "runs.jsonl"
    results = study(str(options.data), names, options.seeds, options.workers, options.out / log)
    text = table(results)
    (options.out / "table.md").write_text(text + "\n")
    configuration = {"torch": torch.__version__, "fcco": fcco.__version__, "seeds": options.seeds, "problems": names,
                     "minutes": round((time.perf_counter() - start) / 60, 1)}  # fmt: skip
    (options.out / "configuration.json").write_text(json.dumps(configuration, indent=1))
    print(text)


if __name__ == "__main__":
    main()
