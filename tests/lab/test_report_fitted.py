"""The report of runs that `fcco train` makes by the metric: their results stand there, and nothing is called broken."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fcco.lab.report import write_report
from fcco.lab.report.fitted import is_fitted
from fcco.lab.report.runs import read_runs

TRIALS = [
    {"trial": "plain-1", "setting": "plain, lr 0.003", "examples": 100, "value": 0.3, "chosen": False},
    {"trial": "ranking-1", "setting": "<b>PartialAUC</b>", "examples": 200, "value": float("nan"), "chosen": True},
]


def write_fit(folder: Path, seed: int = 0) -> Path:
    folder.mkdir()
    test = {"value": 0.41, "interval": [0.25, 0.59]}
    metrics = {"metric": "average_precision", "test": test, "test_plain_loss": {"value": 0.38}, "chosen": "ranking-1"}
    contents: dict[str, Any] = {
        "config.json": {"dataset": "customers.csv", "seed": seed},
        "environment.json": {"torch": "2.13.0"},
        "status.json": {"status": "finished", "message": "300 examples"},
        "metrics.json": metrics | {"setting": "<b>PartialAUC</b>", "test_examples": 80},
        "fit.json": {"examples": 300, "trials": TRIALS},
        "history.jsonl": {"trial": "plain-1"},
    }
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def data_of(page: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found.group(1))
    return data


def test_results_and_trials_are_on_the_page(tmp_path: Path) -> None:
    folders = [write_fit(tmp_path / "first"), write_fit(tmp_path / "second", seed=1)]
    page = write_report(folders, tmp_path / "report.html")
    data = data_of(page)
    assert [run["name"] for run in data["fitted"]] == ["first", "second"]
    assert data["fitted"][0]["test"] == [0.41, 0.25, 0.59]
    assert data["fitted"][0]["plain"] == [0.38, None, None]
    assert [trial["value"] for trial in data["fitted"][0]["trials"]] == [0.3, None]
    assert all(run["notes"] == [] and run["tone"] == "good" for run in data["runs"])
    assert "<b>" not in page.read_text()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"trials": 3, "test": 1}'])
def test_one_that_is_not_done_or_damaged_is_a_note(damage: str, tmp_path: Path) -> None:
    folder = write_fit(tmp_path / "run")
    (folder / "fit.json").write_text(damage)
    (folder / "metrics.json").write_text(damage)
    data = data_of(write_report([folder], tmp_path / "report.html"))
    assert len(data["fitted"]) == ("trials" in damage)
    assert [len(run["notes"]) for run in data["runs"]] == ["trials" not in damage]


def test_a_run_of_one_method_is_none(tmp_path: Path) -> None:
    folder = write_fit(tmp_path / "run")
    (folder / "metrics.jsonl").write_text('{"step": 1, "objective": 0.5}\n')
    assert not is_fitted(folder)
    assert read_runs([folder])[0].fitted is None


def test_a_number_that_no_float_holds_is_left_out(tmp_path: Path) -> None:
    folder = write_fit(tmp_path / "run")
    (folder / "fit.json").write_text(f'{{"examples": {10**400}, "trials": []}}')
    fitted = read_runs([folder])[0].fitted
    assert fitted is not None
    assert fitted["examples"] is None
