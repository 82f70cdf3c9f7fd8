"""The small twins of the paper's figures: equal samples, equal tuning, and every claim is there."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.figures import costs
from benchmarks.figures.__main__ import left_to_pay
from benchmarks.figures.claims import all_claims, claims_table, edges_list
from benchmarks.figures.draw import draw_all, layouts
from benchmarks.figures.plan import only, whole_plan
from benchmarks.figures.rates import by_rate, line
from benchmarks.figures.runs import Run
from benchmarks.figures.sets import SETS
from benchmarks.figures.shared import METHODS, V3_BY_N
from benchmarks.figures.studies import TUNING_SEED, Progress, Rung, Study, reported_runs, tuning_run
from benchmarks.figures.twins import (
    BLOCKS,
    DATASETS,
    FIGURE1,
    FIGURES,
    GRID,
    HUNDRED_TASKS,
    MIDDLE,
    SAMPLES,
    SEEDS,
    SIZED_STEPS,
    grid_of,
    sized,
    twin_run,
    twin_studies,
)

PLAN = whole_plan()
STUDIES = {study.name: study for study in twin_studies()}


def charged(run: Run, full_pass: int) -> int:
    """Samples of a run."""
    assert run.config.blocks is not None
    passes = 0
    if run.config.period is not None:
        passes = math.ceil(run.steps / run.config.period)
    return run.steps * run.config.blocks * run.config.samples + passes * full_pass


@pytest.mark.parametrize("dataset", DATASETS)
def test_every_method_draws_the_same_number_of_samples(dataset: str) -> None:
    facts = SETS[f"{dataset}-2k-pca64"]
    labels = facts.classes * facts.train
    for method in METHODS:
        assert charged(twin_run(dataset, method), labels) == 6 * labels
    by_n = twin_run(dataset, "msvr-v3", by_n=True)
    assert charged(by_n, facts.train) == pytest.approx(6 * labels, rel=0.02)
    assert charged(by_n, facts.train) <= 6 * labels
    assert by_n.steps > twin_run(dataset, "msvr-v3").steps


def test_half_of_the_tasks_are_drawn_as_in_the_paper() -> None:
    for dataset in DATASETS:
        run = twin_run(dataset, "sox")
        assert 2 * run.config.blocks == SETS[run.config.dataset].classes


def test_every_method_is_tuned_alike_at_a_seed_that_is_not_reported() -> None:
    panels: dict[str, list[Study]] = {}
    for study in STUDIES.values():
        assert study.seeds == SEEDS
        assert TUNING_SEED not in study.seeds
        if study.label in METHODS:
            panels.setdefault(f"{study.figure}/{study.panel}", []).append(study)
    assert len(panels) == len(DATASETS) + 2
    for studies in panels.values():
        first = studies[0]
        assert [study.label for study in studies] == list(METHODS)
        for study in studies:
            assert (study.rungs, len(set(study.grid))) == (first.rungs, len(first.grid))
            assert study.grid or study.from_study.endswith(f"/{study.label}")


def test_variants_are_tuned_as_their_originals() -> None:
    variants = [study for study in STUDIES.values() if study.label.startswith("variant")]
    assert len(variants) == 6
    for study in variants:
        original = STUDIES[f"{FIGURE1}/{study.panel}/{study.label.replace('variant', 'msvr')}"]
        assert (study.grid, study.rungs) == (original.grid, original.rungs)
        assert len(study.grid) == study.rungs[0].points == 36


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_correction_is_on_and_v2_is_not_v1(dataset: str) -> None:
    grid = grid_of(dataset)
    assert max(grid["beta"]) < 1
    assert max(grid["alpha"]) < 1
    assert len(HUNDRED_TASKS["lr"]) == len(GRID["lr"])


def test_sizes_differ_in_one_thing_and_have_the_rates_and_steps_of_the_middle() -> None:
    for method in METHODS:
        blocks, samples = sized(method)
        middle = blocks[f"B1 = {MIDDLE[0]}"]
        assert samples[f"B2 = {MIDDLE[1]}"] == middle
        for size in BLOCKS:
            check_size(blocks[f"B1 = {size}"], middle, (size, MIDDLE[1]))
        for size in SAMPLES:
            check_size(samples[f"B2 = {size}"], middle, (MIDDLE[0], size))


def check_size(name: str, middle: str, sizes: tuple[int, int]) -> None:
    study = STUDIES[name]
    config = study.base.config
    assert (config.blocks, config.samples) == sizes
    assert study.base.steps == SIZED_STEPS
    assert name == middle or study.from_study == middle
    if config.method == "msvr-v3":
        assert config.period == round(20_000 / (sizes[0] * sizes[1]))


def test_no_row_of_another_figure_is_taken() -> None:
    own = {run.key for study in STUDIES.values() for run in some_runs(study)}
    others = {run.key for study in PLAN if study.name not in STUDIES for run in some_runs(study)}
    assert not own & others


def some_runs(study: Study) -> list[Run]:
    point = ()
    if study.grid:
        point = study.grid[0]
    return [*reported_runs(study, point), *(tuning_run(study, point, rung.share) for rung in study.rungs)]


def test_the_plan_fits_into_an_hour_and_a_half_of_one_core() -> None:
    progress = Progress(PLAN, {})
    total = sum(left_to_pay(study, progress)[0] for study in STUDIES.values())
    assert 1_000 < total < 90 * 60
    assert all(costs.on_cpu(study.base) for study in STUDIES.values())
    assert not costs.on_cpu(next(study.base for study in PLAN if study.name == "figure1/cifar10/sox"))


def test_one_prefix_stands_for_all_of_them_in_the_order_of_the_plan() -> None:
    assert [study.name for study in only(PLAN, ["small-"])] == list(STUDIES)


def test_every_twin_is_in_a_claim_and_in_a_figure() -> None:
    claims = all_claims(PLAN)
    named = {name for claim in claims for name in (claim.first, claim.second)}
    own = [layout for layout in layouts(PLAN) if layout.name in FIGURES]
    drawn = {curve.study for layout in own for _, curves in layout.panels for curve in curves}
    assert set(STUDIES) <= named
    sox = {name for sizes in sized("sox") for name in sizes.values()}  # the paper's Figures 4 and 5 have MSVR alone
    assert set(STUDIES) - drawn == sox
    texts = {(claim.text, claim.where, claim.x) for claim in claims}
    assert ("v1 is better than SOX", "cifar100, small", "samples") in texts
    assert ("MSVR-v2 is better than Variant-v2", "cifar10, small", "samples") in texts
    assert ("B1 = 9 is better than B1 = 2 per iteration", "msvr-v3 on fashion-mnist, small", "step") in texts
    assert ("(ours) B2 = 128 is better than B2 = 32 per sample", "msvr-v1 on fashion-mnist, small", "samples") in texts
    assert ("v2 is faster than SOX", "MLP 512 on svhn, small", "samples") in texts
    assert ("v3 is faster than SOX (n per pass)", "stl10, small", "samples") in texts
    assert f"{FIGURE1}/stl10/{V3_BY_N}" in STUDIES


def ended(study: Study, status: str) -> dict[str, dict]:
    """Rows of a study whose point is known without tuning."""
    curve = {
        "step": [0, 10],
        "samples": [0, 100],
        "charged_n": [0, 100],
        "oracle": [0, 200],
        "f": [1.0, 0.5],
        "seconds": [0, 1],
    }
    rows = {}
    for run in reported_runs(study, study.grid[0]):
        config = {"seed": run.config.seed}
        rows[run.key] = {
            "key": run.key,
            "status": status,
            "f": 0.5,
            "curve": curve,
            "run": {"config": config},
            "workers": 1,
        }
    return rows


def test_a_side_of_which_every_seed_diverged_loses_and_is_no_gap_in_the_runs(tmp_path: Path) -> None:
    blocks, _ = sized("msvr-v1")
    grid = ((("lr", 0.4), ("alpha", 0.1), ("beta", 0.1)),)
    small, middle = (
        replace(STUDIES[blocks[label]], grid=grid, rungs=(), from_study=None) for label in ("B1 = 2", "B1 = 5")
    )
    studies = [small, middle]
    rows = {**ended(small, "diverged"), **ended(middle, "finished")}
    table = claims_table(studies, Progress(studies, rows))
    claim = "| B1 = 5 is better than B1 = 2 per iteration | msvr-v1 on fashion-mnist, small |"
    assert f"{claim} holds | the second diverged, 5 of 5 seeds | 0 |" in table
    rows = {**ended(small, "finished"), **ended(middle, "diverged")}
    table = claims_table(studies, Progress(studies, rows))
    assert f"{claim} does not hold | the first diverged, 5 of 5 seeds | 0 |" in table
    both = {**ended(small, "diverged"), **ended(middle, "diverged")}
    assert f"{claim} not decidable | both diverged | 0 |" in claims_table(studies, Progress(studies, both))
    drawn = [path.name for path in draw_all(studies, studies, rows, tmp_path)]
    assert f"{middle.figure}-step.png" in drawn


def test_a_choice_at_an_edge_of_the_learning_rates_is_told() -> None:
    study = STUDIES[f"{FIGURE1}/mnist/sox"]
    low, middle, high = ((("lr", lr), ("alpha", 0.1), ("beta", 0.1)) for lr in (0.063, 0.1, 0.63))
    told = {}
    for name, best in (("low", low), ("middle", middle), ("high", high)):
        one = Study("f/p/sox", study.base, (0,), (low, middle, high), (Rung(1.0, 3),))
        rows = {}
        for point in one.grid:
            run = tuning_run(one, point, 1.0)
            rows[run.key] = {"key": run.key, "status": "finished", "f": float(point != best)}
        told[name] = edges_list([one], Progress([one], rows))
    assert told["low"] == "- f/p/sox: lr 0.063, the smallest of 3"
    assert told["middle"] == "None."
    assert told["high"] == "- f/p/sox: lr 0.63, the largest of 3"


def test_the_first_round_is_told_rate_by_rate() -> None:
    points = tuple((("lr", lr), ("alpha", alpha)) for lr in (0.4, 0.1) for alpha in (0.1, 0.9))
    base = replace(STUDIES[f"{FIGURE1}/mnist/sox"].base, points=3)
    one = Study("f/p/sox", base, (0,), points, (Rung(1 / 6, 4), Rung(1.0, 1)))
    assert Progress([one], {}).first_round(one) is None
    rows = {}
    for place, point in enumerate(points):
        run = tuning_run(one, point, 1 / 6)
        status = "finished"
        if place == 0:
            status = "diverged"
        rows[run.key] = {"key": run.key, "status": status, "f": float(place)}
    found = Progress([one], rows).first_round(one)
    assert found is not None
    assert by_rate(found) == {0.1: [2.0, 3.0], 0.4: [math.inf, 1.0]}
    text = "f/p/sox, 125 steps; lr 0.1: 2.0000, 0 of 2 diverged; lr 0.4: 1.0000, 1 of 2 diverged"
    assert line(one, found) == text
    assert line(one, dict.fromkeys(points[:1], math.inf)) == "f/p/sox, 125 steps; lr 0.4: all diverged"
