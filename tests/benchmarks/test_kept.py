"""benchmarks/kept.py: a run is made once, and halving finds what is best on all seeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.kept import Job, Kept, Row, adam

NAMES = ("lr", "seed")
CHOICES = [(float(lr),) for lr in range(1, 7)]


def flattered(lr: float, seed: int) -> Row:
    """Best at lr 3; but seed 0 flatters lr 5."""
    return {"lr": lr, "seed": seed, "value": -abs(lr - 3.0) + (3.0 if (lr, seed) == (5.0, 0) else 0.0)}


def job(choice: tuple[float, ...], seed: int) -> Job:
    return (*choice, seed)


def mean(rows: list[Row]) -> float:
    return sum(row["value"] for row in rows) / len(rows)


def lines(rows: list[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_halving_needs_no_run_that_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(before := lines([flattered(*choice, seed) for choice in CHOICES for seed in (0, 1)]))
    with Kept(path, NAMES, pytest.fail, 1) as kept:
        assert kept.halved(CHOICES, (0, 1), [(1, 6)], job, mean)[0] == (1.0, (5.0,))
        found = kept.halved(CHOICES, (0, 1), [(1, 6), (2, 3)], job, mean)
    assert found == [(0.0, (3.0,)), (-0.5, (5.0,)), (-1.0, (4.0,))]
    assert path.read_text() == before


def test_missing_runs_are_made_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(lines([flattered(1.0, 0) | {"value": 7.0}]))
    with Kept(path, NAMES, flattered, 1) as kept:
        rows = kept.gather([(1.0, 0), (3.0, 0), (5.0, 0)])
        assert kept.gather([(5.0, 0)]) == rows[2:]
    assert [row["value"] for row in rows] == [7.0, 0.0, 1.0]
    assert sorted(path.read_text().splitlines()) == sorted(lines(rows).splitlines())


def test_a_line_left_unfinished_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    whole = lines([flattered(1.0, 0), flattered(3.0, 0)])
    path.write_text(whole[:-9])
    with Kept(path, NAMES, flattered, 1) as kept:
        kept.gather([(1.0, 0), (3.0, 0)])
    assert path.read_text() == whole


def test_adam_with_l2_is_that_of_torch() -> None:
    torch.manual_seed(0)
    x, found = torch.randn(20, 4), []
    for make in (lambda p: adam(p, 0.01, 0.0, 0.1), lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1)):
        torch.manual_seed(1)
        net = torch.nn.Linear(4, 1)
        optimizer = make(net.parameters())
        for _ in range(5):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
        found.append(net.weight.detach())
    torch.testing.assert_close(*found)
