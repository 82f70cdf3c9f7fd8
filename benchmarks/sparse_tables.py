"""fcco.fit against a tuned scikit-learn MLP on tables of rare 0/1 columns: the same rows, the same validation part.

    OMP_NUM_THREADS=1 python benchmarks/sparse_tables.py --out results/tables/sparse.jsonl
    FCCO_BENCH_DATA=DATA ... --a9a                         # a9a.xz and a9a.t.xz as well

Each generated table has 28,000 rows and 7,000 more to test with, 300 columns of which some hold a 1 in a few rows alone,
3 % positives. "exclusive" adds eight exclusive-ors of frequent columns to a linear score, "products" 25 products. The
MLP has 8 settings (two shapes, two alphas, two learning rates), the best of 25 epochs by validation AP each.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
import warnings
from itertools import product
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from sklearn.metrics import average_precision_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

import fcco
from benchmarks import readers
from fcco.tables import TableEncoder, TableNetwork

ROWS = 28_000
TEST_ROWS = 7_000
COLUMNS = 300
SHAPES = ((100,), (64, 64))
ALPHAS = (1e-3, 1.0)
RATES = (1e-3, 3e-4)
EPOCHS = 25
PATIENCE = 6

Table = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # x, y, test x, test y


def generated(kind: str, seed: int) -> Table:
    """A table of rare columns.

    Args:
        kind: "exclusive" or "products".
        seed: of everything.
    """
    generator = np.random.default_rng(seed)
    rates = np.exp(generator.uniform(np.log(2e-4), np.log(0.3), COLUMNS))
    x = (generator.random((ROWS + TEST_ROWS, COLUMNS)) < rates).astype(np.float32)
    frequent = np.argsort(-rates)[:40]
    if kind == "exclusive":
        score = x @ generator.normal(0.0, 1.2, COLUMNS)
        for one, other in frequent[:16].reshape(8, 2):
            score = score + 3.0 * generator.choice((-1.0, 1.0)) * np.abs(x[:, one] - x[:, other])
    else:
        score = x @ generator.normal(0.0, 0.8, COLUMNS)
        for _ in range(25):
            one, other = generator.choice(frequent, 2, replace=False)
            score = score + generator.normal(0.0, 1.5) * x[:, one] * x[:, other]
    score = score + generator.logistic(0.0, 0.8, len(score))
    y = (score > np.quantile(score, 0.97)).astype(np.int64)
    return x[:ROWS], y[:ROWS], x[ROWS:], y[ROWS:]


def a9a() -> Table:
    """The whole of a9a, its official test part to test with."""
    x, y = readers.libsvm(readers.folder() / "a9a.xz", 123)
    test_x, test_y = readers.libsvm(readers.folder() / "a9a.t.xz", 123)
    return x.numpy(), (y > 0).long().numpy(), test_x.numpy(), (test_y > 0).long().numpy()


def mlp(x: np.ndarray, y: np.ndarray, valid_x: np.ndarray, valid_y: np.ndarray) -> MLPClassifier:
    """scikit-learn's MLP, setting and epoch chosen by validation AP."""
    best_ap = -1.0
    best = MLPClassifier()
    for shape, alpha, lr in product(SHAPES, ALPHAS, RATES):
        model = MLPClassifier(
            shape, alpha=alpha, learning_rate_init=lr, batch_size=256, random_state=0, max_iter=1, warm_start=True
        )
        own_best = -1.0
        since = 0
        for _ in range(EPOCHS):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # one epoch is no convergence
                model.fit(x, y)
            value = average_precision_score(valid_y, model.predict_proba(valid_x)[:, 1])
            since += 1
            if value > own_best:
                own_best = value
                since = 0
                if value > best_ap:
                    best_ap = value
                    best = copy.deepcopy(model)
            if since >= PATIENCE:
                break
    return best


def compare(name: str, table: Table) -> dict[str, object]:
    """One row: test AP of both."""
    x, y, test_x, test_y = table
    train_x, valid_x, train_y, valid_y = train_test_split(x, y, test_size=0.2, stratify=y, random_state=0)
    started = time.process_time()
    theirs = mlp(train_x, train_y, valid_x, valid_y)
    mlp_seconds = time.process_time() - started
    encoder = TableEncoder()
    inputs = encoder.fit_transform(train_x)
    torch.manual_seed(0)
    started = time.process_time()
    result = fcco.fit(
        TableNetwork(encoder, 1),
        (inputs, train_y),
        "average_precision",
        validation=(encoder.transform(valid_x), valid_y),
        progress=False,
    )
    return {
        "table": name,
        "mlp_ap": float(average_precision_score(test_y, theirs.predict_proba(test_x)[:, 1])),
        "mlp_cpu_seconds": round(mlp_seconds, 1),
        "fit_ap": float(average_precision_score(test_y, result.predict(encoder.transform(test_x)))),
        "plain_valid_ap": result.plain_value,
        "fit_valid_ap": result.value,
        "fit_cpu_seconds": round(time.process_time() - started, 1),
        "chosen": result.setting,
        "fcco": fcco.__version__,
        "torch": torch.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1])
    parser.add_argument("--a9a", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tables = {f"{kind}-{seed}": (kind, seed) for seed in options.seeds for kind in ("exclusive", "products")}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with open(options.out, "w") as lines:
        for name, (kind, seed) in tables.items():
            tell(lines, compare(name, generated(kind, seed)))
        if options.a9a:
            tell(lines, compare("a9a", a9a()))


def tell(lines: TextIO, row: dict[str, object]) -> None:
    print(f"{row['table']:12} MLP {row['mlp_ap']:.4f}   fcco.fit {row['fit_ap']:.4f}   {row['chosen']}", flush=True)
    lines.write(json.dumps(row) + "\n")
    lines.flush()


if __name__ == "__main__":
    main()
