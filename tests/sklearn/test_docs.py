"""The examples of docs/tables.md and docs/sklearn.md run as they stand, with one epoch in place of the recipe's."""

import re
from pathlib import Path

import fcco
from fcco.sklearn import _base

DOCS = Path(__file__).parents[2] / "docs"
FIT = fcco.fit


def run(page):
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    assert len(blocks) == 1
    exec(compile(blocks[0], page, "exec"), names)
    return names


def one_epoch(*arguments, **settings):
    settings["epochs"] = 1
    settings["progress"] = False
    return FIT(*arguments, **settings)


def test_tables_page(monkeypatch):
    monkeypatch.setattr(fcco, "fit", one_epoch)
    names = run("tables.md")
    assert names["scores"].shape == (5,)


def test_sklearn_page(monkeypatch):
    monkeypatch.setattr(_base, "fit", one_epoch)
    names = run("sklearn.md")
    assert names["cox"].predict(names["X"]).shape == (200,)
