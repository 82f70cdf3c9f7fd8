"""What the examples of docs/tables.md and docs/sklearn.md make, with one epoch in place of the recipe's."""

import pytest

import fcco
from fcco.sklearn import _base
from tests.helpers.pages import DOCS, run

FIT = fcco.fit


def one_epoch(*arguments, **settings):
    settings["epochs"] = 1
    settings["progress"] = False
    return FIT(*arguments, **settings)


@pytest.fixture(autouse=True)
def short_fits(monkeypatch):
    monkeypatch.setattr(fcco, "fit", one_epoch)
    monkeypatch.setattr(_base, "fit", one_epoch)


def test_tables_page():
    names = {}
    assert run(DOCS / "tables.md", names, []) == 1
    assert names["scores"].shape == (2,)
    assert names["x"].shape == (300, 2)


def test_sklearn_page():
    names = {}
    assert run(DOCS / "sklearn.md", names, []) == 1
    assert names["cox"].predict(names["X"]).shape == (200,)
    assert names["model"].predict_proba(names["X"]).shape == (200, 2)
