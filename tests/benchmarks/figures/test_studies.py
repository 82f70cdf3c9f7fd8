"""Halving: rungs wait for each other, diverged runs lose, what is there is never asked for again."""

from __future__ import annotations

import math
from dataclasses import replace

from benchmarks.figures.plan import points_of
from benchmarks.figures.runs import Row, Run
from benchmarks.figures.studies import (
    TUNING_SEED,
    Progress,
    Rung,
    Study,
    at,
    promoted,
    reported_runs,
    tuning_run,
)
from fcco.lab.config import TrainConfig

GRID = points_of({"lr": (0.01, 0.1, 1.0), "alpha": (0.1, 0.5)})
BASE = Run(TrainConfig(method="sox", steps=80))
STUDY = Study("f/p/sox", BASE, (0, 1), GRID, (Rung(0.25, 6), Rung(1.0, 3)))
HEIR = Study("f/p/heir", replace(BASE, points=5), (0, 1), (), (Rung(1.0, 2),), "f/p/sox")
FOLLOWER = Study("f/p/follower", replace(BASE, points=7), (0,), from_study="f/p/sox")


def value_of(run: Run) -> float:
    """Best at lr 0.1, alpha 0.5; lr 1 diverges."""
    if run.config.lr == 1.0:
        return math.inf
    return abs(math.log10(run.config.lr) + 1) + (1 - run.config.alpha)


def row_of(run: Run) -> Row:
    value = value_of(run)
    status = "finished" if math.isfinite(value) else "diverged"
    return {"key": run.key, "status": status, "f": value if status == "finished" else None}


def work_off(studies: list[Study], rows: dict[str, Row]) -> list[Run]:
    """Make every run that is asked for."""
    progress = Progress(studies, rows)
    made = []
    while True:
        runs = [run for study in studies for run in progress.open_runs(study)]
        if not runs:
            return made
        for run in runs:
            assert run.key not in rows
            rows[run.key] = row_of(run)
            made.append(run)


def test_halving_ends_at_the_best_point_and_then_runs_the_seeds() -> None:
    rows: dict[str, Row] = {}
    made = work_off([STUDY], rows)
    assert [run.steps for run in made] == [20] * 6 + [80] * 3 + [80] * 2
    assert [run.config.seed for run in made] == [TUNING_SEED] * 9 + [0, 1]
    progress = Progress([STUDY], rows)
    assert dict(progress.best(STUDY)) == {"lr": 0.1, "alpha": 0.5}
    assert len(progress.reported(STUDY)) == 2
    assert progress.counts(STUDY) == (11, 11)
    assert progress.tuned_value(STUDY) == 0.5


def test_a_rung_waits_for_all_of_the_one_before() -> None:
    rows: dict[str, Row] = {}
    progress = Progress([STUDY], rows)
    first = progress.open_runs(STUDY)
    for run in first[:-1]:
        rows[run.key] = row_of(run)
    assert progress.open_runs(STUDY) == first[-1:]
    assert progress.best(STUDY) is None
    assert progress.counts(STUDY) == (5, 11)


def test_a_resumed_study_goes_on_where_it_was() -> None:
    whole: dict[str, Row] = {}
    made = work_off([STUDY], whole)
    for stop in range(len(made)):
        rows = {run.key: row_of(run) for run in made[:stop]}
        rest = work_off([STUDY], rows)
        assert sorted(run.key for run in rest) == sorted(run.key for run in made[stop:])


def test_studies_that_build_on_another_wait_for_it() -> None:
    rows: dict[str, Row] = {}
    studies = [STUDY, HEIR, FOLLOWER]
    progress = Progress(studies, rows)
    assert progress.open_runs(HEIR) == []
    assert progress.open_runs(FOLLOWER) == []
    made = work_off(studies, rows)
    of_heir = [run for run in made if run.points == 5]  # reported
    assert [run.config.alpha for run in of_heir] == [0.5, 0.5]
    assert [run.config.lr for run in made if run.points == 7] == [0.1]
    assert progress.counts(HEIR) == (4, 4)


def test_the_best_of_each_learning_rate_comes_along() -> None:
    grid = points_of({"lr": (0.01, 0.1, 1.0), "alpha": (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)})
    values = {point: float(number) for number, point in enumerate(grid)}  # lr 0.01 is best, 1.0 worst
    assert promoted(values, 6, spread=False) == list(grid[:6])
    assert promoted(values, 6, spread=True) == [*grid[:4], grid[6], grid[12]]
    assert promoted(values, 5, spread=True) == list(grid[:5])  # too few places
    values.update(dict.fromkeys(grid[12:], math.inf))  # what diverged is not kept for its rate's sake
    assert promoted(values, 6, spread=True) == [*grid[:5], grid[6]]


def test_at_alpha_1_v1_and_v2_share_their_tuning_runs_but_not_the_reported_ones() -> None:
    one = replace(STUDY, base=Run(TrainConfig(method="msvr-v1", steps=80)))
    two = replace(STUDY, base=Run(TrainConfig(method="msvr-v2", steps=80)))
    point = (("lr", 0.1), ("alpha", 1.0), ("beta", 0.5))
    other = (("lr", 0.1), ("alpha", 0.5), ("beta", 0.5))
    assert tuning_run(one, point, 1.0).key == tuning_run(two, point, 1.0).key
    assert tuning_run(one, other, 1.0).key != tuning_run(two, other, 1.0).key
    assert reported_runs(two, point)[0].config.method == "msvr-v2"


def test_a_point_may_set_what_is_the_runs_own() -> None:
    run = at(BASE, (("lr", 0.3), ("warm_up", 7)))
    assert (run.config.lr, run.warm_up) == (0.3, 7)
