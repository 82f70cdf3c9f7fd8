"""Rows on disk: half-written lines are passed over, failed runs are tried again, but not for ever."""

from __future__ import annotations

import lzma
from pathlib import Path

from benchmarks.figures.store import Journal, read, settled


def test_rows_of_several_files_are_one_folder(tmp_path: Path) -> None:
    for number in (1, 2):
        journal = Journal(tmp_path / f"runs-{number}.jsonl")
        journal.append({"key": str(number), "status": "finished"})
        journal.close()
    with open(tmp_path / "runs-2.jsonl", "a") as file:
        file.write('{"key": "3", "sta')  # killed while writing
    assert [row["key"] for row in read(tmp_path)] == ["1", "2"]


def test_rows_that_are_kept_for_good_are_compressed(tmp_path: Path) -> None:
    with lzma.open(tmp_path / "runs-1.jsonl.xz", "wt", encoding="utf-8") as file:
        file.write('{"key": "1", "status": "finished"}\n')
    (tmp_path / "runs-2.jsonl").write_text('{"key": "2", "status": "finished"}\n')
    assert [row["key"] for row in read(tmp_path)] == ["1", "2"]


def test_a_row_is_on_disk_at_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "runs.jsonl")
    journal.append({"key": "1", "status": "finished"})
    assert len(read(tmp_path)) == 1
    journal.close()


def test_failed_runs_are_tried_twice() -> None:
    failed = {"key": "a", "status": "failed"}
    done = {"key": "a", "status": "finished"}
    assert settled([failed]) == {}
    assert settled([failed, failed]) == {"a": failed}
    assert settled([failed, done]) == {"a": done}
    assert settled([failed, failed, done]) == {"a": done}
    assert settled([{"key": "b", "status": "diverged"}]) == {"b": {"key": "b", "status": "diverged"}}
