"""Which network for tables: variants of TableNetwork against a bare standardised MLP and scikit-learn's MLPClassifier.

All by plain binary cross-entropy, on a9a, yeast and emotions alone (other data sets are kept for reports): 4 settings each
(learning rate and decay; scikit-learn's alpha), 3 seeds, epoch and setting chosen on the validation part by macro AP.

    FCCO_BENCH_DATA=... python benchmarks/table_networks.py results/tables
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import readers
import torch
from kept import Kept, Row
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.neural_network import MLPClassifier
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fcco.tables import TableEncoder, TableNetwork

DATA = ("emotions", "yeast", "a9a")  # "a9a-rare" is there too
EPOCHS = {"a9a": 8, "a9a-rare": 10, "yeast": 60, "emotions": 80}
BATCH = {"a9a": 256, "a9a-rare": 256, "yeast": 64, "emotions": 64}
RATES = (1e-3, 3e-3)
DECAYS = (0.01, 0.3)
ALPHAS = {0.01: 1e-4, 0.3: 1e-1}  # scikit-learn's decay is another: an l2 term
SEEDS = (0, 1, 2)
RARE = 0.03  # share of positives in a9a-rare


class Members(nn.Module):
    """Eight perceptrons that share their weights but for a factor per unit; the mean of their scores."""

    def __init__(self, inputs: int, outputs: int, width: int, dropout: float, count: int = 8) -> None:
        super().__init__()
        sign = torch.randint(2, (count, 1, inputs)) * 2.0 - 1.0
        self.first = nn.Parameter(sign)
        self.factors = nn.ParameterList([nn.Parameter(torch.ones(count, 1, width)) for _ in range(2)])
        self.layers = nn.ModuleList([nn.Linear(inputs, width), nn.Linear(width, width)])
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Parameter(torch.empty(count, width, outputs).uniform_(-1, 1) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.unsqueeze(0) * self.first  # (M, K, D)
        for layer, factor in zip(self.layers, self.factors, strict=True):
            hidden = self.dropout(layer(hidden).relu() * factor)
        return torch.bmm(hidden, self.head).mean(0)


class Skip(nn.Module):
    """A network beside a linear model."""

    def __init__(self, network: nn.Module, inputs: int, outputs: int) -> None:
        super().__init__()
        self.network = network
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x) + self.linear(x)


def perceptron(inputs: int, outputs: int, dropout: float) -> nn.Module:
    layers = [
        nn.Linear(inputs, 256),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Dropout(dropout),
    ]
    return nn.Sequential(*layers, nn.Linear(256, outputs))


Make = Callable[[TableEncoder, int], nn.Module]
VARIANTS: dict[str, Make | None] = {
    "bare MLP": None,
    "scikit-learn MLP": None,
    "bare MLP, dropout": None,
    "encoder, no embedding": lambda encoder, outputs: TableNetwork(encoder, outputs, embedding=0),
    "encoder, bins": lambda encoder, outputs: TableNetwork(encoder, outputs),
    "encoder, bins, 256 wide": lambda encoder, outputs: TableNetwork(encoder, outputs, width=256),
    "encoder, no embedding, 256 wide": lambda encoder, outputs: TableNetwork(encoder, outputs, embedding=0, width=256),
    "encoder, linear skip": lambda encoder, outputs: Skip(
        TableNetwork(encoder, outputs, embedding=0), encoder.width, outputs
    ),
    "encoder, 8 members": lambda encoder, outputs: Members(encoder.width, outputs, 128, 0.25),
}

# Every column of a9a is 0 or 1, and its rows ask for 256 units: these are the encoder without embedding there.
SAME = {("a9a", name) for name in ("encoder, bins", "encoder, bins, 256 wide", "encoder, no embedding, 256 wide")}
DROPPED = {("a9a", "encoder, 8 members")}  # the slowest; last but one by validation on emotions, second on yeast


@cache
def table(name: str, seed: int) -> tuple[Tensor, Tensor, readers.Table]:
    if not name.startswith("a9a"):
        found = readers.arff(name, seed=seed)
        return found.x, found.y, found
    found = readers.a9a(seed=seed)
    if name == "a9a-rare":
        found = rare(found, seed)
    return found.x, found.y[:, None].float(), found


def rare(found: readers.Table, seed: int) -> readers.Table:
    """Positives left out of every part until they are 3 %."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for part in (found.train, found.valid, found.test):
        positive = part[found.y[part] == 1]
        negative = part[found.y[part] == 0]
        count = round(len(negative) * RARE / (1 - RARE))
        chosen = positive[torch.randperm(len(positive), generator=generator)[:count]]
        parts.append(torch.cat([negative, chosen]))
    return readers.Table(found.x, found.y, *parts)


def macro(metric: Callable[..., float], y: Tensor, scores: Tensor) -> float:
    values = []
    for label in range(y.shape[1]):
        if 0 < y[:, label].sum() < len(y):
            values.append(metric(y[:, label].numpy(), scores[:, label].numpy()))
    return float(np.mean(values))


def inputs(variant: str, x: Tensor, train: Tensor) -> tuple[Tensor, TableEncoder | None]:
    if variant.startswith("encoder"):
        encoder = TableEncoder().fit(x[train])
        return encoder.transform(x), encoder
    part = x[train]
    return (x - part.mean(0)) / part.std(0).clamp(min=1e-6), None


def run(data: str, variant: str, lr: float, decay: float, seed: int) -> Row:
    """One training: the epoch with the best validation AP, and the test figures there."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.manual_seed(seed)
    given, y, found = table(data, seed)
    x, encoder = inputs(variant, given, found.train)
    started = time.process_time()
    best: Row = {"valid": -1.0}
    epochs = sk_epochs if variant.startswith("scikit") else torch_epochs
    for epoch, score in enumerate(epochs(variant, encoder, x, y, found.train, lr, decay, data, seed)):
        valid = macro(average_precision_score, y[found.valid], score(x[found.valid]))
        if valid > best["valid"]:
            scores = score(x[found.test])
            ap = macro(average_precision_score, y[found.test], scores)
            auroc = macro(roc_auc_score, y[found.test], scores)
            best = {"valid": valid, "ap": ap, "auroc": auroc, "epoch": epoch + 1}
    names = {"data": data, "variant": variant, "lr": lr, "decay": decay, "seed": seed}
    return {**names, **best, "seconds": round(time.process_time() - started, 2)}


Score = Callable[[Tensor], Tensor]


def torch_epochs(variant, encoder, x, y, train, lr, decay, data, seed) -> Iterator[Score]:
    make = VARIANTS[variant]
    if make is None:
        model = perceptron(x.shape[1], y.shape[1], 0.25 if "dropout" in variant else 0.0)
    else:
        model = make(encoder, y.shape[1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=decay)

    def score(rows: Tensor) -> Tensor:
        with torch.no_grad():
            return model.eval()(rows)

    for _ in range(EPOCHS[data]):
        model.train()
        for ids in train[torch.randperm(len(train))].split(BATCH[data]):
            loss = binary_cross_entropy_with_logits(model(x[ids]), y[ids])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        yield score


def sk_epochs(variant, encoder, x, y, train, lr, decay, data, seed) -> Iterator[Score]:
    model = MLPClassifier(
        (256, 256), alpha=ALPHAS[decay], learning_rate_init=lr, batch_size=BATCH[data], random_state=seed
    )
    rows = x[train].numpy()
    labels = y[train].numpy().astype(int)
    if labels.shape[1] == 1:
        labels = labels[:, 0]

    def score(part: Tensor) -> Tensor:
        probability = model.predict_proba(part.numpy())
        if labels.ndim == 1:
            probability = probability[:, 1:]
        return torch.from_numpy(probability)

    classes = np.arange(2) if labels.ndim == 1 else np.arange(labels.shape[1])
    for _ in range(EPOCHS[data]):
        model.partial_fit(rows, labels, classes=classes)
        yield score


def report(rows: list[Row]) -> str:
    """The chosen setting of every variant: mean and standard deviation over the seeds."""
    lines = ["| data | network | validation AP | test AP | test AUROC | CPU s |", "|---|---|---|---|---|---|"]
    for data, variant in product(DATA, VARIANTS):
        own = [row for row in rows if (row["data"], row["variant"]) == (data, variant)]
        if not own:
            continue
        groups = [[r for r in own if (r["lr"], r["decay"]) == choice] for choice in product(RATES, DECAYS)]
        chosen = max(groups, key=lambda group: np.mean([row["valid"] for row in group]))
        mean = {key: np.mean([row[key] for row in chosen]) for key in ("valid", "ap", "auroc", "seconds")}
        spread = np.std([row["ap"] for row in chosen], ddof=1)
        lines.append(
            f"| {data} | {variant} | {mean['valid']:.4f} | {mean['ap']:.4f} ± {spread:.4f} | {mean['auroc']:.4f} | {mean['seconds']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    names = ("data", "variant", "lr", "decay", "seed")
    jobs = [job for job in product(DATA, VARIANTS, RATES, DECAYS, SEEDS) if job[:2] not in SAME | DROPPED]
    with Kept(options.out / "runs.jsonl", names, run, options.workers) as kept:
        text = report(kept.gather(jobs))
    (options.out / "table.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
