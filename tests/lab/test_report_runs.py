"""Reading run folders, whole and broken, and which of them form a group."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fcco.lab.report.groups import group_runs
from fcco.lab.report.runs import read_runs

CONFIG = {"method": "sox", "dataset": "digits", "model": "mlp", "seed": 0, "lr": 0.1, "alpha": 0.5, "beta": 0.1}


def evaluation(step: int, objective: float | None, **other: Any) -> dict[str, Any]:
    """A line of metrics.jsonl: 10 samples and 0.5 seconds a step."""
    count = {"samples": 10 * step, "oracle_g": 20 * step, "oracle_j": 10 * step, "oracle_jvp": 0, "seconds": 0.5 * step}
    return {"step": step, **count, "objective": objective, "auroc": 0.9, "gradient_norm": None} | other


def write_run(
    folder: Path,
    values: Sequence[float | Mapping[str, Any] | None] = (3.0, 2.0, 1.0),
    status: str = "finished",
    **config: Any,
) -> Path:
    """A run folder with an evaluation at steps 0, 10, 20, ...; a value is the objective, or the whole line."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    (folder / "environment.json").write_text(json.dumps({"commit": "0123456789abcdef", "python": "3.12"}))
    (folder / "status.json").write_text(json.dumps({"status": status, "message": ""}))
    rows = [v if isinstance(v, Mapping) else evaluation(10 * t, v) for t, v in enumerate(values)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_reads_a_whole_run(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    (run,) = read_runs([tmp_path])
    assert (run.name, run.status, run.tone, run.notes) == ("a", "finished", "good", [])
    assert run.config == CONFIG
    np.testing.assert_array_equal(run.columns["objective"], [3, 2, 1])
    np.testing.assert_array_equal(run.axis("oracle"), [0, 300, 600])
    assert np.isnan(run.columns["gradient_norm"]).all()


def test_finds_runs_at_any_depth_once(tmp_path: Path) -> None:
    for name in ("b/seed-10", "b/seed-2", "a"):
        write_run(tmp_path / "runs" / name)
    (tmp_path / "runs" / "b" / "config.json").write_text("{}")  # of the sweep, no run
    (tmp_path / "runs" / "b" / "loop").symlink_to(tmp_path / "runs", target_is_directory=True)
    runs = read_runs([tmp_path / "runs", tmp_path / "runs" / "a"])
    assert [run.name for run in runs] == ["a", "b/seed-2", "b/seed-10"]


def test_linked_runs_are_found(tmp_path: Path) -> None:
    write_run(tmp_path / "elsewhere" / "a")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere" / "a", target_is_directory=True)
    assert len(read_runs([tmp_path / "runs"])) == 1


def test_no_run_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no run in .*config\.json"):
        read_runs([tmp_path])
    with pytest.raises(ValueError, match="no run in an empty list"):
        read_runs([])
    with pytest.raises(ValueError, match=r"runs must be folders, got .*absent"):
        read_runs([tmp_path / "absent"])


@pytest.mark.parametrize("name", ["config.json", "environment.json", "metrics.jsonl", "status.json"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "list", "binary", "folder"])
def test_a_broken_file_is_a_note(tmp_path: Path, name: str, damage: str) -> None:
    path = write_run(tmp_path / "a") / name
    text = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "missing":
        path.write_bytes({"empty": b"", "cut": text[:7], "list": b"[1, 2]\n", "binary": b"\xff\x00\xfe"}[damage])
    (run,) = read_runs([tmp_path])
    assert run.notes
    assert all(name in note for note in run.notes)
    assert group_runs([run]) == [] if name == "metrics.jsonl" else len(group_runs([run])) == 1


def test_a_cut_last_line_is_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a") / "metrics.jsonl"
    path.write_text(path.read_text()[:-30])
    (run,) = read_runs([tmp_path])
    assert run.length == 2
    assert run.notes == ["the last line of metrics.jsonl (3) is cut off and left out"]


def test_damaged_lines_are_counted(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a") / "metrics.jsonl"
    path.write_text('nonsense\n{"objective": 1}\n{"step": "x"}\n{"step": true}\n[]\n7\n' + path.read_text())
    (run,) = read_runs([tmp_path])
    assert run.length == 3
    assert run.notes == ["6 damaged lines of metrics.jsonl left out (1, 2, 3, 4, 5, ...)"]


def test_values_that_are_no_numbers(tmp_path: Path) -> None:
    rows = [evaluation(0, 1.0), evaluation(10, math.nan), evaluation(20, math.inf), evaluation(30, None)]
    write_run(tmp_path / "a", [*rows, evaluation(40, 10**400), evaluation(50, 1.0) | {"objective": "1", "auroc": True}])
    (run,) = read_runs([tmp_path])
    np.testing.assert_array_equal(run.columns["objective"], [1, *[np.inf] * 5])
    assert np.isnan(run.columns["gradient_norm"]).all()  # null where it was not asked for
    assert run.notes == ["objective is not finite at step 10", "auroc is not finite at step 50"]


def test_the_later_of_two_evaluations_counts(tmp_path: Path) -> None:
    rows = [evaluation(0, 9.0), evaluation(20, 8.0), evaluation(10, 7.0), evaluation(20, 6.0)]
    write_run(tmp_path / "a", rows)
    (run,) = read_runs([tmp_path])
    np.testing.assert_array_equal(run.columns["step"], [0, 10, 20])
    np.testing.assert_array_equal(run.columns["objective"], [9, 7, 6])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_a_note(tmp_path: Path) -> None:
    (write_run(tmp_path / "a") / "status.json").chmod(0)
    (run,) = read_runs([tmp_path])
    assert run.notes == ["status.json cannot be read: Permission denied"]


@pytest.mark.parametrize(
    ("status", "tone"),
    [("finished", "good"), ("Diverged", "bad"), ("failed: disk", "bad"), ("running", "open"), ("", "open")],
)
def test_tone(tmp_path: Path, status: str, tone: str) -> None:
    write_run(tmp_path / "a", status=status)
    assert read_runs([tmp_path])[0].tone == tone


def labels(tmp_path: Path, by: Sequence[str] = ()) -> list[tuple[str, str, int]]:
    return [(group.problem, group.label, len(group.runs)) for group in group_runs(read_runs([tmp_path]), by)]


def test_runs_that_differ_in_their_seed_are_a_group(tmp_path: Path) -> None:
    for method in ("sox", "msvr-v2"):
        for seed in range(3):
            write_run(tmp_path / f"{method}-{seed}", method=method, seed=seed, out=f"runs/{method}-{seed}")
    assert labels(tmp_path) == [("digits · mlp", "msvr-v2", 3), ("digits · mlp", "sox", 3)]


def test_other_differences_name_the_group(tmp_path: Path) -> None:
    write_run(tmp_path / "a", method="sox")
    for lr in (0.1, 0.01):
        write_run(tmp_path / f"b{lr}", method="msvr-v2", lr=lr, optimizer={"name": "adam"})
    assert [label for _, label, _ in labels(tmp_path)] == ["msvr-v2 lr=0.01", "msvr-v2 lr=0.1", "sox"]


def test_each_problem_is_its_own_comparison(tmp_path: Path) -> None:
    for dataset in ("svhn", "cifar10"):
        for method in ("sox", "msvr-v1"):
            write_run(tmp_path / f"{dataset}-{method}", dataset=dataset, method=method)
    (write_run(tmp_path / "lost") / "config.json").unlink()
    assert labels(tmp_path) == [
        *(("cifar10", "msvr-v1", 1), ("cifar10", "sox", 1), ("svhn", "msvr-v1", 1), ("svhn", "sox", 1)),
        ("problem unknown", "lost", 1),
    ]


def test_groups_by_chosen_names(tmp_path: Path) -> None:
    for lr in (0.1, 0.2):
        for seed in range(2):
            write_run(tmp_path / f"{lr}-{seed}", lr=lr, alpha=seed, seed=seed)
    assert [label for _, label, _ in labels(tmp_path, ["lr"])] == ["lr=0.1", "lr=0.2"]
    assert [label for _, label, _ in labels(tmp_path, ["method"])] == ["sox"]
    with pytest.raises(ValueError, match="by contains 'rl', which no configuration has"):
        labels(tmp_path, ["rl"])
