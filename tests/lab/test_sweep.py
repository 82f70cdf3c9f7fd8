"""Sweeps: every point once, resumed after a kill, failed and diverged runs recorded as such."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from rich.console import Console

from fcco.lab import sweep as sweeping
from fcco.lab.cli import main
from fcco.lab.config import TrainConfig
from fcco.lab.errors import Interrupted, LabError, StorageError
from fcco.lab.files import read_rows
from fcco.lab.space import PAPER, Range, points, read_space, trimmed
from fcco.lab.sweep import Sweep, carry_out, open_sweep, run_name

BASE = TrainConfig(hidden=(8,), samples=8, steps=4, eval_every=2, tensorboard=False, method="sox")
GRID = {"lr": (0.1, 0.2), "alpha": (0.5,), "beta": (0.5, 1.0)}
SILENT = Console(quiet=True)


def statuses(sweep: Sweep) -> list[str]:
    return [trial.user_attrs.get("status", trial.state.name) for trial in sweep.study.get_trials()]


@pytest.mark.parametrize("storage", [None, "journal"])
def test_every_point_of_a_grid_is_run_once(tmp_path: Path, storage: str | None) -> None:
    sweep = open_sweep(BASE, GRID, tmp_path, storage=storage)
    carry_out(sweep, 3, SILENT)
    assert len(list((tmp_path / "runs").iterdir())) == 3
    again = open_sweep(BASE, GRID, tmp_path, storage=storage)
    carry_out(again, None, SILENT)
    assert statuses(again) == ["finished"] * 4
    assert len(list((tmp_path / "runs").iterdir())) == 4
    best, value = again.best()
    assert value == min(trial.values[0] for trial in again.study.get_trials())
    assert best.lr in GRID["lr"]


def test_failed_and_diverged_runs_are_recorded_and_the_sweep_goes_on(tmp_path: Path) -> None:
    space = {"lr": (0.1, 1e25), "samples": (8, 1)}
    sweep = open_sweep(BASE, space, tmp_path)
    carry_out(sweep, None, SILENT)
    assert sorted(statuses(sweep)) == ["diverged", "failed", "failed", "finished"]
    messages = [trial.user_attrs.get("message", "") for trial in sweep.study.get_trials()]
    assert any("samples must be at least 2" in message for message in messages)
    assert sweep.best()[0].lr == 0.1
    carry_out(sweep, None, SILENT)
    assert len(statuses(sweep)) == 4  # they are not tried again


def test_a_stopped_sweep_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = sweeping.finish, []

    def stopped(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise Interrupted(signal.SIGINT, "stopped")
        return real(*arguments)

    monkeypatch.setattr(sweeping, "finish", stopped)
    sweep = open_sweep(BASE, GRID, tmp_path)
    with pytest.raises(Interrupted):
        carry_out(sweep, None, SILENT)
    carry_out(sweep, None, SILENT)
    assert sorted(statuses(sweep)) == ["finished"] * 4 + ["interrupted"]


def test_a_full_disk_stops_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise StorageError("the disk is full")

    sweep = open_sweep(BASE, GRID, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(sweeping, "finish", full)
        with pytest.raises(StorageError):
            carry_out(sweep, None, SILENT)
    carry_out(sweep, None, SILENT)
    assert statuses(sweep).count("finished") == 4


def test_what_a_dead_process_left_is_run_again(tmp_path: Path) -> None:
    sweep = open_sweep(BASE, GRID, tmp_path)
    sweeping._prepare(sweep)
    dead = subprocess.Popen(["true"])
    dead.wait()
    ours, theirs = sweep.study.ask(), sweep.study.ask()
    ours.set_user_attr("process", [socket.gethostname(), dead.pid])
    theirs.set_user_attr("process", ["another machine", dead.pid])
    carry_out(sweep, None, SILENT)
    assert sorted(statuses(sweep)) == ["FAIL", "RUNNING", "finished", "finished", "finished"]


@pytest.mark.slow
def test_a_killed_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    argv = ["sweep", "--hidden", "8", "--samples", "8", "--steps", "60", "--eval-every", "10", "--method",
             "soap", "--no-tensorboard", "--checkpoint-seconds", "0.05", "--out", str(tmp_path)]  # fmt: skip
    process = subprocess.Popen([sys.executable, "-m", "fcco", *argv], stdout=subprocess.DEVNULL)
    while process.poll() is None and len(list((tmp_path / "runs").glob("*/checkpoint.pt"))) < 2:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert main([*argv, "--trials", "4"]) == 0
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{tmp_path / 'sweep.db'}")
    done = [trial.user_attrs["point"] for trial in study.get_trials() if trial.user_attrs.get("status") == "finished"]
    assert len(done) == len(set(done)) >= 4
    assert not [trial for trial in study.get_trials() if trial.state is optuna.trial.TrialState.RUNNING]


def test_ranges_are_searched_too(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text("lr = {low = 0.001, high = 0.5, log = true}\nsamples = {low = 4, high = 16, step = 4}\n")
    space = read_space(file)
    assert space == {"lr": Range(0.001, 0.5, log=True), "samples": Range(4, 16, step=4, whole=True)}
    sweep = open_sweep(BASE, space, tmp_path / "sweep", metric="auroc")
    carry_out(sweep, 3, SILENT)
    carry_out(sweep, 3, SILENT)
    assert statuses(sweep) == ["finished"] * 3
    assert sweep.best()[1] == max(trial.values[0] for trial in sweep.study.get_trials())


def test_halving_stops_what_is_behind(tmp_path: Path) -> None:
    base = replace(BASE, steps=16, eval_every=1)
    space = {"lr": (0.2, 1e-6, 1e-7, 1e-8)}
    sweep = open_sweep(base, space, tmp_path, halving=True)
    carry_out(sweep, None, SILENT)
    assert "pruned" in statuses(sweep)
    assert sweep.best()[0].lr == 0.2


def test_the_papers_grid_has_only_the_rates_that_a_method_takes() -> None:
    assert len(list(points(PAPER, BASE))) == 80
    assert len(list(points(PAPER, replace(BASE, method="soap")))) == 20
    assert len(list(points(PAPER, replace(BASE, method="bsgd")))) == 5
    assert trimmed({"method": "bsgd", "alpha": 0.5, "lr": 1.0}, BASE) == {"method": "bsgd", "lr": 1.0}
    mixed = {"method": ("sox", "bsgd"), "alpha": (0.1, 0.5), "lr": (1.0,)}
    assert len(list(points(mixed, BASE))) == 3


@pytest.mark.parametrize(("text", "expected"), [
    ("lrr = [1.0]", "did you mean 'lr'?"),
    ("lr = 'fast'", "lr must be a list of values"),
    ("lr = ['fast']", "lr must be a number"),
    ("lr = {low = 1}", "lr must be a list"),
    ("lr = {low = 1.0, high = 0.1}", "lr: low must be below high, got 1.0 and 0.1"),
    ("lr = {low = 0.0, high = 0.1, log = true}", "lr: low must be above 0 with log = true, got 0.0"),
    ("samples = {low = 2, high = 8, step = 0}", "samples: step must be above 0, got 0"),
    ("lr = [nan]", "lr must be finite, got nan"),
    ("lr = {low = 0.1, high = inf}", "lr must be finite, got inf"),
    (f"seed = {{low = 0, high = {2**63}}}", "seed must be below 2^63"),
    ("", "names no setting"),
])  # fmt: skip
def test_a_wrong_space_is_refused(text: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text(text)
    with pytest.raises(LabError) as refused:
        read_space(file)
    assert expected in str(refused.value)


def test_another_sweep_in_the_folder_and_a_wrong_storage_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_sweep(BASE, GRID, tmp_path)
    with pytest.raises(LabError, match="another sweep"):
        open_sweep(replace(BASE, steps=5), GRID, tmp_path)
    assert main(["sweep", "--storage", "nosuchdb://x", "--out", str(tmp_path / "b")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_sweep_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    """Its points would be compared although they are of two tables."""
    table = tmp_path / "mine.csv"

    def write(shift: float) -> None:
        rows = [f"{number % 7 + shift},{number % 5},{number % 3 == 0:d}" for number in range(60)]
        table.write_text("\n".join(["p,q,y", *rows]) + "\n")

    write(0.0)
    base = replace(BASE, dataset=str(table), target=("y",), samples=4)
    open_sweep(base, GRID, tmp_path / "sweep")
    write(0.5)
    with pytest.raises(LabError, match="the data have changed since the sweep in"):
        open_sweep(base, GRID, tmp_path / "sweep")
    write(0.0)
    open_sweep(base, GRID, tmp_path / "sweep")


def test_the_command_leaves_the_best_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "space.toml").write_text("lr = [0.1, 0.2]")
    (tmp_path / "base.toml").write_text("hidden = [8]\nsamples = 8\nsteps = 3\ntensorboard = false")
    out = tmp_path / "sweep"
    argv = ["sweep", "--config", str(tmp_path / "base.toml"), "--space", str(tmp_path / "space.toml")]
    assert main([*argv, "--out", str(out)]) == 0
    assert "best validation auroc" in capsys.readouterr().out
    assert "validation = 0.2" in (out / "best.toml").read_text()
    assert main(["train", "--config", str(out / "best.toml"), "--out", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["lr"] in (0.1, 0.2)


def test_a_sweep_chooses_by_the_validation_part(tmp_path: Path) -> None:
    base = replace(BASE, validation=0.2)
    sweep = open_sweep(base, {"lr": (0.001, 0.1)}, tmp_path, "auroc")
    carry_out(sweep, None, SILENT)
    chosen, value = sweep.best()
    last = read_rows(tmp_path / "runs" / run_name(chosen) / "metrics.jsonl")[-1]
    assert value == last["validation_auroc"] != last["auroc"]
    others = [read_rows(path)[-1]["validation_auroc"] for path in tmp_path.rglob("metrics.jsonl")]
    assert len(others) == 2
    assert value == max(others)


def test_a_sweep_of_failed_runs_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "space.toml").write_text("samples = [1]")
    argv = ["sweep", "--space", str(tmp_path / "space.toml"), "--out", str(tmp_path / "sweep")]
    assert main(argv) == 2
    assert "finished: samples must be at least 2" in capsys.readouterr().err
    assert main([*argv, "--trials", "0"]) == 2
    assert "--trials must be at least 1, got 0" in capsys.readouterr().err


def test_the_first_trials_of_a_grid_are_spread_over_it(tmp_path: Path) -> None:
    sweep = open_sweep(replace(BASE, steps=1, eval_every=1), PAPER, tmp_path)
    carry_out(sweep, 6, SILENT)
    tried = [json.loads(t.user_attrs["point"])["lr"] for t in sweep.study.get_trials() if "run" in t.user_attrs]
    assert len(tried) == 6
    assert len(set(tried)) >= 3


def test_a_runs_name_tells_configurations_apart() -> None:
    assert run_name(BASE) == run_name(replace(BASE))
    assert run_name(BASE) != run_name(replace(BASE, lr=0.3))
    assert os.sep not in run_name(replace(BASE, dataset="/some/where/mine.csv"))
