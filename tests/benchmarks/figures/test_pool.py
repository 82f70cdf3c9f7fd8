"""The pool and the command line: end to end on digits, killed in the middle, resumed, drawn."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.figures import __main__ as command
from benchmarks.figures import pool as pools
from benchmarks.figures.costs import Forecast, alone
from benchmarks.figures.draw import draw_all
from benchmarks.figures.grids import points_of
from benchmarks.figures.plan import METHODS
from benchmarks.figures.pool import Pool, Setting
from benchmarks.figures.runs import Run, carry_out
from benchmarks.figures.store import Journal, read, settled
from benchmarks.figures.studies import Progress, Rung, Study
from fcco.lab.config import TrainConfig

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = TrainConfig(dataset="digits", model="mlp", hidden=(16,), blocks=5, samples=16, tensorboard=False, threads=1)
GRID = points_of({"lr": (0.05, 0.2), "alpha": (0.5,), "beta": (0.5,)})


def small_plan(steps: int = 20) -> list[Study]:
    studies = []
    for method in METHODS[:3]:
        base = Run(replace(SMALL, method=method, steps=steps), points=4)
        studies.append(Study(f"figure1/digits/{method}", base, (0, 1), GRID, (Rung(0.5, 2), Rung(1.0, 1))))
    return studies


def test_a_plan_is_drawn_as_far_as_it_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    studies = small_plan()
    rows: dict[str, dict] = {}
    progress = Progress(studies, rows)
    journal = Journal(tmp_path / "runs.jsonl")
    for study in studies[:2]:  # the third is missing
        while runs := progress.open_runs(study):
            for run in runs:
                row = carry_out(run, "cpu") | {"workers": 1}
                rows[run.key] = row
                journal.append(row)
    journal.close()
    monkeypatch.setattr(command, "whole_plan", lambda: studies)
    assert command.main(["draw", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for x in ("samples", "oracle", "seconds"):
        assert (tmp_path / f"figure1-{x}.png").read_bytes()[:4] == b"\x89PNG"
        assert f"figure1-{x}.png" in shown
    page = (tmp_path / "claims.md").read_text()
    assert "figure1/digits/msvr-v2: not begun" in page
    assert "| figure1/digits/sox | lr" in page
    assert command.main(["plan", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("figure1/digits/sox")).split()[1:3] == ["5", "5"]
    assert next(line for line in lines if line.startswith("figure1/digits/msvr-v2")).split()[1:3] == ["0", "5"]


def test_borrowed_curves_alone_make_no_figure(tmp_path: Path) -> None:
    tuned = small_plan()[0]
    study = replace(tuned, name="figure1/cifar10/sox", rungs=(), grid=GRID[:1])
    stems = replace(study, name="stems/cifar10/sox", base=replace(study.base, config=replace(SMALL, steps=30)))
    rows = {}
    for seed in study.seeds:
        run = replace(study.base, config=replace(study.base.config, seed=seed, **dict(GRID[0])))
        rows[run.key] = carry_out(run, "cpu") | {"workers": 1}
    written = [path.name for path in draw_all([study, stems], [study, stems], rows, tmp_path)]
    assert "figure1-samples.png" in written
    assert "stems-samples.png" not in written


def test_failed_runs_make_the_command_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        failures = 1

        def __init__(self, *parts: object, **options: object) -> None: ...

        def run(self) -> int:
            return 2

    monkeypatch.setattr(command, "Pool", Failing)
    argv = ["run", "--quick", "--device", "cpu", "--out", str(tmp_path)]
    assert command.main(argv) == 1
    monkeypatch.setattr(Failing, "failures", 0)
    assert command.main(argv) == 0


def test_a_run_that_would_not_end_in_time_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_worker(*_: object) -> None:
        pytest.fail("a worker was started")

    monkeypatch.setattr(pools, "Worker", no_worker)
    studies = small_plan()
    assert Pool(studies, studies, tmp_path, Setting(2, 0.5, "cpu"), print).run() == 0


def test_the_forecast_learns_from_the_runs_of_a_kind() -> None:
    run = small_plan(500)[0].base
    other = small_plan(500)[2].base
    forecast = Forecast(12)
    before = forecast.seconds(run)
    for _ in range(3):
        forecast.learn(run, {"wall": 50 * alone(run) + 2.0})
    assert forecast.seconds(run) > 3 * before
    assert forecast.seconds(run) == pytest.approx(2.0 + 55 * alone(run))
    assert forecast.seconds(other) == pytest.approx(2.0 + 8 * alone(other))


def test_a_broken_device_takes_its_process_along() -> None:
    run = small_plan()[0].base
    assert pools.broke_the_device(pools.failed(run, "AcceleratorError: CUDA error: an illegal memory access", 1.0))
    assert not pools.broke_the_device(pools.failed(run, "ValueError: digits must have 1442 training examples", 1.0))


def test_without_libauc_its_baseline_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    studies = command.whole_plan()
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    left_out = {study.name for study in studies} - {study.name for study in command.possible(studies)}
    assert left_out == {"general/cifar10/aucm", "general/fashion-mnist/aucm"}
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: object())
    assert command.possible(studies) == studies


@pytest.mark.slow
def test_workers_that_are_killed_lose_one_run_and_nothing_is_made_twice(tmp_path: Path) -> None:
    studies = small_plan(400)
    told: list[str] = []
    pool = Pool(studies, studies, tmp_path, Setting(2, 400.0, "cpu"), told.append)

    def kill_one() -> None:
        while len(read(tmp_path)) < 3:
            time.sleep(0.05)
        busy = [worker for worker in pool._workers if worker.run is not None]
        os.kill(busy[0].process.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill_one)
    thread.start()
    pool.run()
    thread.join()
    rows = read(tmp_path)
    assert any("the process ended with -9" in text for text in told)
    progress = Progress(studies, settled(rows))
    assert all(progress.counts(study) == (5, 5) for study in studies)
    keys = [row["key"] for row in rows if row["status"] != "failed"]
    assert len(keys) == len(set(keys))
    assert Pool(studies, studies, tmp_path, Setting(2, 400.0, "cpu"), told.append).run() == 0
