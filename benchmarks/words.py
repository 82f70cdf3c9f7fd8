"""Tables of sparse counts, as of words in short texts: where fcco.sklearn's default network is behind.

    OMP_NUM_THREADS=1 python benchmarks/words.py --out results/tables/words.jsonl

2,000 rows, 800 columns of counts (5 to 60 words per row), 10 % positives whose words are drawn in 7 % from another topic.
30 % of the rows test. `fcco.fit` gets a perceptron of 64 units on standardised columns, RankingClassifier the raw table.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fcco
from fcco.sklearn import RankingClassifier

ROWS = 2_000
WORDS = 800


def word_counts(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts (N, 800) and labels (N,) of 0 and 1."""
    random = np.random.RandomState(seed)
    usual = random.dirichlet(np.full(WORDS, 0.05))
    topic = random.dirichlet(np.full(WORDS, 0.05))
    y = (random.rand(ROWS) < 0.1).astype(int)
    rows = []
    for label in y:
        other = topic if label else usual
        rows.append(random.multinomial(random.randint(5, 60), 0.93 * usual + 0.07 * other))
    return np.stack(rows).astype(float), y


def scores(method: str, x: np.ndarray, y: np.ndarray, test_x: np.ndarray, seed: int) -> np.ndarray:
    """What a method says of the test rows."""
    if method == "RankingClassifier":
        model = RankingClassifier(metric="average_precision", random_state=seed).fit(x, y)
        return np.asarray(model.decision_function(test_x))
    scaler = StandardScaler().fit(x)
    if method == "fcco.fit":
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(WORDS, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
        result = fcco.fit(net, (scaler.transform(x), y), "average_precision", seed=seed, progress=False)
        return np.asarray(result.predict(scaler.transform(test_x)))
    classifier = LogisticRegression(max_iter=2000)
    if method == "MLPClassifier":
        classifier = MLPClassifier(random_state=seed, max_iter=500)
    return np.asarray(make_pipeline(StandardScaler(), classifier).fit(x, y).predict_proba(test_x)[:, 1])


METHODS = ("LogisticRegression", "MLPClassifier", "RankingClassifier", "fcco.fit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3])
    parser.add_argument("--methods", nargs="*", default=METHODS, choices=METHODS)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with options.out.open("a") as lines:
        for seed in options.seeds:
            x, y = word_counts(seed)
            train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.3, random_state=seed, stratify=y)
            for method in options.methods:
                start = time.process_time()
                found = scores(method, train_x, train_y, test_x, seed)
                value = float(average_precision_score(test_y, found))
                seconds = round(time.process_time() - start, 1)
                row = {"seed": seed, "method": method, "ap": round(value, 4), "cpu_seconds": seconds}
                print(json.dumps(row), flush=True)
                lines.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
