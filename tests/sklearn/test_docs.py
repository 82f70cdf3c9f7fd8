"""The examples of docs/tables.md and docs/sklearn.md run as they stand, with one epoch in place of the recipe's."""

import json
import re
from pathlib import Path

import numpy as np
import pandas
from sklearn.model_selection import cross_val_score

import fcco
from fcco.sklearn import _base

DOCS = Path(__file__).parents[2] / "docs"
FIT = fcco.fit


def run(page, names):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    assert len(blocks) == 1
    exec(compile(blocks[0], page, "exec"), names)
    return names


def one_epoch(*arguments, **settings):
    settings["epochs"] = 1
    settings["progress"] = False
    return FIT(*arguments, **settings)


def table(rows=80):
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"size": rng.normal(size=rows), "town": rng.choice(["Bonn", "Kiel"], rows)})
    return frame, (frame["size"] > 0.3).astype(int)


def test_tables_page(monkeypatch):
    monkeypatch.setattr(fcco, "fit", one_epoch)
    frame, y = table()
    names = run("tables.md", {"table": frame, "y": y, "new": frame[["town", "size"]][:5], "json": json})
    assert names["scores"].shape == (5,)


def test_sklearn_page(monkeypatch):
    monkeypatch.setattr(_base, "fit", one_epoch)
    X, y = table()
    relevance = y * 2
    query = np.arange(80) // 8
    names = {"X": X, "y": y + 1, "relevance": relevance, "query": query, "cross_val_score": cross_val_score}
    assert run("sklearn.md", names)["cox"].predict(X).shape == (80,)
