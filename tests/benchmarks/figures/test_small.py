"""The small studies: within a panel every method gets the same tuning and draws the same samples."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from benchmarks.figures.claims import all_claims
from benchmarks.figures.plan import whole_plan
from benchmarks.figures.runs import Run
from benchmarks.figures.sets import SETS, Set, _whiten
from benchmarks.figures.shares import shares
from benchmarks.figures.small import FREE, FREE_FAMILIES, PAYS, random_points, small_studies
from fcco.lab.config import TrainConfig

STUDIES = list(small_studies())
PANELS = [list(some) for _, some in groupby(STUDIES, key=lambda study: (study.figure, study.panel))]


def charged(run: Run) -> int:
    """Samples of a run, n per full pass."""
    assert run.config.blocks is not None
    passes = 0
    if run.config.period is not None:
        passes = math.ceil(run.steps / run.config.period)
    return run.steps * run.config.blocks * run.config.samples + passes * SETS[run.config.dataset].train


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel[0].panel)
def test_a_panel_tunes_every_method_alike(panel) -> None:
    first = panel[0]
    for study in panel:
        assert (study.seeds, study.rungs, len(study.grid)) == (first.seeds, first.rungs, len(first.grid))
        assert study.rungs[0].points == len(set(study.grid))
        assert charged(study.base) == pytest.approx(charged(first.base), rel=0.02)
        assert study.base.warm_up == first.base.warm_up


def test_rates_are_searched_over_as_many_values_in_every_family() -> None:
    assert {len(space["lr"]) for _, space in FREE_FAMILIES.values()} == {5}


def test_random_points_are_distinct_and_the_same_each_time() -> None:
    space = {"lr": (0.1, 0.2), "alpha": (0.1, 0.5, 1.0)}
    points = random_points(space, 6, "a")
    assert len(set(points)) == 6
    assert points == random_points(space, 6, "a")
    assert points != random_points(space, 6, "b")


def test_every_small_study_is_compared_with_sox() -> None:
    compared = {claim.first for claim in all_claims(whole_plan())}
    for study in STUDIES:
        assert study.figure in (PAYS, FREE)
        assert study.label == "sox" or study.name in compared


def test_components_are_white_and_of_the_first_examples(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3, 4)) @ np.diag([4.0, 3.0, 2.0, 1.0])
    arrays = {"x_train": x, "y_train": np.arange(40), "x_test": x[:5], "y_test": np.arange(5)}
    np.savez(tmp_path / "whole.npz", **arrays)
    _whiten(tmp_path / "whole.npz", tmp_path / "part.npz", Set(2, 30, 0, made_of="whole", components=5))
    with np.load(tmp_path / "part.npz") as made:
        assert made["x_train"].shape == (30, 5)
        assert np.array_equal(made["y_train"], np.arange(30))
        assert np.allclose(np.cov(made["x_train"].T), np.eye(5), atol=1e-5)
        assert np.allclose(made["x_train"][:5], made["x_test"], atol=1e-5)


@pytest.mark.usefixtures("one_thread")
def test_shares_of_the_correction_are_told_along_a_run() -> None:
    config = TrainConfig(
        dataset="digits", model="mlp", hidden=(8,), method="msvr-v1", lr=0.01, alpha=0.5, beta=0.5, blocks=5,
        samples=16, steps=300, tensorboard=False,
    )  # fmt: skip
    found = shares(Run(config))
    assert len(found) == 5
    assert all(text == "-" or float(text) >= 0 for text in found)
    assert found[-1] != "-"
    assert shares(Run(replace(config, method="sox"))) == ["-"] * 5
    assert shares(Run(replace(config, lr=1e30)))[-1] == "diverged"
