"""Fits, verdicts, the rule of the ablation, and what a run leaves behind."""

import csv
import gzip
import json

import numpy as np
import pytest

from fcco.lab.rates import ablation, fit, reasons, report, runner, scaling
from fcco.lab.rates.fit import Outcome, Row


def row(claim, value, low, high, bound=""):
    return Row("tracking", "MSVR", "error against d", claim, value, low, high, bound)


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ((1.0, 1.02, 0.98, 1.05), "meets"),
        ((1.0, 1.10, 1.05, 1.15), "misses: steeper"),
        ((-0.5, -0.3, -0.4, -0.2), "misses: flatter"),
        ((-0.5, -0.498, -0.498, -0.498), "meets"),  # to two digits
        ((1.0, 2.0, 1.5, 2.5, ">"), "meets"),
        ((1.0, 1.1, 0.9, 1.3, ">"), "misses"),
        ((1.0, 0.5, 0.4, 0.6, "<"), "meets"),
        ((None, 0.5, 0.4, 0.6), ""),
    ],
)
def test_verdicts(given, verdict):
    assert row(*given).verdict == verdict


def test_slope_and_interval():
    x = np.array([1.0, 2.0, 4.0, 8.0])
    noise = np.exp(0.1 * np.random.default_rng(0).standard_normal((4, 12)))
    y = 3.0 * x[:, None] ** 0.5 * noise
    measured, curve = fit.measure("e", "n", "q", x, fit.averaged(y), 12, 0.5, labels=("x", "y"))
    assert measured.low < measured.value < measured.high
    assert measured.verdict == "meets"
    assert measured.high - measured.low < 0.2
    assert len(curve.x) == len(curve.y) == 4


def test_semi_logarithmic_slope():
    x = np.arange(5.0)
    assert fit.slope(x, np.exp(-0.3 * x), log_x=False) == pytest.approx(-0.3)


def test_best_ignores_what_diverged():
    assert fit.best(np.array([np.nan, np.inf, 3.0, 2.0])) == 3


def test_crossing_interpolates():
    steps, means = np.array([1.0, 10.0, 100.0]), np.array([4.0, 2.0, 1.0])
    assert scaling.crossing(steps, means, 2.0) == pytest.approx(10.0)
    assert scaling.crossing(steps, means, 2.0**0.5) == pytest.approx(10**1.5)
    assert scaling.crossing(steps, means, 0.5) == 100.0
    assert scaling.crossing(steps, means, 1e9) == steps[0]
    assert scaling.crossing(steps[:1], means[:1], 1e9) == steps[0]


def test_judge_counts_what_the_rule_finds():
    cell = {name: np.ones(4) for name in ("0", "1 - beta", "variant")}
    cell |= {"formula": np.array([0.8, 0.9, 2.0, np.inf]), "rho": np.array([0.01, 0.1, 0.9, np.inf])}
    largest, median, caught, spared, *_ = ablation.judge([cell])
    assert (largest, caught, spared) == pytest.approx((0.9, 1.0, 1.0))
    assert median > 2.0


def test_rho_is_small_where_steps_are_small():
    plan = ablation.Plan(etas=2, steps=200, seeds=2)
    cell = ablation.measure_cell(plan, ablation.Kind.WAVY, "v2", ratio=20, beta=0.1)
    small, large = cell.rho.mean(-1)
    assert small < 0.01 < ablation.THRESHOLD < large


def stub(quick, seeds):
    """An experiment that takes no time."""
    x, outcome = [1.0, 2.0, 4.0], Outcome(settings={"quick": quick})
    for name, power in (("one", 1.0), ("two", 2.0)):
        y = np.array(x)[:, None] ** power * np.ones((3, seeds))
        for at, values in zip(x, y, strict=True):
            outcome.log(name, at, values)
        outcome.add(fit.measure("tracking", name, "y against x", x, fit.averaged(y), seeds, 1.0, labels=("x", "y")))
    cell = {"ratio": 2, "beta": 0.1, "formula": [1, 2], "0": [1, 1], "rho": [0, 1]}
    outcome.maps.append({"title": "map", "eta": [0.1, 1.0], "cells": [cell]})
    return outcome


@pytest.fixture
def stubbed(monkeypatch):
    monkeypatch.setattr(runner, "EXPERIMENTS", {"tracking": stub, "convex": stub})


def test_run_writes_everything(stubbed, tmp_path):
    rows = runner.run(quick=False, out=tmp_path, only=["tracking"], seeds=3)
    assert [one.verdict for one in rows] == ["meets", "misses: steeper"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "rates.json", "raw", "table.md", "tracking-map.png", "tracking.png",
    ]  # fmt: skip
    content = json.loads((tmp_path / "rates.json").read_text())
    assert content["experiments"]["tracking"]["rows"][1]["verdict"] == "misses: steeper"
    assert {"command", "commit", "seeds", "environment", "time"} <= content["facts"].keys()
    with gzip.open(tmp_path / "raw" / "tracking.csv.gz", "rt") as file:
        lines = list(csv.reader(file))
    assert lines[0] == ["series", "x", "setting", "seed", "value"]
    assert len(lines) == 1 + 2 * 3 * 3
    table = (tmp_path / "table.md").read_text()
    assert "Misses (1 of 2 claims)" in table
    assert reasons.UNKNOWN in table


def test_command_line(stubbed, tmp_path, capsys):
    assert runner.main(["--quick", "--out", str(tmp_path), "--seeds", "2", "--jobs", "1"]) == 0
    assert capsys.readouterr().out.count("| meets |") == 2
    assert "Quick" not in (tmp_path / "table.md").read_text()


@pytest.mark.parametrize(("name", "value"), [("only", ["nothing"]), ("seeds", 1), ("jobs", 0)])
def test_bad_arguments_are_named(stubbed, tmp_path, name, value):
    with pytest.raises(ValueError, match=name):
        runner.run(out=tmp_path, **{name: value})


def test_table_cells_hold_no_bars():
    """A bar in a name would end the cell."""
    line = report.table_row(row(1.0, 1.0, 0.9, 1.1))
    assert line.count("|") == report.HEAD.count("|")


@pytest.mark.slow
def test_the_quick_run_is_whole(tmp_path):
    rows = runner.run(quick=True, out=tmp_path, seeds=4)
    assert {one.experiment for one in rows} == set(runner.EXPERIMENTS)
    assert all("|" not in one.key for one in rows)
    assert len(list(tmp_path.glob("*.png"))) == len(runner.EXPERIMENTS)
